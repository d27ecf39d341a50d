"""Boxes around masks, by which a mask-enhanced MaskDINO starts its decoder."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_FAR = 1e8


def tight_boxes(masks: Tensor) -> Tensor:
    """Boxes that just hold the masks; zeros for an empty mask.

    Args:
        masks: bool [..., H, W].

    Returns:
        float32 [..., 4], centre x, centre y, width, height, shares of the sides.
    """
    height, width = masks.shape[-2:]
    left, right, some = _ends(masks.any(-2))
    top, bottom, _ = _ends(masks.any(-1))
    corners = torch.stack([left, top, right + 1, bottom + 1], -1) * some[..., None]
    return _as_centres(corners.float(), height, width)


def boxes_of_first_and_last(masks: Tensor) -> Tensor:
    """Boxes from the first to the last pixel of the masks.

    Quirk: the last row and column are left out; an empty mask has its first pixel at 1e8, so that
    the box lies at the picture's corner once it is cut off at 0 and 1.

    Args:
        masks: bool [..., H, W].

    Returns:
        float32 [..., 4], as above.
    """
    height, width = masks.shape[-2:]
    left, right, some = _ends(masks.any(-2))
    top, bottom, _ = _ends(masks.any(-1))
    first = torch.stack([left, top], -1).float().masked_fill(~some[..., None], _FAR)
    last = torch.stack([right, bottom], -1).float().masked_fill(~some[..., None], 0)
    return _as_centres(torch.cat([first, last], -1), height, width)


BOXES_OF_MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "bitmask": tight_boxes,
    "mask2box": boxes_of_first_and_last,
}
"""Function of each ``box_initialisation`` that looks at masks."""


def _ends(line: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First and last place that is set, and whether any is; from bool [..., N]."""
    places = line.int()
    last = line.shape[-1] - 1 - places.flip(-1).argmax(-1)
    return places.argmax(-1), last, line.any(-1)


def _as_centres(corners: Tensor, height: int, width: int) -> Tensor:
    first, last = corners[..., :2], corners[..., 2:]
    extents = corners.new_tensor([width, height])
    return torch.cat([(first + last) / 2 / extents, (last - first) / extents], -1)
