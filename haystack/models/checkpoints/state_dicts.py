"""Reading state dicts from files that nobody vouches for, and comparing them with a model's."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from haystack.errors import InputError

_CONTAINERS = ("state_dict", "model")
_WRAPPER = "module."


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, on the CPU.

    Understood are safetensors, and PyTorch files that hold a state dict, bare or under
    ``state_dict`` (mmcv, mmdet, Lightning) or ``model``; the ``module.`` that a parallel wrapper
    puts before every name is taken off. Text beside it, such as mmcv's configuration, is read past.

    Raises:
        InputError: missing or broken file, an object in it that is no plain data (which is never
            built), or no state dict in it.
    """
    content = _load(Path(path))
    for key in _CONTAINERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise InputError(
            f"expected a state dict, bare or under {' or '.join(_CONTAINERS)}, got "
            f"{'an empty one' if content == {} else type(content).__name__}",
            path=path,
        )
    others = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if others:
        raise InputError(
            f"expected a state dict, got entries that are no tensors: {', '.join(others[:5])}",
            path=path,
        )
    wrapped = all(name.startswith(_WRAPPER) for name in content)
    return {name[len(_WRAPPER) if wrapped else 0 :]: tensor for name, tensor in content.items()}


def differences(expected: Mapping[str, Sequence[int]], came: Mapping[str, Tensor]) -> list[str]:
    """What distinguishes a state dict from the expected names and shapes, a phrase a tensor."""
    complaints = [f"missing {name}" for name in expected if name not in came]
    complaints += [f"unexpected {name}" for name in came if name not in expected]
    complaints += [
        f"{name} of shape {list(came[name].shape)} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in came and list(came[name].shape) != list(shape)
    ]
    return complaints


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _load(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with path.open("rb"):
            pass  # PyTorch's own words about a missing file differ between its formats
        # Mapped, so that an optimizer's state beside the weights costs no memory.
        mapped = zipfile.is_zipfile(path)
        with warnings.catch_warnings():  # PyTorch's own, of formats that it guesses at
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except MemoryError:
        raise
    except Exception as error:  # a pickle's reader stumbles over foreign bytes in any way
        raise InputError(f"cannot read the checkpoint: {_reason(error)}", path=path) from error


def _reason(error: Exception) -> str:
    """Why a file is not read, without PyTorch's advice to execute what is in it."""
    said = str(error)
    if isinstance(error, OSError):
        return error.strerror or said
    if isinstance(error, SafetensorError):
        return said
    foreign = re.search(r"GLOBAL ([\w.]+)", said)
    if foreign:
        return (
            f"it holds a {foreign[1]}, which is more than tensors and plain values, and is not "
            "built; save its state dict alone"
        )
    if "TorchScript" in said:
        return "it is a TorchScript archive, which holds code; save its state dict alone"
    return "expected a file of PyTorch (.pth, .pt) or .safetensors; it is broken, or neither"
