"""Predicted scene graphs as a folder: JSON, prediction Parquet, masks, and pictures.

::

    scene_graphs.json      PSG-style; each image's best triplets, their scores beside them
    predictions.parquet    every pair's scores, and the objects where they are predicted
    panoptic/*.png         the segments
    pictures/*.jpg         the picture of each scene graph
    quarantine.jsonl       images that could not be used, with their reasons; absent without any

The photographs are not copied: ``file_name`` leads from this folder to where they lie, so that it
holds as long as both are moved together. Everything else stays whole wherever the folder goes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from haystack import files
from haystack.drawing.scene import DrawnTriplet, PictureKind, SceneDrawing, draw_scene
from haystack.io.panoptic_png import write_panoptic_png
from haystack.io.prediction_parquet import write_prediction_parquet
from haystack.io.psg_writer import PsgWriter
from haystack.pipeline.predict import PredictedImage
from haystack.scene_graph import RelationScores, Triplets, best_triplets
from haystack.text import display_name
from haystack.vocabulary import Vocabulary

SCENE_GRAPHS, PREDICTIONS, QUARANTINE = (
    "scene_graphs.json",
    "predictions.parquet",
    "quarantine.jsonl",
)
RELATION_SCORES = "relation_scores"
"""Key of a record in ``scene_graphs.json``: one score a row of ``relations``, in the same order."""
MIN_SCORE = "min_score"
"""Key of a record: triplets that score less are not among its ``relations``."""


@dataclass(frozen=True)
class GraphOutput:
    """What the folder shows of each image.

    Args:
        folder: where everything goes.
        top: triplets an image at most.
        min_score: triplets below are left out; the frequency baseline, which knows many pairs by
            nothing but its smoothing, gives those some 0.001.
        pictures: kind of the pictures, or None for none.
    """

    folder: Path
    top: int = 10
    min_score: float = 0.01
    pictures: PictureKind | None = "jpg"


class Written(NamedTuple):
    """How many images a folder has, and how many of them show no triplet at all, by the reason.

    Args:
        images: all of them.
        without_pair: those with fewer than two segments.
        without_triplet: those with pairs, none of which reaches ``min_score``.
    """

    images: int
    without_pair: int = 0
    without_triplet: int = 0


def write_scene_graphs(
    images: Iterable[PredictedImage],
    output: GraphOutput,
    vocabulary: Vocabulary,
    *,
    file_of: Callable[[str], str],
) -> Written:
    """Write the folder; each file appears all at once, and one image is in memory at a time.

    Args:
        images: predictions.
        output: where and what.
        vocabulary: names of classes and predicates.
        file_of: an image's key -> its ``file_name`` in ``scene_graphs.json``.
    """
    names = _Names()
    without_pair = without_triplet = 0
    writer = PsgWriter(output.folder / SCENE_GRAPHS, vocabulary)

    def written() -> Iterator[RelationScores]:
        nonlocal without_pair, without_triplet
        for image in images:
            name = names.of(image.image_key)
            triplets, scores = best_triplets(image.scores, output.top, min_score=output.min_score)
            paired = len(image.scores.pairs) > 0
            without_pair += not paired
            without_triplet += paired and not len(triplets)
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
                    extra={
                        RELATION_SCORES: [round(float(score), 6) for score in scores],
                        MIN_SCORE: output.min_score,
                    },
                )
            )
            if output.pictures is not None:
                drawing = scene_drawing(
                    image, triplets, scores.tolist(), vocabulary, min_score=output.min_score
                )
                files.write_bytes(
                    output.folder / f"pictures/{name}.{output.pictures}",
                    draw_scene(drawing, kind=output.pictures),
                )
            yield image.scores

    with writer:
        count = write_prediction_parquet(
            written(),
            output.folder / PREDICTIONS,
            vocabulary.predicate_classes,
            images_per_group=8,
        )
    return Written(count, without_pair, without_triplet)


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
    image: PredictedImage,
    triplets: Triplets,
    scores: list[float],
    vocabulary: Vocabulary,
    *,
    min_score: float = 0.0,
) -> SceneDrawing:
    """What is drawn of a prediction: its triplets, and class names without COCO's suffixes."""
    predicates = vocabulary.predicate_classes
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
        caption=_caption(len(triplets), len(image.scores.pairs), min_score),
    )


def _caption(shown: int, pairs: int, min_score: float) -> str:
    if not pairs:
        return "no two segments to relate"
    if not shown:
        return f"none of {pairs} pairs scores {min_score:g} or more"
    triplets = "most certain triplet" if shown == 1 else f"{shown} most certain triplets"
    return f"the {triplets} of {pairs} pairs" if shown < pairs else f"all {pairs} pairs"


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
