"""P-AUC, PDD and PDO as torchmetrics classes."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from haystack.metrics.base import HaystackMetric, mean_of_defined
from haystack.metrics.functional import (
    discrimination_disadvantage_from_histogram,
    dominance_overestimation_from_histogram,
    predicate_auroc_of_samples,
    predicate_ranks,
    rank_histogram,
)
from haystack.metrics.functional.tensors import check_scores_and_labels

Average = Literal["macro"] | None


class PredicateAUROC(HaystackMetric):
    """P-AUC: does a predicate's score tell its positives from its negatives?

    See :func:`haystack.metrics.functional.predicate_auroc`. Exact: the state holds each labelled
    score (8 bytes), and nothing of the pairs that are not annotated.

    As input to ``update``: ``scores`` float [R, P] and ``labels`` int [R, P] (1, -1, 0 = not
    annotated). As output of ``compute``: the mean over predicates that have positives and
    negatives, or with ``average=None`` the vector [P], NaN for the others.

    Args:
        num_predicates: P.
        average: ``"macro"`` or None.
        **kwargs: see :class:`HaystackMetric`.

    Example:
        >>> from haystack.metrics import PredicateAUROC
        >>> metric = PredicateAUROC(2, average=None)
        >>> metric.update(torch.tensor([[0.9, 0.2], [0.4, 0.7]]), torch.tensor([[1, 0], [-1, 1]]))
        >>> metric.compute()
        tensor([1., nan], dtype=torch.float64)
    """

    higher_is_better = True
    samples: list[Tensor]

    def __init__(self, num_predicates: int, average: Average = "macro", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_predicates = num_predicates
        self.average = average
        self.add_state("samples", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add pairs; labels that lie on the CPU spare waiting for an accelerator."""
        check_scores_and_labels(scores, labels)
        rows, predicates = torch.nonzero(labels, as_tuple=True)
        samples = (rows, predicates, labels[rows, predicates])
        rows, predicates, signs = (x.to(scores.device, non_blocking=True) for x in samples)
        values = scores[rows, predicates]
        self._check(~torch.isfinite(values).all()[None, None], [None])
        self.samples.append(pack_samples(values, signs, predicates))

    def compute(self) -> Tensor:
        """The mean, or the vector [P]."""
        self._raise_problems()
        value = auroc_of_packed(self.samples, self.num_predicates, self.device)
        return value if self.average is None else mean_of_defined(value)


class PredicateDisplacement(HaystackMetric):
    """PDD and PDO: how far a predicate is displaced by others inside a pair, and displaces them.

    See :func:`haystack.metrics.functional.predicate_discrimination_disadvantage` and
    :func:`~haystack.metrics.functional.predicate_dominance_overestimation`. The state is one
    table of integers [label, predicate, rank], whatever the number of pairs.

    As input to ``update``: ``scores`` float [R, P] and ``labels`` int [R, P] (1, -1, 0 = not
    annotated). As output of ``compute``: a dict with ``PDD`` and ``PDO``, each the mean over
    predicates for which it is defined, or with ``average=None`` the vector [P].

    Args:
        num_predicates: P.
        average: ``"macro"`` or None.
        **kwargs: see :class:`HaystackMetric`.

    Example:
        >>> from haystack.metrics import PredicateDisplacement
        >>> metric = PredicateDisplacement(3)
        >>> metric.update(torch.tensor([[0.1, 0.7, 0.2]]), torch.tensor([[1, -1, 0]]))
        >>> metric.compute()["PDD"], metric.compute()["PDO"]
        (tensor(1., dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """

    higher_is_better = False
    rank_histogram: Tensor

    def __init__(self, num_predicates: int, average: Average = "macro", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_predicates = num_predicates
        self.average = average
        self._add_counts("rank_histogram", 2, num_predicates, num_predicates)

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add pairs."""
        check_scores_and_labels(scores, labels)
        labels = labels.to(scores.device, non_blocking=True)
        annotated = (labels != 0).any(1, keepdim=True)
        self._check((~torch.isfinite(scores) & annotated).any()[None, None], [None])
        predicates = torch.arange(self.num_predicates, device=scores.device).expand_as(scores)
        self.rank_histogram = self.rank_histogram + rank_histogram(
            predicate_ranks(scores).reshape(-1),
            predicates.reshape(-1),
            labels.reshape(-1),
            self.num_predicates,
        )

    def compute(self) -> dict[str, Tensor]:
        """Both metrics by name."""
        self._raise_problems()
        values = {
            "PDD": discrimination_disadvantage_from_histogram(self.rank_histogram),
            "PDO": dominance_overestimation_from_histogram(self.rank_histogram),
        }
        if self.average is None:
            return values
        return {name: mean_of_defined(value) for name, value in values.items()}


def pack_samples(scores: Tensor, labels: Tensor, predicates: Tensor) -> Tensor:
    """Labelled scores as one float32 vector [2A]: score, code, score, code, ...

    The code is the predicate's number + 1, negative for a negative label. One-dimensional float32
    is the only list state that survives a process without data when states are gathered.
    """
    code = (predicates + 1) * torch.where(labels > 0, 1, -1)
    return torch.stack([scores.float(), code.float()], dim=1).flatten()


def unpack_samples(
    packed: list[Tensor] | Tensor, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores [A], labels 1 or -1 [A], predicates [A] from what :func:`pack_samples` made."""
    gathered = isinstance(packed, Tensor) or len(packed) > 0
    flat = dim_zero_cat(packed) if gathered else torch.empty(0, device=device)
    scores, codes = flat.view(-1, 2).unbind(1)
    codes = codes.to(torch.int64)
    return scores, codes.sign(), codes.abs() - 1


def auroc_of_packed(
    packed: list[Tensor] | Tensor, num_predicates: int, device: torch.device
) -> Tensor:
    """P-AUC [P] from what :func:`pack_samples` made."""
    scores, labels, predicates = unpack_samples(packed, device)
    return predicate_auroc_of_samples(scores, labels, predicates, num_predicates)
