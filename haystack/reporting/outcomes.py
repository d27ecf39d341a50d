"""What a model said of each image: which predicate it takes for which, and where it does worst."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from haystack.errors import InputError
from haystack.evaluation.benchmark import BenchmarkResult
from haystack.evaluation.predictions import open_predictions
from haystack.io.psg import read_psg
from haystack.metrics.functional.ranking import relation_probabilities
from haystack.metrics.protocols import get_protocol
from haystack.scene_graph import (
    NO_RELATION,
    RelationScores,
    SceneGraph,
    SceneGraphDataset,
    Triplets,
    best_triplets,
)

_FEWEST_RELATIONS = 3
"""An image with one relation is either all right or all wrong, and shows little."""
_KEPT = 10


class RankedTruth(NamedTuple):
    """An annotated triplet, and where the model's list has it; None = nowhere."""

    subject: int
    object: int
    predicate: int
    rank: int | None


@dataclass(frozen=True)
class ImageOutcome:
    """One image.

    Args:
        graph: its annotations.
        k: the cut-off.
        recall: share of its annotated triplets among the first ``k`` of the model's list, in which
            each pair stands once, with its best predicate (graph constraint).
        mean_reciprocal_rank: of its annotated triplets in that list; orders images of equal recall.
        truths: the annotated triplets.
        predicted: int64 [T, 3], the first ten triplets of the list.
        scores: float32 [T], their probabilities.
    """

    graph: SceneGraph
    k: int
    recall: float
    mean_reciprocal_rank: float
    truths: tuple[RankedTruth, ...]
    predicted: Triplets
    scores: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Outcomes:
    """A model, image by image.

    Args:
        dataset: the annotations.
        confusion: int64 [P, P]; row: the annotated predicate, column: the best predicate of its
            pair. An annotated pair that the predictions lack is in no column.
        lacking: int64 [P], annotated triplets whose pair the predictions lack.
        best: images with the highest recall, highest first.
        worst: those with the lowest, lowest first; none is in both.
    """

    dataset: SceneGraphDataset
    confusion: npt.NDArray[np.int64]
    lacking: npt.NDArray[np.int64]
    best: tuple[ImageOutcome, ...]
    worst: tuple[ImageOutcome, ...]


def model_outcomes(
    result: BenchmarkResult, dataset: SceneGraphDataset | None = None, *, examples: int = 4
) -> Outcomes:
    """Read a result's predictions again, image by image.

    Args:
        result: of a benchmark of PredCls.
        dataset: the annotations, where they were read already.
        examples: how many best and how many worst images are kept.

    Raises:
        InputError: the benchmark is not PredCls, a file behind the result is gone or another by
            now, or the predictions have no scores.
    """
    if result.benchmark.task != "predcls":
        raise InputError(
            "confusion and examples are of annotated pairs, which only PredCls predicts; "
            f"{result.benchmark.name} is {result.benchmark.task}"
        )
    keep = get_protocol(result.benchmark.protocol).repeated_labels == "keep"
    if dataset is None:
        dataset = read_psg(result.input_file("annotations"), allow_contradictions=keep)
    graphs = {g.image_id: g for g in dataset.split(result.benchmark.split)}  # type: ignore[arg-type]
    source = open_predictions(
        result.input_file("predictions"),
        dataset.vocabulary,
        dataset=dataset,
        no_relation=result.inputs["predictions"]["no_relation"],
        repeated_pairs=get_protocol(result.benchmark.protocol).repeated_pairs,
    )
    count = dataset.vocabulary.num_predicates
    confusion = np.zeros((count, count), dtype=np.int64)
    lacking = np.zeros(count, dtype=np.int64)
    extremes = _Extremes(examples)
    k = result.benchmark.ks[len(result.benchmark.ks) // 2]
    for image in source.images:
        if not isinstance(image, RelationScores):
            raise InputError("these predictions rank triplets and have no scores of predicates")
        graph = graphs.pop(str(image.image_id), None)
        truth = None if graph is None else annotated_triplets(graph)
        if graph is None or truth is None or not len(truth):
            continue
        if source.from_logits:
            image = replace(image, scores=_probabilities(image))
        predicted, scores = best_triplets(image, len(image.pairs))
        ranked = {(s, o): (rank, p) for rank, (s, o, p) in enumerate(predicted.tolist())}
        truths = []
        for s, o, p in truth.tolist():
            rank, best = ranked.get((s, o), (None, None))
            if best is None:
                lacking[p] += 1
            else:
                confusion[p, best] += 1
            truths.append(RankedTruth(s, o, p, rank if best == p else None))
        extremes.add(_outcome(graph, truths, predicted, scores, k))
    for graph in graphs.values():  # never predicted
        np.add.at(lacking, annotated_triplets(graph)[:, 2], 1)
    best_images, worst_images = extremes.chosen()
    return Outcomes(dataset, confusion, lacking, best_images, worst_images)


def annotated_triplets(graph: SceneGraph) -> Triplets:
    """The distinct positive triplets of an image, int64 [T, 3]."""
    rows = np.unique(graph.relations, axis=0)
    return rows[rows[:, 2] != NO_RELATION]


def _outcome(
    graph: SceneGraph,
    truths: Sequence[RankedTruth],
    predicted: Triplets,
    scores: npt.NDArray[np.float32],
    k: int,
) -> ImageOutcome:
    ranks = [truth.rank for truth in truths if truth.rank is not None]
    return ImageOutcome(
        graph=graph,
        k=k,
        recall=sum(rank < k for rank in ranks) / len(truths),
        mean_reciprocal_rank=sum(1 / (1 + rank) for rank in ranks) / len(truths),
        truths=tuple(truths),
        predicted=predicted[:_KEPT],
        scores=scores[:_KEPT],
    )


def _probabilities(image: RelationScores) -> npt.NDArray[np.float32]:
    assert image.no_relation is not None  # or the logits could not have been graded
    logits, no_relation = map(torch.from_numpy, (image.scores, image.no_relation))
    return relation_probabilities(logits, no_relation).numpy()


@dataclass
class _Extremes:
    """The ``count`` best and worst images of any number, in memory for so many."""

    count: int
    _seen: int = 0
    _heaps: tuple[list, list] = field(default_factory=lambda: ([], []))

    def add(self, outcome: ImageOutcome) -> None:
        telling = len(outcome.truths) >= _FEWEST_RELATIONS
        quality = (outcome.recall, outcome.mean_reciprocal_rank)
        self._seen += 1
        for heap, sign in zip(self._heaps, (1, -1), strict=True):
            key = (telling, *(sign * value for value in quality), -self._seen)
            # Twice as many: an image that would be best and worst is only one of them.
            push = heapq.heappush if len(heap) < 2 * self.count else heapq.heappushpop
            push(heap, (key, outcome))

    def chosen(self) -> tuple[tuple[ImageOutcome, ...], tuple[ImageOutcome, ...]]:
        best, worst = ([item for _, item in sorted(heap, reverse=True)] for heap in self._heaps)
        best = best[: min(self.count, (self._seen + 1) // 2)]
        taken = {outcome.graph.image_id for outcome in best}
        worst = [outcome for outcome in worst if outcome.graph.image_id not in taken]
        return tuple(best), tuple(worst[: self.count])
