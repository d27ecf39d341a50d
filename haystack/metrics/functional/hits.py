"""Which predicted pairs hit which true triplets, where objects were matched by overlap."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from haystack.metrics.functional.matching import Matches
from haystack.metrics.functional.orders import FirstHits
from haystack.metrics.functional.ranking import ranks_of
from haystack.metrics.functional.tensors import descending_keys, on_host, where_true

_NO_KEY = 2**63 - 1
_ROWS = 2**31
"""More than a batch has pairs; a row and the 32 bits of a score fit into a key."""


class Links(NamedTuple):
    """Predicted pairs and the true triplets whose subject and object they stand for.

    Args:
        rows: int64 [L], row of the predicted pair.
        triplets: int64 [L], number of the triplet.
        valid: bool [L]; on an accelerator all combinations are listed, and most are not.
    """

    rows: Tensor
    triplets: Tensor
    valid: Tensor


def link_triplets(
    matches: Matches,
    subjects: Tensor,
    objects: Tensor,
    pair_images: Tensor,
    triplet_objects: Tensor,
    triplet_images: Tensor,
    num_images: int,
    *,
    counted: Tensor | None = None,
    num_links: int | None = None,
) -> Links:
    """Which predicted pairs stand for the subject and the object of which triplets.

    Args:
        matches: of objects; objects are numbered through the batch.
        subjects: int64 [R], number of each pair's predicted subject.
        objects: int64 [R], number of its predicted object.
        pair_images: int64 [R], ascending.
        triplet_objects: int64 [T, 2], numbers of the annotated subject and object.
        triplet_images: int64 [T], ascending.
        num_images: number of images.
        counted: bool [R], the pairs to consider; default all.
        num_links: the sum over images of pairs times triplets; needed on an accelerator, which
            could not say it without a wait.

    Example:
        >>> from haystack.metrics.functional import match_objects, object_pairs
        >>> layout, labels = object_pairs([2], [2]), torch.tensor([3, 4])
        >>> iou = torch.tensor([0.9, 0.0, 0.0, 0.8])
        >>> found = match_objects(iou, layout, labels, labels, rule="many-to-many")
        >>> image, subjects = torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1])
        >>> triplets = torch.tensor([[1, 0]])
        >>> links = link_triplets(found, subjects, 1 - subjects, image, triplets, image[:1], 1)
        >>> links.rows.tolist(), links.triplets.tolist()
        ([1], [0])
    """
    if len(subjects) == 0 or len(triplet_images) == 0 or len(matches.matched) == 0:
        nothing = pair_images.new_empty(0)
        return Links(nothing, nothing, nothing.bool())
    if on_host(subjects):
        able = _stands_for(matches, triplet_objects[:, 0]).index_select(0, subjects)
        rows = where_true(able if counted is None else able & counted)
        able = _stands_for(matches, triplet_objects[:, 1])
        able = able.index_select(0, objects.index_select(0, rows))
        rows = rows.index_select(0, where_true(able))
        num_links = None
    else:
        rows = torch.arange(len(subjects), device=subjects.device)
    every = torch.arange(num_images + 1, device=subjects.device)
    bounds = torch.searchsorted(triplet_images, every)
    counts = bounds.diff().index_select(0, pair_images.index_select(0, rows))
    link = torch.repeat_interleave(
        torch.arange(len(rows), device=subjects.device), counts, output_size=num_links
    )
    # The n-th link of a row is with the n-th triplet of its image.
    first = bounds.index_select(0, pair_images.index_select(0, rows))
    first = first - torch.cumsum(counts, 0) + counts
    triplet = first.index_select(0, link) + torch.arange(len(link), device=rows.device)
    row = rows.index_select(0, link)
    ends = triplet_objects.T.contiguous().index_select(1, triplet)
    valid = _matched(matches, ends[0], subjects.index_select(0, row))
    valid &= _matched(matches, ends[1], objects.index_select(0, row))
    if counted is not None:
        valid &= counted.index_select(0, row)
    kept = where_true(valid)
    return Links(*(column.index_select(0, kept) for column in (row, triplet, valid)))


def _stands_for(matches: Matches, truths: Tensor) -> Tensor:
    """Which predicted objects match one of ``truths``, bool [predictions]."""
    pairs = matches.pairs
    wanted = torch.zeros(len(pairs.truth_images), dtype=torch.bool, device=truths.device)
    wanted[truths] = True
    found = wanted.index_select(0, pairs.truth) & matches.matched
    kept = where_true(found)  # few, where they can be told
    counts = torch.zeros_like(pairs.predicted_images)
    owners = pairs.predicted.index_select(0, kept)
    return counts.index_add_(0, owners, found.index_select(0, kept).to(torch.int64)) > 0


def _matched(matches: Matches, truth: Tensor, predicted: Tensor) -> Tensor:
    place = matches.pairs.begins.index_select(0, truth) + predicted
    return matches.matched.index_select(0, place)


def first_hits(
    links: Links,
    scores: Tensor,
    predicates: Tensor,
    *,
    factors: Tensor | None = None,
    pair_scores: Tensor | None = None,
) -> FirstHits:
    """The best-ranked pair among those that stand for each triplet.

    Args:
        links: see :func:`link_triplets`.
        scores: float [R, P].
        predicates: int64 [T].
        factors: float [R], multiplies the pair's scores.
        pair_scores: float [R], by which pairs are ordered under the graph constraint; by default
            the score of the pair's best candidate.

    Example:
        >>> links = Links(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([True, True]))
        >>> scores = torch.tensor([[0.5, 0.4], [0.9, 0.3]])
        >>> [rows.tolist() for rows in first_hits(links, scores, torch.tensor([1]))]
        [[-1], [0], [1]]
    """
    rows, triplets, valid = links
    size = len(predicates)
    if len(rows) == 0:
        never = torch.full_like(predicates, -1)
        return FirstHits(never, never, never)
    values = scores.detach().float()[rows]
    predicate = predicates[triplets]
    own, best = values.gather(1, predicate[:, None])[:, 0], values.amax(1)
    if factors is not None:
        own, best = own * factors[rows], best * factors[rows]
    if pair_scores is not None:
        best = pair_scores.float()[rows]
    is_best = ranks_of(values, predicate) == 0
    return FirstHits(
        _first_row(rows, best, triplets, valid & is_best, size),
        _first_row(rows, own, triplets, valid, size),
        _first_row(rows, best, triplets, valid, size),
    )


def _first_row(rows: Tensor, scores: Tensor, triplets: Tensor, valid: Tensor, size: int) -> Tensor:
    """Of each triplet's valid links the row of the highest score, then the lowest; -1 for none."""
    # From the least key of any float32, 1 - 2^31, to a number of 32 bits.
    place = descending_keys(scores) + _ROWS
    keys = (place * _ROWS + rows).where(valid, _NO_KEY)
    first = torch.full((size,), _NO_KEY, dtype=torch.int64, device=rows.device)
    first = first.scatter_reduce(0, triplets, keys, "amin")
    return torch.where(first == _NO_KEY, -1, first % _ROWS)


def predicate_places(
    links: Links, scores: Tensor, predicates: Tensor, *, factors: Tensor | None = None
) -> Tensor:
    """Rank of each triplet's predicate among those of its pair, int64 [T]; -1 without a hit.

    Where several predicted pairs stand for one, a predicate has the best of their scores.

    Args:
        links: see :func:`link_triplets`.
        scores: float [R, P].
        predicates: int64 [T].
        factors: float [R], multiplies the pair's scores.

    Example:
        >>> links = Links(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([True, True]))
        >>> scores = torch.tensor([[0.5, 0.4, 0.0], [0.1, 0.6, 0.2]])
        >>> predicate_places(links, scores, torch.tensor([0]))
        tensor([1])
    """
    rows, triplets, valid = links
    if len(rows) == 0:
        return torch.full_like(predicates, -1)
    values = scores.detach().float()[rows]
    if factors is not None:
        values = values * factors[rows][:, None]
    values = values.where(valid[:, None], -torch.inf)
    merged = values.new_full((len(predicates), scores.shape[1]), -torch.inf)
    merged = merged.scatter_reduce(0, triplets[:, None].expand_as(values), values, "amax")
    return ranks_of(merged, predicates).where(merged.amax(1) > -torch.inf, -1)
