"""Lower precision by name, for models that only predict."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from haystack.errors import InputError

_PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_precision(precision: str) -> None:
    """Raise ``InputError`` unless it is ``float32``, ``bfloat16`` or ``float16``."""
    if precision not in _PRECISIONS:
        raise InputError(f"precision expects one of {', '.join(_PRECISIONS)}, got {precision!r}")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context in which a model runs at this precision on this device."""
    dtype = _PRECISIONS[precision]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
