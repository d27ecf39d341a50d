"""All metrics of scene-graph predictions in one torchmetrics class, matched and ranked once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.base import HaystackMetric, check_cutoffs, mean_of_defined
from haystack.metrics.batch import (
    Predictions,
    Targets,
    flatten_predictions,
    flatten_targets,
    record_names,
)
from haystack.metrics.functional import (
    discrimination_disadvantage_from_histogram,
    dominance_overestimation_from_histogram,
    rank_histogram,
    ranks_of,
    triplet_ranks,
)
from haystack.metrics.functional.tensors import count_by
from haystack.metrics.predicates import auroc_of_packed, pack_samples
from haystack.metrics.protocols import get_protocol
from haystack.metrics.recall import name_recalls, recall_sums, recalls_from_sums

PER_PREDICATE = "per_predicate/"
SUPPORT = "support/"


class SceneGraphMetrics(HaystackMetric):
    """P-AUC, PDD, PDO, R@K, mR@K, ngR@K and ng-mR@K of predicate classification (PredCls).

    As input to ``update``, two lists of dicts, one dict an image, values tensors or arrays:

    - ``preds``: ``pairs`` int [R, 2], ordered pairs (subject, object) of positions among the
      target's objects; ``scores`` float [R, P], comparable across pairs; ``no_relation`` float
      [R], optional.
    - ``targets``: ``labels`` int [N], object classes; ``relations`` int [T, 3] and optionally
      ``neg_relations`` int [M, 3], rows (subject, object, predicate); predicate -1 = no relation.

    An ``image_id`` in either names the image in errors. An annotated pair that the predictions
    lack counts as the worst. Targets on the CPU spare waiting for an accelerator.

    As output of ``compute``: a dict of scalars, NaN where undefined: ``P-AUC``, ``PDD``, ``PDO``,
    and for each K ``R@K``, ``mR@K``, ``ngR@K``, ``ng-mR@K``. P-AUC, PDD, PDO, mR and ng-mR are
    means over predicates.

    Args:
        num_predicates: P; "no relation" is not among them.
        ks: the cut-offs K of the recalls.
        protocol: a name in :data:`haystack.metrics.protocols.PROTOCOLS`.
        from_logits: ``scores`` and ``no_relation`` (then required) are logits; the softmax over
            all P + 1 is taken here.
        per_predicate: ``compute`` also returns ``per_predicate/NAME`` [P] for each name but the
            means of recalls, and counts under ``support/``: ``images``, ``images_with_relations``,
            ``missing_images`` (annotated, but without a predicted pair), ``missing_pairs``
            (annotated, but not predicted), ``positives`` [P], ``negatives`` [P], and for each
            mean over predicates ``predicates/NAME``, how many entered it.
        **kwargs: see :class:`HaystackMetric`.

    Raises:
        InputError: in ``update`` for annotations, shapes, and on the CPU for scores and pairs
            that do not fit; on an accelerator in ``compute`` for the latter.

    Example:
        >>> from haystack.metrics import SceneGraphMetrics
        >>> metric = SceneGraphMetrics(num_predicates=2, ks=(1,))
        >>> pairs = torch.tensor([[0, 1], [1, 0]])
        >>> scores = torch.tensor([[0.6, 0.1], [0.2, 0.3]])
        >>> target = {
        ...     "labels": torch.tensor([0, 5]),
        ...     "relations": torch.tensor([[0, 1, 0]]),
        ...     "neg_relations": torch.tensor([[1, 0, -1]]),
        ... }
        >>> metric.update([{"pairs": pairs, "scores": scores}], [target])
        >>> values = metric.compute()
        >>> {name: values[name].item() for name in ("P-AUC", "PDD", "PDO", "R@1", "ng-mR@1")}
        {'P-AUC': 1.0, 'PDD': 0.0, 'PDO': 0.5, 'R@1': 1.0, 'ng-mR@1': 1.0}
    """

    PROBLEMS: ClassVar[tuple[str, ...]] = (
        *HaystackMetric.PROBLEMS,
        "a pair refers to an object that the image does not have",
        "a pair is given twice; give each ordered pair of an image once",
    )
    ks: Tensor
    samples: list[Tensor]
    rank_histogram: Tensor
    label_counts: Tensor
    recalls: Tensor
    images: Tensor
    predicate_recalls: Tensor
    predicate_images: Tensor
    seen: Tensor

    def __init__(
        self,
        num_predicates: int = 56,
        ks: Sequence[int] = (20, 50, 100),
        protocol: str = "paper",
        from_logits: bool = False,
        per_predicate: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_predicates < 1:
            raise InputError(f"expected at least one predicate, got {num_predicates}")
        self.num_predicates = num_predicates
        self.protocol = get_protocol(protocol)
        self.from_logits = from_logits
        self.per_predicate = per_predicate
        self.register_buffer("ks", check_cutoffs(ks), persistent=False)
        self.limit = max(ks)
        self.add_state("samples", default=[], dist_reduce_fx="cat")
        self._add_counts("rank_histogram", 2, num_predicates, num_predicates)
        self._add_counts("label_counts", 2, num_predicates)
        self._add_counts("recalls", 2, len(ks))
        self._add_counts("images")
        self._add_counts("predicate_recalls", 2, num_predicates, len(ks))
        self._add_counts("predicate_images", num_predicates)
        self._add_counts("seen", 3)  # images, images without a predicted pair, missing pairs

    def update(
        self, preds: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add images, each wholly in one call."""
        if len(preds) != len(targets):
            raise InputError(
                f"expected as many preds as targets, got {len(preds)} and {len(targets)}"
            )
        if not targets:
            return
        annotated = flatten_targets(targets, self.num_predicates, self.protocol).to(self.device)
        predicted = flatten_predictions(
            preds,
            annotated.num_objects,
            self.num_predicates,
            from_logits=self.from_logits,
            device=self.device,
        )
        self._check(predicted.problems, record_names(targets, preds))
        self._add_labels(predicted, annotated)
        self._add_triplets(predicted, annotated)
        self._add_missing(predicted, annotated)

    def compute(self) -> dict[str, Tensor]:
        """The metrics by name."""
        self._raise_problems()
        positives = self.label_counts[1]
        enough = positives >= self.protocol.min_positives
        vectors = {
            "P-AUC": auroc_of_packed(self.samples, self.num_predicates, self.device),
            "PDD": discrimination_disadvantage_from_histogram(self.rank_histogram),
            "PDO": dominance_overestimation_from_histogram(self.rank_histogram),
        }
        vectors = {name: value.where(enough, torch.nan) for name, value in vectors.items()}
        per_image, per_predicate = recalls_from_sums(
            self.recalls, self.images, self.predicate_recalls, self.predicate_images
        )
        ks = self.ks.tolist()
        results = {name: self._mean(value, enough) for name, value in vectors.items()}
        results |= name_recalls(per_image, per_predicate, ks, "macro")
        if self.per_predicate:
            entered = {name: self._entered(value, enough) for name, value in vectors.items()}
            entered["mR"] = (self.predicate_images > 0).sum()
            vectors |= name_recalls(per_image, per_predicate, ks, None)
            results |= {PER_PREDICATE + name: value for name, value in vectors.items()}
            results |= {SUPPORT + name: value for name, value in self._support(entered).items()}
        return results

    def _add_labels(self, predicted: Predictions, annotated: Targets) -> None:
        """P-AUC, PDD and PDO: the score and the rank of each labelled (pair, predicate)."""
        predicates, signs = annotated.label_predicates, annotated.label_signs
        row = predicted.row_of_slot[annotated.label_slots]
        present = row >= 0
        rows = _take(predicted.scores, row)
        own = rows.gather(1, predicates[:, None])[:, 0]
        own = own.where(present, self.protocol.missing_score)
        self.samples.append(pack_samples(own, signs, predicates))

        ranked = signs
        last = self.num_predicates - 1
        if not self.protocol.last_predicate_ranked:
            cut = present & ~_take(predicted.has_no_relation, row)
            rows[:, last] = rows[:, last].masked_fill(cut, -math.inf)
            ranked = signs.masked_fill(cut & (predicates == last), 0)
        ranks = ranks_of(rows, predicates).where(present, last)
        self.rank_histogram = self.rank_histogram + rank_histogram(
            ranks, predicates, ranked, self.num_predicates
        )
        counts = count_by(
            (signs > 0) * self.num_predicates + predicates,
            torch.ones_like(signs),
            2 * self.num_predicates,
        )
        self.label_counts = self.label_counts + counts.view(2, -1)

    def _add_triplets(self, predicted: Predictions, annotated: Targets) -> None:
        """The recalls: the rank of each distinct true triplet."""
        images, predicates = annotated.triplet_images, annotated.triplet_predicates
        num_images = len(annotated.num_objects)
        ranks = triplet_ranks(
            predicted.scores,
            predicted.images,
            predicted.row_of_slot[annotated.triplet_slots],
            predicates,
            images,
            num_images,
            limit=self.limit,
        )
        sums = recall_sums(ranks, images, predicates, num_images, self.num_predicates, self.ks)
        for name, value in sums.items():
            setattr(self, name, getattr(self, name) + value)

    def _add_missing(self, predicted: Predictions, annotated: Targets) -> None:
        """How much was seen, and how much of it the predictions lack."""
        num_images = len(annotated.num_objects)
        one = torch.ones_like(annotated.pair_images)
        pairs = count_by(annotated.pair_images, one, num_images)
        empty = torch.tensor([size == 0 for size in predicted.sizes])
        empty = empty.to(self.device, non_blocking=True)
        missing = predicted.row_of_slot[annotated.pair_slots] < 0
        total = torch.full_like(pairs.sum(), num_images)
        self.seen = self.seen + torch.stack([total, (empty & (pairs > 0)).sum(), missing.sum()])

    def _entered(self, values: Tensor, enough: Tensor) -> Tensor:
        """How many predicates enter the mean of ``values``."""
        if self.protocol.undefined_in_mean == "propagate":
            return enough.sum()
        return (~values.isnan()).sum()

    def _mean(self, values: Tensor, enough: Tensor) -> Tensor:
        """Mean over the predicates that enter."""
        if self.protocol.undefined_in_mean == "propagate":
            return values.where(enough, 0).sum() / enough.sum()
        return mean_of_defined(values)

    def _support(self, entered: Mapping[str, Tensor]) -> dict[str, Tensor]:
        images, missing_images, missing_pairs = self.seen.unbind()
        return {
            "images": images,
            "images_with_relations": self.images,
            "missing_images": missing_images,
            "missing_pairs": missing_pairs,
            "negatives": self.label_counts[0],
            "positives": self.label_counts[1],
            **{f"predicates/{name}": value for name, value in entered.items()},
        }


def _take(values: Tensor, rows: Tensor) -> Tensor:
    """``values[rows]``, some row for -1, also when there are no values."""
    some = values if len(values) else values.new_zeros(1, *values.shape[1:])
    return some[rows.clamp(min=0)]
