"""Small tensor helpers that the metrics share.

On an accelerator nothing here has a shape that depends on values, so nothing waits for the device;
on the CPU, where that costs nothing, what does not matter is left out.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from haystack.errors import InputError

_INFINITY = np.float32(np.inf).view(np.uint32)


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


def on_host(tensor: Tensor) -> bool:
    """Whether values can be looked at without waiting for a device."""
    return tensor.device.type == "cpu"


def where_true(mask: Tensor) -> Tensor:
    """Flat positions of what is true, ascending, int64; on an accelerator all positions.

    So the caller must give the same result for what is left out as for what is false.
    """
    if on_host(mask):
        return torch.from_numpy(np.flatnonzero(mask.numpy()))  # several times torch.nonzero's speed
    return torch.arange(mask.numel(), device=mask.device)


def row_maxima(scores: Tensor) -> Tensor:
    """The largest of each row of ``scores`` float32 [R, P], finite, [R]."""
    return look_over(scores)[0] if on_host(scores) else scores.amax(1)


def look_over(scores: Tensor) -> tuple[Tensor, bool]:
    """The largest of each row of ``scores`` [R, P], [R], and whether all are surely finite.

    One pass over float32 on the CPU, where none is negative. A sum of finite scores that overflows
    leaves the second answer open.
    """
    if scores.numel() == 0:
        return scores.new_empty(len(scores)), True
    # Unlike a reduction along an axis, NumPy's over segments is vectorised for rows this short.
    values = scores.detach().numpy().ravel()
    begins = np.arange(0, len(values), scores.shape[1])
    # Unsigned, the bits of floats order as they do, then infinity, NaN, and what is negative.
    bits = np.maximum.reduceat(values.view(np.uint32), begins)
    if bits.max() < _INFINITY:
        return torch.from_numpy(bits.view(np.float32)), True
    finite = bool(torch.isfinite(scores.sum()))
    return torch.from_numpy(np.maximum.reduceat(values, begins)), finite


def descending_keys(scores: Tensor, groups: Tensor | None = None) -> Tensor:
    """int64 keys that sort by group, then by float32 score, highest first; -0.0 equals 0.0.

    Args:
        scores: float [A].
        groups: int64 [A], 0..2^30 - 1; or None for one group.
    """
    bits = scores.float().view(torch.int32).to(torch.int64)
    # Sign and magnitude to two's complement.
    ascending = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return -ascending if groups is None else (groups << 33) - ascending


def inverse_order(order: Tensor, size: int | None = None) -> Tensor:
    """Where each of ``size`` elements went, from where each came; 0 for those that went nowhere."""
    places = torch.arange(len(order), device=order.device)
    size = len(order) if size is None else size
    return torch.zeros(size, dtype=torch.int64, device=order.device).scatter_(0, order, places)
