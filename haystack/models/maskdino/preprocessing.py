"""From photographs to the network's input, as detectron2 prepares it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from haystack.models.pictures import MEAN, STD, pad, padded_size

SHORT_SIDE = 800
LONG_SIDE = 1333


def fitted_size(
    height: int, width: int, short_side: int = SHORT_SIDE, long_side: int = LONG_SIDE
) -> tuple[int, int]:
    """Height and width at which a picture is looked at.

    Its shorter side is scaled to ``short_side``, or to what keeps the longer one within
    ``long_side``. Rounded as detectron2's ``ResizeShortestEdge`` does, in two steps.
    """
    scale = short_side / min(height, width)
    sides: tuple[float, float] = (scale * height, short_side)
    if height < width:
        sides = (short_side, scale * width)
    if max(sides) > long_side:
        scale = long_side / max(sides)
        sides = (sides[0] * scale, sides[1] * scale)
    # The short side of a very long picture may round to nothing.
    return max(int(sides[0] + 0.5), 1), max(int(sides[1] + 0.5), 1)


def padded_size_of(
    picture: Image.Image, short_side: int = SHORT_SIDE, long_side: int = LONG_SIDE
) -> tuple[int, int]:
    """Height and width of a picture's input once it is scaled and padded."""
    return padded_size(*fitted_size(picture.height, picture.width, short_side, long_side))


def to_batch(pictures: Sequence[Tensor], device: torch.device) -> Tensor:
    """Normalised pictures, padded at the right and at the bottom.

    Args:
        pictures: uint8 [3, h, w] each, all of the same ``padded_size``.
        device: where the result lies.

    Returns:
        float32 [B, 3, H, W].
    """
    mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (MEAN, STD))
    return torch.stack([pad((picture.to(device).float() - mean) / std) for picture in pictures])
