"""P-AUC in constant memory, from histograms of scores.

Bins are prefixes of the float32 bit pattern, so that they are as fine, relatively, for scores of
1e-9 as for scores of 0.9. Evenly spaced thresholds put all scores of a rare predicate, which a
softmax makes tiny, into one bin.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from haystack.metrics.functional.tensors import count_by, descending_keys, ratio

_SIGN = 2**31


class BinnedAUROC(NamedTuple):
    """P-AUC from a histogram.

    Args:
        value: float64 [P] (float32 on MPS), NaN where a predicate lacks positives or negatives.
        error: float64 [P], how far it can be from the exact value at most.
    """

    value: Tensor
    error: Tensor


def score_bins(scores: Tensor, bits: int) -> Tensor:
    """Bins whose order is that of the scores: the first bits of the float32 pattern.

    One bit is the sign, eight are the exponent; each further one halves the relative width of a
    bin: 2^(9 - bits) for normal numbers. Negative scores, infinities and zeros (-0.0 equals 0.0)
    are in order too.

    Args:
        scores: float, any shape, without NaN; rounded to float32, which keeps their order.
        bits: 1..32.

    Returns:
        int64, 0..2^bits - 1.

    Example:
        >>> score_bins(torch.tensor([-1.0, 0.0, 1e-9, 1.1e-9, 0.5, 0.51]), 12).tolist()
        [1032, 2048, 2824, 2825, 3056, 3056]
    """
    return (_SIGN - descending_keys(scores)) >> (32 - bits)


def score_histogram(
    scores: Tensor, labels: Tensor, predicates: Tensor, num_predicates: int, bits: int
) -> Tensor:
    """How many negatives and positives of each predicate fall into each bin of scores.

    Such tables add up over batches and processes.

    Args:
        scores: float [A], without NaN; -inf is allowed.
        labels: int [A], 1, -1, or 0 = not counted.
        predicates: int64 [A], 0..P-1.
        num_predicates: P.
        bits: 1..32, the table has 2^bits bins.

    Returns:
        int64 [2, P, 2^bits], indexed [0 = negative | 1 = positive, predicate, bin].

    Example:
        >>> scores, labels = torch.tensor([-0.5, 0.5]), torch.tensor([-1, 1])
        >>> score_histogram(scores, labels, torch.tensor([0, 0]), 1, bits=1).tolist()
        [[[1, 0]], [[0, 1]]]
    """
    cells = score_cells(scores, labels, predicates, num_predicates, bits)
    return count_by(cells, labels != 0, 2 * num_predicates * 2**bits).view(
        2, num_predicates, 2**bits
    )


def score_cells(
    scores: Tensor, labels: Tensor, predicates: Tensor, num_predicates: int, bits: int
) -> Tensor:
    """Where each sample is counted in the flattened table of :func:`score_histogram`, int64 [A].

    Example:
        >>> one = torch.ones(1, dtype=torch.int64)
        >>> score_cells(torch.tensor([0.5]), one, one, num_predicates=3, bits=1).tolist()
        [9]
    """
    row = (labels > 0).to(torch.int64) * num_predicates + predicates
    return (row << bits) + score_bins(scores, bits)


def auroc_from_histogram(histogram: Tensor) -> BinnedAUROC:
    r"""P-AUC from the table that :func:`score_histogram` makes, and how far off it can be.

    A positive and a negative in one bin count as a tie. In truth the positive scores above, below,
    or the same, so that each such pair is off by one half at most: :math:`|AUC - exact| \le
    \frac{1}{2} \sum_b P_b N_b / (P N)`, half the share of pairs that meet in a bin. The bound holds
    for any scores, and is reached where all positives of a bin are above its negatives.

    Args:
        histogram: int64 [2, P, bins].

    Example:
        >>> histogram = torch.tensor([[[3, 1]], [[1, 1]]])  # 4 negatives, 2 positives
        >>> value, error = auroc_from_histogram(histogram)
        >>> value.item(), error.item()
        (0.625, 0.25)
    """
    negatives, positives = histogram
    pairs = positives.sum(1) * negatives.sum(1)
    meeting = (positives * negatives).sum(1)
    below = (positives * (negatives.cumsum(1) - negatives)).sum(1)
    return BinnedAUROC(ratio(2 * below + meeting, 2 * pairs), ratio(meeting, 2 * pairs))
