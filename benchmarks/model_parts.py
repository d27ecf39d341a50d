"""The parts of models.py: each makes its inputs, checks that both sides agree, and measures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from heads import Case, case, with_gradients, without_gradients
from measure import Row, at_most, best_seconds, compared
from one_by_one import maximum_spanning_tree, one_by_one, one_by_one_context
from peers import Peers, run_driver
from synthetic import scenes
from torch import Tensor
from training_part import training

from haystack.models.relation.heads.base import HeadOutput
from haystack.models.relation.heads.trees import build_trees

_TOLERANCE = 1e-5
_LIMITS = {
    ("geometry", 30): 64.0,
    ("geometry", 200): 512.0,
    ("visual", 30): 512.0,
    ("visual", 200): 512.0,
}
"""MiB that scoring one image of so many objects may take beside the model."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Args:
        images: of a batch.
        objects: of an image.
        predicates: of PSG.
        width: of features; OpenPSG's, and the other widths are in proportion.
        few, many: objects of the images whose scoring is watched for memory.
        train_images: photographs that a model which reads pictures is trained on.
        short_side: of the pictures that visual features read, in pixels; OpenPSG's.
        repeat: the fastest of so many runs counts.
    """

    images: int = 16
    objects: int = 16
    predicates: int = 56
    width: int = 1024
    few: int = 30
    many: int = 200
    train_images: int = 4
    short_side: int = 800
    repeat: int = 5


def vctree(sizes: Sizes, peers: Peers, scratch: Path) -> list[Row]:
    """VCTree's head: one tree at a time, and OpenPSG's, against the batch."""
    data = scenes(sizes.images, seed=7, objects=sizes.objects, predicates=sizes.predicates)
    ours = case(data, width=sizes.width)
    note = _agree(ours)
    ours.save(scratch)
    theirs = peers.run_openpsg_head(scratch, sizes.repeat)
    for name, apart in (theirs or {"differences": {}})["differences"].items():
        _check(f"OpenPSG's {name}", apart)
    rows = []
    for what, key, own, yardstick, goal in _actions(ours):
        spent = 1e3 * best_seconds(own, sizes.repeat, "cpu")
        slow = 1e3 * best_seconds(yardstick, sizes.repeat, "cpu")
        peer = "one tree at a time"
        row = compared("vctree", what, spent, "ms", peer, slow, at_least=goal, note=note)
        rows.append(row)
        note = ""
        if key is not None:
            their = None if theirs is None else 1e3 * theirs["seconds"][key]
            rows.append(compared("vctree", what, spent, "ms", "OpenPSG", their))
    return [*rows, _floor(ours, sizes), *_on_cuda(data, sizes, rows)]


def memory(sizes: Sizes, peers: Peers, scratch: Path) -> list[Row]:
    """Peak memory of scoring one image, each in a process of its own."""
    del peers
    rows = []
    for features in ("geometry", "visual"):
        for objects in (sizes.few, sizes.many):
            extra = [f"--objects={objects}", f"--width={sizes.width}", f"--features={features}"]
            extra.append(f"--short-side={sizes.short_side}")
            found = run_driver("score_memory", scratch, *extra, repeat=0)
            what = f"score {objects * (objects - 1)} pairs of {objects} objects, {features}"
            note = f"above the {found['before_mib']:.0f} MiB of the process with its model"
            peak = found["peak_mib"] - found["before_mib"]
            limit = _LIMITS.get((features, objects))
            rows.append(
                Row("memory", what, peak, "MiB", note=note)
                if limit is None
                else at_most("memory", what, peak, "MiB", limit, note=note)
            )
    return rows


PARTS: dict[str, Callable[[Sizes, Peers, Path], list[Row]]] = {
    "vctree": vctree,
    "memory": memory,
    "training": training,
}


def _actions(ours: Case) -> list[tuple[str, str | None, Any, Any, float | None]]:
    """Name, name in the driver's answer, our action, the yardstick's, and the goal."""
    head: Any = ours.head
    given = (ours.batch, ours.objects)

    def slow_head() -> HeadOutput:
        return one_by_one(head, *given, ours.unions)

    def context() -> HeadOutput:
        found = head.context_layer(*given)
        return HeadOutput(found.features, found.tree_logits)

    def slow_context() -> HeadOutput:
        return HeadOutput(*one_by_one_context(head.context_layer, *given))

    with torch.no_grad():
        tables = context().tree_logits.sigmoid()

    def trees() -> None:
        build_trees(tables, ours.batch.present)

    def slow_trees() -> None:
        for table, count in zip(tables, ours.batch.counts, strict=True):
            maximum_spanning_tree(table[:count, :count])

    both = "forward and backward"
    return [
        ("build the trees", None, trees, slow_trees, None),
        (
            "trees and context, forward",
            "context, forward",
            without_gradients(context),
            without_gradients(slow_context),
            5,
        ),
        (
            f"trees and context, {both}",
            "context, backward",
            with_gradients(head, context),
            with_gradients(head, slow_context),
            5,
        ),
        (
            "whole head, forward",
            "whole, forward",
            without_gradients(ours.forward),
            without_gradients(slow_head),
            5,
        ),
        (
            f"whole head, {both}",
            "whole, backward",
            with_gradients(head, ours.forward),
            with_gradients(head, slow_head),
            5,
        ),
    ]


def _floor(ours: Case, sizes: Sizes) -> Row:
    """The one layer that needs every pair's union feature, by itself."""
    head: Any = ours.head
    up = without_gradients(lambda: head.up_dim(ours.unions))
    spent = 1e3 * best_seconds(up, sizes.repeat, "cpu")
    return Row(
        "vctree", "of it one product that both sides need, forward", spent, "ms", note="up_dim"
    )


def _agree(ours: Case) -> str:
    """Same logits, tree scores and gradients as one tree at a time; how far they lie apart."""
    head: Any = ours.head
    given = (ours.batch, ours.objects, ours.unions)
    gradients: list[dict[str, Tensor]] = []
    outputs: list[HeadOutput] = []
    for run in (head, lambda *rest: one_by_one(head, *rest)):
        with_gradients(head, lambda run=run: outputs.append(run(*given)) or outputs[-1])()
        gradients.append({k: v.grad for k, v in head.named_parameters() if v.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    apart = [_close("logits", outputs[0].logits, outputs[1].logits)]
    apart.append(_close("tree scores", outputs[0].tree_logits, outputs[1].tree_logits))
    apart += [_close(name, gradients[0][name], gradients[1][name]) for name in gradients[0]]
    return f"logits, tree scores and gradients agree within {max(apart):.1g} of the largest"


def _close(name: str, first: Tensor, second: Tensor) -> float:
    """The largest difference, relative to the largest value where that is above 1."""
    difference = float((first - second).detach().abs().max())
    return _check(name, difference / max(1.0, float(second.detach().abs().max())))


def _check(name: str, difference: float) -> float:
    if not difference <= _TOLERANCE:
        sys.exit(f"{name} differ by {difference:.2g} of the largest value")
    return difference


def _on_cuda(data: Any, sizes: Sizes, cpu: list[Row]) -> list[Row]:
    """Our rows on a GPU, wall time, beside the same on the CPU."""
    if not torch.cuda.is_available():
        return []
    actions = _actions(case(data, width=sizes.width, device="cuda"))
    rows = []
    for (what, _, own, yardstick, _), before in zip(
        actions, [row for row in cpu if row.peer == "one tree at a time"], strict=True
    ):
        spent = 1e3 * best_seconds(own, sizes.repeat, "cuda")
        slow = 1e3 * best_seconds(yardstick, sizes.repeat, "cuda")
        row = compared("vctree", f"{what}, on the GPU", spent, "ms", before.peer, slow)
        rows += [row, replace(row, peer="ours, CPU", theirs=before.ours, ratio=before.ours / spent)]
    return rows
