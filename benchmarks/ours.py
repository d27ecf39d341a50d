"""Scenes as Haystack takes them: dicts for the metrics, and the files that evaluations read."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from synthetic import CLASSES, SIDE, Scenes, Segmented, filled
from torch import Tensor

from haystack.evaluation.records import batches
from haystack.io.panoptic_png import write_panoptic_png
from haystack.metrics import SceneGraphMetrics

Record = dict[str, Tensor]
Batch = tuple[list[Record], list[Record]]

FOUR = ("R", "mR", "ngR", "ng-mR")
LABELLED = ("P-AUC", "PDD", "PDO")


def records(scenes: Scenes) -> tuple[list[Record], list[Record]]:
    """Predictions and targets of ``SceneGraphMetrics.update``."""
    predictions, targets = [], []
    for arrays in scenes:
        scene = {name: torch.from_numpy(values) for name, values in arrays.items()}
        prediction = {name: scene[name] for name in ("pairs", "scores", "no_relation")}
        if "own_labels" in scene:
            prediction["labels"] = scene["own_labels"]
            prediction["boxes"] = scene["own_boxes"]
            prediction["object_scores"] = scene["own_scores"]
        predictions.append(prediction)
        targets.append(
            {
                "labels": scene["labels"],
                "boxes": scene["boxes"],
                "relations": scene["relations"],
                "neg_relations": scene["negatives"],
            }
        )
    return predictions, targets


def batched(scenes: Scenes) -> list[Batch]:
    """The same, divided as ``haystack evaluate`` does it."""
    return list(batches(zip(*records(scenes), strict=True)))


def class_triplets(scenes: Scenes, step: int = 1) -> np.ndarray:
    """Rows (subject class, object class, predicate) of every ``step``-th image, from the second."""
    rows = [
        np.column_stack(
            [
                scene["labels"][scene["relations"][:, 0]],
                scene["labels"][scene["relations"][:, 1]],
                scene["relations"][:, 2],
            ]
        )
        for number, scene in enumerate(scenes)
        if number % step == step - 1
    ]
    return np.concatenate(rows)


def to_device(batch: list[Record], device: str) -> list[Record]:
    """The same dicts with tensors elsewhere."""
    return [{name: value.to(device) for name, value in record.items()} for record in batch]


def feed(metrics: SceneGraphMetrics, inputs: Iterable[Batch]) -> dict[str, Tensor]:
    """Update batch by batch and compute."""
    metrics.reset()
    for predictions, targets in inputs:
        metrics.update(predictions, targets)
    return metrics.compute()


def values_of(scenes: Scenes, masks: bool = False, **choices: Any) -> dict[str, Any]:
    """All metrics of scenes as plain numbers and lists.

    Args:
        scenes: the images.
        masks: give boxes as masks; those of the annotations do not overlap.
        choices: of ``SceneGraphMetrics``.
    """
    metrics = SceneGraphMetrics(scenes.predicates, per_predicate=True, **choices)
    inputs = records(scenes)
    if masks:
        for side, panoptic in zip(inputs, (False, True), strict=True):
            for record in side:
                if "boxes" in record:
                    regions = filled(record["boxes"].numpy(), panoptic=panoptic)
                    record["masks"] = torch.from_numpy(regions)
    parts = [tuple(side[i : i + 8] for side in inputs) for i in range(0, len(scenes), 8)]
    return {name: value.tolist() for name, value in feed(metrics, parts).items()}


def write_scenes(folder: Path, scenes: Scenes) -> None:
    """The Haystack authors' two files: ``annotations.json`` and ``predictions.npy``."""
    folder.mkdir(parents=True, exist_ok=True)
    data = []
    for number, scene in enumerate(scenes):
        data.append(
            _record(number, scene["labels"], scene["boxes"], (SIDE, SIDE))
            | {
                "relations": scene["relations"].tolist(),
                "neg_relations": scene["negatives"].tolist(),
            }
        )
    _write_annotations(folder, data, scenes.predicates)
    images = np.repeat(np.arange(len(scenes)), scenes.counts["pairs"])
    fields = scenes.arrays
    # float64, as the authors' tool writes it; "no relation" last, as their script ranks.
    columns = 3 + scenes.predicates + 1
    table = np.empty((len(images), columns))
    table[:, 0], table[:, 1:3] = images, fields["pairs"]
    table[:, 3:-1], table[:, -1] = fields["scores"], fields["no_relation"]
    np.save(folder / "predictions.npy", table)


def write_sgbench(folder: Path, scenes: Scenes, *, ranked: int) -> None:
    """SGBench's two files with boxes; the first ``ranked`` triplets, and all without constraint."""
    folder.mkdir(parents=True, exist_ok=True)
    data, images = [], []
    for number, scene in enumerate(scenes):
        record = _record(str(number), scene["labels"], scene["boxes"], (SIDE, SIDE))
        data.append(record | {"relations": scene["relations"].tolist()})
        constrained, free = _ranked(scene, scenes.predicates)
        images.append(
            {
                "id": str(number),
                "annotation": [
                    {"bbox": box, "category": label}
                    for box, label in zip(
                        scene["own_boxes"].tolist(), scene["own_labels"].tolist(), strict=True
                    )
                ],
                "triplets": constrained[:ranked].tolist(),
                "ng_triplets": free.tolist(),
            }
        )
    _write_annotations(folder, data, scenes.predicates)
    (folder / "predictions.json").write_text(json.dumps({"version": 1, "images": images}))


def write_segmented(
    folder: Path, images: list[Segmented], *, predicates: int, relations: int, seed: int
) -> None:
    """SGBench's files with masks: PNGs, annotations, id maps, and triplets for its ZIP."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    data, predicted = [], []
    for number, image in enumerate(images):
        count = len(image.labels)
        pairs = np.argwhere(~np.eye(count, dtype=bool))
        ids = 1 + 65793 * np.arange(count) // max(1, count // 4)
        write_panoptic_png(folder / f"{number}.png", ids[image.truth].astype(np.int32))
        boxes = np.tile([0.0, 0.0, 1.0, 1.0], (count, 1))
        truth = np.column_stack(
            [pairs[rng.permutation(len(pairs))[:relations]], rng.integers(0, predicates, relations)]
        )
        record = _record(str(number), image.labels, boxes, image.truth.shape, ids.tolist())
        record |= {"pan_seg_file_name": f"{number}.png", "relations": truth.tolist()}
        data.append(record)
        guesses = np.column_stack([pairs, rng.integers(0, predicates, len(pairs))])
        ranked = np.concatenate([truth[::2], rng.permutation(guesses)])[:100]
        predicted.append(
            {
                "id": str(number),
                "seg_filename": f"{number}.tiff",
                "annotation": [
                    {"bbox": [0, 0, 1, 1], "category": label} for label in image.labels.tolist()
                ],
                "triplets": ranked.tolist(),
            }
        )
        maps = {"truth": image.truth, "predicted": image.predicted, "labels": image.labels}
        np.savez(folder / f"maps-{number:03d}.npz", **maps)
    _write_annotations(folder, data, predicates)
    content = {"version": 1, "images": predicted}
    (folder / "predictions.json").write_text(json.dumps(content))


def write_fair_psgg(
    folder: Path, images: list[Segmented], *, predicates: int, relations: int, seed: int
) -> None:
    """fair-psgg's files: PNGs, annotations, and predictions for all images but the last.

    Some annotated rows come twice, some are of an object with itself; some predicted objects have
    another class or no pixel, some pairs come again, and every second image has a ``rel_rank``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    data, predicted = [], []
    for number, image in enumerate(images):
        count = len(image.labels)
        truth, mask = image.truth.copy(), image.predicted.copy()
        mask[mask == 1] = -1
        truth[-1, -1] = mask[-1, -1] = count - 1  # the last object must have a pixel
        ids = 1 + 65793 * np.arange(count) // max(1, count // 4)
        write_panoptic_png(folder / f"{number}.png", ids[truth].astype(np.int32))
        rows = rng.integers(0, [count, count, predicates], (relations, 3))
        rows[0, 1] = rows[0, 0]
        rows = np.concatenate([rows, rows[: relations // 3]])
        boxes = np.tile([0.0, 0.0, 1.0, 1.0], (count, 1))
        record = _record(str(number), image.labels, boxes, image.truth.shape, ids.tolist())
        data.append(record | {"relations": rows.tolist()})

        labels = image.labels.copy()
        labels[0] += 1
        pairs = np.argwhere(np.ones((count, count), dtype=bool))
        pairs = rng.permutation(np.concatenate([pairs, pairs[:5]]))
        logits = rng.standard_normal((len(pairs), predicates + 1))
        same = (pairs[:, None] == rows[None, :, :2]).all(2)
        logits[np.nonzero(same)[0], 1 + rows[np.nonzero(same)[1], 2]] += 3
        scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        predicted.append(
            {
                "img_id": str(number),
                "bboxes": boxes,
                "mask": mask,
                "box_label": labels,
                "pairs": pairs,
                "rel_scores": scores.astype(np.float32),
                "rel_rank": rng.permutation(len(pairs)) if number % 2 else None,
            }
        )
    _write_annotations(folder, data, predicates)
    (folder / "predictions.pkl").write_bytes(pickle.dumps(predicted[:-1]))


def _ranked(scene: dict[str, np.ndarray], predicates: int) -> tuple[np.ndarray, np.ndarray]:
    """Triplets in descending order of score: one a pair, and all."""
    pairs, scores = scene["pairs"], scene["scores"]
    scores = scores * scene["own_scores"][pairs].prod(1)[:, None]
    best = scores.argmax(1) if len(pairs) else np.empty(0, np.int64)
    order = np.argsort(-scores.max(1, initial=0), kind="stable")
    constrained = np.column_stack([pairs, best])[order]
    order = np.argsort(-scores.ravel(), kind="stable")
    return constrained, np.column_stack([pairs[order // predicates], order % predicates])


def _record(
    image_id: int | str,
    labels: np.ndarray,
    boxes: np.ndarray,
    size: tuple[int, ...],
    ids: list[int] | None = None,
) -> dict[str, Any]:
    """A PSG record without relations."""
    ids = list(range(1, len(labels) + 1)) if ids is None else ids
    return {
        "image_id": image_id,
        "height": size[0],
        "width": size[1],
        "file_name": f"{image_id}.jpg",
        "pan_seg_file_name": f"{image_id}.png",
        "segments_info": [
            {"id": number, "category_id": label, "iscrowd": 0, "isthing": 1, "area": 1}
            for number, label in zip(ids, labels.tolist(), strict=True)
        ],
        "annotations": [
            {"bbox": box, "bbox_mode": 0, "category_id": label}
            for box, label in zip(boxes.tolist(), labels.tolist(), strict=True)
        ],
    }


def _write_annotations(folder: Path, data: list[dict[str, Any]], predicates: int) -> None:
    content = {
        "data": data,
        "thing_classes": [f"class {i}" for i in range(CLASSES)],
        "stuff_classes": [],
        "predicate_classes": [f"predicate {i}" for i in range(predicates)],
        "test_image_ids": [record["image_id"] for record in data],
    }
    (folder / "annotations.json").write_text(json.dumps(content))
