"""Runs the evaluator of KaihuaTang/Scene-Graph-Benchmark.pytorch from a checkout.

Only its evaluation is imported: packages that would pull in data sets, compiled operators or COCO
are shells. ``four`` runs R, ngR, mR and ng-mR and leaves the other evaluators out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import KS, answer, parser, shell
from measure import best_cpu_seconds
from synthetic import Scenes

_PACKAGE = "maskrcnn_benchmark"
_ZERO_SHOT = 5971
"""Rows of the zero-shot table that it comes with; its time depends on them."""


def main() -> None:
    arguments = parser()
    arguments.add_argument("--four", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    _shells(options.checkout / _PACKAGE)
    evaluator = _Evaluator(Scenes.load(options.inputs), options.mode, options.four)
    values = evaluator.run()
    seconds = best_cpu_seconds(evaluator.run, options.repeat) if options.repeat else None
    answer(options.output, seconds=seconds, images=len(evaluator.images), values=values)


def _shells(root: Path) -> None:
    vg = root / "data" / "datasets" / "evaluation" / "vg"
    shell(_PACKAGE, root)
    shell(f"{_PACKAGE}.data", root / "data", get_dataset_statistics=None)
    shell(f"{_PACKAGE}.data.datasets", vg.parent.parent)
    shell(f"{_PACKAGE}.data.datasets.evaluation", vg.parent)
    shell(f"{_PACKAGE}.data.datasets.evaluation.vg", vg)
    shell(f"{_PACKAGE}.layers", nms=None)
    shell("pycocotools")
    shell("pycocotools.coco", COCO=None)
    shell("pycocotools.cocoeval", COCOeval=None)


class _Evaluator:
    """Feeds scenes to the evaluators as ``do_vg_evaluation`` does."""

    def __init__(self, scenes: Scenes, mode: str, four: bool) -> None:
        from maskrcnn_benchmark.structures.bounding_box import BoxList

        self.mode = mode
        self.four = four
        self.predicates = scenes.predicates
        triplets, self.images = [], []
        for number, scene in enumerate(scenes):
            self.images.append(_boxlists(scene, BoxList))
            if number % 2:
                triplets.append(_class_triplets(scene))
        # Those of every second image count as never seen in training; the rest match nothing.
        table = np.unique(np.concatenate(triplets), axis=0)
        missing = np.full((max(0, _ZERO_SHOT - len(table)), 3), -1)
        self.zero_shot = np.concatenate([table, missing])

    def run(self) -> dict[str, Any]:
        from maskrcnn_benchmark.data.datasets.evaluation.vg import sgg_eval, vg_eval

        result: dict[str, Any] = {}
        names = [""] * (self.predicates + 1)
        count = self.predicates + 1
        evaluators = {
            "eval_recall": sgg_eval.SGRecall(result),
            "eval_nog_recall": sgg_eval.SGNoGraphConstraintRecall(result),
            "eval_zeroshot_recall": sgg_eval.SGZeroShotRecall(result),
            "eval_ng_zeroshot_recall": sgg_eval.SGNGZeroShotRecall(result),
            "eval_pair_accuracy": sgg_eval.SGPairAccuracy(result),
            "eval_mean_recall": sgg_eval.SGMeanRecall(result, count, names),
            "eval_ng_mean_recall": sgg_eval.SGNGMeanRecall(result, count, names),
        }
        for evaluator in evaluators.values():
            evaluator.register_container(self.mode)
        means = evaluators["eval_mean_recall"], evaluators["eval_ng_mean_recall"]
        if self.four:
            for name in ("eval_zeroshot_recall", "eval_ng_zeroshot_recall", "eval_pair_accuracy"):
                evaluators[name] = _Nothing()
        choices = {"zeroshot_triplet": self.zero_shot, "mode": self.mode, "iou_thres": 0.5}
        for truth, prediction in self.images:
            vg_eval.evaluate_relation_of_one_image(truth, prediction, choices, evaluators)
        for mean in means:
            mean.calculate_mean_recall(self.mode)
        return self._values(result)

    def _values(self, result: dict[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for k in KS:
            for name, key in (
                ("R", "recall"),
                ("ngR", "recall_nogc"),
                ("zR", "zeroshot_recall"),
                ("ng-zR", "ng_zeroshot_recall"),
            ):
                found = result[f"{self.mode}_{key}"][k]
                values[f"{name}@{k}"] = float(np.mean(found)) if found else None
            for name, key in (("mR", "mean_recall"), ("ng-mR", "ng_mean_recall")):
                values[f"{name}@{k}"] = float(result[f"{self.mode}_{key}"][k])
                vector = "R" if name == "mR" else "ngR"
                values[f"per_predicate/{vector}@{k}"] = result[f"{self.mode}_{key}_list"][k]
            hits = result[f"{self.mode}_accuracy_hit"][k]
            counts = result[f"{self.mode}_accuracy_count"][k]
            values[f"A@{k}"] = float(np.mean(hits) / np.mean(counts)) if hits else None
        return values


class _Nothing:
    """Stands for an evaluator that is left out."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def _class_triplets(scene: dict[str, np.ndarray]) -> np.ndarray:
    """As the peer's zero-shot table: subject class, object class, predicate, counted from 1."""
    labels, relations = scene["labels"] + 1, scene["relations"]
    classes = labels[relations[:, 0]], labels[relations[:, 1]]
    return np.stack([*classes, relations[:, 2] + 1], axis=1)


def _boxlists(scene: dict[str, np.ndarray], kind: Any) -> tuple[Any, Any]:
    """Annotations and prediction of an image: classes and predicates count from 1."""
    size = (600, 600)
    truth = kind(torch.from_numpy(scene["boxes"]), size)
    truth.add_field("labels", torch.from_numpy(scene["labels"] + 1))
    relations = scene["relations"] + np.array([0, 0, 1])
    truth.add_field("relation_tuple", torch.from_numpy(relations))
    own = "own_labels" in scene
    boxes, labels = (scene[f"own_{x}"] if own else scene[x] for x in ("boxes", "labels"))
    confidence = scene["own_scores"] if own else np.ones(len(labels), np.float32)
    prediction = kind(torch.from_numpy(boxes), size)
    prediction.add_field("pred_labels", torch.from_numpy(labels + 1))
    prediction.add_field("pred_scores", torch.from_numpy(confidence))
    pairs, scores = scene["pairs"], scene["scores"]
    best = scores.max(1) * confidence[pairs].prod(1) if len(pairs) else np.empty(0)
    order = np.argsort(-best, kind="stable")  # its models give pairs in this order
    outputs = np.concatenate([scene["no_relation"][:, None], scores], axis=1)
    prediction.add_field("rel_pair_idxs", torch.from_numpy(pairs[order]))
    prediction.add_field("pred_rel_scores", torch.from_numpy(outputs[order]))
    return truth, prediction


if __name__ == "__main__":
    main()
