"""From annotations and predictions of an image to the dicts that the metrics take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.io.panoptic_png import read_panoptic_png
from haystack.metrics.protocols import Protocol
from haystack.scene_graph import (
    PredictedObjects,
    Prediction,
    RankedTriplets,
    SceneGraph,
    SceneGraphDataset,
)

Record = dict[str, Any]

_PAIRS_PER_BATCH = 2**16
_BYTES_PER_BATCH = 2**28


def target_record(graph: SceneGraph) -> Record:
    """Everything about the annotations of an image but its masks."""
    return {
        "image_id": graph.image_id,
        "labels": _tensor(graph.labels),
        "boxes": _tensor(graph.boxes),
        "relations": _tensor(graph.relations),
        "neg_relations": _tensor(graph.neg_relations),
    }


def add_masks(
    target: Record, graph: SceneGraph, dataset: SceneGraphDataset, protocol: Protocol
) -> Record:
    """The target with its masks, read from the panoptic PNG.

    Raises:
        InputError: the annotations name no PNG, or it cannot be read.
    """
    if graph.pan_seg_file_name is None:
        raise InputError(
            f"the predictions hold masks, but the annotations name no panoptic PNG to compare "
            f"them with under the protocol {protocol.name!r}; give pan_seg_file_name, or choose a "
            "protocol that compares boxes",
            record=f"image {graph.image_id}",
        )
    path = dataset.path_of(graph.pan_seg_file_name)
    id_map = read_panoptic_png(path, size=(graph.height, graph.width))
    segments = {"id_map": _tensor(id_map), "segment_ids": _tensor(graph.segment_ids)}
    return {**target, **segments}


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


def batches(
    records: Iterable[tuple[Record, Record]],
) -> Iterator[tuple[list[Record], list[Record]]]:
    """Predictions and targets in batches that are bounded by their pairs and their bytes."""
    predictions: list[Record] = []
    targets: list[Record] = []
    pairs = size = 0
    for prediction, target in records:
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
    """A tensor over a NumPy array's memory; a read-only array is copied."""
    return torch.from_numpy(np.require(values, requirements="W"))
