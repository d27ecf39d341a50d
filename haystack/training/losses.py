"""What annotations ask of a relation model: positives, explicit negatives, classes, and the rest.

A pair's logits are softmaxed over P + 1 outputs, column 0 being "no relation"; those of an object,
where the model classifies objects, over C + 1, column 0 being the background.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass

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

BACKGROUND = -1
"""Class of a detection that is none of the annotated objects; the annotated object it has."""

LOSSES = ("relation", "negative", "tree", "object")
"""Names of the losses that there may be; ``loss`` is their sum."""

_UNKNOWN = -100


@dataclass(frozen=True)
class RelationTargets:
    """Annotations of one image, laid over its R = N (N - 1) ordered pairs, row-major.

    Args:
        positive: bool [R, P], the predicate holds.
        negative: bool [R, P], the predicate explicitly does not hold.
        no_relation: bool [R], explicitly no predicate holds.
        unsure: bool [R], the pair must not count as background (one of its segments is faulty).
        related: bool [N, N], symmetric: some predicate holds in either direction.
        labels: int64 [N], annotated class of each object; ``BACKGROUND`` for a detection that is
            none of the annotated objects.
        classified: bool [N], whether ``labels`` may be believed (the segment is not faulty).
    """

    positive: Tensor
    negative: Tensor
    no_relation: Tensor
    unsure: Tensor
    related: Tensor
    labels: Tensor
    classified: Tensor

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
            labels=torch.from_numpy(graph.labels),
            classified=~wrong,
        )

    def of_detections(self, matched: Tensor) -> RelationTargets:
        """What the annotations say of detected objects.

        A pair of detections has the annotations of the two objects that they are matched with. One
        with a detection that is none of the annotated objects has none, and may be background, as
        in OpenPSG; two detections of one object are unsure.

        Args:
            matched: int64 [M], the annotated object of each detection, ``BACKGROUND`` = none.
        """
        count = len(self.labels)
        subject, target = matched[torch.from_numpy(all_pairs(len(matched)))].unbind(1)
        known = (subject >= 0) & (target >= 0) & (subject != target)
        row = subject * (count - 1) + target - (target > subject).long()
        row = torch.where(known, row, len(self.positive))

        def moved(table: Tensor) -> Tensor:
            return torch.cat([table, torch.zeros_like(table[:1])])[row]

        found = matched >= 0
        place = matched.clamp(min=0)
        return RelationTargets(
            positive=moved(self.positive),
            negative=moved(self.negative),
            no_relation=moved(self.no_relation),
            unsure=moved(self.unsure) | ((subject == target) & (subject >= 0)),
            related=self.related[place][:, place] & found[:, None] & found,
            labels=torch.where(found, self.labels[place], BACKGROUND),
            classified=self.classified[place] | ~found,
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
        objects: how many objects have a class to be found.
    """

    weight: float = 0.0
    images: float = 0.0
    objects: float = 0.0

    def __add__(self, other: LossTotals) -> LossTotals:
        return LossTotals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class LossSums:
    """Losses of some images, before they are divided.

    Args:
        values: scalars by name; ``relation`` and ``negative`` are sums over pairs, ``tree`` over
            images, ``object`` over objects.
        totals: of the same images.
    """

    values: Mapping[str, Tensor]
    totals: LossTotals

    def means(self, totals: LossTotals | None = None) -> dict[str, Tensor]:
        """Each loss as a mean, and ``loss``, which is their sum.

        Args:
            totals: of the whole batch, where these images are a part of it.
        """
        totals = totals or self.totals
        means = {name: value / divisor(name, totals) for name, value in self.values.items()}
        means["loss"] = torch.stack(list(means.values())).sum()
        return means


def divisor(name: str, totals: LossTotals) -> float:
    """What the sum of the loss of this name is divided by; at least 1."""
    count = {"tree": totals.images, "object": totals.objects}.get(name, totals.weight)
    return max(count, 1.0)


def relation_sums(
    logits: Tensor, targets: Sequence[RelationTargets], config: LossConfig
) -> LossSums:
    """Losses over the pairs of a batch.

    - A pair with m positives: cross entropy against 1/m for each, the expectation of OpenPSG's
      random choice of one of them.
    - "No relation", annotated or by ``config.background``: cross entropy against column 0.
    - An explicit negative of predicate p: -log(1 - softmax_p). It depends on nothing but p's
      probability, so that it asserts neither another predicate nor "no relation".

    With weights of 1, no limit on the background and no negatives, the mean of ``relation`` is
    OpenPSG's loss: the mean cross entropy over annotated and background pairs.

    Args:
        logits: float [R, P + 1], the pairs of all images, concatenated.
        targets: of each image.
        config: weights and the background rule.

    Returns:
        The sums ``relation`` and ``negative``; both are divided by the summed weight of the pairs
        in ``relation``.
    """
    positive = torch.cat([target.positive for target in targets])
    negative = torch.cat([target.negative for target in targets])
    explicit = torch.cat([target.no_relation for target in targets])
    background = torch.cat([target.background(config) for target in targets])

    none_weight = config.no_relation_weight * explicit + background
    count = positive.sum(1, keepdim=True)
    totals = LossTotals(
        weight=float(none_weight.sum(dtype=torch.float64)) + int((count > 0).sum()),
        images=float(len(targets)),
    )
    weight = torch.cat([none_weight[:, None], positive / count.clamp(min=1)], dim=1)
    log_probability = F.log_softmax(logits, dim=1)

    row, predicate = (index.to(logits.device) for index in negative.nonzero(as_tuple=True))
    denied = logits[row]
    others = denied.scatter(1, predicate[:, None] + 1, -torch.inf)
    denial = denied.logsumexp(1) - others.logsumexp(1)  # -log(1 - softmax_p), exact near 1 too
    values = {
        "relation": -(weight.to(logits.device) * log_probability).sum(),
        "negative": config.negative_weight * denial.sum(),
    }
    return LossSums(values, totals)


def object_sums(logits: Tensor, targets: Sequence[RelationTargets], config: LossConfig) -> LossSums:
    """Cross entropy of objects' classes over C + 1 outputs, as in OpenPSG.

    Args:
        logits: float [N, C + 1], the objects of all images, concatenated; column 0 = background.
        targets: of each image; detections that are no annotated object are background.
        config: the weight.

    Returns:
        The sum ``object`` over the objects whose class is known.
    """
    labels = torch.cat([target.labels for target in targets]) + 1
    known = torch.cat([target.classified for target in targets])
    labels = labels.masked_fill(~known, _UNKNOWN).to(logits.device)
    loss = F.cross_entropy(logits, labels, ignore_index=_UNKNOWN, reduction="sum")
    return LossSums(
        {"object": config.object_weight * loss}, LossTotals(objects=float(int(known.sum())))
    )


def training_sums(
    batch: SceneBatch,
    output: HeadOutput,
    targets: Sequence[RelationTargets],
    config: LossConfig,
) -> LossSums:
    """``relation_sums``; of the trees where the head builds them; ``object_sums`` where it must.

    Args:
        batch: the images.
        output: of the head.
        targets: of each image.
        config: weights and the background rule.

    Raises:
        InputError: the classes were guesses, and the model gives none of its own.
    """
    relations = relation_sums(_full(output.logits), targets, config)
    values, totals = dict(relations.values), relations.totals
    if output.tree_logits is not None:
        size = max(batch.counts)
        related = torch.stack(
            [
                F.pad(target.related, (0, size - count) * 2)
                for target, count in zip(targets, batch.counts, strict=True)
            ]
        ).to(output.tree_logits.device)
        mean = tree_loss(_full(output.tree_logits), related, batch.present)
        values["tree"] = config.tree_weight * len(targets) * mean
    if batch.class_scores is not None:
        if output.object_logits is None:
            raise InputError(
                "objects are to be classified, and the model gives no object_logits; train it with "
                "task=predcls"
            )
        objects = object_sums(_full(output.object_logits), targets, config)
        values |= objects.values
        totals = totals + objects.totals
    return LossSums(values, totals)


def _full(values: Tensor) -> Tensor:
    """Halves as float32: sums over thousands of pairs need it."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
