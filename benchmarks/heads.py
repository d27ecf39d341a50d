"""A relation head of OpenPSG's widths with random weights, and a batch for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from synthetic import CLASSES, SIDE, Scenes
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads import build_head
from haystack.models.relation.heads.base import HeadDims, HeadOutput, RelationHead


@dataclass(frozen=True)
class Case:
    """What a head is timed on.

    Args:
        dims: of the head.
        head: in evaluation mode, so that its numbers do not depend on the order of random draws.
        batch: all ordered pairs of all images.
        objects: float [N, roi_dim], a feature of each object.
        unions: float [R, roi_dim], a feature of each pair; of width pooling_dim without ``up_dim``.
    """

    dims: HeadDims
    head: RelationHead
    batch: SceneBatch
    objects: Tensor
    unions: Tensor

    def forward(self) -> HeadOutput:
        """A forward pass."""
        output: HeadOutput = self.head(self.batch, self.objects, self.unions)
        return output

    def save(self, folder: Path) -> None:
        """Write weights, inputs and answers to a folder, for another process."""
        folder.mkdir(parents=True, exist_ok=True)
        with torch.no_grad():
            output = self.forward()
        where = self.batch.present[:, :, None] & self.batch.present[:, None]
        tensors = {
            "labels": self.batch.labels,
            "boxes": self.batch.boxes,
            "sizes": self.batch.sizes,
            "counts": torch.tensor(self.batch.counts),
            "pairs": self.batch.pairs,
            "pair_counts": torch.tensor(self.batch.pair_counts),
            "objects": self.objects,
            "unions": self.unions,
            "logits": output.logits,
            "tree_logits": output.tree_logits[where],
        }
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "case.safetensors")
        save_file(self.head.state_dict(), folder / "weights.safetensors")
        (folder / "dims.json").write_text(json.dumps(asdict(self.dims)))


def case(
    data: Scenes,
    *,
    name: str = "vctree",
    device: str = "cpu",
    width: int = 1024,
    up_dim: bool = True,
) -> Case:
    """A head with OpenPSG's widths where ``width`` is 1024, in proportion where it is not.

    Args:
        data: objects and pairs.
        name: of the head.
        device: where everything lies.
        width: of object and pair features.
        up_dim: whether the head brings union features to the width of a pair's representation, as
            OpenPSG's does; without, they come in that width, for which KaihuaTang's code has no
            such layer.
    """
    torch.manual_seed(0)
    dims = HeadDims(
        num_objects=CLASSES,
        num_predicates=data.predicates,
        roi_dim=width,
        hidden_dim=width // 2,
        pooling_dim=4 * width,
        classifies_objects=False,
    )
    fields = {name: torch.from_numpy(values) for name, values in data.arrays.items()}
    counts = data.counts["objects"]
    offset = np.repeat(np.cumsum(counts) - counts, data.counts["pairs"])
    batch = SceneBatch(
        labels=fields["labels"].to(device),
        boxes=fields["boxes"].to(device),
        sizes=torch.full((len(data), 2), float(SIDE), device=device),
        counts=tuple(counts.tolist()),
        pairs=(fields["pairs"] + torch.from_numpy(offset)[:, None]).to(device),
        pair_counts=tuple(data.counts["pairs"].tolist()),
    )
    head: Any = build_head(name, dims).to(device).eval()
    if not up_dim:
        head.up_dim = nn.Identity()
    return Case(
        dims=dims,
        head=head,
        batch=batch,
        objects=torch.randn(len(batch.labels), width, device=device),
        unions=torch.randn(len(batch.pairs), width if up_dim else dims.pooling_dim, device=device),
    )


def without_gradients(action: Callable[[], object]) -> Callable[[], None]:
    """The action as a prediction runs it."""

    def run() -> None:
        # Not inference_mode: a batch remembers tensors that a training step of the same case needs.
        with torch.no_grad():
            action()

    return run


def with_gradients(head: RelationHead, action: Callable[[], HeadOutput]) -> Callable[[], None]:
    """The action and the gradients of all weights."""

    def run() -> None:
        head.zero_grad(set_to_none=True)
        output = action()
        loss = output.logits.square().mean()
        if output.tree_logits is not None:
            loss = loss + output.tree_logits.square().mean()
        loss.backward()

    return run
