"""Predicted scene graphs as a folder: JSON, prediction Parquet, masks, and pictures.

::

    scene_graphs.json      PSG-style; each image's best triplets, their scores beside them
    predictions.parquet    every pair's scores, and the objects where they are predicted
    panoptic/*.png         the segments
    pictures/*.png         the picture of each scene graph
    quarantine.jsonl       images that could not be used, with their reasons; absent without any
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from haystack import files
from haystack.drawing.scene import DrawnTriplet, PictureKind, SceneDrawing, draw_scene
from haystack.io.panoptic_png import write_panoptic_png
from haystack.io.prediction_parquet import write_prediction_parquet
from haystack.io.psg_writer import PsgWriter
from haystack.pipeline.predict import PredictedImage, best_triplets
from haystack.scene_graph import RelationScores, Triplets
from haystack.vocabulary import Vocabulary

SCENE_GRAPHS, PREDICTIONS, QUARANTINE = (
    "scene_graphs.json",
    "predictions.parquet",
    "quarantine.jsonl",
)
RELATION_SCORES = "relation_scores"
"""Key of a record in ``scene_graphs.json``: one score a row of ``relations``, in the same order."""


@dataclass(frozen=True)
class GraphOutput:
    """What the folder shows of each image.

    Args:
        folder: where everything goes.
        top: triplets an image at most.
        min_score: triplets below are left out.
        pictures: kind of the pictures, or None for none.
    """

    folder: Path
    top: int = 10
    min_score: float = 0.0
    pictures: PictureKind | None = "png"


def write_scene_graphs(
    images: Iterable[PredictedImage],
    output: GraphOutput,
    vocabulary: Vocabulary,
    *,
    file_of: Callable[[str], str],
) -> int:
    """Write the folder; each file appears all at once, and one image is in memory at a time.

    Args:
        images: predictions.
        output: where and what.
        vocabulary: names of classes and predicates.
        file_of: an image's key -> its ``file_name`` in ``scene_graphs.json``.

    Returns:
        The number of images.
    """
    names = _Names()
    writer = PsgWriter(output.folder / SCENE_GRAPHS, vocabulary)

    def written() -> Iterator[RelationScores]:
        for image in images:
            name = names.of(image.image_key)
            triplets, scores = best_triplets(image.scores, output.top, min_score=output.min_score)
            masks = None
            if image.segmentation.id_map is not None:
                masks = f"panoptic/{name}.png"
                write_panoptic_png(output.folder / masks, image.segmentation.id_map)
            writer.add(
                replace(
                    image.graph,
                    file_name=file_of(image.image_key),
                    pan_seg_file_name=masks,
                    relations=triplets,
                    extra={RELATION_SCORES: [round(float(score), 6) for score in scores]},
                )
            )
            if output.pictures is not None:
                drawing = scene_drawing(image, triplets, scores.tolist(), vocabulary)
                files.write_bytes(
                    output.folder / f"pictures/{name}.{output.pictures}",
                    draw_scene(drawing, kind=output.pictures),
                )
            yield image.scores

    with writer:
        return write_prediction_parquet(
            written(),
            output.folder / PREDICTIONS,
            vocabulary.predicate_classes,
            images_per_group=8,
        )


def write_quarantine(folder: Path, quarantined: Iterable[tuple[str, str]]) -> None:
    """Write ``quarantine.jsonl``: image key and reason; an earlier one goes where there is none."""
    lines = [
        json.dumps({"input": key, "reason": reason}, ensure_ascii=False)
        for key, reason in quarantined
    ]
    if lines:
        files.write_text(folder / QUARANTINE, "\n".join(lines) + "\n")
    else:
        (folder / QUARANTINE).unlink(missing_ok=True)


def scene_drawing(
    image: PredictedImage, triplets: Triplets, scores: list[float], vocabulary: Vocabulary
) -> SceneDrawing:
    """What is drawn of a prediction: its triplets, and class names without COCO's suffixes."""
    predicates = vocabulary.predicate_classes
    count = len(image.scores.pairs)
    caption = f"the {len(triplets)} most certain triplets of {count} pairs"
    return SceneDrawing(
        picture=image.picture,
        names=[
            display_name(vocabulary.object_classes[segment.category])
            for segment in image.segmentation.segments
        ],
        boxes=image.graph.boxes,
        numbers=image.numbers,
        triplets=[
            DrawnTriplet(subject, target, predicates[predicate], score)
            for (subject, target, predicate), score in zip(triplets.tolist(), scores, strict=True)
        ],
        title=PurePosixPath(image.image_key).name,
        caption=caption if len(triplets) < count else f"all {count} pairs",
    )


def display_name(object_class: str) -> str:
    """A class's name for people: ``wall-other-merged`` is a wall."""
    return re.sub(r"(-other)?(-merged)?(-stuff)?$", "", object_class) or object_class


class _Names:
    """File names for images: their keys without suffix; nothing leaves the folder, none twice."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, key: str) -> str:
        parts = [part for part in PurePosixPath(key).parts if part not in ("/", "..", ".")]
        name = PurePosixPath(*parts) if parts else PurePosixPath("image")
        candidate, number = str(name.with_suffix("")), 1
        while candidate.casefold() in self._taken:  # file systems may ignore case
            number += 1
            candidate = f"{name.with_suffix('')}-{number}"
        self._taken.add(candidate.casefold())
        return candidate
