"""Runs the evaluator of KaihuaTang/VCTree-Scene-Graph-Generation from a checkout.

Its compiled overlap of boxes is computed here; modules for models and data sets are shells. It
divides by 50 predicates whatever there are, so the scenes should have 50.
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data  # noqa: F401  looks for dill, before that is a shell
from common import KS, answer, parser, shell
from measure import best_cpu_seconds
from synthetic import Scenes


def main() -> None:
    options = parser().parse_args()
    _shells(options.checkout)
    evaluator = _Evaluator(Scenes.load(options.inputs), options.mode)
    values = evaluator.run()
    seconds = best_cpu_seconds(evaluator.run, options.repeat) if options.repeat else None
    answer(options.output, seconds=seconds, images=len(evaluator.images), values=values)


def _shells(checkout: Path) -> None:
    sys.path.insert(0, str(checkout))
    for name in ("h5py", "dill"):
        shell(name)
    shell("lib", checkout / "lib")
    shell("lib.fpn")
    shell("lib.fpn.box_intersections_cpu")
    shell("lib.fpn.box_intersections_cpu.bbox", bbox_overlaps=_box_iou)


def _box_iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """With the last pixel inside a box, in float64."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    common = (high - low + 1).clip(min=0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2] + 1).prod(1) for boxes in (first, second)]
    return common / (areas[0][:, None] + areas[1][None] - common)


class _Evaluator:
    """Feeds scenes to the evaluators, with and without graph constraint, as ``val_batch`` does."""

    def __init__(self, scenes: Scenes, mode: str) -> None:
        self.mode = mode
        self.predicates = scenes.predicates
        self.images = [_entries(scene) for scene in scenes if len(scene["relations"])]

    def run(self) -> dict[str, Any]:
        from lib.evaluation.sg_eval import BasicSceneGraphEvaluator

        values: dict[str, Any] = {}
        for several, names in ((False, ("R", "mR", "R")), (True, ("ngR", "ng-mR", "ngR"))):
            evaluator = BasicSceneGraphEvaluator(self.mode, multiple_preds=several)
            for truth, prediction in self.images:
                evaluator.evaluate_scene_graph_entry(truth, prediction)
            values |= self._values(evaluator, *names)
        return values

    def _values(self, evaluator: Any, recall: str, mean: str, vector: str) -> dict[str, Any]:
        printed = io.StringIO()
        with redirect_stdout(printed):
            evaluator.print_stats()
        means = re.findall(r"cls avg (\S+)", printed.getvalue())
        result, values = evaluator.result_dict, {}
        for k, printed_mean in zip(KS, means, strict=True):
            values[f"{recall}@{k}"] = float(np.mean(result[f"{self.mode}_recall"][k]))
            values[f"{mean}@{k}"] = float(printed_mean)
            hits, counts = (
                np.array(result[f"{self.mode}_recall_{name}"][k])[1 : self.predicates + 1]
                for name in ("hit", "count")
            )
            values[f"per_predicate/{vector}@{k}"] = hits / np.maximum(counts, 1)
        return values


def _entries(scene: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Annotations and prediction of an image: classes and predicates count from 1."""
    truth = {
        "gt_relations": scene["relations"] + np.array([0, 0, 1]),
        "gt_boxes": scene["boxes"],
        "gt_classes": scene["labels"] + 1,
    }
    own = "own_labels" in scene
    boxes, labels = (scene[f"own_{x}"] if own else scene[x] for x in ("boxes", "labels"))
    confidence = scene["own_scores"] if own else np.ones(len(labels), np.float32)
    pairs, scores = scene["pairs"], scene["scores"]
    best = scores.max(1) * confidence[pairs].prod(1) if len(pairs) else np.empty(0)
    order = np.argsort(-best, kind="stable")  # its models give pairs in this order
    outputs = np.concatenate([scene["no_relation"][:, None], scores], axis=1)
    prediction = {
        "pred_boxes": boxes,
        "pred_classes": labels + 1,
        "obj_scores": confidence,
        "pred_rel_inds": pairs[order],
        "rel_scores": outputs[order],
    }
    return truth, prediction


if __name__ == "__main__":
    main()
