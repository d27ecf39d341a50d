"""What the images are called that kept rows refer to by number.

Names are most of what a long stream leaves behind, so only those are kept that some row refers
to, in Arrow (millions of Python strings would take more than all else), and in chunks: forgetting
goes through one chunk at a time and never holds two copies of all names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from haystack.pipeline.scoring.candidates import IMAGES, Ints

_CHUNK = 1 << 16


class ImageNames:
    """Tables of ``CandidateImage`` rows, numbered from 0 in the order in which they came.

    An image may have several numbers; ``sort`` leaves it one.
    """

    def __init__(self) -> None:
        self._chunks: list[pa.Table] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, names: pa.Table) -> int:
        """Number the rows of another table; the first one's number."""
        first = self._count
        self._chunks.append(names)
        self._count += len(names)
        return first

    def forget(self, used: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
        """Drop names and close the gaps.

        Args:
            used: bool [N], the numbers that stay.

        Returns:
            int32 [N], the new number of each that stays.
        """
        number = np.cumsum(used, dtype=np.int32)
        number -= 1
        chunks, self._chunks = self._chunks[::-1], []
        waiting: list[pa.Table] = []
        start = size = 0
        while chunks:  # which lets go of each chunk before it copies the next
            chunk = chunks.pop()
            waiting.append(chunk.filter(pa.array(used[start : start + len(chunk)])))
            start, size = start + len(chunk), size + len(waiting[-1])
            if size >= _CHUNK or not chunks:
                self._chunks.append(pa.concat_tables(waiting).combine_chunks())
                waiting, size = [], 0
        self._count = sum(map(len, self._chunks))
        return number

    def ranks(self, numbers: Ints) -> Ints:
        """Places of images in the order of their keys; one key, one place.

        Args:
            numbers: int64 [N], ascending.

        Returns:
            int64 [N].
        """
        keys, first, begin = [], 0, 0
        for chunk in self._chunks:
            end = int(np.searchsorted(numbers, first + len(chunk)))
            keys.append(_keys(chunk).take(pa.array(numbers[begin:end] - first)))
            first, begin = first + len(chunk), end
        distinct, position = _distinct(keys)
        return _inverse(_order(distinct))[position]

    def sort(self) -> Ints:
        """Number all images by their keys, each once.

        Returns:
            int64 [N], the new number of each old one.
        """
        if not self._chunks:
            return np.empty(0, dtype=np.int64)
        names, self._chunks = pa.concat_tables(self._chunks), []
        order = _order(names["image_key"])
        names = names.take(order).combine_chunks()  # no hash table: of all names, it takes most
        keys = _keys(names)
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.cumsum(new) - 1
        self._chunks = [names if new.all() else names.filter(pa.array(new))]
        self._count = len(self._chunks[0])
        return number

    def table(self) -> pa.Table:
        """All names, by number."""
        return pa.concat_tables(self._chunks) if self._chunks else IMAGES.empty_table()


def without_repeats(names: pa.Table) -> tuple[pa.Table, Ints]:
    """Those rows of a table that have a new image key; and int64 [N], which of them each row is."""
    distinct, position = _distinct([_keys(names)])
    if len(distinct) == len(names):
        return names, position
    return names.take(np.unique(position, return_index=True)[1]), position


def _keys(names: pa.Table) -> pa.Array:
    return names["image_key"].combine_chunks()


def _distinct(keys: Sequence[pa.Array]) -> tuple[pa.Array, Ints]:
    """Distinct keys as they come, and int64 [N], which of them each key is."""
    encoded = pa.chunked_array(keys, pa.string()).dictionary_encode().chunks
    position = np.concatenate([chunk.indices.to_numpy() for chunk in encoded]).astype(np.int64)
    return encoded[-1].dictionary, position


def _order(keys: pa.Array | pa.ChunkedArray) -> Ints:
    """Places by key; of equal keys the first comes first."""
    order: Ints = pc.sort_indices(keys).to_numpy()
    return order


def _inverse(order: Ints) -> Ints:
    inverse = np.empty(len(order), dtype=np.int64)
    inverse[order] = np.arange(len(order))
    return inverse
