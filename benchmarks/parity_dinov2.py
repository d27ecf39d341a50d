"""Runs upstream's DINOv2 beside ours, on the same random weights and pictures.

    python benchmarks/parity_dinov2.py --dinov2 CHECKOUT

Upstream's state dict is saved as its release would be and loaded by name, in upstream's and in
timm's layout. Prints the largest difference of the class token and of the mean of the patch tokens,
relative to the largest number, at every size. The exit status is 1 if one is above the tolerance.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from haystack.pipeline.config import EmbedConfig
from haystack.pipeline.encoders.encoder import Encoder, find_encoder


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dinov2", type=Path, required=True, help="a checkout")
    parser.add_argument("--models", nargs="+", default=["dinov2_vits14", "dinov2_vits14_reg"])
    parser.add_argument("--sides", nargs="+", type=int, default=[224, 518, 98])
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(options.dinov2))
    warnings.filterwarnings("ignore", message="xFormers is not available")
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        for name in options.models:
            for case, value in _compare(name, options.sides, Path(folder)):
                found[case] = value
                print(f"{case}: {value:.1e}", file=sys.stderr)
    if options.json:
        print(json.dumps(found))
    return int(not max(found.values()) <= options.tolerance)


def _compare(name: str, sides: list[int], folder: Path) -> Iterator[tuple[str, float]]:
    torch.manual_seed(0)
    theirs = _upstream(name)
    official, timms = folder / f"{name}_pretrain.pth", folder / "model.safetensors"
    torch.save(theirs.state_dict(), official)
    save_file(_load(name, official, 518, "cls").model.state_dict(), timms)
    picture = _picture()
    for side in sides:
        for layout, file in (("upstream's layout", official), ("timm's layout", timms)):
            for pooling in ("cls", "patches"):
                ours = _load(name, file, side, pooling)
                pixels = ours.read("picture", picture)
                (feature,) = ours.encode([pixels])
                with torch.inference_mode():
                    tokens = theirs.forward_features(ours.preprocessing.normalise(pixels[None]))
                expected = (
                    tokens["x_norm_clstoken"][0]
                    if pooling == "cls"
                    else tokens["x_norm_patchtokens"][0].mean(dim=0)
                )
                assert isinstance(feature, Tensor)
                yield f"{name}, {side} px, {layout}, {pooling}", _difference(feature, expected)


def _upstream(name: str) -> Any:
    from dinov2.hub import backbones

    model = getattr(backbones, name)(pretrained=False).eval()
    with torch.no_grad():  # away from their start, where a mistake would not show
        for parameter in model.parameters():
            if parameter.ndim != 2:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def _load(name: str, file: Path, side: int, pooling: str) -> Encoder:
    config = EmbedConfig(encoder=name, weights=str(file), image_size=side, pooling=pooling)
    return find_encoder(config).load()


def _picture() -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).resize((800, 600), Image.Resampling.BICUBIC).save(stream, format="PNG")
    return stream.getvalue()


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


if __name__ == "__main__":
    sys.exit(main())
