"""Ranks of ground-truth triplets among the candidates of their image, under every order.

All recalls are read off these ranks: a triplet is hit at K if its rank is below K. A candidate is
a (pair, predicate); its score is the predicate's score times the pair's factor (1 in PredCls, the
product of the two object scores otherwise). Ties are broken by the lower pair row, then the lower
predicate.

Sources: R (Lu et al., Visual Relationship Detection with Language Priors, 2016), ngR (Newell and
Deng, Pixels to Graphs by Associative Embedding, 2017), mR (Tang et al., Learning to Compose Dynamic
Tree Structures for Visual Contexts, 2019), A (Zhang et al., Graphical Contrastive Losses for Scene
Graph Parsing, 2019), IMR (Rethinking the Evaluation of Unbiased Scene Graph Generation, 2022), PR
(SGBench).

Speed comes from what is not looked at. A pair whose best score is below a triplet's score holds no
candidate ahead of that triplet, and the limit-th best of the pairs' best scores is a floor under
which no candidate has a rank below the limit. So the CPU sorts few of an image's candidates. An
accelerator sorts them all, since a selection's size could not be known without waiting for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from haystack.metrics.functional.ranking import NEVER, count_ahead, ranks_of
from haystack.metrics.functional.tensors import (
    count_by,
    descending_keys,
    inverse_order,
    on_host,
    row_maxima,
    where_true,
)

_PADDED_PAIRS = 512
"""Pairs of an image among which the floor is looked for, at least."""


class FirstHits(NamedTuple):
    """Row of the pair by which each triplet is hit first, -1 where none hits it.

    Args:
        constrained: int64 [T]; the pair's best predicate is the triplet's.
        unconstrained: int64 [T]; whatever the pair's best predicate is.
        pair: int64 [T]; subject and object are right, the predicate is not asked for.
    """

    constrained: Tensor
    unconstrained: Tensor
    pair: Tensor


class TripletRanks(NamedTuple):
    """0-based ranks of ground-truth triplets among the candidates of their image.

    Args:
        constrained: int64 [T]; candidates are the best predicate of each pair (R, mR, zR, wR).
        unconstrained: int64 [T]; every (pair, predicate) is a candidate (ngR, ng-mR, ng-zR).
        pair: int64 [T]; as constrained, and any predicate hits (PR).
        independent: int64 [T]; candidates are the pairs whose best predicate is the triplet's
            (IMR, wIMR); None where it was not asked for.
    """

    constrained: Tensor
    unconstrained: Tensor
    pair: Tensor
    independent: Tensor | None


def hits_of_rows(scores: Tensor, rows: Tensor, predicates: Tensor) -> FirstHits:
    """First hits where each triplet has one pair row, as in PredCls.

    Args:
        scores: float [R, P].
        rows: int64 [T], -1 where the pair is not there.
        predicates: int64 [T].

    Example:
        >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.6]])
        >>> hits_of_rows(scores, torch.tensor([0, 1]), torch.tensor([1, 1])).constrained
        tensor([-1,  1])
    """
    if len(scores) == 0:
        return FirstHits(rows, rows, rows)
    best = ranks_of(scores.index_select(0, rows.clamp(min=0)), predicates) == 0
    return FirstHits(rows.where(best, -1), rows, rows)


def triplet_ranks(
    scores: Tensor,
    pair_images: Tensor,
    hits: Tensor | FirstHits,
    predicates: Tensor,
    images: Tensor,
    num_images: int,
    *,
    limit: int | None = None,
    factors: Tensor | None = None,
    pair_scores: Tensor | None = None,
    row_best: Tensor | None = None,
    independent: bool = True,
) -> TripletRanks:
    """Where each ground-truth triplet stands among the candidates of its image.

    Args:
        scores: float [R, P], finite, compared as float32.
        pair_images: int64 [R], image of each pair, ascending.
        hits: int64 [T], row of the triplet's pair in ``scores``, -1 if the pair is not there; or
            the first hits, where several pairs may hit a triplet.
        predicates: int64 [T], the triplet's predicate.
        images: int64 [T], the triplet's image.
        num_images: number of images.
        limit: ranks need only be exact below this (the largest K), independent ones excepted; a
            rank that is not exact is some number at or above it.
        factors: float [R], not negative, multiplies the pair's scores.
        pair_scores: float [R], by which pairs are ordered under the graph constraint; by default
            the score of the pair's best candidate.
        row_best: float [R], the largest of each row of ``scores``, where it is known already.
        independent: whether to compute ``TripletRanks.independent``.

    Returns:
        The ranks; ``NEVER`` where the triplet is no candidate.

    Example:
        >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.6]])
        >>> image = torch.zeros(2, dtype=torch.int64)
        >>> rows, predicates = torch.tensor([0, 0]), torch.tensor([0, 1])
        >>> ranks = triplet_ranks(scores, image, rows, predicates, image, 1)
        >>> ranks.constrained.tolist() == [1, NEVER], ranks.unconstrained.tolist()
        (True, [1, 2])
        >>> ranks.pair.tolist(), ranks.independent.tolist() == [0, NEVER]
        ([1, 1], True)
    """
    if len(scores) == 0 or len(predicates) == 0:
        never = torch.full_like(predicates, NEVER)
        return TripletRanks(never, never, never, never if independent else None)
    scores = scores.detach().float()
    if isinstance(hits, Tensor):
        hits = hits_of_rows(scores, hits, predicates)
    images = images.contiguous()
    rows = _Rows(scores, pair_images, num_images, factors, limit, row_best)
    unconstrained = _candidate_ranks(rows, hits.unconstrained, predicates, images)
    constrained, pair, alone = _pair_ranks(
        rows,
        None if pair_scores is None else pair_scores.detach().float(),
        hits,
        predicates,
        images,
        independent=independent,
    )
    return TripletRanks(constrained, unconstrained, pair, alone)


class _Rows:
    """The pairs of a batch.

    Attributes:
        scores: float32 [R, P].
        images: int64 [R], ascending.
        num_images: number of images.
        begins: int64 [num_images], first row of each image.
        raw_best: float32 [R], the best predicate's score.
        best: float32 [R], the score of the best candidate.
        floor: float32 [num_images], see :meth:`floor_of`; on an accelerator not used.
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
        self.scores = scores
        self.images = images.contiguous()
        self.num_images = num_images
        self.factors = None if factors is None else factors.detach().float()
        every = torch.arange(num_images, device=images.device)
        self.begins = torch.searchsorted(self.images, every)
        self.raw_best = row_maxima(scores) if raw_best is None else raw_best
        self.best = self.raw_best if self.factors is None else self.raw_best * self.factors
        self.limit = limit
        self.floor = self.floor_of(self.best) if on_host(scores) else self.best

    def candidates(self, selected: Tensor) -> Tensor:
        """Scores of the candidates of some rows, float32 [S, P]."""
        values = self.scores.index_select(0, selected)
        if self.factors is None:
            return values
        return values * self.factors.index_select(0, selected)[:, None]

    def score_of(self, row: Tensor, predicates: Tensor) -> Tensor:
        """Score of one candidate for each of some rows, float32 [T]."""
        values = score_of(self.scores, row, predicates)
        return values if self.factors is None else values * self.factors[row]

    def of_image(self, values: Tensor) -> Tensor:
        """Values [num_images], each for all rows of its image, [R]; on the CPU."""
        bounds = np.append(self.begins.numpy(), len(self.images))
        return torch.from_numpy(np.repeat(values.numpy(), np.diff(bounds)))

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


def _candidate_ranks(rows: _Rows, row: Tensor, predicates: Tensor, images: Tensor) -> Tensor:
    """Ranks among all (pair, predicate) of the image."""
    num_predicates = rows.scores.shape[1]
    wanted = row >= 0
    row = row.clamp(min=0)
    if on_host(row):
        own = rows.score_of(row, predicates)
        wanted &= own >= rows.floor[images]
        threshold = rows.of_image(rows.least(images, own, wanted))
        selected = where_true(rows.best >= threshold)
        values = rows.candidates(selected)
        entries = where_true(values >= threshold.index_select(0, selected)[:, None])
    else:
        selected = torch.arange(len(rows.scores), device=row.device)
        values = rows.candidates(selected)
        entries = torch.arange(values.numel(), device=row.device)
    entry_rows = torch.div(entries, num_predicates, rounding_mode="floor")
    entry_images = rows.images.index_select(0, selected).index_select(0, entry_rows)
    keys = descending_keys(values.flatten().index_select(0, entries), entry_images)
    position = inverse_order(torch.sort(keys, stable=True).indices)
    own_entry = torch.searchsorted(selected, row) * num_predicates + predicates
    return _rank(position, torch.searchsorted(entries, own_entry), entry_images, images, wanted)


def _pair_ranks(
    rows: _Rows,
    pair_scores: Tensor | None,
    hits: FirstHits,
    predicates: Tensor,
    images: Tensor,
    *,
    independent: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Ranks among the pairs of the image, each with its best predicate."""
    floor = rows.floor
    if pair_scores is None:
        pair_scores = rows.best
    elif on_host(images):
        floor = rows.floor_of(pair_scores)
    hit, paired = hits.constrained >= 0, hits.pair >= 0
    hit_row, pair_row = hits.constrained.clamp(min=0), hits.pair.clamp(min=0)
    if on_host(images):
        paired &= pair_scores[pair_row] >= floor[images]
        if not independent:
            hit &= pair_scores[hit_row] >= floor[images]
        threshold = torch.minimum(
            rows.least(images, pair_scores[hit_row], hit),
            rows.least(images, pair_scores[pair_row], paired),
        )
        selected = where_true(pair_scores >= rows.of_image(threshold))
    else:
        selected = torch.arange(len(rows.scores), device=images.device)
    row_images = rows.images.index_select(0, selected)
    keys = descending_keys(pair_scores.index_select(0, selected), row_images)
    order = torch.sort(keys, stable=True).indices
    position = inverse_order(order)
    hit_row, pair_row = (torch.searchsorted(selected, row) for row in (hit_row, pair_row))
    constrained = _rank(position, hit_row, row_images, images, hit)
    pair = _rank(position, pair_row, row_images, images, paired)
    if not independent:
        return constrained, pair, None
    if on_host(images):
        leading = selected.index_select(0, order)
        return constrained, pair, _among_ahead(rows, leading, constrained, predicates, images)
    groups = row_images * rows.scores.shape[1] + rows.scores.argmax(1)
    groups, again = torch.sort(groups.index_select(0, order), stable=True)
    position = inverse_order(again).index_select(0, position)
    own_group = images * rows.scores.shape[1] + predicates
    return constrained, pair, _rank(position, hit_row, groups, own_group, hit)


def _rank(
    position: Tensor, own: Tensor, groups: Tensor, own_groups: Tensor, counted: Tensor
) -> Tensor:
    """Rank of some elements inside their group; groups ascend in the order of positions."""
    if len(position) == 0:
        return torch.full_like(own, NEVER)
    begins = torch.searchsorted(groups, own_groups)
    rank = position[own.clamp(max=len(position) - 1)] - begins
    return rank.where(counted, NEVER)


def _among_ahead(
    rows: _Rows, leading: Tensor, constrained: Tensor, predicates: Tensor, images: Tensor
) -> Tensor:
    """How many of the pairs ahead of each triplet have its predicate as their best, int64 [T].

    Only their scores of that predicate are looked at; for the CPU, as their number is not known.

    Args:
        rows: all pairs.
        leading: int64 [S], the pairs in the order of their ranks, image after image.
        constrained: int64 [T], ranks among them, ``NEVER`` where the triplet is not hit.
        predicates: int64 [T].
        images: int64 [T].
    """
    hit = constrained < NEVER
    counts = constrained.where(hit, 0)
    begins = torch.searchsorted(rows.images.index_select(0, leading), images)
    triplet = torch.repeat_interleave(counts)
    place = torch.arange(len(triplet)) + (begins - torch.cumsum(counts, 0) + counts)[triplet]
    row = leading.index_select(0, place)
    predicate = predicates.index_select(0, triplet)
    best = score_of(rows.scores, row, predicate) == rows.raw_best.index_select(0, row)
    row, triplet, predicate = (
        x.index_select(0, where_true(best)) for x in (row, triplet, predicate)
    )
    first = ranks_of(rows.scores.index_select(0, row), predicate) == 0  # others may be as good
    return count_by(triplet, first, len(predicates)).where(hit, NEVER)


def score_of(scores: Tensor, rows: Tensor, predicates: Tensor) -> Tensor:
    """Single scores out of [R, P], at a fifth of the time of ``scores[rows, predicates]``."""
    return scores.flatten().index_select(0, rows * scores.shape[1] + predicates)


def independent_ranks(
    scores: Tensor,
    pair_images: Tensor,
    rows: Tensor,
    predicates: Tensor,
    images: Tensor,
    num_images: int,
    *,
    pairs_per_image: int | None = None,
    factors: Tensor | None = None,
) -> Tensor:
    """Ranks among the scores of the triplet's own predicate for all pairs of the image (ng-IMR).

    Args:
        scores: float [R, P].
        pair_images: int64 [R], ascending.
        rows: int64 [T], row of the pair by which the triplet is hit first, -1 for none.
        predicates: int64 [T].
        images: int64 [T].
        num_images: number of images.
        pairs_per_image: the most that an image has; needed to save memory on an accelerator.
        factors: float [R], multiplies the pair's scores.

    Returns:
        int64 [T], ``NEVER`` for row -1.

    Example:
        >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.6]])
        >>> image = torch.zeros(2, dtype=torch.int64)
        >>> independent_ranks(scores, image, torch.tensor([0, 0]), torch.tensor([0, 1]), image, 1)
        tensor([0, 1])
    """
    if len(scores) == 0 or len(rows) == 0:
        return torch.full_like(rows, NEVER)
    every = torch.arange(num_images + 1, device=scores.device)
    bounds = torch.searchsorted(pair_images.contiguous(), every)
    if pairs_per_image is None:
        pairs_per_image = int(bounds.diff().max()) if on_host(scores) else len(scores)
    step = torch.arange(pairs_per_image, device=scores.device)
    other = bounds[images][:, None] + step
    inside = other < bounds[images + 1][:, None]
    other = other.clamp(max=len(scores) - 1)
    row = rows.clamp(min=0)
    scores = scores.detach().float()
    value = score_of(scores, other.flatten(), predicates.repeat_interleave(pairs_per_image))
    value, own = value.view_as(other), score_of(scores, row, predicates)
    if factors is not None:
        value, own = value * factors.float()[other], own * factors.float()[row]
    return _rank_among(value, other, inside, own, row).where(rows >= 0, NEVER)


def annotated_pair_ranks(
    scores: Tensor,
    hits: Tensor | FirstHits,
    pair_rows: Tensor,
    predicates: Tensor,
    *,
    factors: Tensor | None = None,
    pair_scores: Tensor | None = None,
    row_best: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Ranks among the candidates of annotated pairs only (A@K, ng-A@K).

    Args:
        scores: float [R, P].
        hits: int64 [T], row of the triplet's pair in ``scores``, -1 for none; or the first hits
            among the annotated pairs.
        pair_rows: int64 [T, W], rows of the distinct annotated pairs of the triplet's image, -1
            where there is none or to fill up.
        predicates: int64 [T].
        factors: float [R], multiplies the pair's scores.
        pair_scores: float [R], by which pairs are ordered under the graph constraint; by default
            the score of the pair's best candidate.
        row_best: float [R], the largest of each row of ``scores``, where it is known already.

    Returns:
        int64 [T] and [T], with and without graph constraint; ``NEVER`` for row -1, and with graph
        constraint if the triplet's predicate is not the best of its pair.

    Example:
        >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.6], [0.9, 0.8]])
        >>> rows, predicates = torch.tensor([0, 1]), torch.tensor([0, 0])
        >>> pair_rows = torch.tensor([[0, 1], [0, 1]])
        >>> constrained, unconstrained = annotated_pair_ranks(scores, rows, pair_rows, predicates)
        >>> constrained.tolist() == [1, NEVER], unconstrained.tolist()
        (True, [1, 3])
    """
    if len(scores) == 0 or len(predicates) == 0:
        never = torch.full_like(predicates, NEVER)
        return never, never
    scores = scores.detach().float()
    if isinstance(hits, Tensor):
        hits = hits_of_rows(scores, hits, predicates)
    best = row_maxima(scores) if row_best is None else row_best
    if factors is not None:
        factors = factors.float()
        best = best * factors
    other, inside = pair_rows.clamp(min=0), pair_rows >= 0
    leading = best if pair_scores is None else pair_scores.float()
    row = hits.constrained.clamp(min=0)
    constrained = _rank_among(leading[other], other, inside, leading[row], row)

    row = hits.unconstrained.clamp(min=0)
    own = score_of(scores, row, predicates)
    if factors is not None:
        own = own * factors[row]
    near = where_true(inside & (best[other] >= own[:, None]))
    triplet = torch.div(near, other.shape[1], rounding_mode="floor")
    other, inside = other.flatten().index_select(0, near), inside.flatten().index_select(0, near)
    values = scores.index_select(0, other)
    if factors is not None:
        values = values * factors.index_select(0, other)[:, None]
    row = row.index_select(0, triplet)
    columns = predicates.index_select(0, triplet).where(other == row, 0)
    columns = columns.where(other >= row, scores.shape[1])
    ahead = count_ahead(values, own.index_select(0, triplet), columns)
    unconstrained = count_by(triplet, ahead * inside, len(predicates))
    return (
        constrained.where(hits.constrained >= 0, NEVER),
        unconstrained.where(hits.unconstrained >= 0, NEVER),
    )


def _rank_among(
    values: Tensor, numbers: Tensor, counted: Tensor, own: Tensor, own_number: Tensor
) -> Tensor:
    """How many counted of ``values`` [T, W] come before one's own; ties by the lower number."""
    ahead = values > own[:, None]
    ahead |= (values == own[:, None]) & (numbers < own_number[:, None])
    return (ahead & counted).sum(1)
