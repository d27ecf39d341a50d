"""Evaluate predictions against annotations: from files or memory, image by image."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from haystack.devices import usable_device
from haystack.errors import InputError
from haystack.evaluation.predictions import PredictionSource, open_predictions
from haystack.evaluation.records import (
    Record,
    add_masks,
    add_segmentation,
    batches,
    holds_annotated_objects,
    needs_masks,
    prediction_record,
    target_record,
    without_objects,
)
from haystack.evaluation.report import Report
from haystack.evaluation.uncertainty import ResampledMetrics, check_resampling, uncertainty_of
from haystack.io.haystack_npy import NoRelationColumn
from haystack.io.psg import read_psg
from haystack.metrics.protocols import Protocol, get_protocol
from haystack.metrics.scene_graph import PER_CLASS, PER_PREDICATE, SUPPORT, SceneGraphMetrics
from haystack.metrics.targets import flatten_targets
from haystack.scene_graph import (
    Prediction,
    RankedTriplets,
    RelationScores,
    SceneGraph,
    SceneGraphDataset,
    Split,
)
from haystack.statistics import TripletStatistics
from haystack.vocabulary import Vocabulary

_IMAGES_PER_BATCH = 1024  # where only annotations are looked at


def evaluate(
    annotations: str | Path | SceneGraphDataset,
    predictions: str | Path | Iterable[Prediction],
    protocol: str = "paper",
    *,
    ks: Sequence[int] = (20, 50, 100),
    metrics: Collection[str] | None = None,
    training: str | Path | SceneGraphDataset | None = None,
    split: Split | None = None,
    no_relation: NoRelationColumn = "last",
    from_logits: bool | None = None,
    replicates: int = 0,
    confidence: float = 0.95,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Report:
    """Grade a model's predictions: PredCls, or with the model's own objects SGCls and SGDet.

    Predictions are read once, and only a batch of them is in memory at a time. An annotated image
    or pair that they lack counts as the worst, and the report says how many do; images that they
    have beyond those evaluated are ignored, and counted too. Where predictions hold masks, those
    of the annotations are read from the panoptic PNGs, image by image.

    An image is graded as PredCls if its predictions hold no objects, or scores of pairs of the
    annotated objects repeated one by one (same classes in the same order, score 1 or none, boxes
    within 0.01 pixels, and where the protocol compares masks that are given, the same pixels), as
    in OpenPSG's results of PredCls. Objects are then the annotated ones, and A@K is defined if it
    is so in every image; the report counts the others under ``own_objects``.

    Args:
        annotations: a PSG or Haystack file, the name of a bundled data set, or a data set.
        predictions: a file that :data:`haystack.evaluation.READERS` lists, or predictions.
        protocol: a name in :data:`haystack.metrics.PROTOCOLS`.
        ks: the cut-offs K of the recalls.
        metrics: names in :data:`haystack.metrics.METRICS`; by default all that can be
            computed but PQ, SQ and RQ, which ask for panoptic PNGs and for masks that do not
            overlap, and come with ``PQ_th`` (things), ``PQ_st`` (stuff) and a value for each class.
        training: training annotations, of which the images that are not listed as test images
            count: for zR (what they lack is zero-shot), wR and wIMR. May be the same file.
        split: the images to evaluate. By default those that the annotation file lists under
            ``test_image_ids``, and if it lists none, all.
        no_relation: where a ``.npy`` with P + 1 scores has "no relation".
        from_logits: whether scores are logits, of which the softmax over predicates and "no
            relation" is to be taken; by default as the file says, and False where it says nothing.
        replicates: resamples of the images, for an interval around every value (bootstrap, see
            :func:`haystack.evaluation.uncertainty.uncertainty_of`); 0 = no intervals. Whatever
            the states need is kept of each image: some hundred bytes for each relation.
        confidence: of the intervals.
        seed: of the resamples.
        device: where the metrics run.

    Returns:
        The report.

    Raises:
        InputError: a file or a record does not fit: unknown protocol or format, no image in the
            split or shared, an image or a pair twice, an index out of range, a score that is not
            finite, a triple labelled both ways (where the protocol merges labels), a mask that is
            not there.

    Example:
        >>> import numpy as np
        >>> from haystack.scene_graph import RelationScores, SceneGraph, SceneGraphDataset, Segment
        >>> from haystack.vocabulary import Vocabulary
        >>> objects = tuple(Segment(number, 0, 4, (0, 0, 2, 2)) for number in (1, 2))
        >>> triplets = np.array([[0, 1, 0]])
        >>> image = SceneGraph("17", 4, 4, "17.jpg", segments=objects, relations=triplets)
        >>> data = SceneGraphDataset(Vocabulary(("person",), (), ("on", "beside")), (image,))
        >>> pairs = np.array([[0, 1], [1, 0]])
        >>> scores = np.array([[0.2, 0.3], [0.1, 0.2]], np.float32)
        >>> report = evaluate(data, [RelationScores("17", pairs, scores)], ks=(1, 2))
        >>> report.metrics["R@1"], report.metrics["ngR@2"]
        (0.0, 1.0)
    """
    if replicates:
        check_resampling(replicates, confidence, seed, device)
    device = usable_device(device)
    prepared = prepare(annotations, protocol, split=split, training=training)
    kind = ResampledMetrics if replicates else SceneGraphMetrics
    measured = measure(
        prepared,
        predictions,
        kind,
        ks=ks,
        metrics=metrics,
        no_relation=no_relation,
        from_logits=from_logits,
        device=device,
    )
    report = _report(measured, prepared)
    if not isinstance(measured.states, ResampledMetrics):
        return report
    uncertainty = uncertainty_of(
        measured.states,
        prepared.dataset.vocabulary.predicate_classes,
        replicates=replicates,
        confidence=confidence,
        seed=seed,
    )
    return replace(report, uncertainty=uncertainty)


@dataclass(frozen=True)
class Prepared:
    """Annotations to grade against, read and checked once.

    Args:
        dataset: the annotations.
        protocol: its choices.
        split: the images that were chosen.
        graphs: image id -> annotations of a chosen image.
        statistics: what training showed, or None.
    """

    dataset: SceneGraphDataset
    protocol: Protocol
    split: Split
    graphs: dict[str, SceneGraph]
    statistics: TripletStatistics | None

    def target_for(self, image_id: str, prediction: Record) -> Record:
        """The target of an image, with its masks where they are compared with a prediction's.

        Made when it is asked for: tensors of all images would weigh more than their annotations.
        """
        target = target_record(self.graphs[image_id])
        if needs_masks(prediction, self.protocol):
            wanted = (
                f"under the protocol {self.protocol.name!r}; give pan_seg_file_name, or choose a "
                "protocol that compares boxes"
            )
            return add_masks(target, self.graphs[image_id], self.dataset, wanted)
        return target

    def add_segmentation(self, target: Record, prediction: Record | None) -> Record:
        """The target with what PQ asks for, see :func:`.records.add_segmentation`."""
        return add_segmentation(target, self.graphs[target["image_id"]], self.dataset, prediction)


States = TypeVar("States", bound=SceneGraphMetrics)


@dataclass(frozen=True)
class Measured(Generic[States]):
    """A model's predictions, added up.

    Args:
        states: fed with every chosen image.
        ignored: predicted images that were not asked for.
        own_objects: images whose predicted pairs are of the model's objects.
    """

    states: States
    ignored: int
    own_objects: int


def prepare(
    annotations: str | Path | SceneGraphDataset,
    protocol: str,
    *,
    split: Split | None = None,
    training: str | Path | SceneGraphDataset | None = None,
) -> Prepared:
    """Read and check annotations; arguments and errors are those of :func:`evaluate`."""
    choices = get_protocol(protocol)
    dataset, path = _dataset(annotations, choices)
    graphs, chosen = _select(dataset, split, path)
    by_id = {graph.image_id: graph for graph in graphs}
    _check_targets(graphs, by_id, dataset.vocabulary, choices, path)
    statistics = None if training is None else _statistics(training, dataset, choices)
    return Prepared(dataset, choices, chosen, by_id, statistics)


def measure(
    prepared: Prepared,
    predictions: str | Path | Iterable[Prediction],
    kind: type[States],
    *,
    ks: Sequence[int],
    metrics: Collection[str] | None,
    no_relation: NoRelationColumn,
    from_logits: bool | None,
    device: str | torch.device,
) -> Measured[States]:
    """Feed predictions to metrics of a kind; arguments and errors are those of :func:`evaluate`."""
    source = open_predictions(
        predictions,
        prepared.dataset.vocabulary,
        dataset=prepared.dataset,
        no_relation=no_relation,
        repeated_pairs=prepared.protocol.repeated_pairs,
    )
    states = kind(
        prepared.dataset.vocabulary.num_predicates,
        ks=ks,
        protocol=prepared.protocol.name,
        from_logits=source.from_logits if from_logits is None else from_logits,
        per_predicate=True,
        metrics=metrics,
        training=prepared.statistics,
        num_classes=prepared.dataset.vocabulary.num_objects,
        num_things=len(prepared.dataset.vocabulary.thing_classes),
        validate=True,
    ).to(device)
    ignored, own_objects = _accumulate(states, source, prepared)
    return Measured(states, ignored, own_objects)


def _dataset(
    annotations: str | Path | SceneGraphDataset, protocol: Protocol
) -> tuple[SceneGraphDataset, Path | None]:
    if isinstance(annotations, SceneGraphDataset):
        return annotations, None
    keep = protocol.repeated_labels == "keep"
    return read_psg(annotations, allow_contradictions=keep), Path(annotations)


def _select(
    dataset: SceneGraphDataset, split: Split | None, path: Path | None
) -> tuple[tuple[SceneGraph, ...], Split]:
    chosen: Split = split or ("test" if dataset.test_image_ids else "all")
    graphs = dataset.split(chosen)
    if not graphs:
        raise InputError(
            f"the split '{chosen}' has no image in these annotations; choose another split",
            path=path,
        )
    return graphs, chosen


def _statistics(
    training: str | Path | SceneGraphDataset, dataset: SceneGraphDataset, protocol: Protocol
) -> TripletStatistics:
    """What the images of ``training`` that are not test images show."""
    if training is dataset:
        seen, path = dataset, None
    else:
        seen, path = _dataset(training, protocol)
    wanted = dataset.vocabulary
    seen.vocabulary.require_same(
        wanted,
        own="the training annotations",
        others="those evaluated",
        advice="give training annotations of the same vocabulary",
        path=path,
    )
    graphs = seen.split("train")
    if not graphs:
        raise InputError("all images of the training annotations are test images", path=path)
    return TripletStatistics.from_graphs(graphs, wanted.num_objects, wanted.num_predicates)


def _fingerprint(statistics: TripletStatistics) -> dict[str, Any]:
    """What was compared with: zero-shot recalls are comparable for one such set only."""
    content = statistics.triplets.astype("<i8").tobytes()
    counts = statistics.triplet_counts.astype("<i8").tobytes()
    return {
        "relations": int(statistics.triplet_counts.sum()),
        "distinct_triplets": len(statistics.triplets),
        "sha256": hashlib.sha256(content + counts).hexdigest(),
    }


def _check_targets(
    graphs: Sequence[SceneGraph],
    by_id: Mapping[str, SceneGraph],
    vocabulary: Vocabulary,
    protocol: Protocol,
    path: Path | None,
) -> None:
    """Refuse bad annotations before anything is read of the predictions."""
    if len(by_id) != len(graphs):
        ids = [graph.image_id for graph in graphs]
        twice = next(image_id for image_id in ids if ids.count(image_id) > 1)
        raise InputError("the image is annotated twice; keep one record", path=path, record=twice)
    try:
        for start in range(0, len(graphs), _IMAGES_PER_BATCH):
            part = [target_record(graph) for graph in graphs[start : start + _IMAGES_PER_BATCH]]
            flatten_targets(part, vocabulary.num_predicates, protocol, vocabulary.num_objects)
    except InputError as error:
        raise InputError(error.message, path=path, record=error.record) from error


def _accumulate(
    metrics: SceneGraphMetrics, source: PredictionSource, prepared: Prepared
) -> tuple[int, int]:
    """Feed every target with its prediction or none.

    Returns:
        How many predicted images were ignored, and how many had the model's own objects.
    """
    graphs = prepared.graphs
    seen: set[str] = set()
    ignored = own_objects = 0

    def wanted() -> Iterator[tuple[Record, Record]]:
        nonlocal ignored, own_objects
        for image in source.images:
            if not isinstance(image, RelationScores | RankedTriplets):
                raise InputError(
                    "expected predictions as RelationScores or RankedTriplets, got "
                    f"{type(image).__name__}"
                )
            image_id = str(image.image_id)
            if image_id in seen:
                raise InputError(
                    "the image is predicted twice; keep one", record=f"image {image_id}"
                )
            seen.add(image_id)
            if image_id not in graphs:
                ignored += 1
                continue
            record = prediction_record(image)
            target = prepared.target_for(image_id, record)
            detected = prepared.protocol.compares == "phrases"
            if not detected and holds_annotated_objects(record, target):
                record = without_objects(record)
            own_objects += "labels" in record
            if metrics.panoptic:
                target = prepared.add_segmentation(target, record)
            yield record, target

    try:
        for batch in batches(wanted()):
            metrics.update(*batch)
            del batch  # or it would be in memory beside the next one
    except InputError as error:
        where = error.path or source.path
        raise InputError(error.message, path=where, record=error.record) from error
    if len(seen) == ignored:
        raise InputError(
            "the predictions share no image with the annotations; ids there: "
            f"{_some(seen)}; ids here: {_some(graphs)}",
            path=source.path,
        )
    absent = [graph for image_id, graph in graphs.items() if image_id not in seen]
    for start in range(0, len(absent), _IMAGES_PER_BATCH):
        part = [target_record(graph) for graph in absent[start : start + _IMAGES_PER_BATCH]]
        if metrics.panoptic:
            part = [prepared.add_segmentation(target, None) for target in part]
        metrics.update([None] * len(part), part)
    return ignored, own_objects


def _report(measured: Measured[Any], prepared: Prepared) -> Report:
    metrics = measured.states
    training = None if prepared.statistics is None else _fingerprint(prepared.statistics)
    values: dict[str, Any] = {name: value.tolist() for name, value in metrics.compute().items()}
    support = _under(values, SUPPORT)
    positives, negatives = support.pop("positives"), support.pop("negatives")
    vectors = {
        **_under(values, PER_PREDICATE),
        "positives": positives,
        "negatives": negatives,
    }
    entered = _under(support, "predicates/")
    return Report(
        protocol=metrics.protocol.name,
        split=prepared.split,
        images=support["images"],
        metrics={name: value for name, value in values.items() if "/" not in name},
        support={
            "images_with_relations": support["images_with_relations"],
            "positives": sum(positives),
            "negatives": sum(negatives),
            "predicates": entered,
            "missing_images": support["missing_images"],
            "missing_pairs": support["missing_pairs"],
            "ignored_images": measured.ignored,
            "own_objects": measured.own_objects,
            **({} if training is None else {"training": training}),
        },
        per_predicate={
            predicate: dict(zip(vectors, column, strict=True))
            for predicate, column in zip(
                prepared.dataset.vocabulary.predicate_classes,
                zip(*vectors.values(), strict=True),
                strict=True,
            )
        },
        per_class=_transposed(
            _under(values, PER_CLASS), prepared.dataset.vocabulary.object_classes
        ),
    )


def _transposed(
    vectors: Mapping[str, Sequence[float]], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Name -> metric -> value, from metric -> values of all names; {} without metrics."""
    columns = zip(*vectors.values(), strict=True)
    return {n: dict(zip(vectors, c, strict=True)) for n, c in zip(names, columns, strict=False)}


def _under(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The entries whose name begins with ``prefix``, without it."""
    return {name[len(prefix) :]: v for name, v in values.items() if name.startswith(prefix)}


def _some(ids: Iterable[str]) -> str:
    names = sorted(ids)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") if names else "none"
