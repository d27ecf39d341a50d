"""What annotations ask of a relation model: positives, explicit negatives, and the rest.

A pair's logits are softmaxed over P + 1 outputs, column 0 being "no relation".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from haystack.errors import InputError
from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadOutput
from haystack.models.relation.heads.vctree import tree_loss
from haystack.models.relation.inputs import all_pairs
from haystack.scene_graph import NO_RELATION, SceneGraph
from haystack.training.config import LossConfig


@dataclass(frozen=True)
class RelationTargets:
    """Annotations of one image, laid over its R = N (N - 1) ordered pairs, row-major.

    Args:
        positive: bool [R, P], the predicate holds.
        negative: bool [R, P], the predicate explicitly does not hold.
        no_relation: bool [R], explicitly no predicate holds.
        unsure: bool [R], the pair must not count as background (one of its segments is faulty).
        related: bool [N, N], symmetric: some predicate holds in either direction.
    """

    positive: Tensor
    negative: Tensor
    no_relation: Tensor
    unsure: Tensor
    related: Tensor

    @classmethod
    def from_graph(
        cls, graph: SceneGraph, num_predicates: int, faulty: Collection[int] = ()
    ) -> RelationTargets:
        """Lay out a graph's annotations; relations of an object with itself have no pair here.

        Args:
            graph: relations, negatives and segments.
            num_predicates: P.
            faulty: positions of segments whose mask or class is known wrong.

        Raises:
            InputError: a predicate is not below P.
        """
        count = len(graph.segments)
        shape = (count, count, num_predicates)
        positive = torch.zeros(shape, dtype=torch.bool)
        negative = torch.zeros(shape, dtype=torch.bool)
        no_relation = torch.zeros((count, count), dtype=torch.bool)
        for rows, table in ((graph.relations, positive), (graph.neg_relations, negative)):
            if len(rows) and int(rows[:, 2].max()) >= num_predicates:
                raise InputError(
                    f"expected predicates below {num_predicates}, got {int(rows[:, 2].max())}",
                    record=graph.image_id,
                )
            named = torch.from_numpy(rows[rows[:, 2] != NO_RELATION])
            table[named[:, 0], named[:, 1], named[:, 2]] = True
        without = torch.from_numpy(graph.neg_relations[graph.neg_relations[:, 2] == NO_RELATION])
        no_relation[without[:, 0], without[:, 1]] = True
        wrong = torch.zeros(count, dtype=torch.bool)
        wrong[list(faulty)] = True

        subject, target = torch.from_numpy(all_pairs(count)).unbind(1)
        holds = positive.any(2)
        return cls(
            positive=positive[subject, target],
            negative=negative[subject, target],
            no_relation=no_relation[subject, target],
            unsure=(wrong[:, None] | wrong)[subject, target],
            related=holds | holds.T,
        )

    def background(self, config: LossConfig) -> Tensor:
        """Weight of each pair as "no relation" without being annotated so; float [R].

        A pair with an explicit negative is none: who says "not this predicate" says that another
        one may well hold (Haystack paper, section 3.1), and has "no relation" for the other case.
        """
        annotated = self.positive.any(1) | self.negative.any(1) | self.no_relation
        free = ~annotated & ~self.unsure
        if config.background == "neither_direction":
            subject, target = torch.from_numpy(all_pairs(len(self.related))).unbind(1)
            free &= ~self.related[subject, target]
        limit = config.background_ratio * int(annotated.sum()) / max(int(free.sum()), 1)
        return free * min(config.background_weight, limit)


@dataclass(frozen=True)
class LossTotals:
    """What sums are divided by to become means.

    Several processes share one batch: each divides its own sums by what all of them add up to, so
    that losses and gradients, summed over the processes, are those of the whole batch.

    Args:
        weight: of all pairs with a positive, with "no relation", or in the background.
        images: their number.
    """

    weight: float
    images: float

    @classmethod
    def of(cls, targets: Sequence[RelationTargets], config: LossConfig) -> LossTotals:
        """Of the given images."""
        weight = 0.0
        for target in targets:
            explicit = config.no_relation_weight * int(target.no_relation.sum())
            background = target.background(config).sum(dtype=torch.float64)
            weight += int(target.positive.any(1).sum()) + explicit + float(background)
        return cls(weight, float(len(targets)))


def relation_loss(
    logits: Tensor,
    targets: Sequence[RelationTargets],
    config: LossConfig,
    totals: LossTotals | None = None,
) -> dict[str, Tensor]:
    """Losses over the pairs of a batch.

    - A pair with m positives: cross entropy against 1/m for each, the expectation of OpenPSG's
      random choice of one of them.
    - "No relation", annotated or by ``config.background``: cross entropy against column 0.
    - An explicit negative of predicate p: -log(1 - softmax_p). It depends on nothing but p's
      probability, so that it asserts neither another predicate nor "no relation".

    With weights of 1, no limit on the background and no negatives, ``relation`` is OpenPSG's loss:
    the mean cross entropy over annotated and background pairs.

    Args:
        logits: float [R, P + 1], the pairs of all images, concatenated.
        targets: of each image.
        config: weights and the background rule.
        totals: of the whole batch, where these images are a part of it.

    Returns:
        Scalars ``relation`` and ``negative``; both are sums over the summed weight of the pairs in
        ``relation``.
    """

    def gather(rows: list[Tensor]) -> Tensor:
        return torch.cat(rows).to(logits.device)

    positive = gather([target.positive for target in targets])
    negative = gather([target.negative for target in targets])
    explicit = gather([target.no_relation for target in targets])
    background = gather([target.background(config) for target in targets])

    none_weight = config.no_relation_weight * explicit + background
    share = positive / positive.sum(1, keepdim=True).clamp(min=1)
    weight = torch.cat([none_weight[:, None], share], dim=1)
    log_probability = F.log_softmax(logits, dim=1)
    total = max((totals or LossTotals.of(targets, config)).weight, 1.0)

    row, predicate = negative.nonzero(as_tuple=True)
    denied = logits[row]
    others = denied.scatter(1, predicate[:, None] + 1, -torch.inf)
    denial = denied.logsumexp(1) - others.logsumexp(1)  # -log(1 - softmax_p), exact near 1 too
    return {
        "relation": -(weight * log_probability).sum() / total,
        "negative": config.negative_weight * denial.sum() / total,
    }


def training_loss(
    batch: SceneBatch,
    output: HeadOutput,
    targets: Sequence[RelationTargets],
    config: LossConfig,
    totals: LossTotals | None = None,
) -> dict[str, Tensor]:
    """``relation_loss`` and, where the head builds trees, their loss; ``loss`` is the sum.

    Args:
        batch: the images.
        output: of the head.
        targets: of each image.
        config: weights and the background rule.
        totals: of the whole batch, where these images are a part of it.
    """
    losses = relation_loss(_full(output.logits), targets, config, totals)
    if output.tree_logits is not None:
        size = max(batch.counts)
        related = torch.stack(
            [
                F.pad(target.related, (0, size - count) * 2)
                for target, count in zip(targets, batch.counts, strict=True)
            ]
        ).to(output.tree_logits.device)
        mean = tree_loss(_full(output.tree_logits), related, batch.present)
        share = len(targets) / totals.images if totals is not None else 1.0
        losses["tree"] = config.tree_weight * share * mean
    losses["loss"] = torch.stack(list(losses.values())).sum()
    return losses


def _full(values: Tensor) -> Tensor:
    """Halves as float32: sums over thousands of pairs need it."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
