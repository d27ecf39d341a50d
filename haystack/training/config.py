"""Configuration of a training run: plain types, so that YAML and ``key=value`` can fill it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from haystack.errors import InputError
from haystack.models.relation.config import RelationModelConfig

VALIDATION_METRICS = ("R", "mR", "ng-mR", "P-AUC", "PDD", "PDO")
"""What the loop measures on the images held out."""
VALIDATION_KS = (20, 50, 100)
LOWER_IS_BETTER = ("loss", "PDD", "PDO")
SELECTABLE = (
    "loss",
    *(
        name if name in ("P-AUC", "PDD", "PDO") else f"{name}@{k}"
        for name in VALIDATION_METRICS
        for k in (VALIDATION_KS if name not in ("P-AUC", "PDD", "PDO") else (0,))
    ),
)
"""What can choose the best weights: names of a validation row, without ``validation/``."""
TASKS = ("predcls", "sgcls", "sgdet")
"""What a model is told of the objects: see ``TrainConfig.task``."""
NEUTRAL = ("workers", "cache", "checkpoint_every", "track")
"""Settings that do not touch the result: a run may be resumed with others."""


def _one_of(owner: object, name: str, known: tuple[str, ...]) -> None:
    value = getattr(owner, name)
    if value not in known:
        raise InputError(f"expected {name} to be one of {', '.join(known)}, got {value!r}")


def _at_least(owner: object, low: float, *names: str) -> None:
    for name in names:
        if not low <= getattr(owner, name) < math.inf:
            raise InputError(f"expected a finite {name} >= {low:g}, got {getattr(owner, name)}")


@dataclass
class LossConfig:
    """What the annotations ask of the model, and how loudly.

    Args:
        background: which pairs without an annotation count as "no relation": ``unannotated`` =
            all, ``neither_direction`` = those whose reverse has no positive either (OpenPSG's
            rule).
        background_weight: of such a pair; an annotated positive has 1. Below 1 because most of
            them were never looked at.
        background_ratio: the background of an image weighs at most this many times its annotated
            pairs. It is what keeps an image with one answered proposal from asserting that
            nothing else in it is related.
        no_relation_weight: of a pair annotated as "no predicate at all".
        negative_weight: of an explicit negative.
        tree_weight: of the binary loss on VCTree's tree scores.
        object_weight: of the objects' classes, where the model finds them (``task``).
    """

    background: str = "neither_direction"
    background_weight: float = 0.1
    background_ratio: float = 3.0
    no_relation_weight: float = 1.0
    negative_weight: float = 1.0
    tree_weight: float = 1.0
    object_weight: float = 1.0

    def __post_init__(self) -> None:
        _one_of(self, "background", ("unannotated", "neither_direction"))
        _at_least(self, 0, "background_weight", "no_relation_weight", "negative_weight")
        _at_least(self, 0, "tree_weight", "object_weight")
        if not self.background_ratio >= 0:  # infinite = no limit
            raise InputError(f"expected background_ratio >= 0, got {self.background_ratio}")


@dataclass
class TrainConfig:
    """One training run of a relation model.

    Args:
        annotations: annotation file, or the name of a bundled data set.
        split: ``train``, ``test`` or ``all`` of its images.
        task: what the model is told of the objects: ``predcls``, their places and classes;
            ``sgcls``, their places, so that it learns to classify them too; ``sgdet``, the places
            and classes that a detector gives (``detections``), which it corrects. The last two
            need a model with ``classifies_objects``.
        detections: for ``sgdet``: a PSG-style file with the segments that were found in the
            images, such as the ``scene_graphs.json`` of ``haystack predict``, or the folder with
            it; each image is known by its image id or its file name there.
        match_iou: for ``sgdet``: a detection is the annotated object that it overlaps most, if
            their intersection over union is at least this; else it is background.
        mix: further annotation files (a campaign's ``export/`` among them), of which the images
            that no file lists as test images are mixed in. Vocabularies must agree.
        mix_share: share of the images drawn that come from ``mix``, where there is any; null = by
            their number. An image that ``annotations`` has as well counts as one of those, with
            the labels of both.
        on_conflict: what holds where a file says yes to a triple and a later one says no:
            ``base`` = what came first, ``addition`` = what came later; ``error`` = neither.
        init: a model to start from (retraining): its file, or the folder of its run; or null. Its
            architecture replaces ``model``.
        init_trunk: a detector's or a classifier's checkpoint whose trunk fills that of a new model
            with ``features: visual``, a file or a name of ``haystack weights list``; null = random,
            which a warning says.
        seed: of weights, order of images, flips and dropout.
        device: PyTorch device; under ``torchrun``, ``cuda`` is each process's own.
        threads: CPU threads of PyTorch during the run. Sums depend on their number, so that it is
            part of the run; models of a few hundred thousand weights are fastest with 1.
        workers: threads that read files ahead; 0 = none.
        cache: what the frozen part of the model made of an image is kept: ``none``, in ``memory``,
            or in a folder of this name, where later runs find it.
        precision: ``fp32``; ``bf16`` or ``fp16`` = mixed precision of the trained part, with a
            scaled loss for ``fp16``.
        steps: optimiser steps; with ``patience`` at most so many.
        epochs: passes over the images, where given instead of ``steps``.
        batch_size: images a step, over all processes.
        optimizer: ``adamw`` or ``sgd``.
        learning_rate: its peak, after the warm-up.
        momentum: for ``sgd``.
        weight_decay: decoupled for ``adamw``.
        clip_norm: largest L2 norm of the gradient.
        warmup_steps: linear rise of the learning rate.
        warmup_start: share of the peak from which it rises.
        schedule: ``cosine`` falls to zero at the last step; ``step`` divides by ten at each
            milestone; ``constant``.
        milestones: for ``step``; in epochs where ``epochs`` is given, else in steps.
        flip: mirror images at random, left to right.
        validation_fraction: about this share of the images is held out, chosen by a hash of their
            ids: an image keeps its side when others join. 0 = none.
        validation_seed: of that hash.
        validate_every: steps between validations; 0 = an epoch.
        select: the value on the images held out whose best step gives the final weights.
        patience: stop after so many validations without a better one; 0 = never.
        log_every: steps between rows of ``metrics.jsonl``.
        checkpoint_every: steps between checkpoints.
        track: ``none``, ``tensorboard`` or ``wandb``, beside ``metrics.jsonl``.
        loss: see ``LossConfig``.
        model: see ``RelationModelConfig``.
    """

    annotations: str = "psg-mini"
    split: str = "train"
    task: str = "predcls"
    detections: str | None = None
    match_iou: float = 0.5
    mix: list[str] = field(default_factory=list)
    mix_share: float | None = None
    on_conflict: str = "error"
    init: str | None = None
    init_trunk: str | None = None
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    workers: int = 0
    cache: str = "none"
    precision: str = "fp32"
    steps: int = 200
    epochs: float | None = None
    batch_size: int = 8
    optimizer: str = "adamw"
    learning_rate: float = 3e-3
    momentum: float = 0.9
    weight_decay: float = 0.05
    clip_norm: float = 5.0
    warmup_steps: int = 20
    warmup_start: float = 0.05
    schedule: str = "cosine"
    milestones: list[float] = field(default_factory=list)
    flip: bool = True
    validation_fraction: float = 0.0
    validation_seed: int = 0
    validate_every: int = 0
    select: str = "mR@50"
    patience: int = 0
    log_every: int = 10
    checkpoint_every: int = 200
    track: str = "none"
    loss: LossConfig = field(default_factory=LossConfig)
    model: RelationModelConfig = field(default_factory=RelationModelConfig)

    def __post_init__(self) -> None:
        _one_of(self, "split", ("train", "test", "all"))
        _one_of(self, "task", TASKS)
        _one_of(self, "on_conflict", ("error", "base", "addition"))
        if (self.task == "sgdet") != (self.detections is not None):
            raise InputError(
                f"task={self.task} with detections={self.detections}: sgdet, and only sgdet, "
                "learns from detections; give both or neither"
            )
        if not 0 < self.match_iou <= 1:
            raise InputError(f"expected match_iou above 0, at most 1, got {self.match_iou}")
        _one_of(self, "precision", ("fp32", "bf16", "fp16"))
        _one_of(self, "optimizer", ("adamw", "sgd"))
        _one_of(self, "schedule", ("cosine", "step", "constant"))
        _one_of(self, "select", SELECTABLE)
        _one_of(self, "track", ("none", "tensorboard", "wandb"))
        _at_least(self, 1, "threads", "steps", "batch_size", "log_every", "checkpoint_every")
        _at_least(self, 0, "seed", "workers", "learning_rate", "momentum", "weight_decay")
        _at_least(self, 0, "warmup_steps", "validation_fraction", "validate_every", "patience")
        if self.seed >= 2**63:
            raise InputError(f"expected a seed below 2^63, got {self.seed}")
        for name in ("momentum", "validation_fraction", "warmup_start"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"expected {name} in 0..1, below 1, got {getattr(self, name)}")
        if self.mix_share is not None and not 0 < self.mix_share < 1:
            raise InputError(f"expected mix_share between 0 and 1, got {self.mix_share}")
        if self.init_trunk is not None and self.init is None and self.model.features != "visual":
            raise InputError("init_trunk fills the trunk of model.features=visual, got geometry")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise InputError(f"expected positive, finite epochs, got {self.epochs}")
        if not self.clip_norm > 0:
            raise InputError(f"expected a positive clip_norm, got {self.clip_norm}")
        if not all(0 < milestone < math.inf for milestone in self.milestones):
            raise InputError(f"expected positive, finite milestones, got {self.milestones}")
        if self.schedule == "step" and not self.milestones:
            raise InputError("schedule=step needs milestones, for example milestones='[7, 10]'")
