"""Scenes that are drawn, so that every relation in them is known: a proof that models learn.

An image is a table of cells, and a cell holds one object or two that are arranged in one of eight
ways. All shapes take part in all arrangements alike, so that the classes of two objects say
nothing about their relation; where they lie, and what touches what, says everything:

- ``left of``, ``above``: a small gap between two objects that lie in a row, or one over the other.
  A wide gap is no relation.
- ``touching``: side by side without a gap; it holds both ways.
- ``on``, ``hanging from``: a smaller object lies on top of a larger one, or hangs under it.
- ``inside``: a smaller object is drawn within a larger one, which surrounds it without a gap.
- ``encircling``: a hollow object goes around a smaller one, with a gap all around.
- ``in front of``: a smaller object hides a part of a larger one's border.

Their frequencies fall as a long tail; each pair has one relation at most, and no other pair has
one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from haystack.io.panoptic_png import segment_geometry, write_panoptic_png
from haystack.models.relation.config import RelationModelConfig
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.training.config import LossConfig, TrainConfig
from haystack.vocabulary import Vocabulary

Array = np.ndarray
CELL = 80
"""Pixels along each side of a cell."""
SHAPES = ("disc", "square", "diamond", "triangle")
PREDICATES = (
    *("left of", "on", "inside", "above", "touching"),
    *("in front of", "encircling", "hanging from"),
)
"""The most frequent first."""
_FREQUENCIES = np.arange(1, len(PREDICATES) + 1) ** -1.5
_NOTHING = 0.25
"""Share of cells without a relation: one object, or two far apart."""
_SMALLEST, _SMALL, _LARGE = 11, 16, 26
"""Sizes in pixels: small objects between the first two, large ones between the last two."""


def render(
    folder: Path, *, train: int, test: int, seed: int, pictures: bool = False
) -> SceneGraphDataset:
    """Draw scenes, and write their panoptic PNGs.

    Args:
        folder: where ``panoptic/`` and ``images/`` go.
        train: images to learn from.
        test: held-out images.
        seed: of everything.
        pictures: draw the images as well as their panoptic PNGs.
    """
    rng = np.random.default_rng(seed)
    graphs = [_scene(folder, number, rng, pictures) for number in range(train + test)]
    held_out = tuple(graph.image_id for graph in graphs[train:])
    return SceneGraphDataset(Vocabulary(SHAPES, (), PREDICATES), tuple(graphs), held_out, folder)


def config_for(head: str, *, steps: int, seed: int = 0) -> TrainConfig:
    """A training run on these scenes, the same for every head."""
    return TrainConfig(
        seed=seed,
        steps=steps,
        weight_decay=0.01,
        cache="memory",
        flip=False,  # a mirror image of "left of" is none
        # Annotations are complete: a pair without a relation is known to have none.
        loss=LossConfig(background="unannotated", background_weight=1.0, background_ratio=100.0),
        model=RelationModelConfig(head=head, dropout=0.0),
    )


def _scene(folder: Path, number: int, rng: np.random.Generator, pictures: bool) -> SceneGraph:
    rows, columns = 2, int(rng.integers(2, 4))
    ids = np.zeros((rows * CELL, columns * CELL), np.int32)
    labels: list[int] = []
    relations: list[tuple[int, int, int]] = []
    for y in range(rows):
        for x in range(columns):
            cell, classes, related = _cell(rng)
            place = ids[y * CELL : (y + 1) * CELL, x * CELL : (x + 1) * CELL]
            place[cell > 0] = cell[cell > 0] + len(labels)
            relations += [(s + len(labels), o + len(labels), p) for s, o, p in related]
            labels += classes
    # Segments in another order than cells, and ids that say nothing.
    order = rng.permutation(len(labels))
    names = rng.choice(np.arange(1, 60000), len(labels), replace=False).astype(np.int32)
    ids = np.concatenate([np.zeros(1, np.int32), names])[ids]
    position = np.argsort(order)
    found = segment_geometry(ids)
    at = {int(name): i for i, name in enumerate(found.ids)}
    segments = tuple(
        Segment(
            id=int(names[k]),
            category=labels[k],
            area=int(found.areas[at[int(names[k])]]),
            box=tuple(found.boxes[at[int(names[k])]].tolist()),
        )
        for k in order
    )
    pan, file_name = f"panoptic/{number}.png", f"images/{number}.png"
    write_panoptic_png(folder / pan, ids)
    if pictures:
        (folder / "images").mkdir(exist_ok=True)
        Image.fromarray(_picture(ids, names, rng)).save(folder / file_name)
    return SceneGraph(
        image_id=str(number),
        height=ids.shape[0],
        width=ids.shape[1],
        file_name=file_name,
        pan_seg_file_name=pan,
        segments=segments,
        relations=as_triplets([(position[s], position[o], p) for s, o, p in relations]),
    )


def _picture(ids: Array, names: Array, rng: np.random.Generator) -> Array:
    """Each object in a colour of its own, on grey, with noise: uint8 [H, W, 3]."""
    image = np.full((*ids.shape, 3), 128.0)
    for name in names:
        image[ids == name] = rng.uniform(0, 255, 3)
    noisy = image + rng.normal(0, 8, image.shape)
    return noisy.clip(0, 255).astype(np.uint8)


def _cell(rng: np.random.Generator) -> tuple[Array, list[int], list[tuple[int, int, int]]]:
    """Objects 1 and 2 in a cell [CELL, CELL], their classes, and their relations."""
    classes = rng.integers(0, len(SHAPES), 2).tolist()
    if rng.random() < _NOTHING:
        if rng.random() < 0.5:
            lone = _pasted(_any(classes[0], rng), (0, 0))
            return _centred(lone[None], rng), classes[:1], []
        return _apart(classes, rng), classes, []
    share = _FREQUENCIES / _FREQUENCIES.sum()
    name = PREDICATES[rng.choice(len(PREDICATES), p=share)]
    both, related = _ARRANGEMENTS[name](classes, rng)
    rows = [(s, o, PREDICATES.index(name)) for s, o in related]
    return _centred(both, rng), classes, rows


Arranged = tuple[Array, list[tuple[int, int]]]
"""Masks bool [2, CELL, CELL] of objects 0 and 1, the second over the first; ordered pairs."""


def _left_of(classes: list[int], rng: np.random.Generator) -> Arranged:
    return _beside(classes, rng, gap=_size(rng, 2, 7)), [(0, 1)]


def _above(classes: list[int], rng: np.random.Generator) -> Arranged:
    masks = _beside(classes, rng, gap=_size(rng, 2, 7), turned=True)
    return masks, [(0, 1)]


def _touching(classes: list[int], rng: np.random.Generator) -> Arranged:
    return _beside(classes, rng, gap=0), [(0, 1), (1, 0)]


def _on(classes: list[int], rng: np.random.Generator) -> Arranged:
    sizes = _size(rng, _SMALLEST, _SMALL), _size(rng, _SMALL + 4, _LARGE)
    return _beside(classes, rng, gap=0, turned=True, sizes=sizes), [(0, 1)]


def _hanging_from(classes: list[int], rng: np.random.Generator) -> Arranged:
    sizes = _size(rng, _SMALL + 4, _LARGE), _size(rng, _SMALLEST, _SMALL)
    return _beside(classes, rng, gap=0, turned=True, sizes=sizes), [(1, 0)]


def _inside(classes: list[int], rng: np.random.Generator) -> Arranged:
    outer = _shape(classes[0], _size(rng, 44, 52))
    inner = _shape(classes[1], _size(rng, _SMALLEST, _SMALL - 2))
    return _within(outer, inner, rng), [(1, 0)]


def _encircling(classes: list[int], rng: np.random.Generator) -> Arranged:
    outer = _hollow(_shape(classes[0], _size(rng, 52, 58)))
    inner = _shape(classes[1], _size(rng, _SMALLEST - 2, _SMALLEST))
    return _within(outer, inner, rng), [(0, 1)]


def _in_front_of(classes: list[int], rng: np.random.Generator) -> Arranged:
    behind = _shape(classes[0], _size(rng, _LARGE, 34))
    before = _shape(classes[1], _size(rng, _SMALL, _SMALL + 4))
    first = _pasted(behind, _middle(behind))
    while True:
        y, x = rng.integers(0, CELL - max(before.shape), 2)
        second = _pasted(before, (int(y), int(x)))
        hidden = (first & second).sum() / second.sum()
        if 0.35 < hidden < 0.65:
            return np.stack([first & ~second, second]), [(1, 0)]


_ARRANGEMENTS: dict[str, Callable[[list[int], np.random.Generator], Arranged]] = {
    "left of": _left_of,
    "on": _on,
    "inside": _inside,
    "above": _above,
    "touching": _touching,
    "in front of": _in_front_of,
    "encircling": _encircling,
    "hanging from": _hanging_from,
}


def _apart(classes: list[int], rng: np.random.Generator) -> Array:
    sizes = _size(rng, _SMALLEST, _SMALL), _size(rng, _SMALLEST, _SMALL)
    turned, gap = bool(rng.random() < 0.5), _size(rng, 18, 24)
    return _centred(_beside(classes, rng, gap=gap, turned=turned, sizes=sizes), rng)


def _beside(
    classes: list[int],
    rng: np.random.Generator,
    *,
    gap: int,
    turned: bool = False,
    sizes: tuple[int, int] | None = None,
) -> Array:
    """Object 0 on the left (on top where ``turned``) of object 1, pushed until the gap is left."""
    if sizes is None:
        sizes = _size(rng, _SMALLEST, _LARGE), _size(rng, _SMALLEST, _LARGE)
    shapes = [_shape(kind, size) for kind, size in zip(classes, sizes, strict=True)]
    if turned:
        shapes = [shape.T for shape in shapes]
    first, second = shapes
    shift = rng.uniform(-0.2, 0.2) * min(len(first), len(second))
    top = _middle(second)[0]
    row = top + round((len(second) - len(first)) / 2 + shift)
    fixed = _pasted(second, (top, CELL - second.shape[1]))
    column = CELL - max(first.shape[1], second.shape[1])
    while (_pasted(first, (row, column)) & fixed).any():
        column -= 1
    masks = np.stack([_pasted(first, (row, column - gap)), fixed])
    return masks.transpose(0, 2, 1) if turned else masks


def _within(outer: Array, inner: Array, rng: np.random.Generator) -> Array:
    """Object 1 drawn somewhere inside object 0's outline, which keeps 2 pixels to its border."""
    first = _pasted(outer, _middle(outer))
    filled = _filled(first)
    room = _shrunk(filled, 2) if first.sum() == filled.sum() else _shrunk(filled & ~first, 2)
    ys, xs = np.nonzero(room)
    while True:
        y, x = rng.integers(ys.min(), ys.max()), rng.integers(xs.min(), xs.max())
        second = _pasted(inner, (int(y), int(x)))
        if not (second & ~room).any():
            return np.stack([first & ~second, second])


def _any(kind: int, rng: np.random.Generator) -> Array:
    """A lone object: small, large or hollow."""
    if rng.random() < 0.3:
        return _hollow(_shape(kind, _size(rng, 52, 58)))
    return _shape(kind, _size(rng, _SMALLEST, 48))


def _size(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def _shape(kind: int, size: int) -> Array:
    """A filled shape, bool [size, size]; a triangle points up."""
    y, x = (np.mgrid[:size, :size] + 0.5) / size * 2 - 1
    masks = {
        "disc": x**2 + y**2 <= 1,
        "square": np.ones_like(x, dtype=bool),
        "diamond": np.abs(x) + np.abs(y) <= 1 + 1 / size,
        "triangle": np.abs(x) <= (y + 1) / 2 + 1 / size,
    }
    return masks[SHAPES[kind]]


def _hollow(shape: Array) -> Array:
    return shape & ~_shrunk(np.pad(shape, 1), 4)[1:-1, 1:-1]


def _shrunk(mask: Array, steps: int) -> Array:
    """Without its outermost pixels; the array's border counts as outside."""
    for _ in range(steps):
        padded = np.pad(mask, 1)
        mask = mask & padded[2:, 1:-1] & padded[:-2, 1:-1] & padded[1:-1, 2:] & padded[1:-1, :-2]
    return mask


def _filled(mask: Array) -> Array:
    """A convex outline with everything within: from the first to the last pixel of each row."""
    started = np.maximum.accumulate(mask, axis=1)
    return started & np.maximum.accumulate(mask[:, ::-1], axis=1)[:, ::-1]


def _middle(shape: Array) -> tuple[int, int]:
    return (CELL - shape.shape[0]) // 2, (CELL - shape.shape[1]) // 2


def _pasted(shape: Array, corner: tuple[int, int]) -> Array:
    """A shape in an empty cell, at this row and column; it must fit."""
    y, x = corner
    cell = np.zeros((CELL, CELL), bool)
    cell[y : y + shape.shape[0], x : x + shape.shape[1]] = shape
    return cell


def _centred(masks: Array, rng: np.random.Generator) -> Array:
    """Masks as one map of 1, 2, moved to a random place at least 10 pixels from the cell's border.

    So far from each other's objects, no two cells' objects are related.
    """
    ids = np.zeros((CELL, CELL), np.int32)
    for number, mask in enumerate(masks, start=1):
        ids[mask] = number
    ys, xs = np.nonzero(ids)
    content = ids[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    cell = np.zeros_like(ids)
    y, x = (int(rng.integers(10, CELL - 10 - extent + 1)) for extent in content.shape)
    cell[y : y + content.shape[0], x : x + content.shape[1]] = content
    return cell
