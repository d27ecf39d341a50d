"""Predictions that are ranked triplets without scores, as SGBench stores them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.batch import (
    Record,
    as_tensor,
    keys_of,
    move,
    record_name,
    send,
    shape_error,
)
from haystack.metrics.functional.hits import Links, first_hits, predicate_places
from haystack.metrics.functional.orders import independent_ranks
from haystack.metrics.functional.ranking import NEVER
from haystack.metrics.functional.tensors import on_host
from haystack.metrics.kinds import Order
from haystack.metrics.predictions import Predictions, flatten_predictions
from haystack.metrics.ranks import Batch, link_batch

LIST_PROBLEMS = ("a ranked triplet names an object or a predicate that is not there",)
"""What may be wrong with values, in the order of ``RankedList.problems``."""


@dataclass(frozen=True)
class RankedList:
    """The ranked triplets of a batch as scores, so that what ranks scores ranks them.

    Args:
        predicted: a row for each entry, so that no number of rows depends on values. The first
            entry of a pair has the scores of all its entries, n - j for place j of n; what is not
            listed has 0, and so have the pair's other entries.
        lengths: int64 [images], n.
        problems: bool [1, images], in the order of ``LIST_PROBLEMS``.
    """

    predicted: Predictions
    lengths: Tensor
    problems: Tensor


def is_ranked(preds: Sequence[Record | None]) -> bool:
    """Whether a batch holds ranked triplets instead of scores."""
    return "triplets" in keys_of(preds)


def flatten_lists(
    preds: Sequence[Record | None],
    key: str,
    num_objects: Sequence[int],
    num_predicates: int,
    device: torch.device,
) -> RankedList | None:
    """Flatten ranked triplets.

    Args:
        preds: dicts with rows (subject, object, predicate) [K, 3] under ``key``, the most
            confident first; of equal rows the first counts.
        key: ``triplets``, or ``ng_triplets`` without graph constraint.
        num_objects: objects in each image.
        num_predicates: P.
        device: of the result.

    Returns:
        The lists, or None if an image has none under ``key``.

    Raises:
        InputError: a shape does not fit, or on the CPU an object or a predicate.
    """
    if any(record is not None and record.get(key) is None for record in preds):
        return None
    lists = [
        None if record is None else move(_rows(record[key], i, preds), device)
        for i, record in enumerate(preds)
    ]
    problems = _problems(lists, num_objects, num_predicates, preds, device)
    records = [
        None if rows is None else _scored(rows, num_objects[number], num_predicates)
        for number, rows in enumerate(lists)
    ]
    predicted = flatten_predictions(
        records,
        num_objects,
        num_predicates,
        from_logits=False,
        device=device,
        keep_repeated=True,
    )
    return RankedList(predicted, send(predicted.sizes, torch.int64, device), problems)


def _rows(value: Any, number: int, preds: Sequence[Record | None]) -> Tensor:
    rows = as_tensor(value, "triplets", record_name(number, preds))
    if rows.numel() == 0:
        rows = rows.reshape(0, 3).to(torch.int64)
    if rows.ndim != 2 or rows.shape[1] != 3 or rows.is_floating_point():
        raise shape_error(
            "integer rows (subject, object, predicate) [K, 3]",
            rows,
            number,
            [record or {} for record in preds],
        )
    return rows.to(torch.int64)


def _problems(
    lists: Sequence[Tensor | None],
    num_objects: Sequence[int],
    num_predicates: int,
    preds: Sequence[Record | None],
    device: torch.device,
) -> Tensor:
    """``RankedList.problems``, raised at once on the CPU."""
    flags = torch.zeros(len(LIST_PROBLEMS), len(lists), dtype=torch.bool, device=device)
    for number, rows in enumerate(lists):
        if rows is None:
            continue
        outside = _outside(rows, num_objects[number], num_predicates)
        if not on_host(rows):
            flags[0, number] = outside.any()
        elif bool(outside.any()):
            raise InputError(
                f"the triplet {rows[outside][0].tolist()} names an object or a predicate that is "
                f"not there; there are {num_objects[number]} objects and {num_predicates} "
                "predicates",
                record=record_name(number, preds),
            )
    return flags


def _outside(rows: Tensor, objects: int, predicates: int) -> Tensor:
    """Which entries [K] name an object or a predicate that is not there."""
    pairs, predicate = rows[:, :2], rows[:, 2]
    wrong = ((pairs < 0) | (pairs >= objects)).any(1)
    return wrong | (predicate < 0) | (predicate >= predicates)


def _scored(rows: Tensor, objects: int, predicates: int) -> dict[str, Any]:
    """Pairs and scores of one image, a row for each entry."""
    number = torch.arange(len(rows), device=rows.device)
    outside = _outside(rows, objects, predicates)
    slot = (rows[:, 0] * objects + rows[:, 1]).masked_fill(outside, objects**2)
    first = number.new_zeros(objects**2 + 1)
    first = first.scatter_reduce(0, slot, number, "amin", include_self=False)
    scores = torch.zeros(len(rows) * predicates, device=rows.device)
    cells = first[slot] * predicates + rows[:, 2].clamp(0, predicates - 1)
    places = (len(rows) - number).float()
    scores = scores.scatter_reduce(0, cells, places, "amax")
    return {"pairs": rows[:, :2], "scores": scores.view(-1, predicates)}


def rank_lists(
    batch: Batch,
    constrained: RankedList,
    unconstrained: RankedList | None,
    orders: Collection[Order],
) -> tuple[dict[Order, Tensor], Tensor | None]:
    """As :func:`haystack.metrics.ranks.rank_batch`, for ranked triplets.

    Places are read off the lists; the graph constraint is what the list makes of it: a pair may
    come again with another predicate. The rank inside the pair is None without the list that has
    no graph constraint.
    """
    ranks: dict[Order, Tensor] = batch.reachable_ranks(orders)
    links = batch.links
    ranks["constrained"], ranks["pair"] = _places(batch, constrained, links)
    if "independent" in orders:
        ranks["independent"] = _places_of_predicate(batch, constrained, links)
    if unconstrained is None:
        return ranks, None
    links = link_batch(batch, unconstrained.predicted)
    ranks["unconstrained"], _ = _places(batch, unconstrained, links)
    if "independent-unconstrained" in orders:
        ranks["independent-unconstrained"] = _places_of_predicate(batch, unconstrained, links)
    predicates = batch.annotated.triplet_predicates
    places = predicate_places(links, unconstrained.predicted.scores, predicates)
    return ranks, places.where(ranks["unconstrained"] < NEVER, -1)


def _places(batch: Batch, listed: RankedList, links: Links) -> tuple[Tensor, Tensor]:
    """Place of the first entry that hits each triplet, and of the first that hits its pair."""
    scores, predicates = listed.predicted.scores, batch.annotated.triplet_predicates
    hits = first_hits(links, scores, predicates)
    if len(scores) == 0:
        never = torch.full_like(predicates, NEVER)
        return never, never
    length = listed.lengths[batch.annotated.triplet_images]
    own = scores[hits.unconstrained.clamp(min=0), predicates].to(torch.int64)
    best = listed.predicted.best[hits.pair.clamp(min=0)].to(torch.int64)
    return (
        (length - own).where((hits.unconstrained >= 0) & (own > 0), NEVER),
        (length - best).where(hits.pair >= 0, NEVER),
    )


def _places_of_predicate(batch: Batch, listed: RankedList, links: Links) -> Tensor:
    """Place of the first entry that hits each triplet among those of its predicate."""
    scores, predicates = listed.predicted.scores, batch.annotated.triplet_predicates
    if len(scores) == 0:
        return torch.full_like(predicates, NEVER)
    row = first_hits(links, scores, predicates).unconstrained
    listed_there = (row >= 0) & (scores[row.clamp(min=0), predicates] > 0)
    return independent_ranks(
        scores,
        listed.predicted.images,
        row.where(listed_there, -1),
        predicates,
        batch.annotated.triplet_images,
        len(batch.annotated.num_objects),
        pairs_per_image=max(listed.predicted.sizes),
    )
