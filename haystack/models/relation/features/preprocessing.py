"""From a photograph to a detector's input, as mmdet prepares it for OpenPSG's detectors.

The resize is OpenCV's bilinear one, bit by bit: weights of 11 bits, no antialias, grey levels
rounded. Integer sums give the same bits on every device.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from haystack.models.pictures import MEAN, STD, pad
from haystack.models.relation.inputs import SceneInput

_ONE = 1 << 11


def fitted_size(height: int, width: int, long_side: int, short_side: int) -> tuple[int, int]:
    """Height and width at which a picture, its shape kept, just fits both sides, in pixels."""
    scale = min(long_side / max(height, width), short_side / min(height, width))
    # A thread's length of a picture may round to nothing on its short side.
    return max(int(height * scale + 0.5), 1), max(int(width * scale + 0.5), 1)


def resize_bilinear(image: Tensor, height: int, width: int) -> Tensor:
    """``cv2.resize(image, (width, height))`` of 8-bit pictures, bit by bit.

    Args:
        image: uint8 [h, w, 3].
        height: of the result.
        width: of the result.

    Returns:
        uint8 [height, width, 3].
    """
    left, right, from_left, from_right = _taps(image.shape[1], width, image.device)
    top, bottom, from_top, from_bottom = _taps(image.shape[0], height, image.device)
    pixels = image.int()
    rows = pixels[:, left] * from_left[:, None] + pixels[:, right] * from_right[:, None]
    rows = rows >> 4
    upper = (rows[top] * from_top[:, None, None]) >> 16
    lower = (rows[bottom] * from_bottom[:, None, None]) >> 16
    return ((upper + lower + 2) >> 2).to(torch.uint8)


def prepare_image(
    image: npt.NDArray[np.uint8], height: int, width: int, device: torch.device
) -> Tensor:
    """Resize, normalise, and pad at the right and at the bottom with zeros.

    Args:
        image: uint8 [h, w, 3], RGB.
        height: see ``fitted_size``.
        width: see ``fitted_size``.
        device: where the work is done and the result lies.

    Returns:
        float32 [3, H, W], H and W by ``padded_size``.
    """
    pixels = torch.tensor(image, device=device)  # a copy: the array may be read-only
    levels = resize_bilinear(pixels, height, width).permute(2, 0, 1).float()
    mean = torch.tensor(MEAN, device=device)[:, None, None]
    inverse = torch.tensor([1 / std for std in STD], device=device)[:, None, None]
    return pad((levels - mean) * inverse)


def fit_scene(scene: SceneInput, long_side: int, short_side: int) -> SceneInput:
    """The scene in the frame of its resized picture, without id map and picture.

    Boxes are scaled by the quotient of the rounded sides, which differs a little between the
    axes, and cut at the borders.
    """
    height, width = fitted_size(scene.height, scene.width, long_side, short_side)
    factors = np.array([width / scene.width, height / scene.height] * 2, dtype=np.float32)
    boxes = np.clip(scene.boxes * factors, 0, np.array([width, height] * 2, dtype=np.float32))
    return replace(scene, height=height, width=width, boxes=boxes, id_map=None, image=None)


def _taps(before: int, after: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Places and integer weights of the two pixels that each new pixel is made of: int [after]."""
    # double, then one rounding to float32, as OpenCV does it.
    scale = 1.0 / (after / before)
    centre = ((np.arange(after) + 0.5) * scale - 0.5).astype(np.float32)
    place = np.floor(centre).astype(np.int64)
    share = centre - place.astype(np.float32)
    weights = np.rint(np.stack([np.float32(1) - share, share]) * np.float32(_ONE))
    places = np.clip(np.stack([place, place + 1]), 0, before - 1)
    first, second = torch.from_numpy(places).to(device)
    of_first, of_second = torch.from_numpy(weights.astype(np.int32)).to(device)
    return first, second, of_first, of_second
