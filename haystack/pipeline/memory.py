"""Work in batches as large as memory allows: one that does not fit is halved, and said so."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

import pyarrow as pa
import torch

from haystack.errors import HaystackError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# What allocators say that raise a plain RuntimeError: MPS, the CPU's, CUDA's driver and libraries.
_SAYINGS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)

_UNFIT_IN_A_ROW = 3


class InHalves(Generic[_Item, _Result]):
    """Calls a function on batches, smaller ones once memory has run out.

    The device stays what it is: what does not fit is never moved to the CPU. A size that proved
    too large is not tried again, so that each halving costs one failed attempt in a whole run.

    Args:
        call: batch -> result; it may be called again with part of a batch whose call failed.
        what: one item of a batch in words, for messages: ``image``.
        lower: what makes one item smaller, for the error: ``embed.image_size``.
        notify: told in a sentence that batches are smaller from now on.
        unfit: what stands for a single item that does not fit, given the item and the reason;
            without it such an item is an error, as are several in a row, since then it is the
            device that has no room.
    """

    def __init__(
        self,
        call: Callable[[Sequence[_Item]], _Result],
        *,
        what: str,
        lower: str,
        notify: Callable[[str], None],
        unfit: Callable[[_Item, str], _Result] | None = None,
    ) -> None:
        self._call = call
        self._what = what
        self._lower = lower
        self._notify = notify
        self._unfit = unfit
        self._unfit_in_a_row = 0
        self.limit: int | None = None
        """Most items that a batch may have, or None while every batch has fitted."""

    def __call__(self, items: Sequence[_Item]) -> Iterator[_Result]:
        """Results of ``items``, part after part, in order; one result where all fit at once.

        Raises:
            HaystackError: a single item does not fit, and nothing may stand for it.
        """
        start = 0
        before = self.limit
        while start < len(items):
            part = items[start : start + (self.limit or len(items))]
            try:
                result = self._call(part)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error).partition("\n")[0] or "out of memory"
            else:
                self._unfit_in_a_row = 0
                yield result
                start += len(part)
                continue
            # Outside of the handler: the error held the tensors of the call that failed.
            _release()
            if len(part) > 1:
                self._halve(len(part))
                continue
            yield self._instead_of(part[0], reason)
            start += 1
            self.limit = before  # it was this item that did not fit, not the batches

    def _instead_of(self, item: _Item, reason: str) -> _Result:
        self._unfit_in_a_row += 1
        said = (
            f"a single {self._what} does not fit into the device's memory ({reason}); lower "
            f"{self._lower}, or free memory that other processes hold on the device"
        )
        if self._unfit is None or self._unfit_in_a_row == _UNFIT_IN_A_ROW:
            raise HaystackError(said)
        return self._unfit(item, said)

    def _halve(self, size: int) -> None:
        self.limit = size // 2
        self._notify(
            f"out of memory with {size} {self._what}s at once; going on with {self.limit} at once"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a call failed because a device, or the host, has no memory left."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAYINGS)


def release_heap() -> None:
    """Give what the C library and Arrow keep of freed host memory back to the system.

    Something small that stays among large tensors that come and go keeps their place from being
    used again by a slightly larger one, so that a long run's heap grows although its use does not.
    The C library's stays where it is not glibc.
    """
    pa.default_memory_pool().release_unused()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim  # type: ignore[no-any-return]
    except (OSError, AttributeError, TypeError):  # TypeError: Windows knows no library None
        return None


def _release() -> None:
    """Give cached blocks back, so that the next, smaller ones find room in one piece."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    release_heap()
