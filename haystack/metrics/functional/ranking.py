"""Ranks: of predicates inside their pair, and of ground-truth triplets inside their image.

Everything that depends on an order of scores is computed here, once; the metrics read it off.
Ties are broken by the lower pair row, then the lower predicate.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NEVER = 2**62
"""The rank of a triplet that no candidate hits; larger than any K."""


class TripletRanks(NamedTuple):
    """0-based ranks of ground-truth triplets among the candidates of their image.

    Args:
        constrained: int64 [T]; candidates are the best predicate of each pair.
        unconstrained: int64 [T]; every (pair, predicate) is a candidate.
    """

    constrained: Tensor
    unconstrained: Tensor


def relation_probabilities(logits: Tensor, no_relation: Tensor) -> Tensor:
    """Softmax over P predicates and "no relation", without the latter's column.

    So the scores of a pair sum to less than 1 and are comparable across pairs, which P-AUC and the
    recalls need; the prediction files of the Haystack authors are made this way.

    Args:
        logits: float [R, P].
        no_relation: float [R], the logit of "no relation".

    Returns:
        float32 [R, P].

    Example:
        >>> relation_probabilities(torch.zeros(1, 3), torch.zeros(1))
        tensor([[0.2500, 0.2500, 0.2500]])
    """
    everything = torch.cat([logits.float(), no_relation.float()[:, None]], dim=1)
    return torch.softmax(everything, dim=1)[:, :-1]


def predicate_ranks(scores: Tensor) -> Tensor:
    """0-based rank of every predicate inside its pair, highest score first.

    Args:
        scores: float [R, P].

    Returns:
        int64 [R, P]; each row is a permutation of 0..P-1, ties rank the lower predicate first.

    Example:
        >>> predicate_ranks(torch.tensor([[0.1, 0.6, 0.1, 0.2]]))
        tensor([[2, 0, 3, 1]])
    """
    order = torch.argsort(scores, dim=1, descending=True, stable=True)
    position = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, position)


def ranks_of(scores: Tensor, predicates: Tensor) -> Tensor:
    """Rank of one predicate in each row, without sorting; ties as in :func:`predicate_ranks`.

    Args:
        scores: float [A, P].
        predicates: int64 [A], 0..P-1.

    Returns:
        int64 [A].

    Example:
        >>> ranks_of(torch.tensor([[0.1, 0.6, 0.1, 0.2]]), torch.tensor([2]))
        tensor([3])
    """
    own = scores.gather(1, predicates[:, None])
    columns = torch.arange(scores.shape[1], device=scores.device)
    ahead = (scores > own) | ((scores == own) & (columns < predicates[:, None]))
    return ahead.sum(1)


def triplet_ranks(
    scores: Tensor,
    pair_images: Tensor,
    rows: Tensor,
    predicates: Tensor,
    images: Tensor,
    num_images: int,
    *,
    limit: int | None = None,
) -> TripletRanks:
    """Where each ground-truth triplet stands among the candidates of its image.

    Candidates are ordered by score, highest first. A recall at any K follows: a triplet is hit at
    K if its rank is below K. Pairs are sorted by their best score; a pair whose best score is
    below a triplet's cannot outrank it, so only the pairs before that point are looked at.

    Args:
        scores: float [R, P], compared as float32.
        pair_images: int64 [R], image of each pair; the pairs of an image need not be neighbours.
        rows: int64 [T], row of the triplet's pair in ``scores``, -1 if the pair is not there.
        predicates: int64 [T], the triplet's predicate.
        images: int64 [T], the triplet's image.
        num_images: number of images.
        limit: ranks in the unconstrained order need only be exact below this (the largest K);
            a rank that is not is reported as some number at or above it.

    Returns:
        The ranks under both orders; ``NEVER`` where the triplet is no candidate.

    Example:
        >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.6]])
        >>> image = torch.zeros(2, dtype=torch.int64)
        >>> rows, predicates = torch.tensor([0, 0]), torch.tensor([0, 1])
        >>> ranks = triplet_ranks(scores, image, rows, predicates, image, 1)
        >>> ranks.constrained.tolist() == [1, NEVER], ranks.unconstrained.tolist()
        (True, [1, 2])
    """
    if len(scores) == 0 or len(rows) == 0:
        never = torch.full_like(rows, NEVER)
        return TripletRanks(never, never.clone())
    scores = scores.detach().float()
    present = rows >= 0
    row = rows.clamp(min=0)
    own_scores = scores[row]
    score = own_scores.gather(1, predicates[:, None])[:, 0]

    keys, order = torch.sort(_order_key(pair_images, scores.amax(1)), stable=True)
    per_image = torch.zeros(num_images, dtype=torch.int64, device=scores.device)
    per_image.index_add_(0, pair_images, torch.ones_like(pair_images))
    begins = torch.cumsum(per_image, 0) - per_image
    position = torch.empty_like(order)
    position[order] = torch.arange(len(order), device=scores.device)

    # A candidate under the graph constraint is first inside its pair.
    inside = ranks_of(own_scores, predicates)
    constrained = (position[row] - begins[images]).where(present & (inside == 0), NEVER)

    # Pairs of the image whose best candidate is above the triplet, and those that at least tie.
    # Both come first among the image's pairs; no other pair holds a candidate ahead of it.
    key = _order_key(images, score)
    above = torch.searchsorted(keys, key) - begins[images]
    reach = torch.searchsorted(keys, key, right=True) - begins[images]
    settled = ~present
    if limit is not None:
        # Each pair above puts at least one candidate ahead: so many say all that is asked for.
        settled = settled | (above >= limit)
        reach = reach.clamp(max=limit)
    # On an accelerator the exact number of comparisons is known to the device only; as many as
    # there can be cost less than waiting for it.
    on_host = scores.device.type == "cpu" or limit is None
    ahead = _count_ahead(
        scores,
        order,
        begins[images],
        reach.where(~settled, 0),
        row,
        score,
        width=None if on_host else min(limit or 0, len(order)),
    )
    ahead = torch.where(settled, above, ahead)
    return TripletRanks(constrained, (ahead + inside).where(present, NEVER))


def _order_key(images: Tensor, scores: Tensor) -> Tensor:
    """int64 keys that sort by image, then by float32 score, highest first."""
    bits = scores.float().view(torch.int32).to(torch.int64)
    # Sign and magnitude to two's complement: keeps the order, and -0.0 equals 0.0.
    ascending = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return (images << 33) - ascending


def _count_ahead(
    scores: Tensor,
    order: Tensor,
    begins: Tensor,
    reach: Tensor,
    row: Tensor,
    score: Tensor,
    *,
    width: int | None,
) -> Tensor:
    """Candidates of other pairs that come before each triplet, among its first ``reach`` pairs.

    With ``width`` that many pairs are compared for each triplet, and the rest is masked.
    """
    if width is None:
        widths, total = reach, None
    else:
        widths, total = torch.full_like(reach, width), width * len(reach)
    triplet = torch.repeat_interleave(
        torch.arange(len(reach), device=reach.device), widths, output_size=total
    )
    step = torch.arange(len(triplet), device=reach.device)
    step = step - (torch.cumsum(widths, 0) - widths)[triplet]
    other = order[(begins[triplet] + step).clamp(max=len(order) - 1)]
    counted = (step < reach[triplet]) & (other != row[triplet])
    threshold = score[triplet][:, None]
    candidates = scores[other]
    ahead = candidates > threshold
    ahead |= (candidates == threshold) & (other < row[triplet])[:, None]
    counts = torch.zeros_like(reach)
    return counts.index_add_(0, triplet, ahead.sum(1) * counted)
