"""Runs the evaluator of Jingkang50/OpenPSG from a checkout.

mmcv, mmdet and terminaltables are not needed for the numbers, so shells stand for them; the one
function that is, mmdet's IoU of boxes, is torchvision's formula with the union at least 1e-6.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from common import KS, answer, parser, shell
from measure import best_cpu_seconds
from synthetic import Scenes, filled


def main() -> None:
    arguments = parser()
    arguments.add_argument("--masks", action="store_true", help="pan_seg instead of bbox")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    _shells(options.checkout)
    evaluator = _Evaluator(Scenes.load(options.inputs), options.mode, options.masks)
    values = evaluator.run()
    seconds = best_cpu_seconds(evaluator.run, options.repeat) if options.repeat else None
    answer(options.output, seconds=seconds, images=len(evaluator.images), values=values)


def _shells(checkout: Path) -> None:
    shell("mmcv", ProgressBar=None)
    shell("mmcv.utils", print_log=None)
    shell("mmdet")
    shell("mmdet.core", bbox_overlaps=_box_iou)
    shell("terminaltables", AsciiTable=None)
    shell("openpsg", checkout / "openpsg")


def _box_iou(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    common = (high - low).clamp(min=0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (first, second)]
    return common / (areas[0][:, None] + areas[1][None] - common).clamp(min=1e-6)


class _Evaluator:
    """Feeds scenes to the evaluators as ``vg_evaluation_single`` does."""

    def __init__(self, scenes: Scenes, mode: str, masks: bool) -> None:
        self.mode = mode
        self.method = "pan_seg" if masks else "bbox"
        self.predicates = scenes.predicates
        self.images = [_image(scene, masks) for scene in scenes]

    def run(self) -> dict[str, Any]:
        from openpsg.evaluation import sgg_eval, sgg_metrics

        result: dict[str, Any] = {}
        free: dict[str, Any] = {}
        every = [self.predicates]
        shared = (result, free, every)
        evaluators = {
            "eval_recall": sgg_metrics.SGRecall(*shared, detection_method=self.method),
            "eval_pair_accuracy": sgg_metrics.SGPairAccuracy(*shared, self.method),
            "eval_mean_recall": sgg_metrics.SGMeanRecall(
                *shared,
                self.predicates + 1,
                [""] * (self.predicates + 1),
                detection_method=self.method,
            ),
        }
        for evaluator in evaluators.values():
            evaluator.register_container(self.mode)
        choices = {"mode": self.mode, "iou_thrs": 0.5}
        for truth, prediction in self.images:
            if prediction.refine_bboxes is not None:
                sgg_eval.evaluate_relation_of_one_image(truth, prediction, choices, evaluators)
        evaluators["eval_mean_recall"].calculate_mean_recall(self.mode)
        free = {key: value[self.predicates] for key, value in free.items()}
        values = self._values(result, self.mode, "") | self._values(free, self.mode, "ng")
        if self.mode == "sgdet":
            phrases = self._values(result, "phrdet", "") | self._values(free, "phrdet", "ng")
            values |= {f"phrdet/{name}": value for name, value in phrases.items()}
        return values

    def _values(self, result: dict[str, Any], mode: str, free: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        recall, mean, accuracy = ("ngR", "ng-mR", "ng-A") if free else ("R", "mR", "A")
        for k in KS:
            found = result[f"{mode}_recall"][k]
            values[f"{recall}@{k}"] = float(np.mean(found)) if found else None
            values[f"{mean}@{k}"] = float(result[f"{mode}_mean_recall"][k])
            vector = result[f"{mode}_mean_recall_list"][k]
            values[f"per_predicate/{recall}@{k}"] = vector
            if mode == "phrdet":
                continue
            hits = result[f"{mode}_accuracy_hit"][k]
            counts = result[f"{mode}_accuracy_count"][k]
            values[f"{accuracy}@{k}"] = float(np.mean(hits) / np.mean(counts)) if hits else None
        return values


def _image(scene: dict[str, np.ndarray], masks: bool) -> tuple[Any, Any]:
    """Annotations and prediction of an image: classes and predicates count from 1."""
    truth = SimpleNamespace(
        rels=scene["relations"] + np.array([0, 0, 1]),
        bboxes=scene["boxes"],
        labels=scene["labels"] + 1,
        masks=filled(scene["boxes"], panoptic=True) if masks else None,
    )
    own = "own_labels" in scene
    boxes, labels = (scene[f"own_{x}"] if own else scene[x] for x in ("boxes", "labels"))
    confidence = scene["own_scores"] if own else np.ones(len(labels), np.float32)
    pairs, scores = scene["pairs"], scene["scores"]
    best = scores.max(1) * confidence[pairs].prod(1) if len(pairs) else np.empty(0)
    order = np.argsort(-best, kind="stable")  # its models give pairs in this order
    outputs = np.concatenate([scene["no_relation"][:, None], scores], axis=1)
    prediction = SimpleNamespace(
        refine_bboxes=np.concatenate([boxes, confidence[:, None]], axis=1),
        labels=labels + 1,
        rel_pair_idxes=pairs[order],
        rel_dists=outputs[order],
        masks=filled(boxes, panoptic=not own) if masks else None,
    )
    return truth, prediction


if __name__ == "__main__":
    main()
