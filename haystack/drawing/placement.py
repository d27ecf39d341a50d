"""Where labels go: inside their segment, apart from each other. Pixels, y downwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_RINGS = (0.0, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0)  # in heights of the label
_ANGLES = 16
_APART = 4.0  # least distance between labels


class Box(NamedTuple):
    """A rectangle: left, top, right, bottom."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, x: float, y: float, width: float, height: float) -> Box:
        """The rectangle of a size around a centre."""
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    @property
    def centre(self) -> tuple[float, float]:
        """X and y."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def inside(self, bounds: Box) -> Box:
        """The same rectangle, moved into ``bounds`` as far as it fits."""
        width, height = self.right - self.left, self.bottom - self.top
        left = max(bounds.left, min(self.left, bounds.right - width))
        top = max(bounds.top, min(self.top, bounds.bottom - height))
        return Box(left, top, left + width, top + height)


def shared_area(box: Box, others: Floats) -> Floats:
    """Area that a rectangle shares with each of ``others`` [M, 4], which are grown a little."""
    width = np.minimum(box.right, others[:, 2] + _APART) - np.maximum(
        box.left, others[:, 0] - _APART
    )
    height = np.minimum(box.bottom, others[:, 3] + _APART) - np.maximum(
        box.top, others[:, 1] - _APART
    )
    return np.clip(width, 0, None) * np.clip(height, 0, None)


def deepest_point(mask: npt.NDArray[np.bool_]) -> tuple[float, float] | None:
    """The point of a mask [h, w] that is farthest from its border, as shares of width and height.

    None for an empty mask. The mask is thinned to at most 96 pixels a side.
    """
    stride = max(1, -(-max(mask.shape) // 96))
    left = np.pad(mask[stride // 2 :: stride, stride // 2 :: stride], 1)
    if not left.any():
        rows, columns = np.nonzero(mask)
        if not len(rows):
            return None
        middle = len(rows) // 2
        return (columns[middle] + 0.5) / mask.shape[1], (rows[middle] + 0.5) / mask.shape[0]
    while True:
        inner = left.copy()
        inner[1:] &= left[:-1]
        inner[:-1] &= left[1:]
        inner[:, 1:] &= left[:, :-1]
        inner[:, :-1] &= left[:, 1:]
        if not inner.any():
            break
        left = inner
    rows, columns = np.nonzero(left)
    # Of the deepest pixels the one nearest to their mean, which itself may lie outside.
    centre = np.array([rows.mean(), columns.mean()])
    best = int(((rows - centre[0]) ** 2 + (columns - centre[1]) ** 2).argmin())
    height, width = left.shape
    return (columns[best] - 0.5) / (width - 2), (rows[best] - 0.5) / (height - 2)


def place_labels(
    anchors: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    bounds: Box,
    obstacles: Sequence[Box] = (),
) -> list[Box]:
    """Rectangles for labels near their anchors, inside ``bounds``, overlapping as little as can be.

    Each label in turn takes the candidate with the least overlap, and of those the nearest one; so
    those that must stay where they are should come first.

    Args:
        anchors: x, y of each label's wanted centre.
        sizes: width and height of each label.
        bounds: where labels may lie.
        obstacles: rectangles that are taken already.
    """
    taken = [*obstacles]
    placed = []
    for (x, y), (width, height) in zip(anchors, sizes, strict=True):
        rivals = np.array(taken, dtype=np.float64).reshape(-1, 4)
        best: tuple[float, float, Box] | None = None
        for ring in _RINGS:
            for angle in np.arange(_ANGLES if ring else 1) * (2 * np.pi / _ANGLES):
                # Labels are wide and low: going sideways takes longer steps.
                dx = ring * np.cos(angle) * max(height, width / 2)
                dy = ring * np.sin(angle) * height
                box = Box.around(x + float(dx), y + float(dy), width, height).inside(bounds)
                overlap = float(shared_area(box, rivals).sum())
                distance = float(np.hypot(box.centre[0] - x, box.centre[1] - y))
                if best is None or (overlap, distance) < best[:2]:
                    best = overlap, distance, box
            if best is not None and best[0] == 0:
                break
        box = best[2] if best is not None else Box.around(x, y, width, height)
        placed.append(box)
        taken.append(box)
    return placed
