"""Ranks of predicates inside their pair; ties are broken by the lower predicate."""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = 2**62
"""The rank of a triplet that no candidate hits; larger than any K."""


def relation_probabilities(logits: Tensor, no_relation: Tensor) -> Tensor:
    """Softmax over P predicates and "no relation", without the latter's column.

    So the scores of a pair sum to less than 1 and are comparable across pairs, which P-AUC and the
    recalls need; the prediction files of the Haystack authors are made this way.

    Args:
        logits: float [R, P].
        no_relation: float [R], the logit of "no relation".

    Returns:
        float32 [R, P].

    Example:
        >>> relation_probabilities(torch.zeros(1, 3), torch.zeros(1))
        tensor([[0.2500, 0.2500, 0.2500]])
    """
    everything = torch.cat([logits.float(), no_relation.float()[:, None]], dim=1)
    return torch.softmax(everything, dim=1)[:, :-1]


def predicate_ranks(scores: Tensor) -> Tensor:
    """0-based rank of every predicate inside its pair, highest score first.

    Args:
        scores: float [R, P].

    Returns:
        int64 [R, P]; each row is a permutation of 0..P-1, ties rank the lower predicate first.

    Example:
        >>> predicate_ranks(torch.tensor([[0.1, 0.6, 0.1, 0.2]]))
        tensor([[2, 0, 3, 1]])
    """
    order = torch.argsort(scores, dim=1, descending=True, stable=True)
    position = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, position)


def ranks_of(scores: Tensor, predicates: Tensor) -> Tensor:
    """Rank of one predicate in each row, without sorting; ties as in :func:`predicate_ranks`.

    Args:
        scores: float [A, P].
        predicates: int64 [A], 0..P-1.

    Returns:
        int64 [A].

    Example:
        >>> ranks_of(torch.tensor([[0.1, 0.6, 0.1, 0.2]]), torch.tensor([2]))
        tensor([3])
    """
    return count_ahead(scores, scores.gather(1, predicates[:, None])[:, 0], predicates)


def count_ahead(scores: Tensor, own: Tensor, columns: Tensor) -> Tensor:
    """How many of a row's scores come before another one: higher ones, and equal ones further left.

    Args:
        scores: float [A, P].
        own: float [A], what each row is compared with.
        columns: int64 [A], 0..P, how many columns come first where scores are equal.

    Returns:
        int64 [A].

    Example:
        >>> scores = torch.tensor([[0.1, 0.6, 0.1, 0.2]])
        >>> count_ahead(scores, torch.tensor([0.1]), torch.tensor([1]))
        tensor([3])
    """
    size = scores.shape[1]
    first = torch.ones(size + 1, size, dtype=torch.bool, device=scores.device).tril(-1)
    own = own[:, None]
    # Half the time of torch.where between flags, which is not vectorised.
    return ((scores > own) | ((scores == own) & first.index_select(0, columns))).sum(1)
