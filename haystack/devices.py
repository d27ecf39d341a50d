"""The device that a user names, tried before anything is computed on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from haystack.errors import InputError

if TYPE_CHECKING:
    import torch


def usable_device(device: str | torch.device) -> torch.device:
    """The device, tried with a real operation.

    Args:
        device: PyTorch's name of it (``cpu``, ``cuda``, ``cuda:1``, ``mps``).

    Raises:
        InputError: there is no such device here; the CPU never takes its place unasked.
    """
    import torch  # not at the top: whatever imports this module starts without PyTorch

    try:
        found = torch.device(device)
        torch.zeros(1, device=found).add_(1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"the device {str(device)!r} cannot be used ({str(error).partition('. ')[0]}); choose "
            "another one, for example device=cpu"
        ) from error
    return found
