"""Runs OpenPSG's relation heads beside ours, on the same random weights, scenes and features.

    python benchmarks/parity_models.py --openpsg CHECKOUT

Prints the largest difference of the logits of pairs and of objects, relative to the largest logit
(at least 1), over all scenes. A head must load the original's state dict with no key left over. The
exit status is 1 if a difference is above the tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from drivers import openpsg_head
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads import build_head
from haystack.models.relation.heads.base import HeadDims
from haystack.models.relation.inputs import all_pairs

_DIMS = HeadDims(
    num_objects=30,
    num_predicates=9,
    roi_dim=48,
    embed_dim=20,
    hidden_dim=32,
    pooling_dim=64,
    decoder_dropout=0.0,  # so that training can be compared
)
_SIZE = (600.0, 800.0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--openpsg", type=Path, required=True, help="a checkout")
    parser.add_argument("--seeds", type=int, default=5, help="weights and batches of each case")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for case, differences in _all(options.openpsg, options.seeds):
        found[case] = differences
        figures = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
        print(f"{case}: {figures}", file=sys.stderr)
    if options.json:
        print(json.dumps(found))
    worst = [value for differences in found.values() for value in differences.values()]
    return int(not max(worst) <= options.tolerance)


def _all(checkout: Path, seeds: int) -> Iterator[tuple[str, dict[str, float]]]:
    for name in openpsg_head.HEADS:
        for task in openpsg_head.TASKS:
            # VCTree draws classes at random in training.
            for training in (False, True) if name != "vctree" and task == "sgcls" else (False,):
                worst: dict[str, float] = {}
                for seed in range(seeds):
                    for what, value in _compare(checkout, name, task, seed, training).items():
                        worst[what] = max(worst.get(what, 0.0), value)
                yield f"{name}, {task}{', training' if training else ''}", worst


def _compare(checkout: Path, name: str, task: str, seed: int, training: bool) -> dict[str, float]:
    torch.manual_seed(seed)
    original = openpsg_head.build(checkout, name, task, _DIMS)
    _shake(original)
    ours = build_head(name, _DIMS)
    ours.load_state_dict(original.state_dict())
    for head in (original, ours):
        head.train(training)
        for module in head.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
    batch = _scenes(task)
    objects = torch.randn(len(batch.labels), _DIMS.roi_dim)
    unions = torch.randn(len(batch.pairs), _DIMS.roi_dim)
    with torch.no_grad():
        pairs, classes = openpsg_head.answer_of(original, batch, objects, unions)
        output = ours(batch, objects, unions)
    differences = {"pairs": _difference(output.logits, pairs)}
    if output.object_logits is not None:
        differences["objects"] = _difference(output.object_logits, classes)
    return differences


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1)).item()


def _shake(head: nn.Module) -> None:
    """Biases and statistics away from their start, where a mistake would not show."""
    with torch.no_grad():
        for module in head.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
        for parameter in head.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))


def _scenes(task: str) -> SceneBatch:
    """Images of one to thirty objects, one of each size kind among them."""
    counts = (7, 1, 30, 2, *torch.randint(2, 20, (4,)).tolist())
    total = sum(counts)
    height, width = _SIZE
    corners = torch.rand(total, 2) * torch.tensor([width, height]) * 0.7
    boxes = torch.cat(
        [corners, corners + torch.rand(total, 2) * torch.tensor([width, height]) * 0.3], dim=1
    )
    labels = torch.randint(_DIMS.num_objects, (total,))
    scores = None
    if task == "sgdet":  # the class of a detected segment is certain to the detector
        scores = nn.functional.one_hot(labels, _DIMS.num_objects).float()
    elif task == "sgcls":
        scores = (2 * torch.randn(total, _DIMS.num_objects)).softmax(1)
        labels = scores.argmax(1)
    pairs, first = [], 0
    for count in counts:
        # An image of one object gets a pair with itself, as in the original.
        rows = torch.from_numpy(all_pairs(count)) if count > 1 else torch.zeros(1, 2).long()
        pairs.append(rows + first)
        first += count
    return SceneBatch(
        labels=labels,
        boxes=boxes,
        sizes=torch.tensor(_SIZE).repeat(len(counts), 1),
        counts=counts,
        pairs=torch.cat(pairs),
        pair_counts=tuple(len(rows) for rows in pairs),
        class_scores=scores,
    )


if __name__ == "__main__":
    raise SystemExit(main())
