"""Which recall asks what of the ranks: a table of the field's recalls.

Every recall is an order of candidates, a choice of triplets, and a way to average. The code that
computes them asks for these choices, never for a name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from haystack.errors import InputError

Order = Literal[
    "constrained",
    "unconstrained",
    "pair",
    "independent",
    "independent-unconstrained",
    "annotated",
    "annotated-unconstrained",
    "reachable",
]
Subset = Literal["all", "unseen", "pairs"]
Averaged = Literal["images", "predicates", "diversity", "frequency", "nothing"]
UNCONSTRAINED: tuple[Order, ...] = (
    "unconstrained",
    "independent-unconstrained",
    "annotated-unconstrained",
)


@dataclass(frozen=True)
class Recall:
    """One recall.

    Args:
        name: as reports spell it, before ``@K``.
        order: which candidates are ranked against each other: one predicate for each pair
            (``constrained``); all (``unconstrained``); one for each pair, whatever predicate it
            is (``pair``); those of the triplet's predicate (``independent``); those of pairs that
            are annotated (``annotated``). ``reachable`` asks only whether both objects are found.
        averaged: over images; per predicate over the images that hold it, then over predicates
            alike, or by their compositional diversity in training; over all triplets by their
            frequency in training, or alike (``nothing``: pooled).
        subset: all triplets, those whose classes training lacks, or one for each pair.
        vector: name of the vector of predicates behind a mean over predicates.
    """

    name: str
    order: Order
    averaged: Averaged
    subset: Subset = "all"
    vector: str = ""

    @property
    def needs_training(self) -> bool:
        """Whether it is defined only with counts of training triplets."""
        return self.subset == "unseen" or self.averaged in ("diversity", "frequency")

    def at(self, k: int) -> str:
        """The name of its value at K."""
        return self.name if self.order == "reachable" else f"{self.name}@{k}"


RECALLS: Mapping[str, Recall] = MappingProxyType(
    {
        recall.name: recall
        for recall in (
            Recall("R", "constrained", "images"),
            Recall("mR", "constrained", "predicates", vector="R"),
            Recall("ngR", "unconstrained", "images"),
            Recall("ng-mR", "unconstrained", "predicates", vector="ngR"),
            Recall("zR", "constrained", "images", "unseen"),
            Recall("ng-zR", "unconstrained", "images", "unseen"),
            Recall("wR", "constrained", "frequency"),
            Recall("IMR", "independent", "predicates", vector="IMR"),
            Recall("ng-IMR", "independent-unconstrained", "predicates", vector="ng-IMR"),
            Recall("wIMR", "independent", "diversity"),
            Recall("ng-wIMR", "independent-unconstrained", "diversity"),
            Recall("PR", "pair", "images", "pairs"),
            Recall("A", "annotated", "nothing"),
            Recall("ng-A", "annotated-unconstrained", "nothing"),
            Recall("R@inf", "reachable", "images"),
            Recall("mR@inf", "reachable", "predicates", vector="R@inf"),
        )
    }
)
"""Recall by name, in the order of reports."""

LABEL_METRICS = ("P-AUC", "PDD", "PDO")
"""Metrics of explicit labels."""
LOWER_IS_BETTER = ("PDD", "PDO", "PRank")
"""Metrics of which less is better; of all others more is."""
OTHER_METRICS = ("InstR", "PRank")
"""Recall of objects; position of the true predicate among those of its pair."""
PANOPTIC_METRICS = ("PQ", "SQ", "RQ")
"""Qualities of the segmentation behind the objects; only where they are asked for."""
METRICS: tuple[str, ...] = (*LABEL_METRICS, *RECALLS, *OTHER_METRICS, *PANOPTIC_METRICS)
"""Names of all metrics, without ``@K``."""


def choose_metrics(
    names: Collection[str] | None, *, training: bool, zero_shot: bool = False
) -> tuple[str, ...]:
    """The metrics to compute, in the order of reports.

    Args:
        names: out of ``METRICS``; None for all that can be computed but ``PANOPTIC_METRICS``.
        training: whether the triplets of training are given.
        zero_shot: whether the triplets that count as zero-shot are given.

    Raises:
        InputError: an unknown name, none at all, or one that needs what is not given.
    """

    def possible(name: str) -> bool:
        recall = RECALLS.get(name)
        if recall is None or not recall.needs_training:
            return True
        return training or (zero_shot and recall.subset == "unseen")

    if names is None:
        return tuple(n for n in METRICS if possible(n) and n not in PANOPTIC_METRICS)
    unknown = sorted(set(names) - set(METRICS))
    if unknown or not names:
        raise InputError(
            f"expected metrics out of {', '.join(METRICS)}; got {', '.join(unknown) or 'none'}"
        )
    for name in names:
        if not possible(name):
            raise InputError(
                f"{name} compares with what training showed; give the training annotations"
            )
    return tuple(name for name in METRICS if name in names)
