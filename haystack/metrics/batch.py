"""What the ways from lists of dicts, one an image, to flat tensors have in common."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.functional.tensors import on_host

Record = Mapping[str, Any]


def record_name(number: int, *batches: Sequence[Record | None]) -> str:
    """How errors call an image: by ``image_id`` where a dict has one, else by position."""
    for records in batches:
        record = records[number]
        if record is not None and "image_id" in record:
            return f"image {record['image_id']}"
    return f"image {number} of the batch"


@contextmanager
def naming(names: Sequence[str]) -> Iterator[None]:
    """Errors of functions that know images by their position speak of ``names`` instead."""
    try:
        yield
    except InputError as error:
        position = re.fullmatch(r"image (\d+) of the batch", str(error.record))
        if position is None:
            raise
        record = names[int(position[1])]
        raise InputError(error.message, path=error.path, record=record) from error


def fields(records: Sequence[Record], key: str) -> list[Tensor]:
    """The tensors under ``key``, one an image.

    Raises:
        InputError: a record lacks the key, or has no numbers there.
    """
    try:
        parts = [record[key] for record in records]
    except KeyError:
        number = next(i for i, record in enumerate(records) if key not in record)
        raise InputError(
            f"expected the key {key!r}, got {sorted(records[number])}",
            record=record_name(number, records),
        ) from None
    # isinstance asks the metaclass of Tensor, which takes longer than all the rest of a field.
    if {*map(type, parts)} == {Tensor}:
        return parts
    return [as_tensor(part, key, record_name(i, records)) for i, part in enumerate(parts)]


def class_fields(records: Sequence[Record]) -> list[Tensor]:
    """The classes of objects under ``labels``, integers [N].

    Raises:
        InputError: a record lacks them, or they are of another shape or kind.
    """
    parts = fields(records, "labels")
    for number, part in enumerate(parts):
        if part.ndim != 1 or (part.dtype.is_floating_point and len(part)):
            raise shape_error("integer labels [N]", part, number, records)
    return parts


def keys_of(records: Sequence[Record | None]) -> set[str]:
    """The keys that some record has."""
    return set().union(*{tuple(record) for record in records if record is not None})


def as_tensor(value: Any, key: str, record: str) -> Tensor:
    """A tensor, over the same memory where possible.

    Args:
        value: what a record has under a key.
        key: for the message.
        record: as ``record_name`` calls it, for the message.

    Raises:
        InputError: it holds no numbers.
    """
    if type(value) is Tensor:
        return value
    found = type(value).__name__
    if isinstance(value, np.ndarray):
        found = f"an array of {value.dtype}"
        if min(value.strides, default=0) < 0 or not value.dtype.isnative:
            # Mirrored, or of the other byte order: PyTorch takes no such memory.
            value = value.astype(value.dtype.newbyteorder("="), order="C")
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"expected a tensor or an array of numbers under {key!r}, got {found}", record=record
        ) from None


def as_map(value: Any, record: str) -> Tensor:
    """An ``id_map`` as ``as_tensor`` gives it.

    Raises:
        InputError: it holds no numbers, or is no picture [H, W] of them.
    """
    found = as_tensor(value, "id_map", record)
    if found.ndim != 2:
        raise InputError(
            f"expected an id_map int [H, W], got {list(found.shape)} of {found.dtype}",
            record=record,
        )
    return found


def shape_error(expected: str, value: Tensor, number: int, records: Sequence[Record]) -> InputError:
    """The error that ``value`` is not what was ``expected``."""
    return InputError(
        f"expected {expected}, got {list(value.shape)} of {value.dtype}",
        record=record_name(number, records),
    )


def send(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers that the host knows, sent without waiting."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def expand(
    sizes: Sequence[int], device: torch.device, values: Sequence[int] | None = None
) -> Tensor:
    """``values[i]``, by default i, as often as ``sizes[i]`` says, one after another, int64."""
    values = range(len(sizes)) if values is None else values
    if device.type == "cpu":  # several times torch.repeat_interleave's speed
        repeated = np.repeat(np.fromiter(values, np.int64), np.fromiter(sizes, np.int64))
        return torch.from_numpy(repeated)
    counts, each = (send(x, torch.int64, device) for x in (sizes, values))
    return torch.repeat_interleave(each, counts, output_size=sum(sizes))


def gather(
    parts: Sequence[Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Concatenated parts [*, shape], also when there are none."""
    if not parts:
        return torch.empty(0, *shape, dtype=dtype, device=device)
    if len({part.device for part in parts}) > 1:
        parts = [move(part, device) for part in parts]
    with torch.no_grad():
        return move(torch.cat(list(parts)), device, dtype)


def view_or_gather(
    parts: Sequence[Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """As ``gather``, but nothing is copied where parts follow each other in memory."""
    values = adjoining(parts)
    if values is None:
        return gather(parts, shape, dtype, device)
    return move(values.detach(), device, dtype)


def move(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor on ``device``; waits only where values go to the CPU, which reads them at once."""
    return tensor.to(device, dtype or tensor.dtype, non_blocking=device.type != "cpu")


def adjoining(parts: Sequence[Tensor]) -> Tensor | None:
    """The concatenation as a view, where parts follow each other in memory; None otherwise.

    So lie the images of a batch that were split off one tensor, which is what models return, or
    off one array, which is what files are read into.
    """
    sizes = lengths(parts)
    if 0 in sizes:
        parts = [part for part, size in zip(parts, sizes, strict=True) if size]
        sizes = lengths(parts)
    if not parts or not parts[0].is_contiguous():
        return None
    if len({(part.dtype, part.device, part.stride(), part.shape[1:]) for part in parts}) > 1:
        return None
    first = parts[0].detach()
    dtype, strides, tail, width = first.dtype, first.stride(), first.shape[1:], first.element_size()
    storage = first.untyped_storage()
    if on_host(first):
        begins = [part.data_ptr() for part in parts]
        last = storage.data_ptr() + storage.nbytes()
    elif len({part.untyped_storage()._cdata for part in parts}) > 1:
        return None
    else:
        begins = [int(part.storage_offset()) * width for part in parts]
        last = storage.nbytes()
    ends = [*accumulate((size * strides[0] * width for size in sizes), initial=begins[0])]
    if begins != ends[:-1]:
        return None
    rows = sum(sizes)
    if ends[-1] <= last:
        return first.as_strided((rows, *tail), strides)
    if dtype not in _NUMPY_NAMES:
        return None
    layout = {
        "version": 3,
        "typestr": _NUMPY_NAMES[dtype],
        "data": (first.data_ptr(), False),
        "shape": (rows, *tail),
        "strides": tuple(width * stride for stride in strides),
    }
    return torch.from_numpy(np.asarray(_Joined(parts, layout)))


_NUMPY_NAMES = {torch.float32: np.dtype("f4").str, torch.int64: np.dtype("i8").str}


class _Joined:
    """Memory of several tensors as one array, which keeps this object, and so the tensors."""

    def __init__(self, parts: Sequence[Tensor], layout: dict[str, Any]) -> None:
        self.parts = tuple(parts)
        self.__array_interface__ = layout


class Buffer:
    """Memory of the CPU that batch after batch is gathered into.

    A new tensor of some megabytes is mapped page by page, which takes longer than filling it. The
    allocators of accelerators keep their memory anyway.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def __reduce__(self) -> tuple[type[Buffer], tuple[()]]:
        return Buffer, ()  # a copy has memory of its own, and none is written to files

    def take(self, *shape: int) -> Tensor:
        """A float32 tensor of some values; the next call takes its memory away."""
        size = math.prod(shape)
        if self._memory.numel() < size:
            self._memory = torch.empty(size)
        return self._memory[:size].view(shape)


def lengths(parts: Sequence[Tensor]) -> tuple[int, ...]:
    """The first dimension of each part; several times faster than ``len``."""
    return tuple([part.shape[0] for part in parts])
