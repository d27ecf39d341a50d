"""Recalls of ranked triplets as torchmetrics classes, from flat tensors.

Each class ranks on its own. :class:`~haystack.metrics.SceneGraphMetrics` computes all recalls from
one ranking, and takes the dicts of a data loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.base import HaystackMetric, check_average
from haystack.metrics.functional import (
    independent_ranks,
    instance_recall_rows,
    mean_predicate_rank,
    mean_recall,
    ranks_of,
    triplet_ranks,
)
from haystack.metrics.functional.recall import RANK_UNIT
from haystack.metrics.functional.tensors import ratio
from haystack.metrics.kinds import Order
from haystack.metrics.predicates import Average
from haystack.metrics.protocols import get_protocol
from haystack.metrics.ranks import ranks_by_order
from haystack.metrics.states import RecallStates
from haystack.metrics.training import TrainingTriplets

_INDEX_PROBLEM = "a triplet or a pair names an image, a pair row or a predicate that is not there"


class FlatRecall(RecallStates):
    """A recall whose ``update`` takes the pairs and the triplets of whole images, flat."""

    higher_is_better = True
    RECALLS: ClassVar[tuple[str, ...]]
    PROBLEMS: ClassVar[tuple[str, ...]] = (
        *HaystackMetric.PROBLEMS,
        _INDEX_PROBLEM,
        "pair_images must ascend: give the pairs image after image",
    )

    def __init__(
        self,
        num_predicates: int,
        ks: Sequence[int],
        average: Average,
        recalls: Sequence[str],
        **kwargs: Any,
    ) -> None:
        super().__init__(num_predicates, recalls, ks, get_protocol("paper"), **kwargs)
        check_average(average)
        self.average = average

    def update(
        self,
        scores: Tensor,
        pair_images: Tensor,
        triplets: Tensor,
        num_images: int,
        classes: Tensor | None = None,
    ) -> None:
        """Add whole images.

        Args:
            scores: float [R, P], scores of the pairs of all images.
            pair_images: int64 [R], 0..num_images-1, ascending.
            triplets: int64 [T, 3], distinct rows (image, row of the pair in ``scores`` or -1 if
                it is not there, predicate).
            num_images: number of images in this call.
            classes: int64 [T, 2], (subject class, object class) of each triplet, for metrics that
                compare with training.
        """
        images, rows, predicates = self._checked(scores, pair_images, triplets, num_images)
        if classes is not None:
            if classes.shape != (len(triplets), 2):
                raise InputError(
                    f"expected classes [{len(triplets)}, 2], one row for each triplet, got "
                    f"{list(classes.shape)}"
                )
            classes = torch.cat([classes, predicates[:, None]], dim=1)
        elif any(recall.needs_training for recall in self.recalls):
            raise InputError("expected classes [T, 2] beside the triplets; training is given")
        ranks = self._ranks(scores, pair_images, images, rows, predicates, num_images)
        self._add_table(self._table(ranks, images, predicates, num_images, classes=classes))

    def _checked(
        self, scores: Tensor, pair_images: Tensor, triplets: Tensor, num_images: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        if scores.ndim != 2 or scores.shape[1] != self.num_predicates:
            raise InputError(
                f"expected scores [pairs, {self.num_predicates}], got {list(scores.shape)}"
            )
        low = torch.tensor([0, -1, 0])
        high = torch.tensor([num_images, len(scores), self.num_predicates])
        low, high = (bound.to(triplets.device, non_blocking=True) for bound in (low, high))
        outside = ((triplets < low) | (triplets >= high)).any()
        outside |= ((pair_images < 0) | (pair_images >= num_images)).any()
        descends = (pair_images[1:] < pair_images[:-1]).any()
        flags = torch.stack([~torch.isfinite(scores).all(), outside, descends])
        self._check(flags[:, None], [None])
        images, rows, predicates = triplets.clamp(low, high - 1).T.contiguous()
        return images, rows, predicates

    def _ranks(
        self,
        scores: Tensor,
        pair_images: Tensor,
        images: Tensor,
        rows: Tensor,
        predicates: Tensor,
        num_images: int,
    ) -> dict[Order, Tensor]:
        layout = (pair_images, rows, predicates, images, num_images)
        ranks = ranks_by_order(
            triplet_ranks(
                scores, *layout, limit=self.limit, independent="independent" in self.orders
            )
        )
        if "independent-unconstrained" in self.orders:
            ranks["independent-unconstrained"] = independent_ranks(scores, *layout)
        return ranks

    def compute(self) -> dict[str, Tensor]:
        """The recalls by name."""
        self._raise_problems()
        return self._scalars() if self.average == "macro" else self._vectors()


class TripletRecall(FlatRecall):
    """R@K, mR@K, ngR@K and ng-mR@K from one ranking.

    R@K: per image, the share of its distinct ground-truth triplets that the first K candidates
    hit; the mean over images that have triplets. With the graph constraint (R, mR) a pair's only
    candidate is its best predicate; without (ngR, ng-mR) every predicate is one. mR@K: the same
    per image and predicate, the mean over images that hold it, then over predicates that occur.

    As input to ``update``: the pairs and triplets of whole images, flat; see there. As output of
    ``compute``: a dict ``{"R@20": ..., "mR@20": ..., "ngR@20": ..., "ng-mR@20": ..., ...}``; with
    ``average=None`` ``R@K`` and ``ngR@K`` are vectors [P], the recalls behind mR and ng-mR.

    Args:
        num_predicates: P.
        ks: the cut-offs K.
        average: ``"macro"`` or None.
        **kwargs: see :class:`~haystack.metrics.base.HaystackMetric`.

    Example:
        >>> from haystack.metrics import TripletRecall
        >>> metric = TripletRecall(num_predicates=2, ks=(1, 2))
        >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.6]])
        >>> triplets = torch.tensor([[0, 0, 0], [0, 0, 1]])  # image, pair row, predicate
        >>> metric.update(scores, torch.tensor([0, 0]), triplets, num_images=1)
        >>> {name: value.item() for name, value in metric.compute().items() if "@2" in name}
        {'R@2': 0.5, 'mR@2': 0.5, 'ngR@2': 0.5, 'ng-mR@2': 0.5}
    """

    def __init__(
        self,
        num_predicates: int,
        ks: Sequence[int] = (20, 50, 100),
        average: Average = "macro",
        **kwargs: Any,
    ) -> None:
        recalls = ("R", "mR", "ngR", "ng-mR")
        super().__init__(num_predicates, ks, average, recalls, **kwargs)


class ZeroShotRecall(FlatRecall):
    """zR@K and ng-zR@K: R@K and ngR@K of triplets whose classes training never showed together.

    Zero-shot triplets compete with all candidates; the mean is over images that hold one.

    Args:
        num_predicates: P.
        training: rows (subject class, object class, predicate) [S, 3] seen in training, or
            :class:`~haystack.statistics.TripletStatistics`.
        ks: the cut-offs K.
        **kwargs: see :class:`~haystack.metrics.base.HaystackMetric`.

    Example:
        >>> from haystack.metrics import ZeroShotRecall
        >>> metric = ZeroShotRecall(2, training=[[7, 8, 0]], ks=(1,))
        >>> scores, triplets = torch.tensor([[0.5, 0.6]]), torch.tensor([[0, 0, 0], [0, 0, 1]])
        >>> classes = torch.tensor([[7, 8], [7, 8]])
        >>> metric.update(scores, torch.tensor([0]), triplets, num_images=1, classes=classes)
        >>> metric.compute()["zR@1"].item()
        1.0
    """

    def __init__(
        self,
        num_predicates: int,
        training: Any,
        ks: Sequence[int] = (20, 50, 100),
        **kwargs: Any,
    ) -> None:
        seen = TrainingTriplets.of(training)
        super().__init__(num_predicates, ks, "macro", ("zR", "ng-zR"), training=seen, **kwargs)


class WeightedTripletRecall(FlatRecall):
    """wR@K: the recall in which rare triplets weigh more.

    See :func:`haystack.metrics.functional.frequency_weighted_recall`.

    Args:
        num_predicates: P.
        training: rows (subject class, object class, predicate) [S, 3] as often as training holds
            them, or :class:`~haystack.statistics.TripletStatistics`.
        ks: the cut-offs K.
        **kwargs: see :class:`~haystack.metrics.base.HaystackMetric`.

    Example:
        >>> from haystack.metrics import WeightedTripletRecall
        >>> metric = WeightedTripletRecall(2, training=[[7, 8, 0]], ks=(1,))
        >>> scores, triplets = torch.tensor([[0.5, 0.6]]), torch.tensor([[0, 0, 0], [0, 0, 1]])
        >>> classes = torch.tensor([[7, 8], [7, 8]])
        >>> metric.update(scores, torch.tensor([0]), triplets, num_images=1, classes=classes)
        >>> metric.compute()["wR@1"]
        tensor(0.6667, dtype=torch.float64)
    """

    def __init__(
        self,
        num_predicates: int,
        training: Any,
        ks: Sequence[int] = (20, 50, 100),
        **kwargs: Any,
    ) -> None:
        seen = TrainingTriplets.of(training)
        super().__init__(num_predicates, ks, "macro", ("wR",), training=seen, **kwargs)


class IndependentRecall(FlatRecall):
    """IMR@K and wIMR@K: mR@K with candidates ranked inside each predicate alone.

    Candidates for a predicate are the pairs whose best predicate it is; without graph constraint
    (ng-IMR, ng-wIMR) all pairs, so that any model reaches high values. Per image and predicate
    the share of triplets among the first K, then the mean over images, then over predicates:
    alike (IMR), or weighted by the variety of classes with which training shows them (wIMR; see
    :func:`haystack.metrics.functional.diversity_weighted_mean`). Source: Rethinking the Evaluation
    of Unbiased Scene Graph Generation (2022), section 3.3, which uses K = 10, 20, 50. It does not
    say which pairs are candidates; the graph constraint is what reproduces its table.

    As output of ``compute``: a dict; with ``average=None`` of vectors [P].

    Args:
        num_predicates: P.
        ks: the cut-offs K.
        average: ``"macro"`` or None.
        graph_constraint: False for ng-IMR.
        training: rows (subject class, object class, predicate) [S, 3] seen in training, or
            :class:`~haystack.statistics.TripletStatistics`; gives wIMR as well.
        tau: how much the variety weighs, 0..1.
        **kwargs: see :class:`~haystack.metrics.base.HaystackMetric`.

    Example:
        >>> from haystack.metrics import IndependentRecall
        >>> metric = IndependentRecall(2, ks=(1,))
        >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.6]])
        >>> triplets = torch.tensor([[0, 0, 0], [0, 1, 1]])
        >>> metric.update(scores, torch.tensor([0, 0]), triplets, num_images=1)
        >>> metric.compute()["IMR@1"].item()
        1.0
    """

    def __init__(
        self,
        num_predicates: int,
        ks: Sequence[int] = (10, 20, 50),
        average: Average = "macro",
        graph_constraint: bool = True,
        training: Any = None,
        tau: float = 0.5,
        **kwargs: Any,
    ) -> None:
        names = ("IMR", "wIMR") if graph_constraint else ("ng-IMR", "ng-wIMR")
        seen = None if training is None else TrainingTriplets.of(training)
        recalls = names[:1] if seen is None else names
        super().__init__(num_predicates, ks, average, recalls, training=seen, tau=tau, **kwargs)

    def update(
        self,
        scores: Tensor,
        pair_images: Tensor,
        triplets: Tensor,
        num_images: int,
        classes: Tensor | None = None,
    ) -> None:
        """Add whole images, see :meth:`FlatRecall.update`; classes are not needed."""
        images, rows, predicates = self._checked(scores, pair_images, triplets, num_images)
        ranks = self._ranks(scores, pair_images, images, rows, predicates, num_images)
        self._add_table(self._table(ranks, images, predicates, num_images))


class PairRecall(FlatRecall):
    """PR@K: the share of annotated pairs among the first K pairs, predicates ignored.

    A pair's place is that of its best predicate. As input to ``update`` each annotated pair once,
    with any predicate.

    Args:
        num_predicates: P.
        ks: the cut-offs K.
        **kwargs: see :class:`~haystack.metrics.base.HaystackMetric`.

    Example:
        >>> from haystack.metrics import PairRecall
        >>> metric = PairRecall(2, ks=(1,))
        >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.6]])
        >>> metric.update(scores, torch.tensor([0, 0]), torch.tensor([[0, 1, 0]]), num_images=1)
        >>> metric.compute()["PR@1"].item()
        1.0
    """

    def __init__(
        self, num_predicates: int, ks: Sequence[int] = (20, 50, 100), **kwargs: Any
    ) -> None:
        super().__init__(num_predicates, ks, "macro", ("PR",), **kwargs)


class InstanceRecall(HaystackMetric):
    """InstR: the share of an image's annotated objects that the predictions found.

    See :func:`haystack.metrics.functional.instance_recall`. As input to ``update``: which objects
    were found, for instance by :func:`haystack.metrics.functional.match_objects`.

    Args:
        **kwargs: see :class:`~haystack.metrics.base.HaystackMetric`.

    Example:
        >>> from haystack.metrics import InstanceRecall
        >>> metric = InstanceRecall()
        >>> metric.update(torch.tensor([True, False]), torch.tensor([0, 0]), num_images=1)
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = True
    PROBLEMS: ClassVar[tuple[str, ...]] = ("an object names an image that is not there",)
    instances: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._add_counts("instances", 2)

    def update(self, found: Tensor, images: Tensor, num_images: int) -> None:
        """Add whole images.

        Args:
            found: bool [N], for each annotated object.
            images: int64 [N], 0..num_images-1.
            num_images: number of images in this call.
        """
        outside = ((images < 0) | (images >= num_images)).any()
        self._check(outside[None, None], [None])
        images = images.clamp(0, max(num_images - 1, 0))
        self.instances = self.instances + instance_recall_rows(found, images, num_images).sum(0)

    def compute(self) -> Tensor:
        """The mean over images that have objects."""
        self._raise_problems()
        return mean_recall(*self.instances)


class PredicateRank(FlatRecall):
    """PRank: the mean position of a true predicate among the predicates of its pair; 0 is best.

    See :func:`haystack.metrics.functional.mean_predicate_rank`.

    Args:
        num_predicates: P.
        **kwargs: see :class:`~haystack.metrics.base.HaystackMetric`.

    Example:
        >>> from haystack.metrics import PredicateRank
        >>> metric = PredicateRank(3)
        >>> scores, triplets = torch.tensor([[0.5, 0.1, 0.4]]), torch.tensor([[0, 0, 1]])
        >>> metric.update(scores, torch.tensor([0]), triplets, num_images=1)
        >>> metric.compute().item()
        2.0
    """

    higher_is_better = False
    predicate_rank: Tensor

    def __init__(self, num_predicates: int, **kwargs: Any) -> None:
        super().__init__(num_predicates, (1,), "macro", (), **kwargs)
        self._add_counts("predicate_rank", 2)

    def update(
        self,
        scores: Tensor,
        pair_images: Tensor,
        triplets: Tensor,
        num_images: int,
        classes: Tensor | None = None,
    ) -> None:
        """Add whole images, see :meth:`FlatRecall.update`; classes are not needed."""
        images, rows, predicates = self._checked(scores, pair_images, triplets, num_images)
        if len(scores) == 0 or len(images) == 0:
            return
        inside = ranks_of(scores[rows.clamp(min=0)], predicates).where(rows >= 0, -1)
        self.predicate_rank = self.predicate_rank + mean_predicate_rank(
            inside, images, predicates, self.num_predicates
        )

    def compute(self) -> Tensor:  # type: ignore[override]
        """The mean over the predicates of all images."""
        self._raise_problems()
        total, count = self.predicate_rank
        return ratio(total, count) / RANK_UNIT
