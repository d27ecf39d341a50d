"""An evaluator by detectron2's contract: ``reset``, ``process``, ``evaluate``.

Nothing of detectron2 is imported; ``inference_on_dataset``, ``DatasetEvaluators`` and ``EvalHook``
ask for no more than these three methods.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from haystack.devices import usable_device
from haystack.errors import InputError
from haystack.evaluation.evaluator import prepare
from haystack.metrics.scene_graph import PER_CLASS, PER_PREDICATE, SUPPORT, SceneGraphMetrics
from haystack.scene_graph import SceneGraphDataset, Split

TASK = "scene_graph"

logger = logging.getLogger(__name__)


class SceneGraphEvaluator:
    """Grades scene graphs inside detectron2's evaluation loop.

    Inputs are detectron2's dataset dicts; their ``image_id`` finds the annotations. Outputs are
    dicts, one an image, and hold under ``"scene_graph"``, or themselves, what
    :class:`~haystack.metrics.SceneGraphMetrics` takes as ``preds``: ``pairs`` [R, 2] and
    ``scores`` [R, P], optionally ``no_relation`` [R] and ``pair_scores`` [R]. The objects that
    pairs refer to are those of the annotations (PredCls), unless ``labels`` says otherwise, or the
    output holds detectron2's ``instances`` (``pred_classes``, ``pred_boxes``, ``pred_masks``,
    ``scores``) or ``panoptic_seg`` (a map, and a list of segments with ``id`` and
    ``category_id``); classes are then numbered as in the annotations. The protocol says whether
    boxes or masks are compared; masks of annotations are read from their panoptic PNGs.

    Fractions are in 0..1, not percent. With several processes each grades its images, all call
    ``evaluate``, and the first returns the result. Use a sampler that gives no image twice, as
    detectron2's ``InferenceSampler``.

    Args:
        annotations: a PSG or Haystack file, the name of a bundled data set, or a data set.
        protocol: a name in :data:`haystack.metrics.PROTOCOLS`.
        split: the images that may come; by default as in :func:`haystack.evaluate`.
        training: training annotations for zR, wR and wIMR, as in :func:`haystack.evaluate`.
        per_predicate: also return a value for each predicate, ``P-AUC-riding``, and for PQ, SQ and
            RQ for each class, ``PQ-horse``.
        device: where the metrics run; should be the model's.
        **kwargs: for :class:`~haystack.metrics.SceneGraphMetrics`: ``ks``, ``from_logits``,
            ``metrics``, ...

    Raises:
        InputError: annotations that do not fit; in ``process`` for an image that they lack, or
            that came before, and predictions that do not fit.

    Example:
        >>> import torch
        >>> evaluator = SceneGraphEvaluator("psg-mini", split="all", metrics=("R",))
        >>> evaluator.reset()
        >>> output = {"pairs": torch.tensor([[0, 1]]), "scores": torch.rand(1, 56)}
        >>> evaluator.process([{"image_id": "459"}], [output])
        >>> list(evaluator.evaluate()["scene_graph"])[:3]
        ['R@20', 'R@50', 'R@100']
    """

    def __init__(
        self,
        annotations: str | Path | SceneGraphDataset,
        protocol: str = "paper",
        *,
        split: Split | None = None,
        training: str | Path | SceneGraphDataset | None = None,
        per_predicate: bool = True,
        device: str | torch.device = "cpu",
        **kwargs: Any,
    ) -> None:
        self._prepared = prepare(annotations, protocol, split=split, training=training)
        self._per_predicate = per_predicate
        self._metrics = SceneGraphMetrics(
            self._prepared.dataset.vocabulary.num_predicates,
            protocol=protocol,
            per_predicate=True,  # its counts are needed in any case
            training=self._prepared.statistics,
            num_classes=self._prepared.dataset.vocabulary.num_objects,
            num_things=len(self._prepared.dataset.vocabulary.thing_classes),
            **kwargs,
        ).to(usable_device(device))
        self.reset()

    def reset(self) -> None:
        """Forget all images."""
        self._metrics.reset()
        self._seen: set[str] = set()

    def process(
        self, inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add a batch, as the model got and gave it."""
        predictions, targets = [], []
        for given, output in zip(inputs, outputs, strict=True):
            image_id = str(given["image_id"])
            if image_id not in self._prepared.graphs:
                raise InputError(
                    f"the image is not among those to evaluate (split {self._prepared.split!r})",
                    record=f"image {image_id}",
                )
            if image_id in self._seen:
                raise InputError(
                    "the image came before; give each once", record=f"image {image_id}"
                )
            self._seen.add(image_id)
            record = prediction_of(output)
            predictions.append(record)
            target = self._prepared.target_for(image_id, record)
            if self._metrics.panoptic:
                target = self._prepared.add_segmentation(target, record)
            targets.append(target)
        self._metrics.update(predictions, targets)

    def evaluate(self) -> dict[str, OrderedDict[str, float]]:
        """Values of all processes' images under ``"scene_graph"``; {} in all but the first.

        Scalars by their names in reports (``P-AUC``, ``mR@50``), values of predicates as
        ``NAME-PREDICATE``. Undefined is NaN. As in detectron2, the images that were processed are
        graded; a warning says how many of the split were not.
        """
        values: dict[str, Any] = {
            name: value.tolist() for name, value in self._metrics.compute().items()
        }
        if _process() != 0:
            return {}
        graded, asked = int(values[f"{SUPPORT}images"]), len(self._prepared.graphs)
        if graded < asked:
            logger.warning(
                "%d of the %d images of split '%s' were evaluated; the values are theirs alone",
                graded,
                asked,
                self._prepared.split,
            )
        named: OrderedDict[str, float] = OrderedDict(
            (name, value) for name, value in values.items() if "/" not in name
        )
        vocabulary = self._prepared.dataset.vocabulary
        names = {PER_PREDICATE: vocabulary.predicate_classes, PER_CLASS: vocabulary.object_classes}
        for name, vector in values.items():
            kind, slash, metric = name.partition("/")
            if self._per_predicate and kind + slash in names:
                for member, value in zip(names[kind + slash], vector, strict=True):
                    named[f"{metric}-{member}"] = value
        return {TASK: named}


def prediction_of(output: Mapping[str, Any]) -> dict[str, Any]:
    """An output of a model as ``preds`` of :class:`~haystack.metrics.SceneGraphMetrics`.

    Raises:
        InputError: there are no pairs and scores in it.
    """
    given = output.get(TASK, output)
    if "pairs" not in given or "scores" not in given:
        raise InputError(
            f"expected an output with 'pairs' and 'scores', by themselves or under {TASK!r}; got "
            f"{sorted(map(str, given))}"
        )
    record = {
        key: value for key, value in given.items() if key not in ("instances", "panoptic_seg")
    }
    if "labels" in record:
        return record
    if output.get("panoptic_seg") is not None:
        return record | _panoptic(*output["panoptic_seg"])
    if output.get("instances") is not None:
        return record | _instances(output["instances"])
    return record


def _instances(instances: Any) -> dict[str, Any]:
    """Objects of detectron2's ``Instances``; fields that are not there are left out."""
    record = {"labels": instances.pred_classes}
    for key, name in (("object_scores", "scores"), ("masks", "pred_masks")):
        if hasattr(instances, name):
            record[key] = getattr(instances, name)
    if hasattr(instances, "pred_boxes"):
        boxes = instances.pred_boxes
        record["boxes"] = getattr(boxes, "tensor", boxes)
    return record


def _panoptic(id_map: Tensor, segments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Objects of detectron2's panoptic output; pairs refer to positions in ``segments``."""
    positions = torch.full_like(id_map, -1)
    for number, segment in enumerate(segments):
        positions[id_map == segment["id"]] = number
    labels = torch.tensor([segment["category_id"] for segment in segments], dtype=torch.int64)
    return {"labels": labels, "id_map": positions}


def _process() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return 0
