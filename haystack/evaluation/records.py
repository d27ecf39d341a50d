"""From annotations and predictions of an image to the dicts that the metrics take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.io.panoptic_png import read_panoptic_png
from haystack.metrics.functional.matching.runs import runs, runs_pay
from haystack.metrics.protocols import Protocol
from haystack.scene_graph import (
    PredictedObjects,
    Prediction,
    RankedTriplets,
    SceneGraph,
    SceneGraphDataset,
)

Record = dict[str, Any]

_PAIRS_PER_BATCH = 100_000
_BYTES_PER_BATCH = 2**28
_SAMPLED = 1009  # of so many pixels one
_ROUNDING = 0.01
"""Pixels by which a box may have moved on its way to a model's image size and back."""
_OBJECT_KEYS = ("labels", "object_scores", "boxes", "masks", "id_map")


def target_record(graph: SceneGraph) -> Record:
    """Everything about the annotations of an image but its masks."""
    return {
        "image_id": graph.image_id,
        "labels": _tensor(graph.labels),
        "boxes": _tensor(graph.boxes),
        "relations": _tensor(graph.relations),
        "neg_relations": _tensor(graph.neg_relations),
    }


def add_masks(target: Record, graph: SceneGraph, dataset: SceneGraphDataset, wanted: str) -> Record:
    """The target with its masks, read from the panoptic PNG.

    Args:
        target: from :func:`target_record`.
        graph: its annotations.
        dataset: where they are from.
        wanted: for errors: what compares masks, and how to do without.

    Raises:
        InputError: the annotations name no PNG, or it cannot be read.
    """
    if graph.pan_seg_file_name is None:
        raise InputError(
            "the predictions hold masks, but the annotations name no panoptic PNG to compare them "
            f"with {wanted}",
            record=f"image {graph.image_id}",
        )
    path = dataset.path_of(graph.pan_seg_file_name)
    id_map = read_panoptic_png(path, size=(graph.height, graph.width))
    segments = {"id_map": _tensor(id_map), "segment_ids": _tensor(graph.segment_ids)}
    return {**target, **segments}


def add_segmentation(
    target: Record, graph: SceneGraph, dataset: SceneGraphDataset, prediction: Record | None
) -> Record:
    """The target with what PQ asks for: crowd flags, and its masks where a prediction has some.

    Raises:
        InputError: as :func:`add_masks`.
    """
    crowd = torch.tensor([segment.is_crowd for segment in graph.segments], dtype=torch.bool)
    target = {**target, "iscrowd": crowd}
    if prediction is None or "id_map" not in prediction or "id_map" in target:
        return target
    wanted = "for PQ, SQ and RQ; give pan_seg_file_name, or leave these metrics out"
    return add_masks(target, graph, dataset, wanted)


def prediction_record(image: Prediction) -> Record:
    """The dict of a prediction."""
    record: Record = {"image_id": str(image.image_id)}
    if isinstance(image, RankedTriplets):
        record["triplets"] = _tensor(image.triplets)
        if image.ng_triplets is not None:
            record["ng_triplets"] = _tensor(image.ng_triplets)
        return record | _objects(image.objects)
    record |= {"pairs": _tensor(image.pairs), "scores": _tensor(image.scores)}
    if image.no_relation is not None:
        record["no_relation"] = _tensor(image.no_relation)
    if image.pair_ranking is not None:
        record["pair_scores"] = _tensor(image.pair_ranking)
    return record if image.objects is None else record | _objects(image.objects)


def needs_masks(record: Record, protocol: Protocol) -> bool:
    """Whether the masks of the annotations are compared with those of a prediction."""
    return protocol.regions != "boxes" and ("id_map" in record or "masks" in record)


def holds_annotated_objects(prediction: Record, target: Record) -> bool:
    """Whether scores are of pairs of the annotated objects, although objects are given: PredCls.

    OpenPSG's results of PredCls repeat the annotated objects. They are recognised where the
    objects are as many, of the same classes in the same order, each with the score 1 or none, and
    their boxes, if any, lie where the annotated ones do; so do their masks, to the pixel, where
    the target holds masks, and where it does not there must be boxes.

    Args:
        prediction: from :func:`prediction_record`.
        target: of its image; with masks if :func:`needs_masks`.
    """
    labels, scores = prediction.get("labels"), prediction.get("object_scores")
    if "scores" not in prediction or labels is None or not len(labels):
        return False
    if not torch.equal(labels, target["labels"]):
        return False
    if scores is not None and not bool((scores == 1).all()):
        return False
    boxes = prediction.get("boxes")
    if boxes is not None and not torch.allclose(
        boxes, target["boxes"].to(boxes.dtype), rtol=0, atol=_ROUNDING
    ):
        return False
    if "id_map" in target:
        return "id_map" in prediction and _same_segments(prediction["id_map"], target)
    return boxes is not None


def without_objects(prediction: Record) -> Record:
    """The prediction with pairs of annotated objects, as PredCls has them."""
    return {name: value for name, value in prediction.items() if name not in _OBJECT_KEYS}


def _same_segments(positions: Tensor, target: Record) -> bool:
    """Whether a map of positions, -1 = none, holds the target's segments pixel by pixel."""
    truth = target["id_map"]
    ids = target["segment_ids"].to(truth.dtype)
    if positions.shape != truth.shape:
        return False
    positions, truth = positions.reshape(-1), truth.reshape(-1)
    # Other masks are known by a few pixels; then every run is looked at, not every pixel.
    if not _same_pixels(positions[::_SAMPLED], truth[::_SAMPLED], ids):
        return False
    if runs_pay(truth.device):
        return all(_same_pixels(own, true, ids) for (own, true), _ in runs([positions, truth]))
    return _same_pixels(positions, truth, ids)


def _same_pixels(positions: Tensor, truth: Tensor, ids: Tensor) -> bool:
    void = positions < 0
    if not torch.equal(ids[positions.clamp(min=0)].where(~void, truth), truth):
        return False
    return not bool(torch.isin(truth[void], ids).any())


def batches(
    records: Iterable[tuple[Record, Record]],
) -> Iterator[tuple[list[Record], list[Record]]]:
    """Predictions and targets in batches that are bounded by their pairs and their bytes.

    Predictions with and without objects do not share a batch.
    """
    predictions: list[Record] = []
    targets: list[Record] = []
    pairs = size = 0
    for prediction, target in records:
        if predictions and ("labels" in predictions[-1]) != ("labels" in prediction):
            yield predictions, targets
            predictions, targets, pairs, size = [], [], 0, 0
        predictions.append(prediction)
        targets.append(target)
        rows = prediction.get("pairs", prediction.get("ng_triplets", prediction.get("triplets")))
        pairs += 0 if rows is None else len(rows)
        size += sum(
            value.nbytes
            for record in (prediction, target)
            for value in record.values()
            if isinstance(value, Tensor)
        )
        if pairs >= _PAIRS_PER_BATCH or size >= _BYTES_PER_BATCH:
            yield predictions, targets
            predictions, targets, pairs, size = [], [], 0, 0
    if predictions:
        yield predictions, targets


def _objects(objects: PredictedObjects) -> Record:
    record: Record = {"labels": _tensor(objects.labels)}
    if objects.scores is not None:
        record["object_scores"] = _tensor(objects.scores)
    if objects.boxes is not None:
        record["boxes"] = _tensor(objects.boxes)
    if objects.masks is not None:
        id_map = objects.masks.id_map()
        if id_map is None:
            record["masks"] = _tensor(objects.masks.dense())
        else:
            record["id_map"] = _tensor(id_map)
    return record


def _tensor(values: Any) -> Tensor:
    """A tensor over a NumPy array's memory; an array read-only or reversed is copied."""
    array = np.require(values, requirements="W")
    return torch.from_numpy(array.copy() if min(array.strides, default=0) < 0 else array)
