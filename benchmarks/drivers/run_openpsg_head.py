"""Times the VCTree head of Jingkang50/OpenPSG from a checkout, on a saved ``heads.Case``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from common import answer, parser
from drivers import openpsg_head
from measure import best_cpu_seconds
from safetensors.torch import load_file
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    case = load_file(options.inputs / "case.safetensors")
    batch = SceneBatch(
        labels=case["labels"],
        boxes=case["boxes"],
        sizes=case["sizes"],
        counts=tuple(case["counts"].tolist()),
        pairs=case["pairs"],
        pair_counts=tuple(case["pair_counts"].tolist()),
    )
    head = _head(options.checkout, options.inputs)
    scores: list[Tensor] = []
    head.context_layer.register_forward_hook(lambda _, __, found: scores.append(_flat(found[3])))

    def context() -> Tensor:
        edges: Tensor = head.context_layer(case["objects"], openpsg_head.question_of(batch))[2]
        return edges

    def whole() -> Tensor:
        return openpsg_head.answer_of(head, batch, case["objects"], case["unions"])[0]

    def forward(action: Callable[[], Tensor]) -> None:
        with torch.no_grad():
            action()
        scores.clear()

    def backward(action: Callable[[], Tensor]) -> None:
        head.zero_grad(set_to_none=True)
        (action().square().mean() + scores[-1].square().mean()).backward()
        scores.clear()

    with torch.no_grad():
        pairs = {"logits": (whole(), case["logits"]), "trees": (scores[-1], case["tree_logits"])}
    seconds = {
        f"{what}, {how.__name__}": best_cpu_seconds(lambda a=action, h=how: h(a), options.repeat)
        for what, action in (("context", context), ("whole", whole))
        for how in (forward, backward)
    }
    apart = {
        name: float((a - b).abs().max() / b.abs().max().clamp(min=1))
        for name, (a, b) in pairs.items()
    }
    answer(options.output, seconds=seconds, differences=apart)


def _head(checkout: Path, folder: Path) -> nn.Module:
    dims = HeadDims(**json.loads((folder / "dims.json").read_text()))
    head = openpsg_head.build(checkout, "vctree", "predcls", dims)
    missing, unexpected = head.load_state_dict(
        load_file(folder / "weights.safetensors"), strict=False
    )
    # The decoder classifies objects and does not run where their classes are given.
    wrong = [name for name in missing if not name.startswith("context_layer.decoder_rnn.")]
    if wrong or unexpected:
        raise SystemExit(f"weights do not fit: missing {wrong}, unexpected {unexpected}")
    return head.eval()


def _flat(tables: list[Tensor]) -> Tensor:
    return torch.cat([table.flatten() for table in tables])


if __name__ == "__main__":
    main()
