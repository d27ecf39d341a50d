"""Evaluate predictions against annotations: from files or memory, image by image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.evaluation.predictions import PredictionSource, open_predictions
from haystack.evaluation.report import Report
from haystack.io.haystack_npy import NoRelationColumn
from haystack.io.psg import read_psg
from haystack.metrics.batch import flatten_targets
from haystack.metrics.protocols import Protocol, get_protocol
from haystack.metrics.scene_graph import PER_PREDICATE, SUPPORT, SceneGraphMetrics
from haystack.scene_graph import RelationScores, SceneGraph, SceneGraphDataset, Split

_PAIRS_PER_BATCH = 2**15


def evaluate(
    annotations: str | Path | SceneGraphDataset,
    predictions: str | Path | Iterable[RelationScores],
    protocol: str = "paper",
    *,
    ks: Sequence[int] = (20, 50, 100),
    split: Split | None = None,
    no_relation: NoRelationColumn = "last",
    from_logits: bool | None = None,
    device: str | torch.device = "cpu",
) -> Report:
    """Grade a model's predicate scores for annotated pairs (PredCls).

    Predictions are read once, and only a batch of them is in memory at a time. An annotated image
    or pair that they lack counts as the worst, and the report says how many do; images that they
    have beyond those evaluated are ignored, and counted too.

    Args:
        annotations: a PSG or Haystack file, the name of a bundled data set, or a data set.
        predictions: a file that :data:`haystack.evaluation.READERS` lists, or predictions.
        protocol: a name in :data:`haystack.metrics.protocols.PROTOCOLS`.
        ks: the cut-offs K of the recalls.
        split: the images to evaluate. By default those that the annotation file lists under
            ``test_image_ids``, and if it lists none, all.
        no_relation: where a ``.npy`` with P + 1 scores has "no relation".
        from_logits: whether scores are logits, of which the softmax over predicates and "no
            relation" is to be taken; by default as the file says, and False where it says nothing.
        device: where the metrics run.

    Returns:
        The report.

    Raises:
        InputError: a file or a record does not fit: unknown protocol or format, no image in the
            split or shared, an image or a pair twice, an index out of range, a score that is not
            finite, a triple labelled both ways (where the protocol merges labels).
    """
    choices = get_protocol(protocol)
    dataset, path = _dataset(annotations, choices)
    graphs, chosen = _select(dataset, split, path)
    targets = {graph.image_id: _target(graph) for graph in graphs}
    _check_targets(graphs, targets, dataset.vocabulary.num_predicates, choices, path)

    source = open_predictions(predictions, dataset.vocabulary, no_relation=no_relation)
    metrics = SceneGraphMetrics(
        dataset.vocabulary.num_predicates,
        ks=ks,
        protocol=protocol,
        from_logits=source.from_logits if from_logits is None else from_logits,
        per_predicate=True,
        validate=True,
    ).to(device)
    ignored = _accumulate(metrics, source, targets)
    return _report(metrics, dataset.vocabulary.predicate_classes, chosen, ignored)


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


def _target(graph: SceneGraph) -> dict[str, Any]:
    return {
        "image_id": graph.image_id,
        "labels": _tensor(graph.labels),
        "relations": _tensor(graph.relations),
        "neg_relations": _tensor(graph.neg_relations),
    }


def _check_targets(
    graphs: Sequence[SceneGraph],
    targets: dict[str, dict[str, Any]],
    num_predicates: int,
    protocol: Protocol,
    path: Path | None,
) -> None:
    """Refuse bad annotations before anything is read of the predictions."""
    if len(targets) != len(graphs):
        ids = [graph.image_id for graph in graphs]
        twice = next(image_id for image_id in ids if ids.count(image_id) > 1)
        raise InputError("the image is annotated twice; keep one record", path=path, record=twice)
    try:
        flatten_targets(list(targets.values()), num_predicates, protocol)
    except InputError as error:
        raise InputError(error.message, path=path, record=error.record) from error


def _accumulate(
    metrics: SceneGraphMetrics, source: PredictionSource, targets: dict[str, dict[str, Any]]
) -> int:
    """Feed every target with its prediction or none; returns the number of images ignored."""
    seen: set[str] = set()
    ignored = 0

    def wanted() -> Iterator[dict[str, Any]]:
        nonlocal ignored
        for image in source.images:
            image_id = str(image.image_id)
            if image_id in seen:
                raise InputError(
                    "the image is predicted twice; keep one", record=f"image {image_id}"
                )
            seen.add(image_id)
            if image_id in targets:
                yield _prediction(image_id, image)
            else:
                ignored += 1

    try:
        for batch in _batches(wanted()):
            metrics.update(batch, [targets[record["image_id"]] for record in batch])
    except InputError as error:
        where = error.path or source.path
        raise InputError(error.message, path=where, record=error.record) from error
    if len(seen) == ignored:
        raise InputError(
            "the predictions share no image with the annotations; ids there: "
            f"{_some(seen)}; ids here: {_some(targets)}",
            path=source.path,
        )
    absent = [image_id for image_id in targets if image_id not in seen]
    nothing = {"pairs": torch.empty(0, 2, dtype=torch.int64), "scores": torch.empty(0)}
    metrics.update([nothing] * len(absent), [targets[image_id] for image_id in absent])
    return ignored


def _prediction(image_id: str, image: RelationScores) -> dict[str, Any]:
    record = {
        "image_id": image_id,
        "pairs": _tensor(image.pairs),
        "scores": _tensor(image.scores),
    }
    if image.no_relation is not None:
        record["no_relation"] = _tensor(image.no_relation)
    return record


def _batches(records: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    pairs = 0
    for record in records:
        batch.append(record)
        pairs += len(record["pairs"])
        if pairs >= _PAIRS_PER_BATCH:
            yield batch
            batch, pairs = [], 0
    if batch:
        yield batch


def _report(
    metrics: SceneGraphMetrics, predicates: Sequence[str], split: Split, ignored: int
) -> Report:
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
        split=split,
        images=support["images"],
        metrics={name: value for name, value in values.items() if "/" not in name},
        support={
            "images_with_relations": support["images_with_relations"],
            "positives": sum(positives),
            "negatives": sum(negatives),
            "predicates": entered,
            "missing_images": support["missing_images"],
            "missing_pairs": support["missing_pairs"],
            "ignored_images": ignored,
        },
        per_predicate={
            predicate: dict(zip(vectors, column, strict=True))
            for predicate, column in zip(
                predicates, zip(*vectors.values(), strict=True), strict=True
            )
        },
    )


def _under(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The entries whose name begins with ``prefix``, without it."""
    return {name[len(prefix) :]: v for name, v in values.items() if name.startswith(prefix)}


def _tensor(values: Any) -> Tensor:
    """A tensor over a NumPy array's memory; a read-only array is copied."""
    return torch.from_numpy(np.require(values, requirements="W"))


def _some(ids: Iterable[str]) -> str:
    names = sorted(ids)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") if names else "none"
