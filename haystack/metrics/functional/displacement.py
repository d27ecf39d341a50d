"""PDD and PDO: how predicates displace each other inside a pair (Haystack paper, section 4).

Both follow from one table of integers, how often predicate p has rank r in a pair that is
labelled +1 or -1 for p. Such tables add up over batches and processes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from haystack.metrics.functional.ranking import predicate_ranks
from haystack.metrics.functional.tensors import (
    check_scores_and_labels,
    count_by,
    ratio,
)


def predicate_discrimination_disadvantage(scores: Tensor, labels: Tensor) -> Tensor:
    r"""PDD of every predicate: how far others push it down where it holds; lower is better.

    :math:`PDD_p = 1 - \frac{1}{n-1} \sum_{k=1}^{n-1} |T_{p,k} \cap P_p| / |P_p|` with
    :math:`T_{p,k}` the labelled pairs in which p is among the first k predicates (Haystack paper,
    equation 4). As :math:`\sum_{k=1}^{n-1} [r < k] = n - 1 - r`, it is the mean 0-based rank of
    the positives divided by n - 1.

    Args:
        scores: float [R, P], without NaN; n = P, "no relation" is not among them.
        labels: int [R, P], 1 = the predicate holds, -1 = it explicitly does not, 0 = not annotated.

    Returns:
        float64 [P] (float32 on MPS), NaN without positives, or if P = 1.

    Raises:
        InputError: shapes or dtypes do not fit.

    Example:
        >>> scores = torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1]])
        >>> labels = torch.tensor([[1, -1, 0], [1, 0, 1]])
        >>> predicate_discrimination_disadvantage(scores, labels)
        tensor([0.5000,    nan, 1.0000], dtype=torch.float64)
    """
    return discrimination_disadvantage_from_histogram(_histogram(scores, labels))


def predicate_dominance_overestimation(scores: Tensor, labels: Tensor) -> Tensor:
    r"""PDO of every predicate: how much it pushes others down where it does not hold.

    :math:`PDO_p = 1 - \frac{1}{n-1} \sum_{k=1}^{n-1} |T_{p,k} \cap P_p| / |T_{p,k}|`, a term with
    an empty :math:`T_{p,k}` being 1 (Haystack paper, equation 3); lower is better. Two properties
    to know: a predicate that never leaves the last rank has PDO 0, and one that is always first
    has the share of negatives among its labels.

    Args:
        scores: float [R, P], without NaN; n = P, "no relation" is not among them.
        labels: int [R, P], 1 = the predicate holds, -1 = it explicitly does not, 0 = not annotated.

    Returns:
        float64 [P] (float32 on MPS), NaN without labels, or if P = 1.

    Raises:
        InputError: shapes or dtypes do not fit.

    Example:
        >>> scores = torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1]])
        >>> labels = torch.tensor([[1, -1, 0], [1, 0, 1]])
        >>> predicate_dominance_overestimation(scores, labels)
        tensor([0., 1., 0.], dtype=torch.float64)
    """
    return dominance_overestimation_from_histogram(_histogram(scores, labels))


def rank_histogram(
    ranks: Tensor, predicates: Tensor, labels: Tensor, num_predicates: int
) -> Tensor:
    """How often each predicate has each rank, apart for negatives and positives.

    Args:
        ranks: int64 [A], 0-based rank of the sample's predicate inside the sample's pair.
        predicates: int64 [A], 0..P-1.
        labels: int [A], 1, -1, or 0 = not counted.
        num_predicates: P.

    Returns:
        int64 [2, P, P], indexed [0 = negative | 1 = positive, predicate, rank].

    Example:
        >>> rank_histogram(torch.tensor([1]), torch.tensor([0]), torch.tensor([1]), 2).tolist()
        [[[0, 0], [0, 0]], [[0, 1], [0, 0]]]
    """
    cells = rank_cells(ranks, predicates, labels, num_predicates)
    counts = count_by(cells, labels != 0, 2 * num_predicates * num_predicates)
    return counts.view(2, num_predicates, num_predicates)


def rank_cells(ranks: Tensor, predicates: Tensor, labels: Tensor, num_predicates: int) -> Tensor:
    """Where each sample is counted in the flattened table of :func:`rank_histogram`, int64 [A].

    Example:
        >>> one = torch.tensor([1])
        >>> rank_cells(ranks=one, predicates=one, labels=one, num_predicates=3).tolist()
        [13]
    """
    row = (labels > 0).to(torch.int64) * num_predicates + predicates
    return row * num_predicates + ranks


def discrimination_disadvantage_from_histogram(histogram: Tensor) -> Tensor:
    """PDD, float64 [P], from the table that :func:`rank_histogram` makes.

    Args:
        histogram: int64 [2, P, P].

    Example:
        >>> histogram = torch.tensor([[[0, 0], [1, 0]], [[1, 3], [0, 0]]])
        >>> discrimination_disadvantage_from_histogram(histogram)
        tensor([0.7500,    nan], dtype=torch.float64)
    """
    positives = histogram[1]
    ranks = torch.arange(positives.shape[1], device=histogram.device)
    return ratio((positives * ranks).sum(1), positives.sum(1) * (positives.shape[1] - 1))


def dominance_overestimation_from_histogram(histogram: Tensor) -> Tensor:
    """PDO, float64 [P], from the table that :func:`rank_histogram` makes.

    Args:
        histogram: int64 [2, P, P].

    Example:
        >>> histogram = torch.tensor([[[0, 0], [1, 0]], [[1, 3], [0, 0]]])
        >>> dominance_overestimation_from_histogram(histogram)
        tensor([0., 1.], dtype=torch.float64)
    """
    # Column k - 1 counts the labelled pairs with rank < k; k = n is left out.
    negatives, positives = histogram.cumsum(2)[:, :, :-1]
    labelled = negatives + positives
    precision = ratio(positives, labelled)
    precision = precision.where(labelled > 0, torch.ones_like(precision))
    undefined = (histogram.sum((0, 2)) == 0) | (histogram.shape[2] == 1)
    value = 1 - precision.sum(1) / max(histogram.shape[2] - 1, 1)
    return value.masked_fill(undefined, torch.nan)


def _histogram(scores: Tensor, labels: Tensor) -> Tensor:
    check_scores_and_labels(scores, labels)
    num_predicates = scores.shape[1]
    predicates = torch.arange(num_predicates, device=scores.device).expand_as(scores)
    return rank_histogram(
        predicate_ranks(scores).reshape(-1),
        predicates.reshape(-1),
        labels.reshape(-1),
        num_predicates,
    )
