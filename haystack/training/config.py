"""Configuration of a training run: plain types, so that YAML and ``key=value`` can fill it."""

from __future__ import annotations

from dataclasses import dataclass, field

from haystack.errors import InputError
from haystack.models.relation.config import RelationModelConfig


def _one_of(owner: object, name: str, known: tuple[str, ...]) -> None:
    value = getattr(owner, name)
    if value not in known:
        raise InputError(f"expected {name} to be one of {', '.join(known)}, got {value!r}")


def _at_least(owner: object, low: float, *names: str) -> None:
    for name in names:
        if not getattr(owner, name) >= low:
            raise InputError(f"expected {name} >= {low:g}, got {getattr(owner, name)}")


@dataclass
class LossConfig:
    """What the annotations ask of the model, and how loudly.

    Args:
        background: which pairs without a positive count as "no relation": ``unannotated`` = all,
            ``neither_direction`` = those whose reverse has no positive either (OpenPSG's rule).
        background_weight: of such a pair; an annotated positive has 1. Below 1 because most of
            them were never looked at.
        background_ratio: the background of an image weighs at most this many times its annotated
            pairs. It is what keeps an image with one answered proposal from asserting that
            nothing else in it is related.
        no_relation_weight: of a pair annotated as "no predicate at all".
        negative_weight: of an explicit negative.
        tree_weight: of the binary loss on VCTree's tree scores.
    """

    background: str = "neither_direction"
    background_weight: float = 0.1
    background_ratio: float = 3.0
    no_relation_weight: float = 1.0
    negative_weight: float = 1.0
    tree_weight: float = 1.0

    def __post_init__(self) -> None:
        _one_of(self, "background", ("unannotated", "neither_direction"))
        _at_least(self, 0, "background_weight", "no_relation_weight", "negative_weight")
        _at_least(self, 0, "background_ratio", "tree_weight")


@dataclass
class TrainConfig:
    """One training run of a relation model.

    Args:
        annotations: annotation file, or the name of a bundled data set.
        split: ``train``, ``test`` or ``all`` of its images.
        init: path of a model to start from (retraining), or None. Its architecture replaces
            ``model``.
        seed: of weights, order of images, flips and dropout.
        device: PyTorch device.
        threads: CPU threads of PyTorch during the run. Sums depend on their number, so that it is
            part of the run; models of a few hundred thousand weights are fastest with 1.
        steps: optimiser steps; with validation, at most so many.
        batch_size: images a step.
        optimizer: ``adamw`` or ``sgd``.
        learning_rate: its peak, after the warm-up.
        momentum: for ``sgd``.
        weight_decay: decoupled for ``adamw``.
        clip_norm: largest L2 norm of the gradient.
        warmup_steps: linear rise of the learning rate.
        schedule: ``cosine`` falls to zero at the last step; ``step`` divides by ten at each
            milestone; ``constant``.
        milestones: for ``step``, as shares of ``steps``.
        flip: mirror images at random, left to right.
        validation_fraction: share of the images that is held out to stop early; 0 trains for
            ``steps``.
        patience: with validation: stop after so many checks without a lower loss, and keep the
            weights of the best check.
        log_every: steps between rows of ``metrics.jsonl``, and between validation checks.
        loss: see ``LossConfig``.
        model: see ``RelationModelConfig``.
    """

    annotations: str = "psg-mini"
    split: str = "train"
    init: str | None = None
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    steps: int = 200
    batch_size: int = 8
    optimizer: str = "adamw"
    learning_rate: float = 3e-3
    momentum: float = 0.9
    weight_decay: float = 0.05
    clip_norm: float = 5.0
    warmup_steps: int = 20
    schedule: str = "cosine"
    milestones: list[float] = field(default_factory=lambda: [0.6, 0.85])
    flip: bool = True
    validation_fraction: float = 0.0
    patience: int = 5
    log_every: int = 10
    loss: LossConfig = field(default_factory=LossConfig)
    model: RelationModelConfig = field(default_factory=RelationModelConfig)

    def __post_init__(self) -> None:
        _one_of(self, "split", ("train", "test", "all"))
        _one_of(self, "optimizer", ("adamw", "sgd"))
        _one_of(self, "schedule", ("cosine", "step", "constant"))
        _at_least(self, 1, "threads", "steps", "batch_size", "patience", "log_every")
        _at_least(self, 0, "learning_rate", "momentum", "weight_decay", "warmup_steps")
        _at_least(self, 0, "validation_fraction")
        if self.validation_fraction >= 1:
            raise InputError(
                f"expected validation_fraction below 1, got {self.validation_fraction}"
            )
        if not self.clip_norm > 0:
            raise InputError(f"expected a positive clip_norm, got {self.clip_norm}")
