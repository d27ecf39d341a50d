"""R@K, mR@K and their forms without graph constraint, as a torchmetrics class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.base import HaystackMetric, check_cutoffs, mean_of_defined
from haystack.metrics.functional import TripletRanks, grouped_recall, mean_recall, triplet_ranks
from haystack.metrics.predicates import Average

ORDERS = (("R", "mR"), ("ngR", "ng-mR"))
"""Names of the image mean and the predicate mean, in the order of ``TripletRanks``."""


class TripletRecall(HaystackMetric):
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
        **kwargs: see :class:`HaystackMetric`.

    Example:
        >>> from haystack.metrics import TripletRecall
        >>> metric = TripletRecall(num_predicates=2, ks=(1, 2))
        >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.6]])
        >>> triplets = torch.tensor([[0, 0, 0], [0, 0, 1]])  # image, pair row, predicate
        >>> metric.update(scores, torch.tensor([0, 0]), triplets, num_images=1)
        >>> {name: value.item() for name, value in metric.compute().items() if "@2" in name}
        {'R@2': 0.5, 'mR@2': 0.5, 'ngR@2': 0.5, 'ng-mR@2': 0.5}
    """

    higher_is_better = True
    PROBLEMS: ClassVar[tuple[str, ...]] = (
        *HaystackMetric.PROBLEMS,
        "a triplet names an image, a pair row or a predicate that is not there",
    )
    ks: Tensor
    recalls: Tensor
    images: Tensor
    predicate_recalls: Tensor
    predicate_images: Tensor

    def __init__(
        self,
        num_predicates: int,
        ks: Sequence[int] = (20, 50, 100),
        average: Average = "macro",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_predicates = num_predicates
        self.average = average
        self.register_buffer("ks", check_cutoffs(ks), persistent=False)
        self.limit = max(ks)
        self._add_counts("recalls", len(ORDERS), len(ks))
        self._add_counts("images")
        self._add_counts("predicate_recalls", len(ORDERS), num_predicates, len(ks))
        self._add_counts("predicate_images", num_predicates)

    def update(
        self, scores: Tensor, pair_images: Tensor, triplets: Tensor, num_images: int
    ) -> None:
        """Add whole images.

        Args:
            scores: float [R, P], scores of the pairs of all images.
            pair_images: int64 [R], 0..num_images-1.
            triplets: int64 [T, 3], distinct rows (image, row of the pair in ``scores`` or -1 if
                it is not there, predicate).
            num_images: number of images in this call.
        """
        if scores.ndim != 2 or scores.shape[1] != self.num_predicates:
            raise InputError(
                f"expected scores [pairs, {self.num_predicates}], got {list(scores.shape)}"
            )
        low = torch.tensor([0, -1, 0])
        high = torch.tensor([num_images, len(scores), self.num_predicates])
        low, high = (bound.to(triplets.device, non_blocking=True) for bound in (low, high))
        outside = ((triplets < low) | (triplets >= high)).any()
        outside |= ((pair_images < 0) | (pair_images >= num_images)).any()
        self._check(torch.stack([~torch.isfinite(scores).all(), outside])[:, None], [None])
        images, rows, predicates = triplets.clamp(low, high - 1).unbind(1)
        pair_images = pair_images.clamp(0, max(num_images - 1, 0))
        ranks = triplet_ranks(
            scores, pair_images, rows, predicates, images, num_images, limit=self.limit
        )
        sums = recall_sums(ranks, images, predicates, num_images, self.num_predicates, self.ks)
        for name, value in sums.items():
            setattr(self, name, getattr(self, name) + value)

    def compute(self) -> dict[str, Tensor]:
        """All recalls by name."""
        self._raise_problems()
        per_image, per_predicate = recalls_from_sums(
            self.recalls, self.images, self.predicate_recalls, self.predicate_images
        )
        return name_recalls(per_image, per_predicate, self.ks.tolist(), self.average)


def recall_sums(
    ranks: TripletRanks,
    images: Tensor,
    predicates: Tensor,
    num_images: int,
    num_predicates: int,
    ks: Tensor,
) -> dict[str, Tensor]:
    """Sums over images of what the recalls are means of; keys are the states' names."""
    recalls, per_predicate = [], []
    for order in ranks:
        shares, sizes = grouped_recall(order, images, num_images, ks)
        recalls.append(shares.sum(0))
        shares, held = grouped_recall(
            order, images * num_predicates + predicates, num_images * num_predicates, ks
        )
        per_predicate.append(shares.view(num_images, num_predicates, len(ks)).sum(0))
    return {
        "recalls": torch.stack(recalls),
        "images": (sizes > 0).sum(),
        "predicate_recalls": torch.stack(per_predicate),
        "predicate_images": (held.view(num_images, num_predicates) > 0).sum(0),
    }


def recalls_from_sums(
    recalls: Tensor, images: Tensor, predicate_recalls: Tensor, predicate_images: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean recalls [orders, K] over images, and [orders, P, K] per predicate (NaN if absent)."""
    return (
        mean_recall(recalls, images),
        mean_recall(predicate_recalls, predicate_images[:, None].expand_as(predicate_recalls)),
    )


def name_recalls(
    per_image: Tensor, per_predicate: Tensor, ks: Sequence[int], average: Average
) -> dict[str, Tensor]:
    """Recalls by name: the scalars, or with ``average=None`` the vectors over predicates."""
    named = {}
    for (image_name, predicate_name), means, vectors in zip(
        ORDERS, per_image, per_predicate, strict=True
    ):
        for position, k in enumerate(ks):
            vector = vectors[:, position]
            if average is None:
                named[f"{image_name}@{k}"] = vector
            else:
                named[f"{image_name}@{k}"] = means[position]
                named[f"{predicate_name}@{k}"] = mean_of_defined(vector)
    return named
