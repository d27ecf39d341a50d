"""The training loop: seeded, deterministic, and nothing half-written when it is killed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
import yaml
from torch import nn

from haystack import files
from haystack.errors import InputError
from haystack.models.relation.features.base import EncodedScene
from haystack.models.relation.files import load_relation_model, save_relation_model
from haystack.models.relation.network import RelationNetwork
from haystack.models.relation.predict import read_scene
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Split
from haystack.training.config import TrainConfig
from haystack.training.losses import RelationTargets, training_loss

Progress = Callable[[int, int, Mapping[str, float]], None]
"""Called after every step with the step, the number of steps, and the losses."""


@dataclass(frozen=True)
class TrainResult:
    """What a training run leaves.

    Args:
        model: the trained model, ready for prediction.
        step: the step whose weights it has.
        metrics: the rows of ``metrics.jsonl``.
        seconds: wall time, reading and encoding included.
    """

    model: RelationNetwork
    step: int
    metrics: list[dict[str, float]]
    seconds: float


@dataclass(frozen=True)
class Example:
    """One training image, described once; its mirror image has the same targets.

    Args:
        views: the image, and its mirror image where flips are on.
        targets: its annotations.
    """

    views: tuple[EncodedScene, ...]
    targets: RelationTargets


def train(
    config: TrainConfig,
    dataset: SceneGraphDataset,
    out: str | Path | None = None,
    *,
    progress: Progress | None = None,
) -> TrainResult:
    """Train a relation model on a split of a data set.

    On a CPU, the same configuration and data give a byte-identical model. Files
    appear in ``out`` when training is done, each all at once: ``metrics.jsonl``, ``config.yaml``,
    and last ``model.safetensors``.

    Args:
        config: everything about the run; ``config.annotations`` is not read again here.
        dataset: annotations; panoptic PNGs are read from beside them.
        out: folder for the results, or None to write nothing.
        progress: see ``Progress``.

    Raises:
        InputError: no usable image, a broken file, or a start model with another vocabulary.
    """
    started = time.perf_counter()
    # Weights, dropout and order come from this seed, and the caller's generator stays untouched.
    with torch.random.fork_rng(devices=_cuda_devices(config.device)), _threads(config.threads):
        torch.manual_seed(config.seed)
        model = _start_model(config, dataset)
        examples = encode_examples(
            model, dataset, dataset.split(cast(Split, config.split)), flip=config.flip
        )
        if config.init is None:
            _fit_features(model, examples)
        step, metrics = fit(model, examples, config, progress=progress)
    result = TrainResult(model.eval(), step, metrics, time.perf_counter() - started)
    if out is not None:
        _write(result, config, Path(out))
    return result


def encode_examples(
    model: RelationNetwork,
    dataset: SceneGraphDataset,
    graphs: Sequence[SceneGraph],
    *,
    flip: bool,
) -> list[Example]:
    """Describe the annotated images that have a pair; all of them stay in memory.

    Raises:
        InputError: none is left, or a file is broken.
    """
    examples = []
    for graph in graphs:
        if len(graph.segments) < 2 or not len(graph.relations) + len(graph.neg_relations):
            continue
        scene = read_scene(dataset, graph, with_image=model.reads_images)
        views = (scene, scene.flipped()) if flip else (scene,)
        faulty = dataset.faulty_segments.get(graph.image_id, ())
        targets = RelationTargets.from_graph(graph, model.num_predicates, faulty)
        examples.append(Example(tuple(model.encode(views)), targets))
    if not examples:
        raise InputError(
            f"expected images with two segments and an annotation to train on, got none among "
            f"{len(graphs)} images; check the split"
        )
    return examples


def fit(
    model: RelationNetwork,
    examples: Sequence[Example],
    config: TrainConfig,
    *,
    progress: Progress | None = None,
) -> tuple[int, list[dict[str, float]]]:
    """Optimise ``model`` in place on encoded examples.

    Returns:
        The step whose weights the model has at the end, and a row of metrics per logging step.
    """
    generator = np.random.default_rng(config.seed)
    training, held_out = _hold_out(examples, config.validation_fraction, generator)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = _optimizer(parameters, config)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, config))
    best = _Best(model, config.patience) if held_out else None
    batches = _batches(training, config.batch_size, generator)
    metrics: list[dict[str, float]] = []
    for step in range(1, config.steps + 1):
        model.train()
        chosen, views = next(batches)
        batch, output = model(views)
        losses = training_loss(batch, output, [example.targets for example in chosen], config.loss)
        optimizer.zero_grad(set_to_none=True)
        losses["loss"].backward()
        norm = nn.utils.clip_grad_norm_(parameters, config.clip_norm, error_if_nonfinite=True)
        optimizer.step()
        numbers = {name: float(loss.detach()) for name, loss in losses.items()}
        if progress is not None:
            progress(step, config.steps, numbers)
        if step % config.log_every == 0 or step == config.steps:
            row = {"step": step, **numbers, "gradient_norm": float(norm)}
            row["learning_rate"] = float(schedule.get_last_lr()[0])
            if best is not None:
                row["validation_loss"] = validation_loss(model, held_out, config)
            metrics.append(row)
            if best is not None and best.is_over(step, row["validation_loss"]):
                break
        schedule.step()
    return (step if best is None else best.restore()), metrics


def validation_loss(
    model: RelationNetwork, examples: Sequence[Example], config: TrainConfig
) -> float:
    """Mean training loss over unflipped examples, without dropout."""
    model.eval()
    total = 0.0
    with torch.inference_mode():
        for example in examples:
            batch, output = model([example.views[0]])
            losses = training_loss(batch, output, [example.targets], config.loss)
            total += float(losses["loss"])
    return total / len(examples)


def rate(step: int, config: TrainConfig) -> float:
    """Share of the peak learning rate at a step, counted from 0."""
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    if config.schedule == "cosine":
        return warmup * 0.5 * (1 + math.cos(math.pi * step / config.steps))
    if config.schedule == "step":
        passed = sum(step >= milestone * config.steps for milestone in config.milestones)
        return warmup * 0.1**passed
    return warmup


class _Best:
    """The weights with the lowest validation loss so far."""

    def __init__(self, model: RelationNetwork, patience: int) -> None:
        self.model, self.patience = model, patience
        self.loss, self.step, self.waited = math.inf, 0, 0
        self.weights: dict[str, torch.Tensor] = {}

    def is_over(self, step: int, loss: float) -> bool:
        if loss < self.loss:
            self.loss, self.step, self.waited = loss, step, 0
            self.weights = {k: v.clone() for k, v in self.model.state_dict().items()}
            return False
        self.waited += 1
        return self.waited >= self.patience

    def restore(self) -> int:
        self.model.load_state_dict(self.weights)
        return self.step


def _start_model(config: TrainConfig, dataset: SceneGraphDataset) -> RelationNetwork:
    if config.init is None:
        return RelationNetwork(config.model, dataset.vocabulary).to(config.device)
    model = load_relation_model(config.init, config.device)
    for name in ("object_classes", "predicate_classes"):
        if getattr(model.vocabulary, name) != getattr(dataset.vocabulary, name):
            raise InputError(
                f"the start model has other {name} than the annotations; "
                "train from scratch, or give annotations with its vocabulary",
                path=config.init,
            )
    return model


def _fit_features(model: RelationNetwork, examples: Sequence[Example]) -> None:
    views = [view for example in examples for view in example.views]
    model.features.fit(views)


def _hold_out(
    examples: Sequence[Example], fraction: float, generator: np.random.Generator
) -> tuple[list[Example], list[Example]]:
    count = math.ceil(fraction * len(examples))
    if count >= len(examples):
        raise InputError(
            f"holding out {fraction:g} of {len(examples)} images leaves none to train on"
        )
    order = generator.permutation(len(examples))
    return [examples[i] for i in order[count:]], [examples[i] for i in order[:count]]


def _batches(
    examples: Sequence[Example], size: int, generator: np.random.Generator
) -> Iterator[tuple[list[Example], list[EncodedScene]]]:
    """Endless batches: every image once, then all again in another order; views at random."""
    size = min(size, len(examples))
    queue: list[int] = []
    while True:
        while len(queue) < size:
            queue += generator.permutation(len(examples)).tolist()
        chosen, queue = [examples[i] for i in queue[:size]], queue[size:]
        views = [example.views[generator.integers(len(example.views))] for example in chosen]
        yield chosen, views


def _optimizer(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cuda_devices(device: str) -> list[torch.device]:
    return [torch.device(device)] if torch.device(device).type == "cuda" else []


def _write(result: TrainResult, config: TrainConfig, out: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in result.metrics)
    files.write_text(out / "metrics.jsonl", lines)
    files.write_text(out / "config.yaml", yaml.safe_dump(asdict(config), sort_keys=False))
    save_relation_model(result.model, out / "model.safetensors")
