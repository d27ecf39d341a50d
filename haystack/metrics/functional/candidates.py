"""The candidates of a batch: every predicate of every pair, and which of them need a look."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from haystack.metrics.functional.tensors import row_maxima, where_true

_PADDED_PAIRS = 512
"""Pairs of an image among which the floor is looked for, at least."""


class Candidates:
    """Scores of (pair, predicate).

    Attributes:
        scores: float32 [R, P], without the factors.
        factors: float32 [R], or None.
        raw_best: float32 [R], the best predicate's score.
        best: float32 [R], the score of the best candidate.
    """

    def __init__(
        self, scores: Tensor, factors: Tensor | None, raw_best: Tensor | None = None
    ) -> None:
        self.scores = scores.detach().float()
        self.factors = None if factors is None else factors.detach().float()
        self.raw_best = row_maxima(self.scores) if raw_best is None else raw_best
        self.best = self.raw_best if self.factors is None else self.raw_best * self.factors

    def of(self, rows: Tensor) -> Tensor:
        """Scores of all candidates of some rows, float32 [S, P]."""
        values = self.scores.index_select(0, rows)
        if self.factors is None:
            return values
        return values * self.factors.index_select(0, rows)[:, None]

    def raw_score_of(self, rows: Tensor, predicates: Tensor) -> Tensor:
        """Score of one predicate for each of some rows, without factors, float32 [T]."""
        # A fifth of the time of scores[rows, predicates].
        return self.scores.flatten().index_select(0, rows * self.scores.shape[1] + predicates)

    def score_of(self, rows: Tensor, predicates: Tensor) -> Tensor:
        """Score of one candidate for each of some rows, float32 [T]."""
        values = self.raw_score_of(rows, predicates)
        return values if self.factors is None else values * self.factors.index_select(0, rows)

    def maybe_ahead(
        self, own: Tensor, rows: Tensor, counted: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which of ``rows`` [T, W] may hold a candidate ahead of one with the score ``own`` [T].

        Returns:
            int64 [N] the number of the triplet, int64 [N] the row, and bool [N] whether it is
            ``counted`` [T, W], which on an accelerator not all are.
        """
        kept = where_true(counted & (self.best[rows] >= own[:, None]))
        triplets = torch.div(kept, rows.shape[1], rounding_mode="floor")
        rows, counted = (x.flatten().index_select(0, kept) for x in (rows, counted))
        return triplets, rows, counted


class RankedPairs(Candidates):
    """The pairs of a batch and their candidates.

    Attributes:
        images: int64 [R], ascending.
        num_images: number of images.
        begins: int64 [num_images], first row of each image.
    """

    def __init__(
        self,
        scores: Tensor,
        images: Tensor,
        num_images: int,
        factors: Tensor | None,
        limit: int | None,
        raw_best: Tensor | None = None,
    ) -> None:
        super().__init__(scores, factors, raw_best)
        self.images = images.contiguous()
        self.num_images = num_images
        every = torch.arange(num_images, device=images.device)
        self.begins = torch.searchsorted(self.images, every)
        self.limit = limit

    @cached_property
    def floor(self) -> Tensor:
        """See :meth:`floor_of`; on the CPU."""
        return self.floor_of(self.best)

    @cached_property
    def top(self) -> Tensor:
        """Rows whose best candidate reaches the floor; on the CPU."""
        return self.reaching(self.best, self.floor)

    def reaching(self, row_scores: Tensor, thresholds: Tensor) -> Tensor:
        """Rows whose score reaches the threshold [num_images] of their image; on the CPU."""
        bounds = np.append(self.begins.numpy(), len(self.images))
        return where_true(
            row_scores >= torch.from_numpy(np.repeat(thresholds.numpy(), np.diff(bounds)))
        )

    def top_reaching(self, thresholds: Tensor) -> Tensor:
        """The same for the best candidates, where no threshold is below the floor."""
        own = thresholds.index_select(0, self.images.index_select(0, self.top))
        return self.top.index_select(0, where_true(self.best.index_select(0, self.top) >= own))

    def first_of(self, ascending: Tensor, images: Tensor) -> Tensor:
        """Where each of ``images`` [T] begins among ``ascending`` images."""
        every = torch.arange(self.num_images, device=images.device)
        return torch.searchsorted(ascending, every).index_select(0, images)

    def floor_of(self, row_scores: Tensor) -> Tensor:
        """A score [num_images] that ``limit`` pairs of the image reach; -inf if it has fewer."""
        limit = self.limit
        ends = torch.cat([self.begins[1:], self.begins.new_tensor([len(self.images)])])
        widest = int((ends - self.begins).max())
        nothing = row_scores.new_full((self.num_images,), -torch.inf)
        if limit is None or widest < limit:
            return nothing
        # The limit-th best of some of an image's pairs is such a score as well, only a lower one.
        width = max(limit, _PADDED_PAIRS, 4 * len(self.images) // self.num_images)
        width = min(widest, width)
        if len(row_scores) == self.num_images * width:
            padded = row_scores.view(self.num_images, width)
        else:
            column = torch.arange(len(self.images)) - self.begins.index_select(0, self.images)
            # One column too many for the pairs that are left out.
            place = self.images * (width + 1) + column.clamp(max=width)
            padded = nothing.repeat_interleave(width + 1).scatter_(0, place, row_scores)
            padded = padded.view(self.num_images, width + 1)[:, :width]
        # So is the limit-th best of the bests of groups, which are fewer to look through.
        while width >= 4 * limit:
            width //= 2
            padded = torch.maximum(padded[:, :width], padded[:, width : 2 * width])
        # NumPy's sort of short rows is vectorised, and several times as fast as a selection.
        return torch.from_numpy(np.sort(padded.numpy(), axis=1)[:, width - limit].copy())

    def least(self, images: Tensor, values: Tensor, counted: Tensor) -> Tensor:
        """The least counted value of each image, inf where there is none, float32 [num_images]."""
        nothing = values.new_full((self.num_images,), torch.inf)
        return nothing.scatter_reduce(0, images, values.where(counted, torch.inf), "amin")
