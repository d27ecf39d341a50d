"""The parts of maskdino.py: the network, its sampling, and what is made of its outputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from drivers.official_maskdino import official_of
from measure import Row, best_seconds, compared, peak_memory_mib, reset_peak_memory
from peers import Peers
from torch import Tensor

from haystack.models.maskdino.config import MaskDINOConfig
from haystack.models.maskdino.deformable_attention import sample_by_grid, sample_by_rows
from haystack.models.maskdino.network import MaskDINO, MaskDINOOutput
from haystack.models.maskdino.panoptic import PanopticSettings, segment_picture

_PEER = "official"
_TOLERANCE = 1e-3  # of the largest value; queries of equal scores may swap, see _agree


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Args:
        height, width: of the padded picture for ResNet-50; COCO's usual one.
        swin_height, swin_width: for Swin-L, whose forward at the size above takes a minute.
        output_height, output_width: of panoptic maps; SA-1B's shorter side is 1500.
        kept: queries above the threshold in such a picture.
        repeat: the fastest of so many runs counts.
    """

    height: int = 800
    width: int = 1184
    swin_height: int = 384
    swin_width: int = 512
    output_height: int = 1500
    output_width: int = 2250
    kept: int = 50
    repeat: int = 3


def resnet50(sizes: Sizes, peers: Peers, _: Path) -> list[Row]:
    """A whole forward on a ResNet-50 (detectron2's, for which ours stands on both sides)."""
    return _forward("resnet50", (sizes.height, sizes.width), sizes.repeat, peers)


def swin_large(sizes: Sizes, peers: Peers, _: Path) -> list[Row]:
    """A whole forward on Swin-L."""
    return _forward("swin_large", (sizes.swin_height, sizes.swin_width), sizes.repeat, peers)


def sampling(sizes: Sizes, _: Peers, __: Path) -> list[Row]:
    """The pixel decoder's sampling alone: rows of a table beside ``grid_sample``."""
    generator = torch.Generator().manual_seed(0)
    maps = [(-(-sizes.height // s), -(-sizes.width // s)) for s in (8, 16, 32, 64)]
    count = sum(height * width for height, width in maps)
    values = torch.randn(1, count, 8, 32, generator=generator)
    places = torch.rand(1, count, 8, 4, 4, 2, generator=generator)
    weights = torch.rand(1, count, 8, 4, 4, generator=generator)
    with torch.inference_mode():
        ours, theirs = (
            best_seconds(partial(way, values, maps, places, weights), sizes.repeat, "cpu")
            for way in (sample_by_rows, sample_by_grid)
        )
    what = f"{count} queries, 4 maps"
    return [compared("sampling", what, ours, "s", "grid_sample", theirs, at_least=1)]


def panoptic(sizes: Sizes, _: Peers, __: Path) -> list[Row]:
    """One map from the network's outputs, beside all masks at once as upstream does it."""
    generator = torch.Generator().manual_seed(0)
    queries = 300
    logits = torch.full((1, queries, 133), -6.0)
    logits[0, torch.randperm(queries, generator=generator)[: sizes.kept], 0] = 2.0
    padded = (sizes.height, sizes.width)
    output = MaskDINOOutput(
        logits,
        torch.zeros(1, queries, 4),
        torch.randn(1, queries, 256, generator=generator),
        torch.randn(1, 256, sizes.height // 4, sizes.width // 4, generator=generator),
    )
    size = (sizes.output_height, sizes.output_width)
    segment = partial(
        segment_picture,
        output,
        0,
        padded=padded,
        size=padded,
        output_size=size,
        things=80,
        settings=PanopticSettings(),
    )
    with torch.inference_mode():
        ours, our_memory = _time_and_memory(segment, sizes.repeat)
        theirs, their_memory = _time_and_memory(partial(_all_at_once, output, padded, size), 1)
    what = f"map of {size[0]} x {size[1]}, {sizes.kept} of {queries} queries"
    peer = "all masks at once"
    return [
        compared("panoptic", what, ours, "s", peer, theirs, at_least=1),
        compared("panoptic", what, our_memory, "MiB", peer, their_memory, at_least=1),
    ]


PARTS: dict[str, Callable[[Any, Peers, Path], list[Row]]] = {
    "panoptic": panoptic,  # first, while the process has not yet kept any memory
    "sampling": sampling,
    "resnet50": resnet50,
    "swin_large": swin_large,
}


def _forward(backbone: str, size: tuple[int, int], repeat: int, peers: Peers) -> list[Row]:
    torch.manual_seed(0)
    network = MaskDINO(MaskDINOConfig(backbone=backbone)).eval().requires_grad_(False)
    pictures = torch.randn(1, 3, *size)
    what = f"forward, {size[0]} x {size[1]}"
    theirs, note = None, ""
    with torch.inference_mode():
        ours = best_seconds(partial(network, pictures), repeat, "cpu")
        if peers.maskdino is not None:
            official = official_of(peers.maskdino, network)
            theirs = best_seconds(partial(official, pictures), repeat, "cpu")
            note = _agree(network(pictures), official(pictures))
        rows = [compared(backbone, what, ours, "s", _PEER, theirs, at_least=1, note=note)]
        return rows + _on_cuda(backbone, what, network, pictures, repeat)


def _on_cuda(
    backbone: str, what: str, network: MaskDINO, pictures: Tensor, repeat: int
) -> list[Row]:
    if not torch.cuda.is_available():
        return []
    network, pictures = network.cuda(), pictures.cuda()
    rows = []
    for name, dtype in (("float32", None), ("bfloat16", torch.bfloat16)):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            spent = best_seconds(partial(network, pictures), repeat, "cuda")
        peak = torch.cuda.max_memory_allocated() / 2**20
        rows.append(Row(backbone, f"{what}, GPU, {name}", 1 / spent, "images/s"))
        rows.append(Row(backbone, f"{what}, GPU, {name}", peak, "MiB"))
    return rows


def _agree(ours: MaskDINOOutput, theirs: dict[str, Tensor]) -> str:
    """Largest difference, each query beside its nearest: near-ties may swap rows."""
    own = torch.cat([ours.logits[0], ours.boxes[0]], 1)
    their = torch.cat([theirs["pred_logits"][0], theirs["pred_boxes"][0]], 1)
    nearest = torch.cdist(own, their).argmin(1)
    apart = {
        "logits": (own, their[nearest]),
        "masks": (ours.mask_logits(0), theirs["pred_masks"][0][nearest]),
    }
    found = {
        name: float((a - b).abs().max() / b.abs().max().clamp(min=1))
        for name, (a, b) in apart.items()
    }
    worst = max(found.values())
    if worst > _TOLERANCE:
        raise SystemExit(f"the two sides differ by {worst:.2g} of the largest value")
    swapped = int((nearest != torch.arange(len(nearest))).sum())
    return (
        f"relative differences {', '.join(f'{name} {value:.1g}' for name, value in found.items())}"
        f"; {swapped} of {len(nearest)} queries in another order"
    )


def _all_at_once(output: MaskDINOOutput, padded: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Enlarge every query's mask, then choose: the part of upstream's steps that costs."""
    interpolate = partial(torch.nn.functional.interpolate, mode="bilinear", align_corners=False)
    masks = interpolate(interpolate(output.mask_logits(0)[None], padded), size)[0].sigmoid()
    scores, _ = output.logits[0].sigmoid().max(-1)
    keep = scores > PanopticSettings().score_threshold
    kept = masks[keep]
    owner = (kept * scores[keep][:, None, None]).argmax(0)
    return torch.stack(
        [((owner == number) & (one >= 0.5)).sum() for number, one in enumerate(kept)]
    )


def _time_and_memory(action: Callable[[], Any], repeat: int) -> tuple[float, float]:
    """CPU seconds of the fastest run, and how far resident memory rose."""
    reset_peak_memory()
    before = peak_memory_mib()
    spent = []
    for _ in range(repeat):
        start = time.process_time()
        action()
        spent.append(time.process_time() - start)
    return min(spent), peak_memory_mib() - before
