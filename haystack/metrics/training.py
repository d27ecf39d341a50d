"""What training showed: zero-shot triplets, frequencies, compositional diversity."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from haystack.errors import InputError
from haystack.statistics import TripletStatistics

_CLASSES = 2**21
"""More than there are object classes or predicates; three numbers fit into an int64."""


class TrainingTriplets(nn.Module):
    """Looks triplets of classes up among those of the training annotations, on any device.

    Args:
        triplets: int [T, 3], rows (subject class, object class, predicate), the layout of
            :class:`~haystack.statistics.TripletStatistics`.
        counts: int [T], how often training holds each; by default once for each time it is given.

    Attributes:
        keys: int64 [S], the distinct triplets, ascending.
        frequency_index: int64 [S], where each one's count stands in ``frequencies``.
        frequencies: int64 [F], the distinct counts, ascending; the first is 0, of unseen triplets.

    Raises:
        InputError: shapes do not fit, or a number is negative.

    Example:
        >>> training = TrainingTriplets(torch.tensor([[0, 5, 2], [0, 5, 2], [1, 5, 0]]))
        >>> training.find(torch.tensor([[0, 5, 2], [0, 5, 1]]))
        tensor([2, 0])
        >>> training.frequencies.tolist(), training.diversity(3).tolist()
        ([0, 1, 2], [1, 0, 1])
    """

    keys: Tensor
    frequency_index: Tensor
    frequencies: Tensor

    def __init__(self, triplets: Any, counts: Any = None) -> None:
        super().__init__()
        rows = np.asarray(triplets)
        rows = rows.reshape(0, 3).astype(np.int64) if rows.size == 0 else rows
        if rows.ndim != 2 or rows.shape[1] != 3 or not np.issubdtype(rows.dtype, np.integer):
            raise InputError(
                "expected integer rows (subject class, object class, predicate) [T, 3], got "
                f"{list(rows.shape)} of {rows.dtype}"
            )
        if rows.size and (rows.min() < 0 or rows.max() >= _CLASSES):
            raise InputError(
                f"expected classes and predicates from 0 to {_CLASSES - 1}, got "
                f"{rows.min()} to {rows.max()}"
            )
        weights = np.ones(len(rows), np.int64) if counts is None else np.asarray(counts, np.int64)
        if weights.shape != (len(rows),) or (len(rows) and weights.min() < 1):
            raise InputError(
                f"expected a count of at least 1 for each of {len(rows)} triplets, got "
                f"{list(weights.shape)}"
            )
        keys, inverse = np.unique(_keys(torch.from_numpy(rows)).numpy(), return_inverse=True)
        per_key = np.zeros(len(keys), dtype=np.int64)
        np.add.at(per_key, inverse.reshape(-1), weights)
        frequencies, index = np.unique(np.append(0, per_key), return_inverse=True)
        self.register_buffer("keys", torch.from_numpy(keys), persistent=False)
        self.register_buffer(
            "frequency_index", torch.from_numpy(index.reshape(-1)[1:].copy()), persistent=False
        )
        self.register_buffer("frequencies", torch.from_numpy(frequencies), persistent=False)

    @classmethod
    def of(cls, training: TripletStatistics | Any) -> TrainingTriplets:
        """From statistics, or from rows."""
        if isinstance(training, TripletStatistics):
            return cls(training.triplets, training.triplet_counts)
        return cls(training)

    def check_predicates(self, num_predicates: int) -> None:
        """Raise InputError if a predicate is not below ``num_predicates``."""
        highest = int((self.keys % _CLASSES).max()) if len(self.keys) else 0
        if highest >= num_predicates:
            raise InputError(
                f"the training triplets hold the predicate {highest}, but there are "
                f"{num_predicates} predicates"
            )

    def find(self, triplets: Tensor) -> Tensor:
        """Where the count of each triplet [T, 3] stands in ``frequencies``; 0 = never seen."""
        if len(self.keys) == 0:
            return torch.zeros_like(triplets[:, 0])
        keys = _keys(triplets)
        place = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return self.frequency_index[place].where(self.keys[place] == keys, 0)

    def diversity(self, num_predicates: int) -> Tensor:
        """n_c: distinct (subject class, object class) pairs of each predicate, int64 [P]."""
        predicates = self.keys % _CLASSES
        counts = torch.zeros(num_predicates, dtype=torch.int64, device=self.keys.device)
        counts.index_add_(0, predicates, torch.ones_like(predicates))
        return counts


def _keys(triplets: Tensor) -> Tensor:
    subjects, objects, predicates = triplets.to(torch.int64).unbind(1)
    return (subjects * _CLASSES + objects) * _CLASSES + predicates
