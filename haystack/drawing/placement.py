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
    """The point of a mask's largest part that is farthest from its border.

    Args:
        mask: bool [h, w]. What it covers is looked at in at most 96 pixels a side.

    Returns:
        X and y as shares of width and height; None for an empty mask.
    """
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    if not len(rows):
        return None
    cut = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    stride = -(-max(cut.shape) // 96)
    thinned = cut[stride // 2 :: stride, stride // 2 :: stride]
    if thinned.any():
        row, column = _deepest_pixel(_largest_part(thinned))
        row, column = stride // 2 + stride * row, stride // 2 + stride * column
    else:
        row, column = np.argwhere(cut)[int(cut.sum()) // 2].tolist()
    height, width = mask.shape
    return (columns[0] + column + 0.5) / width, (rows[0] + row + 0.5) / height


def _largest_part(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The largest connected part of a mask [h, w]; pixels that touch at a corner are connected."""
    # Every pixel takes the highest number around it, which is that of a pixel of its part, then
    # what that pixel has taken, so that long parts need few rounds.
    width = mask.shape[1] + 2
    inside = np.flatnonzero(np.pad(mask, 1))
    around = [row * width + column for row in (-1, 0, 1) for column in (-1, 0, 1)]
    number = np.full((mask.shape[0] + 2) * width, -1)
    number[inside] = inside
    while True:
        highest = number[inside[:, None] + around].max(1)
        if (highest == number[inside]).all():
            break
        number[inside] = highest
        number[inside] = number[highest]
    names, areas = np.unique(number[inside], return_counts=True)
    largest: npt.NDArray[np.bool_] = number == names[areas.argmax()]
    return largest.reshape(-1, width)[1:-1, 1:-1]


def _deepest_pixel(mask: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Row and column of the pixel of a mask [h, w] that is farthest from its border."""
    left = np.pad(mask, 1)
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
    best = int(((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2).argmin())
    return int(rows[best]) - 1, int(columns[best]) - 1


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
