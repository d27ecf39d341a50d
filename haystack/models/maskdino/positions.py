"""Where things are, as numbers that a transformer can add: sine embeddings of pixels and boxes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_WAVES = 128
"""Values a coordinate: sine and cosine of 64 frequencies."""

_EPSILON = 1e-5


def inverse_sigmoid(share: Tensor) -> Tensor:
    """Logit of shares, clamped to about ±11.5.

    Quirk: both p and 1 - p are cut off at 1e-5 (PyTorch's ``logit`` cuts p off on both sides).
    """
    share = share.clamp(0, 1)
    return torch.log(share.clamp_min(_EPSILON) / (1 - share).clamp_min(_EPSILON))


def embed_coordinates(coordinates: Tensor) -> Tensor:
    """Sines and cosines, in turn, of coordinates in radians.

    Args:
        coordinates: float [...].

    Returns:
        float [..., 128].
    """
    step = torch.arange(_WAVES, dtype=torch.float32, device=coordinates.device)
    angles = coordinates[..., None] / 10000 ** (2 * (step // 2) / _WAVES)
    return torch.stack([angles[..., 0::2].sin(), angles[..., 1::2].cos()], -1).flatten(-2)


def embed_pixels(height: int, width: int, device: torch.device) -> Tensor:
    """Position of each pixel of a map, row by row.

    Quirk: pixel i of n is at i / (n + 1e-6), i from 1 to n: its far edge, not its centre; and the
    128 values of y come before those of x.

    Returns:
        float32 [height * width, 256].
    """
    # Sines of the sides alone: a pixel's position is its row's beside its column's.
    rows, columns = (
        embed_coordinates(
            torch.arange(1, side + 1, dtype=torch.float32, device=device)
            / (side + 1e-6)
            * (2 * math.pi)
        )
        for side in (height, width)
    )
    size = (height, width, _WAVES)
    grid = torch.cat([rows[:, None].expand(size), columns[None].expand(size)], -1)
    return grid.flatten(0, 1)


def embed_boxes(boxes: Tensor) -> Tensor:
    """Position of anchors.

    Quirk: the order is y, x, width, height, although boxes are x, y, width, height; and each
    coordinate has 128 values whatever the width of the model, which therefore must be 256.

    Args:
        boxes: float [..., 4], centre x, centre y, width, height, shares of the picture.

    Returns:
        float [..., 512].
    """
    return embed_coordinates(boxes[..., [1, 0, 2, 3]] * (2 * math.pi)).flatten(-2)
