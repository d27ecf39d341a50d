"""Runs SGBench 1.0.0 in an interpreter that has it (it needs NumPy 1).

Modes: ``rank`` ranks scores and calls its functions in memory, ``recall`` calls them on scores that
are ranked beforehand; ``match`` times its match of masks; ``write`` turns masks into its ZIP;
``file`` evaluates such a file.

It takes ranked triplets and leaves the ranking to others. ``rank`` does it as fast as NumPy can,
by a partition; ``rank-all`` sorts all candidates, which a file of its format lists.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import KS, answer, parser
from measure import best_cpu_seconds, peak_memory_mib
from sgbench import match, metrics
from synthetic import Scenes


def main() -> None:
    options = parser().parse_args()
    folder = options.inputs
    if options.mode == "write":
        _write(folder)
        answer(options.output)
        return
    run, images = _MODES[options.mode](folder)
    values = run()
    seconds = best_cpu_seconds(run, options.repeat) if options.repeat else None
    answer(
        options.output, seconds=seconds, images=images, values=values, peak_mib=peak_memory_mib()
    )


Task = tuple[Callable[[], Any], int]


def _rank(folder: Path, first: Callable[[np.ndarray, int], np.ndarray]) -> Task:
    """R, mR, ngR and ng-mR of scores; where objects are predicted, they are matched first."""
    scenes = Scenes.load(folder)
    images = list(scenes)

    def run() -> dict[str, Any]:
        found: dict[str, list[Any]] = {}
        for scene in images:
            if len(scene["relations"]):
                ranked = _triplets(scene, scenes.predicates, first)
                for name, value in _recalls(scene, ranked, scenes.predicates).items():
                    found.setdefault(name, []).append(value)
        return _means(found)

    return run, len(images)


def _recall(folder: Path) -> Task:
    """The same without the time of the ranking."""
    scenes = Scenes.load(folder)
    images = [
        (scene, _triplets(scene, scenes.predicates, _first))
        for scene in scenes
        if len(scene["relations"])
    ]

    def run() -> dict[str, Any]:
        found: dict[str, list[Any]] = {}
        for scene, ranked in images:
            for name, value in _recalls(scene, ranked, scenes.predicates).items():
                found.setdefault(name, []).append(value)
        return _means(found)

    return run, len(images)


def _triplets(
    scene: dict[str, np.ndarray], predicates: int, first: Callable[[np.ndarray, int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The best triplets with and without graph constraint."""
    pairs, scores = scene["pairs"], scene["scores"]
    if "own_labels" in scene:
        confidence = scene["own_scores"]
        scores = scores * (confidence[pairs[:, 0]] * confidence[pairs[:, 1]])[:, None]
    best = scores.argmax(1) if len(pairs) else np.empty(0, int)
    order = first(scores[np.arange(len(pairs)), best], max(KS))
    constrained = np.column_stack([pairs[order], best[order]])
    order = first(scores.ravel(), max(KS))
    return constrained, np.column_stack([pairs[order // predicates], order % predicates])


def _recalls(
    scene: dict[str, np.ndarray], ranked: tuple[np.ndarray, np.ndarray], predicates: int
) -> dict[str, Any]:
    """Of one image; mR and ng-mR as vectors over predicates."""
    truth = scene["relations"]
    if "own_labels" in scene:
        objects = match.match_instances(
            scene["boxes"], scene["labels"], scene["own_boxes"], scene["own_labels"]
        )
        ranked = tuple(match.remap_triplets(objects, triplets) for triplets in ranked)
    values: dict[str, Any] = {}
    for triplets, names in zip(ranked, (("R", "mR"), ("ngR", "ng-mR"))):  # noqa: B905  Python 3.9
        for k in KS:
            for name, mean in zip(names, (False, True)):  # noqa: B905
                values[f"{name}@{k}"] = metrics.recall(k, mean, truth, triplets, predicates)
    return values


def _means(found: dict[str, list[Any]]) -> dict[str, Any]:
    """Over images, as its ``file`` module takes them."""
    values: dict[str, Any] = {}
    for name, each in found.items():
        if name.startswith(("mR", "ng-mR")):
            values[name] = np.nanmean(np.stack(each), axis=0).mean()
        else:
            values[name] = np.mean(each)
    return values


def _first(scores: np.ndarray, count: int) -> np.ndarray:
    """Positions of the highest scores in descending order."""
    if len(scores) > count:
        top = np.argpartition(scores, -count)[-count:]
        return top[np.argsort(-scores[top])]
    return np.argsort(-scores)


def _all_first(scores: np.ndarray, count: int) -> np.ndarray:
    """The same by a sort of everything."""
    return np.argsort(-scores)[:count]


def _match(folder: Path) -> Task:
    """Its match of masks that are in memory."""
    stored = [dict(np.load(path)) for path in sorted(folder.glob("maps-*.npz"))]
    prepared = []
    for image in stored:
        numbers = np.arange(len(image["labels"]))[:, None, None]
        masks = image["truth"] == numbers, image["predicted"] == numbers
        prepared.append((*masks, image["labels"]))

    def run() -> list[Any]:
        return [match.match_masks(a, b, labels, labels).tolist() for a, b, labels in prepared]

    return run, len(prepared)


def _write(folder: Path) -> None:
    """``predictions.zip`` from ``predictions.json`` and the masks of ``maps-*.npz``."""
    from sgbench.io import write_layered_seg_mask

    with zipfile.ZipFile(folder / "predictions.zip", "w") as archive:
        archive.write(folder / "predictions.json", "triplets.json")
        content = json.loads((folder / "predictions.json").read_text())
        with tempfile.TemporaryDirectory() as scratch:
            paths = sorted(folder.glob("maps-*.npz"))
            for path, image in zip(paths, content["images"]):  # noqa: B905  Python 3.9
                maps = np.load(path)
                masks = maps["predicted"][None] == np.arange(len(maps["labels"]))[:, None, None]
                name = image["seg_filename"]
                write_layered_seg_mask(masks, f"{scratch}/{name}")
                archive.write(f"{scratch}/{name}", name)


def _file(folder: Path) -> Task:
    """Its evaluation from files: boxes in JSON, or masks in a ZIP."""
    from sgbench.file import evaluate

    annotations = folder / "annotations.json"
    images = len(json.loads(annotations.read_text())["data"])
    archive = folder / "predictions.zip"

    def run() -> dict[str, Any]:
        predictions = archive if archive.exists() else folder / "predictions.json"
        found = evaluate(annotations, predictions, gt_seg_dir=folder)
        return {name: float(value) for name, value in found.items()}

    return run, images


_MODES: dict[str, Callable[[Path], Task]] = {
    "rank": lambda folder: _rank(folder, _first),
    "rank-all": lambda folder: _rank(folder, _all_first),
    "recall": _recall,
    "match": _match,
    "file": _file,
}


if __name__ == "__main__":
    main()
