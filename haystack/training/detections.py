"""Detections to learn SGDet from: beside which image they belong, and which objects they are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.functional.matching import box_iou, id_map_overlaps, object_pairs
from haystack.models.relation.predict import read_scene
from haystack.scene_graph import SceneGraph, SceneGraphDataset
from haystack.training.losses import BACKGROUND
from haystack.training.sources import TrainingImage, TrainingImages

logger = logging.getLogger(__name__)

_LOOKED_AT = 200
"""Images whose matches are counted before training begins; some seconds."""
_FEW = 0.5


def with_detections(
    images: TrainingImages, detections: SceneGraphDataset, *, path: str | Path | None = None
) -> TrainingImages:
    """The images, each with what was detected in it; those with fewer than two objects go.

    Args:
        images: annotated.
        detections: found segments; an image is known by its image id or its file name. Relations
            are not read.
        path: of the detections, for errors.

    Raises:
        InputError: the vocabularies differ, an image has no record or one of another size, or no
            image is left.
    """
    detections.vocabulary.require_same(
        images.vocabulary,
        own="the detections",
        others="the annotations",
        advice="detect the classes that are annotated",
        path=path,
    )
    records = {graph.file_name: graph for graph in detections.graphs} | detections.by_id()

    def seen(group: tuple[TrainingImage, ...]) -> tuple[TrainingImage, ...]:
        found = (
            replace(image, detected=_record(image, records, detections, path)) for image in group
        )
        return tuple(image for image in found if len(image.seen.segments) > 1)

    groups = tuple(seen(group) for group in images.groups)
    held_out = seen(images.held_out)
    if not any(groups) or (images.held_out and not held_out):
        raise InputError("expected images with two detections, found none", path=path)
    before = len(images.training) + len(images.held_out)
    left = sum(map(len, groups)) + len(held_out)
    return replace(
        images,
        groups=tuple(group for group in groups if group),
        held_out=held_out,
        left_out=images.left_out + before - left,
    )


def match_detections(image: TrainingImage, min_iou: float) -> Tensor:
    """Which annotated object each detection is: the one that it overlaps most, whatever its class.

    Masks are compared where both sides have them, else boxes. Equal overlaps go to the first
    annotated object.

    Args:
        image: with its detections.
        min_iou: least intersection over union.

    Returns:
        int64 [M], positions of annotated objects, ``BACKGROUND`` = none.

    Raises:
        InputError: a file is missing or broken.
    """
    truth = read_scene(image.dataset, image.graph)
    found = read_scene(image.dataset, image.seen)
    if truth.id_map is not None and found.id_map is not None:
        iou = id_map_overlaps(
            [torch.from_numpy(truth.id_map)],
            [torch.from_numpy(found.id_map)],
            [torch.from_numpy(truth.segment_ids)],
            [torch.from_numpy(found.segment_ids)],
        ).iou()
    else:
        pairs = object_pairs([len(truth)], [len(found)])
        boxes = [torch.from_numpy(scene.boxes) for scene in (truth, found)]
        iou = box_iou(boxes[0], boxes[1], pairs, plus_one=False)
    table = iou.view(len(truth), len(found))
    best = table.amax(0)
    first = (table == best).int().argmax(0)
    return first.masked_fill(best < min_iou, BACKGROUND)


def matched_objects(matches: Tensor) -> int:
    """How many annotated objects are some detection, from what ``match_detections`` gives."""
    return len(matches[matches != BACKGROUND].unique())


def check_matches(
    images: Sequence[TrainingImage], min_iou: float, *, path: str | Path | None = None
) -> None:
    """See that detections are the annotated objects; that few are is said in a warning.

    Counted on images spread evenly over all; only where nothing matches are all looked at.

    Args:
        images: each with its detections.
        min_iou: see ``match_detections``.
        path: of the detections, for messages.

    Raises:
        InputError: no annotated object of any image is matched, or a file is missing or broken.
    """
    some = images[:: -(-len(images) // _LOOKED_AT)]
    matched = sum(matched_objects(match_detections(image, min_iou)) for image in some)
    objects = sum(len(image.graph.segments) for image in some)
    if not matched and not any(matched_objects(match_detections(i, min_iou)) for i in images):
        raise InputError(
            f"no detection overlaps an annotated object of its image with an intersection over "
            f"union of match_iou={min_iou:g} or more, in {len(images)} images: there is nothing "
            "to learn from; check that these are the detections of these images",
            path=path,
        )
    if matched < _FEW * objects:
        logger.warning(
            "%s: detections match %d of %d annotated objects (%d images looked at, "
            "match_iou=%g); relations of the others are not learned",
            path,
            matched,
            objects,
            len(some),
            min_iou,
        )


def _record(
    image: TrainingImage,
    records: dict[str, SceneGraph],
    detections: SceneGraphDataset,
    path: str | Path | None,
) -> SceneGraph:
    graph = image.graph
    record = records.get(graph.image_id) or records.get(graph.file_name)
    if record is None:
        raise InputError(
            f"there are no detections of image {graph.image_id}, neither under its id nor under "
            f"{graph.file_name!r}; detect objects in all images, also where there are none",
            path=path,
        )
    if (record.height, record.width) != (graph.height, graph.width):
        raise InputError(
            f"expected detections in a picture of {graph.height} x {graph.width} pixels, got "
            f"{record.height} x {record.width}",
            path=path,
            record=f"image {record.image_id}",
        )
    masks = record.pan_seg_file_name
    return replace(
        record,
        image_id=graph.image_id,
        file_name=str(image.dataset.path_of(graph.file_name).absolute()),
        pan_seg_file_name=None if masks is None else str(detections.path_of(masks).absolute()),
    )
