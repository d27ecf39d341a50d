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
from synthetic import Scenes, scenes
from torch import Tensor
from training_part import training

from haystack.models.relation.heads.base import HeadOutput
from haystack.models.relation.heads.trees import build_trees

_TOLERANCE = 1e-5
_YARDSTICK = "one tree at a time"
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
    for action in _all_actions(ours, data, sizes):
        spent = 1e3 * best_seconds(action.own, sizes.repeat, "cpu")
        slow = 1e3 * best_seconds(action.yardstick, sizes.repeat, "cpu")
        row = compared(
            "vctree", action.what, spent, "ms", _YARDSTICK, slow, at_least=action.goal, note=note
        )
        rows.append(row)
        note = ""
        if action.shared is not None:
            rows.append(_without_shared(row, action.shared, sizes))
        if action.key is not None:
            their = None if theirs is None else 1e3 * theirs["seconds"][action.key]
            rows.append(compared("vctree", action.what, spent, "ms", "OpenPSG", their))
    return [*rows, *_on_cuda(data, sizes, rows)]


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


@dataclass(frozen=True)
class _Action:
    """What is timed.

    Args:
        what: name of the row.
        own: ours.
        yardstick: one tree at a time.
        key: name of the same in the answer of OpenPSG's driver.
        goal: how many times faster ours should be.
        shared: what both sides do alike, and nobody can save.
    """

    what: str
    own: Callable[[], None]
    yardstick: Callable[[], None]
    key: str | None = None
    goal: float | None = None
    shared: Callable[[], None] | None = None


def _all_actions(ours: Case, data: Scenes, sizes: Sizes) -> list[_Action]:
    """Of the parts with trees, of the head without the product ``up_dim``, and of all of it."""
    narrow = case(data, width=sizes.width, up_dim=False, device=ours.objects.device.type)
    _agree(narrow)
    up_dim: Any = ours.head.up_dim
    product = _product(up_dim, ours.unions)
    return [
        *_tree_actions(ours),
        *_whole(narrow, "head without up_dim"),
        *_whole(ours, "whole head", "whole", product),
    ]


def _tree_actions(ours: Case) -> list[_Action]:
    head: Any = ours.head
    given = (ours.batch, ours.objects)

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

    return [
        _Action("build the trees", trees, slow_trees),
        *_both_ways(head, context, slow_context, "trees and context", "context"),
    ]


def _whole(
    ours: Case, what: str, key: str | None = None, shared: tuple[Any, Any] = (None, None)
) -> list[_Action]:
    head: Any = ours.head

    def slow() -> HeadOutput:
        return one_by_one(head, ours.batch, ours.objects, ours.unions)

    return _both_ways(head, ours.forward, slow, what, key, shared)


def _both_ways(
    head: Any,
    own: Callable[[], HeadOutput],
    yardstick: Callable[[], HeadOutput],
    what: str,
    key: str | None = None,
    shared: tuple[Any, Any] = (None, None),
) -> list[_Action]:
    """Forward, and with gradients; each at least five times faster."""
    forward, backward = (None, None) if key is None else (f"{key}, forward", f"{key}, backward")
    return [
        _Action(
            f"{what}, forward",
            without_gradients(own),
            without_gradients(yardstick),
            forward,
            5,
            shared[0],
        ),
        _Action(
            f"{what}, forward and backward",
            with_gradients(head, own),
            with_gradients(head, yardstick),
            backward,
            5,
            shared[1],
        ),
    ]


def _product(up_dim: Any, unions: Tensor) -> tuple[Callable[[], None], Callable[[], None]]:
    """The one layer that needs every pair's union feature, forward, and with gradients."""
    gradient = torch.ones(len(unions), up_dim.out_features, device=unions.device)

    def with_gradient() -> None:
        up_dim.zero_grad(set_to_none=True)
        up_dim(unions).backward(gradient)

    return without_gradients(lambda: up_dim(unions)), with_gradient


def _without_shared(row: Row, shared: Callable[[], None], sizes: Sizes) -> Row:
    """The time of what both sides do alike, and the ratio of what is left of them."""
    assert row.theirs is not None
    spent = 1e3 * best_seconds(shared, sizes.repeat, "cpu")
    bound, left = row.theirs / spent, (row.theirs - spent) / (row.ours - spent)
    note = (
        f"with nothing else to do the ratio would be {bound:.3g}; of all the rest it is {left:.3g}"
    )
    what = row.what.replace("whole head", "of it up_dim alone")
    return Row("vctree", what, spent, "ms", note=note)


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


def _on_cuda(data: Scenes, sizes: Sizes, cpu: list[Row]) -> list[Row]:
    """Our rows on a GPU, wall time, beside the same on the CPU."""
    if not torch.cuda.is_available():
        return []
    actions = _all_actions(case(data, width=sizes.width, device="cuda"), data, sizes)
    rows = []
    for action, before in zip(actions, [row for row in cpu if row.peer == _YARDSTICK], strict=True):
        spent = 1e3 * best_seconds(action.own, sizes.repeat, "cuda")
        slow = 1e3 * best_seconds(action.yardstick, sizes.repeat, "cuda")
        row = compared("vctree", f"{action.what}, on the GPU", spent, "ms", _YARDSTICK, slow)
        rows += [row, replace(row, peer="ours, CPU", theirs=before.ours, ratio=before.ours / spent)]
    return rows
