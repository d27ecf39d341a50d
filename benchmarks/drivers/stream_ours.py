"""Evaluates a stream of SGDet predictions with Haystack and reports the peak of memory.

Inputs: scenes, which are repeated under new image ids until ``--images`` have gone by; each
repetition is a copy, as a model's output would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

import numpy as np
import torch
from common import answer, parser
from measure import peak_memory_mib
from synthetic import CLASSES, SIDE, Scenes

from haystack import evaluate
from haystack.scene_graph import (
    PredictedObjects,
    RelationScores,
    SceneGraph,
    SceneGraphDataset,
    Segment,
)
from haystack.vocabulary import Vocabulary


def main() -> None:
    arguments = parser()
    arguments.add_argument("--images", type=int, required=True)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    scenes = Scenes.load(options.inputs)
    pool = list(scenes)
    start = process_time()
    libraries = peak_memory_mib()
    vocabulary = Vocabulary(
        thing_classes=tuple(f"class {i}" for i in range(CLASSES)),
        stuff_classes=(),
        predicate_classes=tuple(f"predicate {i}" for i in range(scenes.predicates)),
    )
    graphs = tuple(_graph(str(i), pool[i % len(pool)]) for i in range(options.images))
    annotated = peak_memory_mib()
    report = evaluate(SceneGraphDataset(vocabulary, graphs), _predictions(pool, options.images))
    answer(
        options.output,
        images=report.images,
        seconds=process_time() - start,
        libraries_mib=libraries,
        annotated_mib=annotated,
        peak_mib=peak_memory_mib(),
    )


def _graph(image_id: str, scene: dict[str, np.ndarray]) -> SceneGraph:
    segments = tuple(
        Segment(id=number + 1, category=int(label), area=1, box=tuple(box))
        for number, (label, box) in enumerate(
            zip(scene["labels"], scene["boxes"].tolist(), strict=True)
        )
    )
    return SceneGraph(
        image_id, SIDE, SIDE, f"{image_id}.jpg", segments=segments, relations=scene["relations"]
    )


def _predictions(pool: list[dict[str, np.ndarray]], images: int) -> Iterator[RelationScores]:
    for i in range(images):
        scene = pool[i % len(pool)]
        objects = PredictedObjects(
            scene["own_labels"], scene["own_scores"], scene["own_boxes"].copy()
        )
        scores = scene["scores"].copy()
        yield RelationScores(str(i), scene["pairs"].copy(), scores, objects=objects)


if __name__ == "__main__":
    main()
