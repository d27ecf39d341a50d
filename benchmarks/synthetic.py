"""Seeded scenes with the sizes that evaluations have; NumPy only, as peers' interpreters read them.

Scores are the softmax over P + 1 outputs, with the true predicate raised by a random amount, so
that a recall at 20 is about one half: neither of noise nor of a perfect model, because an
evaluator's time depends on how soon it finds the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Array = np.ndarray
CLASSES = 133
SIDE = 600
"""Width and height of the images, in pixels."""

_GROUPS = {
    "labels": "objects",
    "boxes": "objects",
    "relations": "relations",
    "negatives": "negatives",
    "own_labels": "detections",
    "own_boxes": "detections",
    "own_scores": "detections",
    "pairs": "pairs",
    "scores": "pairs",
    "no_relation": "pairs",
}


@dataclass(frozen=True)
class Scenes:
    """Images with annotations and predictions, each field of all images in one array.

    Args:
        arrays: ``labels`` int64 and ``boxes`` float32 [*, 4] of the annotated objects,
            ``relations`` and ``negatives`` int64 [*, 3]; ``own_labels``, ``own_boxes`` and
            ``own_scores`` of the predicted objects (absent in PredCls); ``pairs`` int64 [*, 2],
            ``scores`` float32 [*, P], ``no_relation`` float32.
        counts: for each group of fields int64 [images], how many rows each image has.
        predicates: P.
    """

    arrays: dict[str, Array]
    counts: dict[str, Array]
    predicates: int

    def __len__(self) -> int:
        return len(self.counts["objects"])

    def __iter__(self) -> Iterator[dict[str, Array]]:
        ends = {group: np.cumsum(count) for group, count in self.counts.items()}
        for i in range(len(self)):
            yield {
                name: values[ends[group][i] - self.counts[group][i] : ends[group][i]]
                for name, values in self.arrays.items()
                for group in (_GROUPS[name],)
            }

    @classmethod
    def joined(cls, made: list[dict[str, Array]], predicates: int) -> Scenes:
        """From what iterating gives."""
        arrays = {name: np.concatenate([scene[name] for scene in made]) for name in made[0]}
        counts = {
            group: np.array([len(scene[name]) for scene in made])
            for name, group in _GROUPS.items()
            if name in made[0]
        }
        return cls(arrays, counts, predicates)

    @staticmethod
    def groups() -> Iterable[tuple[str, str]]:
        """Each field with the group that counts its rows."""
        return _GROUPS.items()

    def save(self, folder: Path) -> None:
        """Write the arrays to a folder, for :meth:`load` in another process."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in self.arrays.items():
            np.save(folder / f"{name}.npy", values)
        np.savez(folder / "counts.npz", predicates=np.array(self.predicates), **self.counts)

    @classmethod
    def load(cls, folder: Path) -> Scenes:
        """What :meth:`save` wrote."""
        with np.load(folder / "counts.npz") as stored:
            counts = {name: stored[name] for name in stored.files}
        predicates = int(counts.pop("predicates"))
        present = [name for name in _GROUPS if (folder / f"{name}.npy").exists()]
        return cls({name: np.load(folder / f"{name}.npy") for name in present}, counts, predicates)


def scenes(
    images: int,
    *,
    seed: int,
    objects: int = 16,
    detections: int = 0,
    predicates: int = 56,
    relations: int = 6,
    negatives: int = 0,
    classes: int = CLASSES,
    ragged: bool = False,
    repeated: bool = False,
) -> Scenes:
    """Scenes with all ordered pairs of objects predicted.

    Args:
        images: how many.
        seed: of everything.
        objects: annotated objects of an image.
        detections: predicted objects, the first of them near the annotated ones; 0: PredCls.
        predicates: P.
        relations: annotated triplets, one a pair.
        negatives: explicit negatives, of pairs without a triplet.
        classes: of objects.
        ragged: numbers of objects and relations vary down to two and to none, some pairs are not
            predicted, every tenth image has no predicted pair, and pairs may hold two triplets.
        repeated: some triplets are annotated twice.
    """
    rng = np.random.default_rng(seed)
    made = [
        _scene(rng, i, objects, detections, predicates, relations, negatives, classes, ragged)
        for i in range(images)
    ]
    if repeated:
        for scene in made:
            again = rng.random(len(scene["relations"])) < 0.2
            scene["relations"] = np.concatenate([scene["relations"], scene["relations"][again]])
    for scene in made:
        _add_scores(rng, scene, predicates)
    return Scenes.joined(made, predicates)


def ordered_pairs(objects: int) -> Array:
    """All ordered pairs of distinct objects, int64 [objects (objects - 1), 2]."""
    return np.ascontiguousarray(np.argwhere(~np.eye(objects, dtype=bool)))


def _scene(
    rng: np.random.Generator,
    number: int,
    objects: int,
    detections: int,
    predicates: int,
    relations: int,
    negatives: int,
    classes: int,
    ragged: bool,
) -> dict[str, Array]:
    """Everything but the scores."""
    if ragged:
        objects = int(rng.integers(2, objects + 1))
        relations = int(rng.integers(0, relations + 1))
    true_pairs = ordered_pairs(objects)
    size = min(relations + negatives, len(true_pairs))
    chosen = true_pairs[rng.permutation(len(true_pairs))[:size]]
    named = np.concatenate([chosen, _rare_and_common(rng, size, predicates)[:, None]], axis=1)
    truth, negative = named[:relations], named[relations:]
    if ragged and len(truth):
        other = truth[:1].copy()
        other[:, 2] = (other[:, 2] + 1) % predicates
        truth = np.concatenate([truth, other])
    boxes = _boxes(rng, objects)
    scene = {
        "labels": rng.integers(0, classes, objects),
        "boxes": boxes,
        "relations": truth,
        "negatives": negative,
    }
    pairs = true_pairs
    if detections:
        scene |= _detected(rng, scene["labels"], boxes, max(detections, objects), classes)
        pairs = ordered_pairs(len(scene["own_labels"]))
    if ragged:
        pairs = pairs[rng.random(len(pairs)) < (0.0 if number % 10 == 9 else 0.9)]
    return scene | {"pairs": pairs}


def _detected(
    rng: np.random.Generator, labels: Array, boxes: Array, detections: int, classes: int
) -> dict[str, Array]:
    """Predicted objects: the annotated ones, moved, a few with another class; then others."""
    found = boxes + rng.normal(0, 6, boxes.shape)
    found[:, 2:] = np.maximum(found[:, 2:], found[:, :2] + 4)
    own_boxes = np.concatenate([found, _boxes(rng, detections - len(boxes))])
    own_labels = rng.integers(0, classes, detections)
    right = rng.random(len(labels)) < 0.9
    own_labels[: len(labels)][right] = labels[right]
    return {
        "own_labels": own_labels,
        "own_boxes": own_boxes.astype(np.float32),
        "own_scores": rng.uniform(0.3, 1, detections).astype(np.float32),
    }


def _boxes(rng: np.random.Generator, count: int) -> Array:
    corners = rng.uniform(0, SIDE * 0.6, (count, 2))
    sizes = rng.uniform(SIDE * 0.1, SIDE * 0.4, (count, 2))
    return np.concatenate([corners, corners + sizes], axis=1).astype(np.float32)


def _rare_and_common(rng: np.random.Generator, count: int, predicates: int) -> Array:
    """Predicates, the k-th about as frequent as 1 / k."""
    weights = 1 / np.arange(1, predicates + 1)
    return rng.choice(predicates, count, p=weights / weights.sum())


def _add_scores(rng: np.random.Generator, scene: dict[str, Array], predicates: int) -> None:
    """Softmax scores in which true predicates of annotated pairs stand out more or less."""
    pairs, relations = scene["pairs"], scene["relations"]
    logits = rng.standard_normal((len(pairs), predicates + 1), dtype=np.float32)
    logits[:, -1] += 4
    known = (pairs[:, None] == relations[None, :, :2]).all(2)
    rows, columns = np.nonzero(known)
    logits[rows, relations[columns, 2]] += rng.normal(4, 1.5, len(rows))
    logits -= logits.max(1, keepdims=True)
    exponentials = np.exp(logits)
    shares = exponentials / exponentials.sum(1, keepdims=True)
    scene["scores"], scene["no_relation"] = shares[:, :-1].copy(), shares[:, -1].copy()


def filled(boxes: Array, *, panoptic: bool) -> Array:
    """Boxes as masks bool [N, 60, 60], a tenth of the size.

    Args:
        boxes: float [N, 4].
        panoptic: no two masks share a pixel and none is empty, as in annotations.
    """
    grid = np.arange(60) * 10
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    inside = (grid[None, :, None] >= low) & (grid[None, :, None] < high)
    masks = inside[:, :, 1][:, :, None] & inside[:, :, 0][:, None, :]
    if panoptic:
        masks &= np.cumsum(masks, axis=0) == 1
        masks[:, 0] = np.eye(len(boxes), 60, dtype=bool)
    return masks


@dataclass(frozen=True)
class Segmented:
    """An image with panoptic id maps of the annotations and of the predictions.

    Args:
        truth, predicted: int32 [H, W], positions of segments, 0..N-1; each pixel has one.
        labels: int64 [N], classes; segment k of the one is near segment k of the other.
    """

    truth: Array
    predicted: Array
    labels: Array


def segmented(
    images: int, *, seed: int, segments: int, height: int, width: int, classes: int = CLASSES
) -> list[Segmented]:
    """Cells around random points with ragged borders; the predicted points have moved a little."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(images):
        points = rng.uniform(0, 1, (segments, 2)) * (height, width)
        moved = points + rng.normal(0, 0.02 * min(height, width), points.shape)
        bend = _ragged(rng, height, width)
        truth, predicted = (_cells(where, bend, height, width) for where in (points, moved))
        made.append(Segmented(truth, predicted, rng.integers(0, classes, segments)))
    return made


def _ragged(rng: np.random.Generator, height: int, width: int) -> Array:
    """Displacements [2, H, W] in pixels, of several wave lengths."""
    total = np.zeros((2, height, width), np.float32)
    for length, strength in ((256, 40), (32, 8), (4, 1.5)):
        coarse = (2, -(-height // length), -(-width // length))
        noise = (rng.standard_normal(coarse) * strength).astype(np.float32)
        total += noise.repeat(length, 1).repeat(length, 2)[:, :height, :width]
    return total


def _cells(points: Array, bend: Array, height: int, width: int) -> Array:
    rows = np.arange(height, dtype=np.float32)[:, None] + bend[0]
    columns = np.arange(width, dtype=np.float32)[None, :] + bend[1]
    nearest = np.zeros((height, width), np.int32)
    best = np.full((height, width), np.inf, np.float32)
    for number, (y, x) in enumerate(points):
        distance = (rows - y) ** 2 + (columns - x) ** 2
        closer = distance < best
        nearest[closer] = number
        best[closer] = distance[closer]
    return nearest
