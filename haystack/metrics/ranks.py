"""A batch of annotations and predictions: rows of annotated pairs, and ranks of true triplets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from haystack.metrics.batch import send
from haystack.metrics.functional.hits import Links, first_hits, link_triplets, predicate_places
from haystack.metrics.functional.orders import (
    FirstHits,
    TripletRanks,
    annotated_pair_ranks,
    independent_ranks,
    triplet_ranks,
)
from haystack.metrics.functional.ranking import NEVER, ranks_of
from haystack.metrics.functional.recall import reachable_ranks
from haystack.metrics.functional.tensors import count_by
from haystack.metrics.kinds import Order
from haystack.metrics.objects import ObjectMatch
from haystack.metrics.predictions import Predictions
from haystack.metrics.protocols import Protocol, Skipped
from haystack.metrics.targets import Targets

ANNOTATED: tuple[Order, ...] = ("annotated", "annotated-unconstrained")


@dataclass(frozen=True)
class Batch:
    """What ``update`` was given, flat and on the metric's device.

    Args:
        annotated: the annotations.
        predicted: the predictions.
        objects: which objects match; None where pairs are the same if their objects are.
        own_objects: whether pairs refer to the model's objects, not to the annotated ones.
    """

    annotated: Targets
    predicted: Predictions
    objects: ObjectMatch | None
    own_objects: bool

    def rows(self, slots: Tensor, objects: Tensor) -> Tensor:
        """Rows of annotated pairs in the predictions, int64 [A]; -1 where not predicted.

        With the model's own objects, the pair of the predictions that overlap most.

        Args:
            slots: int64 [A], numbers of the pairs.
            objects: int64 [A, 2], numbers of their subjects and objects.
        """
        if self.own_objects and self.objects is not None:
            subjects, targets = self.objects.prediction[objects].unbind(1)
            return self.predicted.rows_of(subjects, targets)
        return self.predicted.row_of_slot[slots]

    def entering(self, skipped: Skipped) -> Tensor | None:
        """Which images enter a mean, bool [images]; None = all."""
        if skipped == "nothing":
            return None
        if skipped == "missing":
            return self.predicted.recorded
        sizes = [size > 0 for size in self.predicted.sizes]
        return send(sizes, torch.bool, self.predicted.recorded.device)

    def found(self) -> tuple[Tensor, Tensor]:
        """Which annotated objects the predictions hold, bool [G], and their images, int64 [G]."""
        sizes = send(self.annotated.num_objects, torch.int64, self.predicted.recorded.device)
        images = torch.repeat_interleave(
            torch.arange(len(sizes), device=sizes.device),
            sizes,
            output_size=sum(self.annotated.num_objects),
        )
        if self.own_objects and self.objects is not None:
            return self.objects.found, images
        return self.predicted.recorded[images], images

    @cached_property
    def links(self) -> Links:
        """Which predicted pairs stand for which triplets, where objects are matched."""
        return link_batch(self, self.predicted)

    def reachable_ranks(self, orders: Collection[Order]) -> dict[Order, Tensor]:
        """Rank 0 of each triplet whose subject and object are found, if that is asked for."""
        if "reachable" not in orders:
            return {}
        if self.own_objects and self.objects is not None and self.objects.phrases is not None:
            images = self.annotated.triplet_images
            reached = count_by(self.links.triplets, self.links.valid, len(images)) > 0
            return {"reachable": torch.where(reached, 0, NEVER)}
        found, _ = self.found()
        return {"reachable": reachable_ranks(found, self.annotated.triplet_objects)}


def rank_batch(
    batch: Batch,
    protocol: Protocol,
    orders: Collection[Order],
    limit: int,
    *,
    places: bool,
) -> tuple[dict[Order, Tensor], Tensor | None]:
    """Ranks of the true triplets under each order asked for.

    Args:
        batch: with at least one triplet.
        protocol: its choices.
        orders: what is asked for.
        limit: ranks need only be exact below it.
        places: whether the ranks inside pairs are asked for.

    Returns:
        order -> int64 [T], without the orders that the input does not define; and int64 [T], the
        rank of each triplet's predicate inside its pair, -1 without a hit; or None.
    """
    annotated, predicted = batch.annotated, batch.predicted
    images, predicates = annotated.triplet_images, annotated.triplet_predicates
    num_images = len(annotated.num_objects)
    ranks = batch.reachable_ranks(orders)
    if len(predicted.scores) == 0:
        never = torch.full_like(images, NEVER)
        return dict.fromkeys(orders, never) | ranks, torch.full_like(images, -1)

    factors, pair_scores = _scores_of_pairs(predicted, protocol)
    hits, inside = _hits(batch, factors, pair_scores, places=places)
    layout = (predicates, images, num_images)
    ranks |= ranks_by_order(
        triplet_ranks(
            predicted.scores,
            predicted.images,
            hits,
            *layout,
            limit=limit,
            factors=factors,
            pair_scores=pair_scores,
            row_best=predicted.best,
            independent="independent" in orders,
        )
    )
    if "independent-unconstrained" in orders:
        ranks["independent-unconstrained"] = independent_ranks(
            predicted.scores,
            predicted.images,
            hits.unconstrained,
            *layout,
            pairs_per_image=max(predicted.sizes),
            factors=factors,
            row_best=predicted.best,
        )
    if not batch.own_objects and any(order in orders for order in ANNOTATED):
        repeated = protocol.repeated_pairs == "keep"
        pair_rows = (_all_rows if repeated else _annotated_rows)(annotated, predicted)
        if batch.objects is not None:
            hits = _hits_among(batch, pair_rows, factors, pair_scores)
        constrained, unconstrained = annotated_pair_ranks(
            predicted.scores,
            hits,
            pair_rows[images],
            predicates,
            factors=factors,
            pair_scores=pair_scores,
            row_best=predicted.best,
        )
        ranks |= {"annotated": constrained, "annotated-unconstrained": unconstrained}
    return ranks, inside


def ranks_by_order(ranks: TripletRanks) -> dict[Order, Tensor]:
    """The ranks that were computed, by order."""
    named: dict[Order, Tensor] = {
        "constrained": ranks.constrained,
        "unconstrained": ranks.unconstrained,
        "pair": ranks.pair,
    }
    return named if ranks.independent is None else named | {"independent": ranks.independent}


def _scores_of_pairs(
    predicted: Predictions, protocol: Protocol
) -> tuple[Tensor | None, Tensor | None]:
    """What multiplies the scores of a pair without graph constraint, and what orders pairs."""
    factors, pair_scores = None, predicted.pair_scores
    if predicted.object_scores is not None:
        scores = predicted.object_scores
        factors = scores.index_select(0, predicted.subjects)
        factors *= scores.index_select(0, predicted.objects)
    if not protocol.unconstrained_related or predicted.no_relation is None:
        return factors, pair_scores
    if pair_scores is None:
        pair_scores = predicted.best if factors is None else predicted.best * factors
    related = 1 - predicted.no_relation
    return related if factors is None else factors * related, pair_scores


def _hits(
    batch: Batch, factors: Tensor | None, pair_scores: Tensor | None, *, places: bool
) -> tuple[FirstHits, Tensor | None]:
    """First hits, and if asked for the rank of each triplet's predicate inside its pair."""
    annotated, predicted = batch.annotated, batch.predicted
    predicates = annotated.triplet_predicates
    if batch.objects is None:
        rows = predicted.row_of_slot[annotated.triplet_slots]
        inside = ranks_of(predicted.scores.index_select(0, rows.clamp(min=0)), predicates)
        hits = FirstHits(rows.where(inside == 0, -1), rows, rows)
        return hits, inside.where(rows >= 0, -1)
    links = batch.links
    hits = first_hits(links, predicted.scores, predicates, factors=factors, pair_scores=pair_scores)
    if not places:
        return hits, None
    return hits, predicate_places(links, predicted.scores, predicates, factors=factors)


def _hits_among(
    batch: Batch, pair_rows: Tensor, factors: Tensor | None, pair_scores: Tensor | None
) -> FirstHits:
    """First hits among the annotated pairs."""
    predicted = batch.predicted
    counted = torch.zeros(len(predicted.scores) + 1, dtype=torch.bool, device=pair_rows.device)
    counted[pair_rows.flatten()] = True  # row -1 is the one too many
    return first_hits(
        link_batch(batch, predicted, counted[:-1]),
        predicted.scores,
        batch.annotated.triplet_predicates,
        factors=factors,
        pair_scores=pair_scores,
    )


def link_batch(batch: Batch, predicted: Predictions, counted: Tensor | None = None) -> Links:
    """Which predicted pairs stand for which triplets, by the match of their objects.

    Args:
        batch: whose objects were matched.
        predicted: the pairs, of the objects of the batch.
        counted: bool [R], the pairs to consider; default all.
    """
    if batch.objects is None:
        raise ValueError("the objects of this batch were not matched")
    annotated = batch.annotated
    counts = annotated.num_triplets, predicted.sizes
    phrases = batch.objects.phrases
    links = link_triplets(
        batch.objects.matches if phrases is None else phrases.classes,
        predicted.subjects,
        predicted.objects,
        predicted.images,
        annotated.triplet_objects,
        annotated.triplet_images,
        len(annotated.num_objects),
        counted=counted,
        num_links=sum(triplets * pairs for triplets, pairs in zip(*counts, strict=True)),
    )
    if phrases is None:
        return links
    pairs = torch.stack([predicted.subjects, predicted.objects], dim=1)
    return phrases.keep(links, annotated.triplet_objects, pairs, counts)


def _annotated_rows(annotated: Targets, predicted: Predictions) -> Tensor:
    """Rows of each image's distinct pairs with a triplet, int64 [images, W], -1 to fill up."""
    images, first = annotated.triplet_images, annotated.first_of_pair
    num_images = len(annotated.num_objects)
    number = torch.cumsum(first, 0) - 1
    begins = torch.searchsorted(images, torch.arange(num_images, device=images.device))
    begins = number[begins.clamp(max=len(number) - 1)]
    rows = torch.full(
        (num_images, annotated.num_pairs), -1, dtype=torch.int64, device=images.device
    )
    # Triplets of one pair write the same row to the same place.
    rows[images, number - begins[images]] = predicted.row_of_slot[annotated.triplet_slots]
    return rows


def _all_rows(annotated: Targets, predicted: Predictions) -> Tensor:
    """As ``_annotated_rows``, where a pair may come again: each of its rows, in their order."""
    rows = torch.arange(len(predicted.images), device=predicted.images.device)
    related = torch.zeros_like(predicted.row_of_slot, dtype=torch.bool)
    related[annotated.triplet_slots] = True
    slots = predicted.first_slots[predicted.subjects] + predicted.objects
    sizes = send(predicted.sizes, torch.int64, rows.device)
    begins = torch.cumsum(sizes, 0) - sizes
    table = rows.new_full((len(sizes), max(predicted.sizes)), -1)
    place = rows - begins[predicted.images]
    table[predicted.images, place] = rows.where(related[slots], -1)
    return table
