"""Overlaps of boxes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.functional.matching.pairs import ObjectPairs
from haystack.metrics.functional.tensors import on_host

_SMALLEST_UNION = 1e-6


def box_iou(truth: Tensor, predicted: Tensor, pairs: ObjectPairs, *, plus_one: bool) -> Tensor:
    """Intersection over union of the boxes of each pair, in the arithmetic of the peers.

    ``plus_one=False``: the right and the bottom are exclusive, width = x2 - x1, and the union is
    at least 1e-6 (OpenPSG; SGBench and torchvision where the union is not 0). So a box of zero
    width overlaps nothing, not even itself. ``plus_one=True``: both ends are pixels, width =
    x2 - x1 + 1 (KaihuaTang, maskrcnn-benchmark).

    Args:
        truth: float [G, 4], x1, y1, x2, y2 in pixels.
        predicted: float [P, 4].
        pairs: which boxes to compare.
        plus_one: whether the last pixel belongs to the box.

    Returns:
        [Q] in the boxes' dtype, at least float32. (A comparison with a threshold can depend on
        the dtype; the peers use float32.)

    Raises:
        InputError: boxes that are not [N, 4]; on the CPU also for a box that is not finite, or
            whose right or bottom end lies before the other (see :func:`improper_boxes`).

    Example:
        >>> from haystack.metrics.functional import object_pairs
        >>> truth, predicted = torch.tensor([[0.0, 0, 9, 9]]), torch.tensor([[0.0, 0, 9, 4]])
        >>> pairs = object_pairs([1], [1])
        >>> box_iou(truth, predicted, pairs, plus_one=True)
        tensor([0.5000])
        >>> box_iou(truth, predicted, pairs, plus_one=False)
        tensor([0.4444])
    """
    for boxes in (truth, predicted):
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise InputError(f"expected boxes [objects, 4], got {list(boxes.shape)}")
    for boxes, name in ((truth, "annotated"), (predicted, "predicted")):
        wrong = improper_boxes(boxes)
        if wrong is not None and on_host(wrong):
            row = int(wrong.nonzero()[0])
            raise InputError(
                f"expected finite boxes x1, y1, x2, y2 with x1 <= x2 and y1 <= y2, got "
                f"{boxes[row].tolist()} for the {name} object {row}; convert x, y, width, height "
                "to corners"
            )
    dtype = torch.promote_types(torch.promote_types(truth.dtype, predicted.dtype), torch.float32)
    truth, predicted = truth.to(dtype), predicted.to(dtype)
    extra = 1 if plus_one else 0
    areas = [
        (boxes[:, 2] - boxes[:, 0] + extra) * (boxes[:, 3] - boxes[:, 1] + extra)
        for boxes in (truth, predicted)
    ]
    left, right = truth[pairs.truth], predicted[pairs.predicted]
    sides = torch.minimum(left[:, 2:], right[:, 2:]) - torch.maximum(left[:, :2], right[:, :2])
    sides = (sides + extra).clamp(min=0)
    common = sides[:, 0] * sides[:, 1]
    union = areas[0][pairs.truth] + areas[1][pairs.predicted] - common
    return common / union.clamp(min=_SMALLEST_UNION)


def improper_boxes(boxes: Tensor) -> Tensor | None:
    """Which boxes [N, 4] are not finite or turned over, bool [N].

    None where there is none, as far as that can be said without waiting for a device.
    """
    sides = boxes[:, 2:] - boxes[:, :2]  # of an infinite coordinate not finite either
    if on_host(sides) and len(sides):
        low, high = torch.aminmax(sides.detach())  # NaN where one is
        if bool(low >= 0) and bool(high < math.inf):
            return None
    return None if len(sides) == 0 else ~((sides >= 0) & torch.isfinite(sides)).all(1)
