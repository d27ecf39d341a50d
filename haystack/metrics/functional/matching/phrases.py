"""Overlaps of phrases: the regions of a subject and an object taken together (phrdet)."""

from __future__ import annotations

import torch
from torch import Tensor

from haystack.metrics.functional.matching.masks import mask_tiles
from haystack.metrics.functional.tensors import ratio

_PHRASES = 256
"""Predicted phrases whose masks are made at once; bounds the memory."""


def union_boxes(boxes: Tensor, pairs: Tensor) -> Tensor:
    """The smallest box around both boxes of each pair, [M, 4] in the boxes' dtype.

    Args:
        boxes: [N, 4], x1, y1, x2, y2.
        pairs: int64 [M, 2].

    Example:
        >>> union_boxes(torch.tensor([[0, 0, 2, 2], [5, 1, 6, 4]]), torch.tensor([[0, 1]]))
        tensor([[0, 0, 6, 4]])
    """
    first, second = boxes[pairs[:, 0]], boxes[pairs[:, 1]]
    low = torch.minimum(first[:, :2], second[:, :2])
    return torch.cat([low, torch.maximum(first[:, 2:], second[:, 2:])], dim=1)


def phrase_mask_iou(
    truth_masks: Tensor, predicted_masks: Tensor, truth_pairs: Tensor, predicted_pairs: Tensor
) -> Tensor:
    """Intersection over union of phrases of one image, each the union of two masks.

    Args:
        truth_masks: bool [G, H, W].
        predicted_masks: bool [P, H, W], which may overlap, as the former.
        truth_pairs: int64 [T, 2], numbers of the subject's and the object's mask.
        predicted_pairs: int64 [R, 2].

    Returns:
        [T, R], float64 (float32 on MPS); 0 where both are empty.

    Example:
        >>> masks = torch.tensor([[[True, False, False]], [[False, True, False]]])
        >>> phrase_mask_iou(masks, masks, torch.tensor([[0, 1]]), torch.tensor([[1, 0], [1, 1]]))
        tensor([[1.0000, 0.5000]], dtype=torch.float64)
    """
    shape = len(truth_pairs), len(predicted_pairs)
    common = torch.zeros(shape, dtype=torch.int64, device=truth_masks.device)
    truth_areas, predicted_areas = common.new_zeros(shape[0]), common.new_zeros(shape[1])
    for left, right, lengths in mask_tiles(truth_masks.flatten(1), predicted_masks.flatten(1)):
        truth = _unions(left, truth_pairs)
        truth_areas += (truth @ lengths).to(torch.int64)
        for begin in range(0, shape[1], _PHRASES):
            block = slice(begin, begin + _PHRASES)
            predicted = _unions(right, predicted_pairs[block]) * lengths
            predicted_areas[block] += predicted.sum(1).to(torch.int64)
            common[:, block] += (truth @ predicted.T).to(torch.int64)
    united = truth_areas[:, None] + predicted_areas - common
    return ratio(common, united.clamp(min=1))


def _unions(masks: Tensor, pairs: Tensor) -> Tensor:
    """Unions [M, pixels] of masks [N, pixels] that hold 0 and 1."""
    return torch.maximum(masks[pairs[:, 0]], masks[pairs[:, 1]])
