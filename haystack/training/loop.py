"""The steps of a run, between two checkpoints as between the first and the last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, astuple
from typing import Any

import numpy as np
import torch

from haystack.models.relation.files import load_weights
from haystack.training.cache import SceneEncoder
from haystack.training.config import TrainConfig
from haystack.training.journal import Journal, NoTracker, Row, Tracker, open_tracker
from haystack.training.loader import Loaded, Loader
from haystack.training.losses import LOSSES, LossTotals, training_sums
from haystack.training.optimisation import Optimiser
from haystack.training.order import Order
from haystack.training.parallel import Processes
from haystack.training.run_folder import Checkpoint, RunFolder
from haystack.training.sources import TrainingImages
from haystack.training.trainee import plain_tensors, save_model
from haystack.training.validation import Selection, Validator

Progress = Callable[[int, int, Mapping[str, float]], None]
"""Called after every step with the step, the number of steps, and the losses."""


_Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class Loop:
    """A run at some step.

    Args:
        config: the recipe.
        images: to learn from, and held out.
        order: of the images.
        steps: length of the run.
        optimiser: of the model.
        encoder: how images are read and encoded.
        processes: of which this is one.
        folder: of the run, or None to keep everything in memory.
    """

    def __init__(
        self,
        config: TrainConfig,
        images: TrainingImages,
        order: Order,
        steps: int,
        optimiser: Optimiser,
        encoder: SceneEncoder,
        processes: Processes,
        folder: RunFolder | None,
    ) -> None:
        self.config, self.images, self.order, self.steps = config, images, order, steps
        self.optimiser, self.encoder, self.processes = optimiser, encoder, processes
        self.folder = folder
        self.trainee = encoder.trainee
        num_predicates = self.trainee.model.num_predicates
        self.loader = Loader(
            images.training, encoder, num_predicates, config.workers, config.match_iou
        )
        self.validator = None
        if images.held_out:
            self.validator = Validator(images.held_out, encoder, config, processes)
        self.validate_every = config.validate_every or order.steps(1)
        self.step = 0
        self.is_over = False
        self.selection = Selection(config.select)
        self._best: dict[str, torch.Tensor] = {}

    def resume(self) -> int:
        """Take up the folder's last checkpoint, if there is one; the length of its journal."""
        if self.folder is None:
            return 0
        folder = self.folder
        read: list[Checkpoint] = []

        def read_it() -> tuple[Mapping[str, Any], _Shapes, _Shapes] | None:
            found = folder.load_checkpoint()
            if found is None:
                return None
            read.append(found)
            return found.header, _shapes(found.model), _shapes(found.optimiser)

        # Only the first process need see the folder: the others are sent what it read.
        answer = self.processes.ask_first(read_it)
        if answer is None:
            return 0
        header, *shapes = answer
        own = read[0] if read else Checkpoint(_empty(shapes[0]), _empty(shapes[1]), header)
        if self.processes.count > 1:
            own = Checkpoint(self._sent(own.model), self._sent(own.optimiser), header)
        self.trainee.module.load_state_dict(own.model)
        self.optimiser.load(own.optimiser, header)
        self.step, self.is_over = header["step"], header["is_over"]
        self.selection = Selection(**header["selection"])
        return int(header["metrics_bytes"])

    def _sent(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The first process's values, by way of the accelerator if there is one."""
        moved = {name: tensors[name].to(self.trainee.device) for name in sorted(tensors)}
        self.processes.take_from_first(list(moved.values()))
        return {name: tensor.cpu() for name, tensor in moved.items()}

    def run(self, journal: Journal, progress: Progress | None) -> None:
        """Go on to the last step, or until validation has stopped getting better."""
        ahead = range(self.step + 1, self.steps + 1)
        draws = (self.processes.share(self.order.batch(step)) for step in ahead)
        tracker: Tracker = NoTracker()
        if self.processes.is_first and ahead and not self.is_over:
            path = None if self.folder is None else self.folder.path
            settings = asdict(self.config)
            tracker = open_tracker(self.config.track, path, step=self.step, config=settings)
        with closing(self.loader.batches(draws)) as batches, closing(tracker):
            while self.step < self.steps and not self.is_over:
                row = self._advance(next(batches))
                if progress is not None:
                    losses = {name: row[name] for name in (*LOSSES, "loss") if name in row}
                    progress(self.step, self.steps, losses)
                self._look(row, journal, tracker)

    def finish(self, journal: Journal) -> dict[str, Any]:
        """Put the best weights into the model, and write the result."""
        if self.validator is not None:
            if self.folder is None:
                self.trainee.module.load_state_dict(self._best)
            elif self.processes.is_first:
                load_weights(self.trainee.module, self.folder.best(self.selection.step))
            self.processes.take_from_first(list(self.trainee.module.state_dict().values()))
        summary = self._summary(journal)
        if self.folder is not None and self.processes.is_first:
            self.folder.finish(self.trainee.model, summary)
        return summary

    def _advance(self, loaded: list[Loaded]) -> Row:
        """One step; its losses are those of the whole batch, over all processes."""
        self.step += 1
        # Dropout follows from the step, not from what was drawn before it.
        torch.manual_seed(_step_seed(self.config.seed, self.step, self.processes.rank))
        self.trainee.module.train()
        encoded = self.encoder.encode([item.view for item in loaded])
        targets = [item.targets for item in loaded]
        batch, output = self.optimiser.forward(self.encoder.task.taught(encoded, targets))
        sums = training_sums(batch, output, targets, self.config.loss)
        device = self.trainee.device
        losses = sums.means(LossTotals(*self.processes.sum(astuple(sums.totals), device)))
        norm = self.optimiser.update(self.step, losses["loss"], self.processes)
        values = torch.stack([loss.detach() for loss in losses.values()]).tolist()
        numbers = dict(zip(losses, self.processes.sum(values, device), strict=True))
        return {
            "step": self.step,
            **numbers,
            **self._matched(loaded),
            "gradient_norm": norm,
            "learning_rate": self.optimiser.learning_rate,
        }

    def _matched(self, loaded: list[Loaded]) -> Row:
        """For SGDet, the share of the batch's annotated objects that are detected."""
        if self.config.task != "sgdet":
            return {}
        counts = [
            float(sum(item.matched for item in loaded)),
            float(sum(len(item.image.graph.segments) for item in loaded)),
        ]
        matched, objects = self.processes.sum(counts, self.trainee.device)
        return {"matched": matched / objects}

    def _look(self, row: Row, journal: Journal, tracker: Tracker) -> None:
        """Write, validate and save what is due after a step."""
        last = self.step == self.steps
        validates = self.validator is not None and (last or self.step % self.validate_every == 0)
        if validates and self.validator is not None:
            row |= self.validator.measure(self.optimiser)
            if self.selection.takes(self.step, row):
                self._keep_best()
            patience = self.config.patience
            self.is_over = bool(patience) and self.selection.waited >= patience
        last = last or self.is_over
        if validates or last or self.step % self.config.log_every == 0:
            journal.add(row)
            tracker.add(row)
        if last or self.step % self.config.checkpoint_every == 0:
            self._save(journal)

    def _keep_best(self) -> None:
        if self.folder is None:
            self._best = plain_tensors(self.trainee.module.state_dict())
        elif self.processes.is_first:
            save_model(self.trainee.model, self.folder.best(self.step))

    def _save(self, journal: Journal) -> None:
        if self.folder is None or not self.processes.is_first:
            return
        tensors, plain = self.optimiser.state()
        header = {
            **plain,
            "step": self.step,
            "is_over": self.is_over,
            "selection": asdict(self.selection),
            "metrics_bytes": journal.sync(),
        }
        state = self.trainee.module.state_dict()
        self.folder.save_checkpoint(Checkpoint(state, tensors, header))

    def _summary(self, journal: Journal) -> dict[str, Any]:
        chosen = self.validator is not None
        step = self.selection.step if chosen else self.step
        rows = [row for row in journal.rows if row["step"] == step]
        return {
            "step": step,
            "steps": self.step,
            "stopped_early": self.is_over,
            "images": [len(group) for group in self.images.groups],
            "held_out": len(self.images.held_out),
            "left_out": self.images.left_out,
            "conflicts": self.images.conflicts,
            "selected_by": self.config.select if chosen else None,
            "parameters": sum(p.numel() for p in self.optimiser.parameters),
            "values": {k: v if v == v else None for k, v in rows[-1].items()} if rows else {},
        }


def _step_seed(seed: int, step: int, rank: int) -> int:
    """Distinct for every run, step and process, within 63 bits."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> 1)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> _Shapes:
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def _empty(shapes: _Shapes) -> dict[str, torch.Tensor]:
    return {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
