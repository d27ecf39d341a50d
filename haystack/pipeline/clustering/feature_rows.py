"""Feature vectors as rows that are read in chunks: in memory, or in the files of many shards.

A chunk is so many rows, counted from the first row of all, wherever shards begin: what is computed
from chunks does not depend on how images are cut into shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.pipeline.tables import open_tensors

Rows = npt.NDArray[np.int64]
"""Positions of rows, ascending."""


class FeatureRows(Protocol):
    """N feature vectors of D numbers."""

    def __len__(self) -> int:
        """N."""
        ...

    @property
    def dimension(self) -> int:
        """D."""
        ...

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All rows, in order: tensors [size, D] as they are stored, the last one shorter.

        They may be views of memory that others read: not to be written to.
        """
        ...

    def take(self, rows: Rows) -> Tensor:
        """The rows at these positions, ascending: [len(rows), D] as they are stored."""
        ...


class MemoryRows:
    """Rows of an array in memory.

    Args:
        features: float16, float32 or float64 [N, D].
    """

    def __init__(self, features: npt.NDArray[np.floating] | Tensor) -> None:
        self._features = torch.as_tensor(features)

    def __len__(self) -> int:
        return len(self._features)

    @property
    def dimension(self) -> int:
        """D."""
        return self._features.shape[1]

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All rows, ``size`` at a time: views."""
        yield from self._features.split(size) if len(self) else ()

    def take(self, rows: Rows) -> Tensor:
        """Copies of these rows."""
        return self._features[torch.from_numpy(rows)]


class StoredRows:
    """Rows of the embed stage's files, one shard after the other.

    Files are mapped into memory one at a time and only as long as they are read, so that what is
    resident is a chunk and, until the system wants the pages back, one file.

    Args:
        paths: safetensors with ``features`` [n, D], in the order of the rows.

    Raises:
        InputError: a file cannot be read, or its D or type differs from the first file's.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._dtype = torch.float32
        self._dimension = 0
        lengths = []
        for number, path in enumerate(self.paths):
            part = _features(path)
            if number == 0:
                self._dtype, self._dimension = part.dtype, part.shape[1]
            elif (part.dtype, part.shape[1]) != (self._dtype, self._dimension):
                raise InputError(
                    f"expected features of {self._dimension} numbers, {self._dtype}, as in "
                    f"{self.paths[0].name}, got {part.shape[1]}, {part.dtype}; run haystack embed "
                    "again",
                    path=path,
                )
            lengths.append(len(part))
        self._ends = np.cumsum(lengths, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def dimension(self) -> int:
        """D."""
        return self._dimension

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All rows, ``size`` at a time: views of a mapped file, or copies where two files meet."""
        held: list[Tensor] = []  # the beginning of a chunk, from files before
        missing = size
        for path in self.paths:
            part = _features(path)
            start = 0
            while len(part) - start >= missing:
                held.append(part[start : start + missing])
                yield held[0] if len(held) == 1 else torch.cat(held)
                start += missing
                held, missing = [], size
            if start < len(part):
                held.append(part[start:].clone())  # a view would keep the whole file mapped
                missing -= len(part) - start
        if held:
            yield torch.cat(held)

    def take(self, rows: Rows) -> Tensor:
        """Copies of these rows; only the pages that hold them are read."""
        taken = torch.empty((len(rows), self._dimension), dtype=self._dtype)
        first, done = 0, 0
        cuts = np.searchsorted(rows, self._ends)
        for path, end, cut in zip(self.paths, self._ends.tolist(), cuts.tolist(), strict=True):
            if cut > done:
                wanted = torch.from_numpy(rows[done:cut] - first)
                torch.index_select(_features(path), 0, wanted, out=taken[done:cut])
            first, done = end, cut
        return taken


class SelectedRows:
    """Some rows of others.

    Args:
        rows: where they come from.
        chosen: positions, ascending.
    """

    def __init__(self, rows: FeatureRows, chosen: Rows) -> None:
        self._rows = rows
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @property
    def dimension(self) -> int:
        """D."""
        return self._rows.dimension

    def chunks(self, size: int) -> Iterator[Tensor]:
        """The chosen rows, ``size`` at a time: copies."""
        for start in range(0, len(self), size):
            yield self._rows.take(self._chosen[start : start + size])

    def take(self, rows: Rows) -> Tensor:
        """Copies of these of the chosen rows."""
        return self._rows.take(self._chosen[rows])


class CentredRows:
    """Rows less their mean, each scaled to length one.

    Args:
        rows: where they come from; read once to find the mean.
        size: how many at a time.
    """

    def __init__(self, rows: FeatureRows, size: int) -> None:
        self._rows = rows
        total = torch.zeros(rows.dimension, dtype=torch.float64)
        for chunk in rows.chunks(size):
            total += chunk.sum(0, dtype=torch.float64)
        self._mean = (total / max(1, len(rows))).float()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def dimension(self) -> int:
        """D."""
        return self._rows.dimension

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All rows, ``size`` at a time: float32 copies."""
        yield from map(self._scaled, self._rows.chunks(size))

    def take(self, rows: Rows) -> Tensor:
        """These rows: float32 copies."""
        return self._scaled(self._rows.take(rows))

    def _scaled(self, rows: Tensor) -> Tensor:
        return torch.nn.functional.normalize(rows.float() - self._mean, dim=1)


def _features(path: Path) -> Tensor:
    """The features of a file, mapped: pages are read when they are looked at."""
    with open_tensors(path, "pt") as file:
        return file.get_tensor("features")
