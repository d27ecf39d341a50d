"""Runs the VCTree head of Jingkang50/OpenPSG from a checkout, on saved features and weights.

Shells stand for mmcv and mmdet, of which a head needs a base class, a registry and initialisations
that the given weights overwrite, and for the download of word vectors. Everything between features
and logits is the checkout's.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import answer, parser, shell
from measure import best_cpu_seconds
from safetensors.torch import load_file
from torch import Tensor, nn

_PACKAGE = "openpsg.models.relation_heads"


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    _shells(options.checkout)
    runner = _Runner(options.inputs)
    with torch.no_grad():
        logits, scores = runner.forward()
    context = runner.context

    def forward() -> None:
        with torch.no_grad():
            runner.forward()

    def context_forward() -> None:
        with torch.no_grad():
            context()

    def backward() -> None:
        runner.head.zero_grad(set_to_none=True)
        logits, scores = runner.forward()
        (logits.square().mean() + scores.square().mean()).backward()

    def context_backward() -> None:
        runner.head.zero_grad(set_to_none=True)
        edges, scores = context()
        (edges.square().mean() + scores.square().mean()).backward()

    actions = {
        "forward": forward,
        "backward": backward,
        "context_forward": context_forward,
        "context_backward": context_backward,
    }
    seconds = {name: best_cpu_seconds(action, options.repeat) for name, action in actions.items()}
    answer(options.output, seconds=seconds, logits=logits, tree_logits=scores)


class _Runner:
    """A head with the given weights, and what it is asked."""

    def __init__(self, folder: Path) -> None:
        fields = load_file(folder / "inputs.safetensors")
        weights = load_file(folder / "weights.safetensors")
        counts = json.loads((folder / "counts.json").read_text())
        self.objects, self.unions = fields["objects"], fields["unions"]
        self.labels = fields["labels"].split(counts["objects"])
        self.boxes = fields["boxes"].split(counts["objects"])
        self.side = counts["side"]
        pairs, first = [], 0
        for rows, count in zip(
            fields["pairs"].split(counts["pairs"]), counts["objects"], strict=True
        ):
            pairs.append(rows - first)
            first += count
        self.pairs = pairs
        self.head = _head(weights)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Logits of all pairs, and the tree scores of all images, flat."""
        result = self._result()
        given = (self.objects, self.unions, result)
        self.head.frontend_features = lambda *_: given
        result = self.head(None, None, result)
        scores = [table.flatten() for table, _ in result.add_losses["loss_vctree_binary"]]
        return torch.cat(result.rel_scores), torch.cat(scores)

    def context(self) -> tuple[Tensor, Tensor]:
        """Context of all objects, and the tree scores."""
        _, _, edges, scores = self.head.context_layer(self.objects, self._result())
        return edges, torch.cat([table.flatten() for table in scores])

    def _result(self) -> Any:
        sizes = [len(labels) for labels in self.labels]
        return SimpleNamespace(
            bboxes=list(self.boxes),
            labels=[labels + 1 for labels in self.labels],
            img_shape=[(self.side, self.side)] * len(sizes),
            rel_pair_idxes=self.pairs,
            relmaps=[torch.zeros(size, size) for size in sizes],
        )


def _head(weights: dict[str, Tensor]) -> nn.Module:
    classes, embed_dim = weights["context_layer.obj_embed1.weight"].shape
    pooling_dim, roi_dim = weights["up_dim.weight"].shape
    config = SimpleNamespace(
        use_gt_box=True,
        use_gt_label=True,
        use_vision=True,
        embed_dim=embed_dim,
        hidden_dim=weights["post_emb.weight"].shape[1],
        roi_dim=roi_dim,
        context_pooling_dim=pooling_dim,
        dropout_rate=0.2,
        context_object_layer=1,
        context_edge_layer=1,
        glove_dir=None,
        causal_effect_analysis=False,
    )
    predicates = len(weights["rel_compress.weight"])
    head = importlib.import_module(f"{_PACKAGE}.vctree_head").VCTreeHead(
        object_classes=[""] * (classes - 1),
        predicate_classes=[""] * (predicates - 1),
        head_config=config,
        num_classes=classes,
        num_predicates=predicates,
        loss_object=None,
    )
    missing, unexpected = head.load_state_dict(weights, strict=False)
    # The decoder classifies objects and does not run where their classes are given.
    wrong = [name for name in missing if not name.startswith("context_layer.decoder_rnn.")]
    if wrong or unexpected:
        raise SystemExit(f"weights do not fit: missing {wrong}, unexpected {unexpected}")
    return head.eval()


def _shells(checkout: Path) -> None:
    class BaseModule(nn.Module):
        def __init__(self, init_cfg: Any = None) -> None:
            super().__init__()

    class Registry:
        def register_module(self) -> Any:
            return lambda registered: registered

    shell("mmcv")
    shell("mmcv.cnn", xavier_init=None, normal_init=None)
    shell("mmcv.runner", BaseModule=BaseModule)
    shell("mmdet")
    shell("mmdet.core", bbox2roi=None)
    shell("mmdet.models", HEADS=Registry(), builder=None)
    shell("mmdet.models.losses", accuracy=None)
    for name in ("six", "six.moves", "six.moves.urllib"):
        shell(name)
    shell("six.moves.urllib.request", urlretrieve=None)
    folder = checkout / "openpsg"
    for name in ("openpsg", "openpsg.models", _PACKAGE, f"{_PACKAGE}.approaches"):
        shell(name, checkout.joinpath(*name.split(".")) if name != "openpsg" else folder)
    approaches = importlib.import_module(f"{_PACKAGE}.approaches")
    util = importlib.import_module(f"{_PACKAGE}.approaches.motif_util")
    util.obj_edge_vectors = lambda names, wv_dir, wv_dim: torch.zeros(len(names), wv_dim)
    vctree = importlib.import_module(f"{_PACKAGE}.approaches.vctree")
    approaches.VCTreeLSTMContext = vctree.VCTreeLSTMContext
    approaches.PostProcessor = approaches.RelationSampler = approaches.FrequencyBias = object
    approaches.get_weak_key_rel_labels = None


if __name__ == "__main__":
    main()
