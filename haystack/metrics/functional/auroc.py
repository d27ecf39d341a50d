"""P-AUC: the area under the ROC curve of one predicate's score (Haystack paper, section 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from haystack.metrics.functional.tensors import check_scores_and_labels, count_by, ratio


def predicate_auroc(scores: Tensor, labels: Tensor) -> Tensor:
    r"""P-AUC of every predicate: does its own score tell its positives from its negatives?

    The probability that a positive scores above a negative, a tie counting one half:
    :math:`\sum_{i \in P_p, j \in N_p} ([s_i > s_j] + \frac{1}{2} [s_i = s_j]) / (|P_p| |N_p|)`,
    over all pairs that are labelled for p, pooled over images (Lorenz et al., Haystack, 2023,
    section 4). Counted in integers and divided once. It depends on the order of the scores alone.

    Args:
        scores: float [R, P], comparable across pairs, without NaN.
        labels: int [R, P], 1 = the predicate holds, -1 = it explicitly does not, 0 = not annotated.

    Returns:
        float64 [P] (float32 on MPS), NaN where a predicate lacks positives or negatives.

    Raises:
        InputError: shapes or dtypes do not fit.

    Example:
        >>> scores = torch.tensor([[0.9, 0.2], [0.4, 0.7], [0.4, 0.1]])
        >>> labels = torch.tensor([[1, 1], [1, 0], [-1, 0]])
        >>> predicate_auroc(scores, labels)
        tensor([0.7500,    nan], dtype=torch.float64)
    """
    check_scores_and_labels(scores, labels)
    num_predicates = scores.shape[1]
    ordered, order = torch.sort(scores.detach().T, dim=1)
    predicates = torch.arange(num_predicates, device=scores.device)[:, None].expand_as(order)
    return _auroc_of_sorted(
        ordered.reshape(-1),
        labels.T.gather(1, order).reshape(-1),
        predicates.reshape(-1),
        num_predicates,
    )


def predicate_auroc_of_samples(
    scores: Tensor, labels: Tensor, predicates: Tensor, num_predicates: int
) -> Tensor:
    """P-AUC from labelled samples in any order; the sparse form of :func:`predicate_auroc`.

    Args:
        scores: float [A], score of the sample's predicate for the sample's pair; -inf is allowed.
        labels: int [A], 1 or -1 (0 = ignore).
        predicates: int64 [A], 0..P-1.
        num_predicates: P.

    Returns:
        float64 [P] (float32 on MPS), NaN where a predicate lacks positives or negatives.

    Example:
        >>> scores = torch.tensor([0.1, 0.8, 0.3])
        >>> labels = torch.tensor([-1, 1, 1])
        >>> predicate_auroc_of_samples(scores, labels, torch.tensor([1, 1, 0]), 2)
        tensor([nan, 1.], dtype=torch.float64)
    """
    order = torch.argsort(scores, stable=True)
    order = order[torch.argsort(predicates[order], stable=True)]
    return _auroc_of_sorted(scores[order], labels[order], predicates[order], num_predicates)


def _auroc_of_sorted(
    scores: Tensor, labels: Tensor, predicates: Tensor, num_predicates: int
) -> Tensor:
    """P-AUC from samples sorted by predicate, then by score."""
    size = len(scores)
    positive, negative = labels == 1, labels == -1
    positives = count_by(predicates, positive, num_predicates)
    negatives = count_by(predicates, negative, num_predicates)
    if size == 0:
        return ratio(positives, negatives)

    first, last = tied_runs(scores, predicates)
    negatives_before = torch.zeros(size + 1, dtype=torch.int64, device=scores.device)
    negatives_before[1:] = torch.cumsum(negative, dim=0)
    # Negatives below + negatives at or below = twice the midrank count; the negatives of the
    # predicates that come earlier are in both and are taken off.
    earlier = torch.cumsum(negatives, dim=0) - negatives
    doubled = negatives_before[first] + negatives_before[last] - 2 * earlier[predicates]
    wins = count_by(predicates, doubled * positive, num_predicates)
    return ratio(wins, 2 * positives * negatives)


def tied_runs(scores: Tensor, predicates: Tensor) -> tuple[Tensor, Tensor]:
    """Runs of samples of one predicate and one score, which tie.

    Args:
        scores: float [A], sorted by predicate, then ascending.
        predicates: int64 [A], ascending.

    Returns:
        int64 [A] each: where the run of each sample begins, and where the next one does.

    Example:
        >>> tied_runs(torch.tensor([0.1, 0.5, 0.5]), torch.tensor([0, 0, 0]))
        (tensor([0, 1, 1]), tensor([1, 3, 3]))
    """
    size = len(scores)
    if size == 0:
        return predicates, predicates
    position = torch.arange(size, device=scores.device)
    begins = torch.ones(size, dtype=torch.bool, device=scores.device)
    begins[1:] = (scores[1:] != scores[:-1]) | (predicates[1:] != predicates[:-1])
    ends = torch.ones_like(begins)
    ends[:-1] = begins[1:]
    first = torch.cummax(position.where(begins, 0), dim=0).values
    last = torch.cummin((position + 1).where(ends, size).flip(0), dim=0).values.flip(0)
    return first, last
