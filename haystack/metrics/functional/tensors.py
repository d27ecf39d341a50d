"""Small tensor helpers that the metrics share."""

from __future__ import annotations

import torch
from torch import Tensor

from haystack.errors import InputError


def result_dtype(device: torch.device) -> torch.dtype:
    """The dtype of a metric's value: float64, or float32 where the device has nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Integer ``numerator`` / integer ``denominator`` as a float; NaN where the latter is 0."""
    dtype = result_dtype(numerator.device)
    return torch.where(denominator == 0, torch.nan, numerator.to(dtype) / denominator.to(dtype))


def check_scores_and_labels(scores: Tensor, labels: Tensor) -> None:
    """Shapes only, so that nothing waits for the device.

    Raises:
        InputError: not two tensors [R, P] of one shape, or scores that are no floats.
    """
    if scores.ndim != 2 or scores.shape != labels.shape:
        raise InputError(
            "expected scores and labels of one shape [pairs, predicates], got "
            f"{list(scores.shape)} and {list(labels.shape)}"
        )
    if not scores.is_floating_point():
        raise InputError(f"expected floating-point scores, got {scores.dtype}")


def count_by(index: Tensor, weights: Tensor, size: int) -> Tensor:
    """Integer sums of ``weights`` [A] by ``index`` [A], int64 [size].

    Unlike ``torch.bincount`` it needs no look at the largest index, hence no wait for the device.
    """
    counts = torch.zeros(size, dtype=torch.int64, device=index.device)
    return counts.index_add_(0, index, weights.to(torch.int64))
