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

from haystack.metrics.functional.candidates import Candidates, RankedPairs
from haystack.metrics.functional.ranking import NEVER, count_ahead, ranks_of
from haystack.metrics.functional.tensors import (
    count_by,
    descending_keys,
    inverse_order,
    on_host,
    where_true,
)


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

    Returns:
        The rows themselves; under the graph constraint only where the predicate is the row's best.

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
    rows = RankedPairs(scores, pair_images, num_images, factors, limit, row_best)
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


def _candidate_ranks(rows: RankedPairs, row: Tensor, predicates: Tensor, images: Tensor) -> Tensor:
    """Ranks among all (pair, predicate) of the image."""
    num_predicates = rows.scores.shape[1]
    wanted = row >= 0
    row = row.clamp(min=0)
    if on_host(row):
        own = rows.score_of(row, predicates)
        wanted &= own >= rows.floor[images]
        thresholds = rows.least(images, own, wanted)
        selected = rows.top_reaching(thresholds)
        values = rows.of(selected)
        # NumPy compares short rows with a column in half the time.
        column = thresholds.index_select(0, rows.images.index_select(0, selected)).numpy()[:, None]
        entries = torch.from_numpy(np.flatnonzero(values.numpy() >= column))
    else:
        selected = torch.arange(len(rows.scores), device=row.device)
        values = rows.of(selected)
        entries = torch.arange(values.numel(), device=row.device)
    entry_rows = torch.div(entries, num_predicates, rounding_mode="floor")
    entry_images = rows.images.index_select(0, selected).index_select(0, entry_rows)
    keys = descending_keys(values.flatten().index_select(0, entries), entry_images)
    position = inverse_order(torch.sort(keys, stable=True).indices)
    place = inverse_order(selected, len(rows.scores)).index_select(0, row)
    own = torch.searchsorted(entries, place * num_predicates + predicates)
    return _rank(position, own, rows.first_of(entry_images, images), wanted)


def _pair_ranks(
    rows: RankedPairs,
    pair_scores: Tensor | None,
    hits: FirstHits,
    predicates: Tensor,
    images: Tensor,
    *,
    independent: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Ranks among the pairs of the image, each with its best predicate."""
    by_best = pair_scores is None
    if pair_scores is None:
        pair_scores = rows.best
    hit, paired = hits.constrained >= 0, hits.pair >= 0
    hit_row, pair_row = hits.constrained.clamp(min=0), hits.pair.clamp(min=0)
    if on_host(images):
        floor = rows.floor if by_best else rows.floor_of(pair_scores)
        paired &= pair_scores[pair_row] >= floor[images]
        if not independent:
            hit &= pair_scores[hit_row] >= floor[images]
        thresholds = torch.minimum(
            rows.least(images, pair_scores[hit_row], hit),
            rows.least(images, pair_scores[pair_row], paired),
        )
        selected = (
            rows.top_reaching(thresholds)
            if by_best and not independent
            else rows.reaching(pair_scores, thresholds)
        )
    else:
        selected = torch.arange(len(rows.scores), device=images.device)
    row_images = rows.images.index_select(0, selected)
    keys = descending_keys(pair_scores.index_select(0, selected), row_images)
    order = torch.sort(keys, stable=True).indices
    position = inverse_order(order)
    place = inverse_order(selected, len(rows.scores))
    hit_row, pair_row = place.index_select(0, hit_row), place.index_select(0, pair_row)
    begins = rows.first_of(row_images, images)
    constrained = _rank(position, hit_row, begins, hit)
    pair = _rank(position, pair_row, begins, paired)
    if not independent:
        return constrained, pair, None
    if on_host(images):
        leading = selected.index_select(0, order)
        return constrained, pair, _among_ahead(rows, leading, begins, constrained, predicates)
    groups = row_images * rows.scores.shape[1] + rows.scores.argmax(1)
    groups, again = torch.sort(groups.index_select(0, order), stable=True)
    position = inverse_order(again).index_select(0, position)
    begins = torch.searchsorted(groups, images * rows.scores.shape[1] + predicates)
    return constrained, pair, _rank(position, hit_row, begins, hit)


def _rank(position: Tensor, own: Tensor, begins: Tensor, counted: Tensor) -> Tensor:
    """Rank of some elements inside their group, which begins at the position ``begins``."""
    if len(position) == 0:
        return torch.full_like(own, NEVER)
    rank = position.index_select(0, own.clamp(max=len(position) - 1)) - begins
    return rank.where(counted, NEVER)


def _among_ahead(
    rows: RankedPairs, leading: Tensor, begins: Tensor, constrained: Tensor, predicates: Tensor
) -> Tensor:
    """How many of the pairs ahead of each triplet have its predicate as their best, int64 [T].

    Only their scores of that predicate are looked at; for the CPU, as their number is not known.

    Args:
        rows: all pairs.
        leading: int64 [S], the pairs in the order of their ranks, image after image.
        begins: int64 [T], where the image of each triplet begins there.
        constrained: int64 [T], ranks among them, ``NEVER`` where the triplet is not hit.
        predicates: int64 [T].
    """
    hit = constrained < NEVER
    counts = constrained.where(hit, 0)
    triplet = torch.repeat_interleave(counts)
    shifts = begins - torch.cumsum(counts, 0) + counts
    row = leading.index_select(0, torch.arange(len(triplet)) + shifts.index_select(0, triplet))
    predicate = predicates.index_select(0, triplet)
    best = rows.raw_score_of(row, predicate) == rows.raw_best.index_select(0, row)
    row, triplet, predicate = (
        x.index_select(0, where_true(best)) for x in (row, triplet, predicate)
    )
    first = ranks_of(rows.scores.index_select(0, row), predicate) == 0  # others may be as good
    return count_by(triplet, first, len(predicates)).where(hit, NEVER)


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
    row_best: Tensor | None = None,
) -> Tensor:
    """Ranks among the scores of the triplet's own predicate for all pairs of the image (ng-IMR).

    The paper that defines IMR (Rethinking the Evaluation of Unbiased Scene Graph Generation, 2022)
    does not say whether it keeps the graph constraint; its tables do, see :class:`TripletRanks`.

    Args:
        scores: float [R, P].
        pair_images: int64 [R], ascending.
        rows: int64 [T], row of the pair by which the triplet is hit first, -1 for none.
        predicates: int64 [T].
        images: int64 [T].
        num_images: number of images.
        pairs_per_image: the most that an image has; needed to save memory on an accelerator.
        factors: float [R], multiplies the pair's scores.
        row_best: float [R], the largest of each row of ``scores``, where it is known already.

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
    other.clamp_(max=len(scores) - 1)
    candidates = Candidates(scores, factors, row_best)
    row = rows.clamp(min=0)
    own = candidates.score_of(row, predicates)
    triplet, other, inside = candidates.maybe_ahead(own, other, inside)
    value = candidates.score_of(other, predicates.index_select(0, triplet))
    own, row = own.index_select(0, triplet), row.index_select(0, triplet)
    ahead = (value > own) | ((value == own) & (other < row))
    return count_by(triplet, ahead & inside, len(rows)).where(rows >= 0, NEVER)


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
    """Ranks among the candidates of annotated pairs only (A@K, ng-A@K; Zhang et al., 2019).

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
    candidates = Candidates(scores, factors, row_best)
    if isinstance(hits, Tensor):
        hits = hits_of_rows(candidates.scores, hits, predicates)
    other, inside = pair_rows.clamp(min=0), pair_rows >= 0
    leading = candidates.best if pair_scores is None else pair_scores.float()
    value, row = leading[other], hits.constrained.clamp(min=0)
    own = leading[row][:, None]
    ahead = (value > own) | ((value == own) & (other < row[:, None]))
    constrained = (ahead & inside).sum(1)

    row = hits.unconstrained.clamp(min=0)
    own = candidates.score_of(row, predicates)
    triplet, other, inside = candidates.maybe_ahead(own, other, inside)
    row = row.index_select(0, triplet)
    first = predicates.index_select(0, triplet).where(other == row, 0)
    first = first.where(other >= row, scores.shape[1])
    ahead = count_ahead(candidates.of(other), own.index_select(0, triplet), first)
    unconstrained = count_by(triplet, ahead * inside, len(predicates))
    return (
        constrained.where(hits.constrained >= 0, NEVER),
        unconstrained.where(hits.unconstrained >= 0, NEVER),
    )
