"""What a model is worth on the images held out, and which step's weights are the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics import SceneGraphMetrics
from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadOutput, likeliest_classes
from haystack.models.relation.inputs import all_pairs
from haystack.training.cache import SceneEncoder
from haystack.training.config import (
    LOWER_IS_BETTER,
    VALIDATION_KS,
    VALIDATION_METRICS,
    TrainConfig,
)
from haystack.training.loader import Loaded, Loader
from haystack.training.losses import LOSSES, LossTotals, divisor, training_sums
from haystack.training.optimisation import Optimiser
from haystack.training.order import Draw
from haystack.training.parallel import Processes
from haystack.training.sources import TrainingImage

PREFIX = "validation/"


class Validator:
    """Measures a model on the images held out: losses, recalls, P-AUC, PDD and PDO.

    Losses are those of all the images as one batch, so that they do not depend on how the images
    are cut into batches. Images are not mirrored. Where the model finds the objects' classes, or
    the objects are detected ones, objects are matched with the annotated ones by their boxes.

    Args:
        images: held out.
        encoder: how images are read and encoded.
        config: batch size and losses.
        processes: each measures its share of the images.
    """

    def __init__(
        self,
        images: Sequence[TrainingImage],
        encoder: SceneEncoder,
        config: TrainConfig,
        processes: Processes,
    ) -> None:
        self.encoder, self.config, self.processes = encoder, config, processes
        self.num_predicates = encoder.trainee.model.num_predicates
        self.loader = Loader(images, encoder, self.num_predicates, config.workers, config.match_iou)
        self.numbers = processes.share(range(len(images)))

    def measure(self, optimiser: Optimiser) -> dict[str, float]:
        """Values by name, each with the prefix ``validation/``; NaN where undefined."""
        trainee = self.encoder.trainee
        metrics = SceneGraphMetrics(
            self.num_predicates, VALIDATION_KS, from_logits=True, metrics=VALIDATION_METRICS
        ).to(trainee.device)
        sums: dict[str, Tensor] = {}
        totals = LossTotals()
        trainee.module.eval()
        with torch.inference_mode():
            for loaded in self.loader.batches(self._draws()):
                targets = [item.targets for item in loaded]
                batch, output = optimiser.forward(
                    self.encoder.encode([item.view for item in loaded])
                )
                own = training_sums(batch, output, targets, self.config.loss)
                totals = totals + own.totals
                for name, loss in own.values.items():
                    sums[name] = sums.get(name, torch.zeros_like(loss)) + loss
                metrics.update(*_records(loaded, batch, output))
        if not self.numbers:  # of many processes; counting nothing is no mistake of this one
            metrics.update([], [])
        means = self._means(sums, totals)
        values = {**means, **{name: float(v) for name, v in metrics.compute().items()}}
        return {PREFIX + name: value for name, value in values.items()}

    def _draws(self) -> list[list[Draw]]:
        size = max(1, self.config.batch_size // self.processes.count)
        return [
            [Draw(number, False) for number in self.numbers[start : start + size]]
            for start in range(0, len(self.numbers), size)
        ]

    def _means(self, sums: Mapping[str, Tensor], totals: LossTotals) -> dict[str, float]:
        # A process without an image knows no names of losses, but must add its zeros.
        own = [float(sums.get(name, 0.0)) for name in LOSSES]
        shared = self.processes.sum([*own, *astuple(totals)], self.encoder.trainee.device)
        values, whole = shared[: len(LOSSES)], LossTotals(*shared[len(LOSSES) :])
        means = {
            name: value / divisor(name, whole)
            for name, value in zip(LOSSES, values, strict=True)
            if value or name in ("relation", "negative")
        }
        return {**means, "loss": sum(means.values())}


@dataclass
class Selection:
    """The best step so far.

    Args:
        name: what is compared: a value of ``Validator.measure`` without its prefix.
        value: the best one, or None before the first validation.
        step: when it was reached.
        waited: validations since then.
    """

    name: str
    value: float | None = None
    step: int = 0
    waited: int = 0

    def takes(self, step: int, row: Mapping[str, float]) -> bool:
        """Whether this validation is the best so far; counts it.

        Raises:
            InputError: the value is undefined on the images held out.
        """
        value = row[PREFIX + self.name]
        if math.isnan(value):
            raise InputError(
                f"{self.name} is undefined on the images held out, so it cannot choose the best "
                "weights; set select=loss, or hold out other images"
            )
        better = self.value is None or (
            value < self.value if self.name in LOWER_IS_BETTER else value > self.value
        )
        if better:
            self.value, self.step, self.waited = value, step, 0
        else:
            self.waited += 1
        return better


def _records(
    loaded: Sequence[Loaded], batch: SceneBatch, output: HeadOutput
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    predictions: list[dict[str, Any]] = []
    targets: list[dict[str, Any]] = []
    logits = output.logits.split(list(batch.pair_counts))
    for item, rows in zip(loaded, logits, strict=True):
        graph = item.image.graph
        pairs = torch.from_numpy(all_pairs(len(item.image.seen.segments))).to(rows.device)
        predictions.append({"pairs": pairs, "scores": rows[:, 1:], "no_relation": rows[:, 0]})
        targets.append(
            {
                "image_id": graph.image_id,
                "labels": torch.from_numpy(graph.labels),
                "relations": torch.from_numpy(graph.relations),
                "neg_relations": torch.from_numpy(graph.neg_relations),
            }
        )
    if output.object_logits is not None:
        scores, labels = likeliest_classes(output.object_logits)
        columns = (column.split(list(batch.counts)) for column in (scores, labels))
        for item, sure, found, prediction, target in zip(
            loaded, *columns, predictions, targets, strict=True
        ):
            prediction |= {
                "labels": found,
                "object_scores": sure,
                "boxes": torch.from_numpy(item.image.seen.boxes),
            }
            target["boxes"] = torch.from_numpy(item.image.graph.boxes)
    return predictions, targets
