"""Training from beginning to end: seeded, and resumed from any step to the same bits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from haystack import files
from haystack.errors import InputError
from haystack.models.checkpoints.trunk import load_trunk
from haystack.models.relation.features.visual import VisualFeatures
from haystack.models.relation.files import load_relation_network, load_weights
from haystack.models.relation.network import RelationNetwork
from haystack.models.relation.protocol import TrainableRelationModel
from haystack.models.relation.references import model_file
from haystack.scene_graph import SceneGraphDataset
from haystack.training.cache import SceneEncoder, build_encoder
from haystack.training.config import TrainConfig
from haystack.training.detections import check_matches, with_detections
from haystack.training.journal import Journal, Row, check_tracker
from haystack.training.loop import Loop, Progress
from haystack.training.optimisation import Optimiser
from haystack.training.order import Order, number_of_steps
from haystack.training.parallel import Processes, joined, shared_norms
from haystack.training.run_folder import RunFolder
from haystack.training.sources import (
    TrainingImages,
    collect_images,
    read_annotations,
    read_detections,
)
from haystack.training.tasks import Task
from haystack.training.trainee import Trainee
from haystack.vocabulary import Vocabulary
from haystack.weights import resolve

_FIT = 2  # beside the streams of haystack.training.order


@dataclass(frozen=True)
class TrainResult:
    """What a training run leaves.

    Args:
        model: the trained model, ready for prediction.
        step: the step whose weights it has.
        metrics: the rows of ``metrics.jsonl``; in another process than the first, those since the
            last checkpoint.
        summary: what was learned from, and what it came to.
        seconds: wall time of this call, reading and encoding included.
        resumed_from: the step of the checkpoint that this call went on from; 0 = the beginning.
        was_finished: whether the folder held the finished run already.
        is_first: whether this is the process that writes, of several.
    """

    model: Any
    step: int
    metrics: list[Row]
    summary: Mapping[str, Any]
    seconds: float
    resumed_from: int = 0
    was_finished: bool = False
    is_first: bool = True


def train(
    config: TrainConfig,
    dataset: SceneGraphDataset | Sequence[SceneGraphDataset] | None = None,
    out: str | Path | None = None,
    *,
    model: TrainableRelationModel | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train a relation model, alone or as one of the processes that ``torchrun`` started.

    On a CPU, the same configuration and data give a byte-identical model, also when the run was
    killed in between: called again with the same ``out``, it goes on from its last checkpoint. On
    an accelerator the same holds as far as PyTorch has deterministic kernels.

    Args:
        config: everything about the run.
        dataset: annotations, and those to mix in; None = read what ``config`` names.
        out: folder of the run (see ``haystack.training.run_folder``), or None to write nothing.
        model: what to train in place of ``config.init`` and ``config.model``.
        progress: see ``haystack.training.loop.Progress``.

    Raises:
        InputError: no usable image, a broken file, a start model with another vocabulary, or a
            folder that holds another run.
    """
    started = time.perf_counter()
    if config.init is not None:
        config = replace(config, init=str(model_file(config.init)))
    if config.init_trunk is not None:
        config = replace(config, init_trunk=str(resolve(config.init_trunk, "init_trunk")))
    if dataset is None:
        dataset = read_annotations(config)
    datasets = [dataset] if isinstance(dataset, SceneGraphDataset) else list(dataset)
    images = collect_images(config, datasets)
    if config.detections is not None:
        found = read_detections(config.detections)
        images = with_detections(images, found, path=config.detections)
    task = Task(config.task, images.vocabulary.num_objects)
    with joined(config.device) as (processes, device), _reproducible(config, device):
        torch.manual_seed(config.seed)
        trainee = Trainee(_start_model(config, images.vocabulary) if model is None else model)
        trainee.module.to(device)
        _check_task(task, trainee.model)
        encoder = build_encoder(config.cache, trainee, task)
        order = _order(config, images, processes)
        place = None if out is None else Path(out)
        processes.ask_first(lambda: check_tracker(config.track, place))
        if config.detections is not None:
            learned, path = images.training, config.detections
            processes.ask_first(lambda: check_matches(learned, config.match_iou, path=path))
        # Only now is anything written: a run that cannot begin leaves no folder behind.
        folder = None if place is None else RunFolder(place)
        if folder is not None:
            _open(folder, config, images, processes)
        if folder is not None and processes.ask_first(lambda: folder.is_finished):
            return _finished(folder, trainee, processes, started)
        return _run(config, images, order, encoder, folder, processes, progress, started)


def _check_task(task: Task, model: object) -> None:
    if task.name == "predcls" or not isinstance(model, RelationNetwork):
        return
    if not model.config.classifies_objects:
        raise InputError(
            f"task={task.name} needs a model that classifies objects; train one with "
            "model.classifies_objects=true"
        )


def _order(config: TrainConfig, images: TrainingImages, processes: Processes) -> Order:
    order = Order(
        [len(group) for group in images.groups],
        images.shares(config.mix_share),
        batch_size=config.batch_size,
        seed=config.seed,
        flip=config.flip,
    )
    if order.batch_size < processes.count:
        raise InputError(
            f"expected at least an image for each of {processes.count} processes, got a batch of "
            f"{order.batch_size}; raise batch_size or start fewer processes"
        )
    return order


def _run(
    config: TrainConfig,
    images: TrainingImages,
    order: Order,
    encoder: SceneEncoder,
    folder: RunFolder | None,
    processes: Processes,
    progress: Progress | None,
    started: float,
) -> TrainResult:
    trainee = encoder.trainee
    steps = number_of_steps(config, order)
    optimiser = Optimiser(trainee, config, steps, order.steps_per_epoch)
    loop = Loop(config, images, order, steps, optimiser, encoder, processes, folder)
    length = loop.resume()
    if loop.step == 0 and config.init is None:
        _fit(trainee, images, encoder, config)
    processes.take_from_first(list(trainee.module.state_dict().values()))
    resumed_from = loop.step
    path = None if folder is None or not processes.is_first else folder.metrics
    with (
        closing(Journal(path, length)) as journal,
        shared_norms(trainee.module, processes),
    ):
        loop.run(journal, progress)
        summary = loop.finish(journal)
    return TrainResult(
        model=trainee.module.eval(),
        step=summary["step"],
        metrics=journal.rows,
        summary=summary,
        seconds=time.perf_counter() - started,
        resumed_from=resumed_from,
        is_first=processes.is_first,
    )


def _open(
    folder: RunFolder, config: TrainConfig, images: TrainingImages, processes: Processes
) -> None:
    fingerprint = images.fingerprint()
    for start in (config.init, config.init_trunk):
        if start is not None:
            fingerprint = files.sha256_text(fingerprint + _hash(start))
    data = {
        "fingerprint": fingerprint,
        "images": [len(group) for group in images.groups],
        "left_out": images.left_out,
        "held_out": [image.graph.image_id for image in images.held_out],
    }
    processes.ask_first(lambda: folder.open(config, data))


def _hash(start: str) -> str:
    try:
        return files.sha256_file(start)
    except OSError as error:
        raise InputError(f"cannot read the weights to start from: {error}", path=start) from error


def _finished(
    folder: RunFolder, trainee: Trainee, processes: Processes, started: float
) -> TrainResult:
    rows: list[Row] = []
    if processes.is_first:
        load_weights(trainee.module, folder.model)
        with closing(Journal(folder.metrics, folder.metrics.stat().st_size)) as journal:
            rows = journal.rows
    processes.take_from_first(list(trainee.module.state_dict().values()))
    summary = processes.ask_first(folder.summary)
    return TrainResult(
        model=trainee.module.eval(),
        step=summary["step"],
        metrics=rows,
        summary=summary,
        seconds=time.perf_counter() - started,
        was_finished=True,
        is_first=processes.is_first,
    )


def _start_model(config: TrainConfig, vocabulary: Vocabulary) -> RelationNetwork:
    if config.init is None:
        network = RelationNetwork(config.model, vocabulary)
        if isinstance(network.features, VisualFeatures):
            load_trunk(network.features.trunk, config.init_trunk)
        return network
    model = load_relation_network(config.init)
    model.vocabulary.require_same(
        vocabulary,
        own="the start model",
        others="the annotations",
        advice="train from scratch, or give annotations with its vocabulary",
        path=config.init,
    )
    return model


def _fit(
    trainee: Trainee, images: TrainingImages, encoder: SceneEncoder, config: TrainConfig
) -> None:
    """Statistics of the inputs, from a bounded sample of the training images."""
    if not trainee.fit_sample:
        return
    training = images.training
    generator = np.random.default_rng((config.seed, _FIT))
    sample = sorted(generator.permutation(len(training))[: trainee.fit_sample].tolist())
    sides = (False, True) if config.flip else (False,)
    encoded = []
    for number in sample:
        views = [encoder.read(training[number], flipped=flipped) for flipped in sides]
        encoded += encoder.encode(views)
    trainee.fit(encoded)


@contextmanager
def _reproducible(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """The caller's random state and threads stay as they are; CUDA adds in a fixed order."""
    threads = torch.get_num_threads()
    cuda = device.type == "cuda"
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.set_num_threads(config.threads)
        if cuda:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            if cuda:
                torch.use_deterministic_algorithms(before, warn_only=warned)
