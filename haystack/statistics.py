"""Counts over annotations: what the proposal filter, the metrics and ``haystack stats`` ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from haystack.scene_graph import NO_RELATION, SceneGraph, Triplets

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TripletStatistics:
    """How often classes and predicates meet in positive annotations.

    Args:
        subject_predicate: int64 [C, P], relations with this subject class and predicate.
        predicate_object: int64 [P, C], relations with this predicate and object class.
        triplets: int64 [T, 3], the distinct (subject class, object class, predicate) rows seen.
        triplet_counts: int64 [T], how often each row of ``triplets`` was seen.
    """

    subject_predicate: Counts
    predicate_object: Counts
    triplets: Triplets
    triplet_counts: Counts

    @classmethod
    def from_graphs(
        cls, graphs: Iterable[SceneGraph], num_objects: int, num_predicates: int
    ) -> TripletStatistics:
        """Count the positive relations of ``graphs``; a repeated row counts once an image."""
        rows = []
        for graph in graphs:
            relations = np.unique(graph.relations, axis=0)
            relations = relations[relations[:, 2] != NO_RELATION]
            if len(relations):
                labels = graph.labels
                classes = (labels[relations[:, 0]], labels[relations[:, 1]], relations[:, 2])
                rows.append(np.stack(classes, axis=1))
        table = np.concatenate(rows) if rows else np.empty((0, 3), dtype=np.int64)
        subject_predicate = np.zeros((num_objects, num_predicates), dtype=np.int64)
        predicate_object = np.zeros((num_predicates, num_objects), dtype=np.int64)
        np.add.at(subject_predicate, (table[:, 0], table[:, 2]), 1)
        np.add.at(predicate_object, (table[:, 2], table[:, 1]), 1)
        triplets, counts = np.unique(table, axis=0, return_counts=True)
        return cls(subject_predicate, predicate_object, triplets, counts.astype(np.int64))


@dataclass(frozen=True)
class DatasetSummary:
    """What an annotation file holds, and how long its tail is.

    Args:
        images, segments: totals.
        images_without_relations: images with no positive relation.
        images_with_negatives_only: those of them that have explicit negatives.
        positives, negatives: int64 [P], distinct rows for each predicate.
        images_with: int64 [P], images that hold the predicate at least once.
        no_relation_pairs: pairs labelled "no relation at all".
        duplicate_rows: rows given more than once in an image (counted once above).
        self_relations: rows whose subject is their object.
        pairs_with_several_predicates: ordered pairs with two or more positive predicates.
    """

    images: int
    segments: int
    images_without_relations: int
    images_with_negatives_only: int
    positives: Counts
    negatives: Counts
    images_with: Counts
    no_relation_pairs: int
    duplicate_rows: int
    self_relations: int
    pairs_with_several_predicates: int

    @classmethod
    def from_graphs(cls, graphs: Sequence[SceneGraph], num_predicates: int) -> DatasetSummary:
        """Summarise ``graphs``, whose predicates are 0..num_predicates-1."""
        positives, negatives, images_with = (np.zeros(num_predicates, np.int64) for _ in range(3))
        no_relation = duplicates = self_relations = several = empty = negatives_only = 0
        for graph in graphs:
            relations = np.unique(graph.relations, axis=0)
            refusals = np.unique(graph.neg_relations, axis=0)
            duplicates += len(graph.relations) - len(relations)
            duplicates += len(graph.neg_relations) - len(refusals)
            self_relations += int((relations[:, 0] == relations[:, 1]).sum())
            _, per_pair = np.unique(relations[:, :2], axis=0, return_counts=True)
            several += int((per_pair > 1).sum())
            nothing = refusals[:, 2] == NO_RELATION
            no_relation += int(nothing.sum())
            found = np.bincount(relations[:, 2], minlength=num_predicates)
            positives += found
            images_with += found > 0
            negatives += np.bincount(refusals[~nothing, 2], minlength=num_predicates)
            empty += not len(relations)
            negatives_only += not len(relations) and len(refusals) > 0
        return cls(
            images=len(graphs),
            segments=sum(len(graph.segments) for graph in graphs),
            images_without_relations=empty,
            images_with_negatives_only=negatives_only,
            positives=positives,
            negatives=negatives,
            images_with=images_with,
            no_relation_pairs=no_relation,
            duplicate_rows=duplicates,
            self_relations=self_relations,
            pairs_with_several_predicates=several,
        )

    def long_tail(self) -> dict[str, float | int | None]:
        """Figures of the long tail of positives over predicates; None where nothing is positive.

        ``top_3_share``: share of the three most frequent predicates (PSG: 0.52). ``gini``: 0 for
        equal counts, towards 1 for one predicate alone. ``imbalance``: most over least frequent
        predicate among those that occur. ``effective_predicates``: the exponential of the entropy,
        that is, how many equally frequent predicates would be as varied.
        """
        counts = np.sort(self.positives)[::-1]
        total, seen = int(counts.sum()), counts[counts > 0]
        figures: dict[str, float | int | None] = {
            "predicates": len(counts),
            "predicates_without_positives": int((counts == 0).sum()),
            "predicates_below_100_positives": int((counts < 100).sum()),
            "top_3_share": None,
            "gini": None,
            "imbalance": None,
            "effective_predicates": None,
        }
        if total:
            shares = seen / total
            order = np.arange(1, len(counts) + 1)
            gini = float(2 * (order * counts[::-1]).sum() / (len(counts) * total))
            figures["top_3_share"] = float(counts[:3].sum() / total)
            figures["gini"] = gini - (len(counts) + 1) / len(counts)
            figures["imbalance"] = float(seen[0] / seen[-1])
            figures["effective_predicates"] = float(np.exp(-(shares * np.log(shares)).sum()))
        return figures


def random_yield(
    graphs: Iterable[SceneGraph], statistics: TripletStatistics, *, min_count: int = 2
) -> npt.NDArray[np.float64]:
    """Share of plausible pairs that hold a predicate: the yield of asking about pairs at random.

    A pair of segments is plausible for a predicate where the subject's class was seen with it, and
    it with the object's class, at least ``min_count`` times; these are the pairs that are ever
    proposed. Annotations that leave relations out, as PSG's do, make the share too low.

    Args:
        graphs: annotated images, such as those that ``statistics`` counts.
        statistics: says what is plausible.
        min_count: see above; 0 makes every pair plausible.

    Returns:
        float64 [P]; NaN where no pair is plausible.
    """
    seen_as_object = statistics.predicate_object.T
    as_subject = statistics.subject_predicate >= min_count
    as_object = seen_as_object >= min_count
    classes, predicates = as_subject.shape
    pairs = np.zeros(predicates, dtype=np.int64)
    holding = np.zeros(predicates, dtype=np.int64)
    both = (as_subject & as_object).astype(np.int64)
    for graph in graphs:
        labels = graph.labels
        present = np.bincount(labels, minlength=classes)
        # Ordered pairs, less those of a segment with itself.
        pairs += (present @ as_subject) * (present @ as_object) - present @ both
        rows = np.unique(graph.relations, axis=0)
        rows = rows[(rows[:, 2] != NO_RELATION) & (rows[:, 0] != rows[:, 1])]
        subjects, objects, predicate = labels[rows[:, 0]], labels[rows[:, 1]], rows[:, 2]
        plausible = as_subject[subjects, predicate] & as_object[objects, predicate]
        holding += np.bincount(predicate[plausible], minlength=predicates)
    shares = np.full(predicates, np.nan)
    np.divide(holding, pairs, out=shares, where=pairs > 0)
    return shares
