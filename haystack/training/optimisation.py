"""One optimiser step: learning rate, mixed precision, clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from haystack.errors import HaystackError
from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.features.base import EncodedScene
from haystack.models.relation.heads.base import HeadOutput
from haystack.training.config import TrainConfig
from haystack.training.parallel import Processes
from haystack.training.trainee import Trainee

_HALVES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def rate(step: int, config: TrainConfig, steps: int, milestones: Sequence[float] = ()) -> float:
    """Share of the peak learning rate.

    Args:
        step: steps done before this one.
        config: the schedule and the warm-up.
        steps: length of the run.
        milestones: for the schedule ``step``, in steps.
    """
    share = 1.0
    if step < config.warmup_steps:
        start = config.warmup_start
        share = start + (1 - start) * step / config.warmup_steps
    if config.schedule == "cosine":
        return share * 0.5 * (1 + math.cos(math.pi * step / steps))
    if config.schedule == "step":
        return share * 0.1 ** sum(step >= milestone for milestone in milestones)
    return share


class Optimiser:
    """Optimiser, schedule and gradient scaler of a run.

    Args:
        trainee: the model.
        config: the recipe.
        steps: length of the run.
        steps_per_epoch: for milestones in epochs.
    """

    def __init__(
        self, trainee: Trainee, config: TrainConfig, steps: int, steps_per_epoch: float
    ) -> None:
        self.trainee, self.config, self.steps = trainee, config, steps
        unit = 1.0 if config.epochs is None else steps_per_epoch
        self.milestones = [milestone * unit for milestone in config.milestones]
        self.parameters = trainee.parameters
        self.optimizer = _optimizer(self.parameters, config)
        self.half = _HALVES[config.precision]
        self.scaler = torch.amp.GradScaler(trainee.device.type, enabled=self.half is torch.float16)
        self.learning_rate = 0.0

    def forward(self, encoded: Sequence[EncodedScene]) -> tuple[SceneBatch, HeadOutput]:
        """The model's answer, in the precision of the run; logits are in full precision."""
        if self.half is None:
            return self.trainee.forward(encoded)
        with torch.autocast(self.trainee.device.type, dtype=self.half):
            batch, output = self.trainee.forward(encoded)
        trees = output.tree_logits
        return batch, replace(
            output,
            logits=output.logits.float(),
            tree_logits=None if trees is None else trees.float(),
        )

    def update(self, step: int, loss: Tensor, processes: Processes) -> float:
        """Step number ``step``, counted from 1, down the gradient of the processes' summed losses.

        Args:
            step: number of the step.
            loss: scalar, this process's part.
            processes: of which this is one.

        Returns:
            L2 norm of the gradient before it was clipped.

        Raises:
            HaystackError: it is infinite or NaN (in fp16 such a step is skipped instead).
        """
        self.learning_rate = self.config.learning_rate * rate(
            step - 1, self.config, self.steps, self.milestones
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        processes.sum_gradients(self.parameters)
        self.scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm))
        if not math.isfinite(norm) and not self.scaler.is_enabled():
            raise HaystackError(
                f"the gradient became {norm} at step {step}; lower learning_rate or clip_norm"
            )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return norm

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name, and plain values; the learning rate follows from the step."""
        tensors: dict[str, Tensor] = {}
        plain: dict[str, Any] = {}
        for number, entries in self.optimizer.state_dict()["state"].items():
            for name, value in entries.items():
                store = tensors if isinstance(value, Tensor) else plain
                store[f"{number}/{name}"] = value
        return tensors, {"optimizer": plain, "scaler": self.scaler.state_dict()}

    def load(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Take up what ``state`` gave."""
        state: dict[int, dict[str, Any]] = {}
        for key, value in (*tensors.items(), *plain["optimizer"].items()):
            number, _, name = key.partition("/")
            state.setdefault(int(number), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.scaler.load_state_dict(dict(plain["scaler"]))


def _optimizer(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
