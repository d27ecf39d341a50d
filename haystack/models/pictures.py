"""What the detectors' inputs have in common, however each of them resizes a picture."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

MEAN = (123.675, 116.28, 103.53)
"""Of ImageNet's grey levels, 0..255: red, green, blue (mmdet's and detectron2's configurations)."""
STD = (58.395, 57.12, 57.375)
"""Their standard deviations."""

_STRIDE = 32


def padded_size(height: int, width: int) -> tuple[int, int]:
    """The next multiples of 32, the stride of the coarsest map, in pixels."""
    return height + -height % _STRIDE, width + -width % _STRIDE


def pad(levels: Tensor) -> Tensor:
    """Zeros at the right and at the bottom, up to ``padded_size``: float [C, h, w] -> [C, H, W].

    They follow the normalisation, as upstream's do, so that the padding is a mean grey, not black.
    """
    height, width = levels.shape[1:]
    bottom, right = padded_size(height, width)
    return F.pad(levels, (0, right - width, 0, bottom - height))


def resize(picture: Image.Image, size: tuple[int, int]) -> Tensor:
    """Resized grey levels, uint8 [3, height, width].

    Pillow's bilinear filter, which averages over all pixels that become one (PyTorch's
    interpolation without ``antialias`` reads four of them), on 8-bit values, rounded to 8 bits.

    Args:
        picture: RGB.
        size: height and width.
    """
    small = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)
