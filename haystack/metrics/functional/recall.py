"""Recall at K from ranks, averaged over images.

Recalls of single images are kept as integers, in units of 2^-38. Sums of them are exact and do
not depend on the order of addition, so that a result is the same bit for bit however the images
are split into batches or processes, on any device. One recall is off by at most 2^-39, and the
sums hold 33 million images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from haystack.metrics.functional.tensors import count_by, ratio

UNIT = 2**38
"""The integer that stands for a recall of 1."""


def grouped_recall(
    ranks: Tensor, groups: Tensor, num_groups: int, ks: Tensor
) -> tuple[Tensor, Tensor]:
    """Share of each group's triplets that are hit by the first K candidates.

    A group is an image (R@K), or an image and a predicate (mR@K).

    Args:
        ranks: int64 [T], 0-based ranks of distinct ground-truth triplets.
        groups: int64 [T], group of each triplet.
        num_groups: G.
        ks: int64 [K], the cut-offs, on the device of ``ranks``.

    Returns:
        int64 [G, K] the recalls in units of ``1 / UNIT``, 0 for a group without triplets; and
        int64 [G] the number of triplets in each group.

    Example:
        >>> ranks, groups = torch.tensor([0, 7, 3]), torch.tensor([0, 0, 2])
        >>> recalls, sizes = grouped_recall(ranks, groups, 3, torch.tensor([1, 5]))
        >>> (recalls / UNIT).tolist(), sizes.tolist()
        ([[0.5, 0.5], [0.0, 0.0], [0.0, 1.0]], [2, 0, 1])
    """
    hits = torch.zeros(num_groups, len(ks), dtype=torch.int64, device=ranks.device)
    hits.index_add_(0, groups, (ranks[:, None] < ks).to(torch.int64))
    sizes = count_by(groups, torch.ones_like(groups), num_groups)
    divisor = sizes.clamp(min=1)[:, None]
    return (hits * UNIT + divisor // 2) // divisor, sizes


def mean_recall(recalls: Tensor, count: Tensor) -> Tensor:
    """Mean of ``count`` recalls whose sum, in units of ``1 / UNIT``, is ``recalls``.

    Args:
        recalls: int64, any shape.
        count: int64, broadcastable to it.

    Returns:
        float64 (float32 on MPS), NaN where ``count`` is 0.

    Example:
        >>> mean_recall(torch.tensor([UNIT // 2, 0]), torch.tensor([1, 0]))
        tensor([0.5000,    nan], dtype=torch.float64)
    """
    return ratio(recalls, count) / UNIT
