"""P-AUC, PDD and PDO as torchmetrics classes."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from haystack.errors import InputError
from haystack.metrics.base import HaystackMetric, check_average, mean_of_defined
from haystack.metrics.functional import (
    discrimination_disadvantage_from_histogram,
    dominance_overestimation_from_histogram,
    predicate_auroc_of_samples,
    predicate_ranks,
    rank_histogram,
)
from haystack.metrics.functional.streaming_auroc import auroc_from_histogram, score_cells
from haystack.metrics.functional.tensors import check_scores_and_labels

Average = Literal["macro"] | None
AurocMode = Literal["exact", "streaming"]
_MOST_BITS = 24
_LABEL_PROBLEM = "expected the labels 1, -1 and 0, got another number"


class _Labelled(HaystackMetric):
    """What metrics of scores [R, P] and labels [R, P] have in common."""

    PROBLEMS: ClassVar[tuple[str, ...]] = (*HaystackMetric.PROBLEMS, _LABEL_PROBLEM)

    def __init__(self, num_predicates: int, average: Average, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_average(average)
        self.num_predicates = num_predicates
        self.average = average

    def _check_shapes(self, scores: Tensor, labels: Tensor) -> None:
        check_scores_and_labels(scores, labels)
        if scores.shape[1] != self.num_predicates:
            raise InputError(
                f"expected scores [pairs, {self.num_predicates}], got {list(scores.shape)}"
            )


class PredicateAUROC(_Labelled):
    """P-AUC: does a predicate's score tell its positives from its negatives?

    See :func:`haystack.metrics.functional.predicate_auroc`. Two modes:

    - ``exact``: the state holds each labelled score (8 bytes), and nothing of the pairs that are
      not annotated.
    - ``streaming``: the state is a histogram of scores, 2^bits bins of 16 bytes for each
      predicate, however many labels there are; whole numbers that processes sum. Bins are
      prefixes of the float32 bit pattern, as fine for tiny scores as for large ones. Its error is
      at most half the share of (positive, negative) pairs that meet in a bin, which
      :meth:`error_bound` gives for the data seen.

    As input to ``update``: ``scores`` float [R, P] and ``labels`` int [R, P] (1, -1, 0 = not
    annotated). As output of ``compute``: the mean over predicates that have positives and
    negatives, or with ``average=None`` the vector [P], NaN for the others.

    Args:
        num_predicates: P.
        average: ``"macro"`` or None.
        mode: ``"exact"`` or ``"streaming"``.
        bits: of the streaming mode, 1..24; a further one halves the width of the bins and doubles
            the memory. 14: 5 bits of the mantissa, bins 3 % wide, 14 MiB for 56 predicates.
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
    score_histogram: Tensor

    def __init__(
        self,
        num_predicates: int,
        average: Average = "macro",
        mode: AurocMode = "exact",
        bits: int = 14,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_predicates, average, **kwargs)
        if mode not in ("exact", "streaming"):
            raise InputError(f"expected the mode 'exact' or 'streaming', got {mode!r}")
        self.mode = mode
        if mode == "exact":
            self.add_state("samples", default=[], dist_reduce_fx="cat")
        else:
            check_bits(bits)
            self._add_counts("score_histogram", 2, num_predicates, 2**bits)
        self._distinguish(num_predicates)

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add pairs; labels that lie on the CPU spare waiting for an accelerator."""
        self._check_shapes(scores, labels)
        rows, predicates = torch.nonzero(labels, as_tuple=True)
        samples = (rows, predicates, labels[rows, predicates])
        rows, predicates, signs = (x.to(scores.device, non_blocking=True) for x in samples)
        values = scores[rows, predicates]
        flags = torch.stack([~torch.isfinite(values).all(), (signs.abs() != 1).any()])
        self._check(flags[:, None], [None])
        if self.mode == "exact":
            self.samples.append(pack_samples(values, signs, predicates))
        else:
            self.score_histogram = count_scores(self.score_histogram, values, signs, predicates)

    def compute(self) -> Tensor:
        """The mean, or the vector [P]."""
        self._raise_problems()
        if self.mode == "exact":
            value = auroc_of_packed(self.samples, self.num_predicates, self.device)
        else:
            value = auroc_from_histogram(self.score_histogram).value
        return value if self.average is None else mean_of_defined(value)

    def error_bound(self) -> Tensor:
        """How far :meth:`compute` can be from the exact value at most; 0 in exact mode.

        With several processes all must call it, as ``compute``.
        """
        if self.mode == "exact":
            value = self.compute()
            return torch.zeros_like(value).where(~value.isnan(), torch.nan)
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            error = auroc_from_histogram(self.score_histogram).error
        return error if self.average is None else mean_of_defined(error)


class PredicateDisplacement(_Labelled):
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
        super().__init__(num_predicates, average, **kwargs)
        self._add_counts("rank_histogram", 2, num_predicates, num_predicates)
        self._distinguish(num_predicates)

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add pairs."""
        self._check_shapes(scores, labels)
        labels = labels.to(scores.device, non_blocking=True)
        annotated = (labels != 0).any(1, keepdim=True)
        infinite = (~torch.isfinite(scores) & annotated).any()
        self._check(torch.stack([infinite, (labels.abs() > 1).any()])[:, None], [None])
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


def check_bits(bits: int) -> None:
    """Raise InputError unless histograms of 2^bits bins are possible."""
    if not isinstance(bits, int) or not 1 <= bits <= _MOST_BITS:
        raise InputError(f"expected 1 to {_MOST_BITS} bits for the bins of scores, got {bits!r}")


def count_scores(histogram: Tensor, scores: Tensor, labels: Tensor, predicates: Tensor) -> Tensor:
    """Add samples [A] to a histogram [2, P, 2^bits], in place.

    A copy, as the small states are made at each update, would take longer than the rest.
    """
    if histogram.is_inference() and not torch.is_inference_mode_enabled():
        histogram = histogram.clone()  # such a tensor may not be changed any more
    _, num_predicates, bins = histogram.shape
    bits = bins.bit_length() - 1
    cells = score_cells(scores, labels, predicates, num_predicates, bits)
    histogram.view(-1).index_add_(0, cells, labels.abs().to(torch.int64))
    return histogram


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
