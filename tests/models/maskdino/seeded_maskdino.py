"""Key lists of the official models, and weights for them made from the keys' names."""

from __future__ import annotations

import ast
import gzip
import hashlib
import math
import re
from pathlib import Path

import numpy as np
import torch

from haystack.models.maskdino.config import MaskDINOConfig

DATA = Path(__file__).parents[2] / "data" / "maskdino"
THIN = MaskDINOConfig(queries=20, encoder_layers=1, decoder_layers=2, feedforward=64)
_PREDICTOR = "sem_seg_head.predictor."


def official_shapes(backbone: str) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Names, shapes and dtypes of an official checkpoint."""
    shapes = {}
    for line in (
        gzip.decompress((DATA / f"{backbone}_keys.txt.gz").read_bytes()).decode().split("\n")
    ):
        if line:
            name, shape, dtype = line.split("\t")
            kind = {"torch.float32": torch.float32, "torch.int64": torch.int64}[dtype]
            shapes[name] = (ast.literal_eval(shape), kind)
    return shapes


def thin_shapes() -> dict[str, tuple[int, ...]]:
    """Those of the ResNet-50 model with THIN's layers and widths."""
    shapes = {}
    for name, (shape, _) in official_shapes("resnet50").items():
        encoder = re.search(r"encoder\.layers\.(\d)\.", name)
        decoder = re.search(r"(?:decoder\.layers|bbox_embed)\.(\d)\.", name)
        if (encoder and int(encoder[1]) >= 1) or (decoder and int(decoder[1]) >= 2):
            continue
        if ".linear1." in name or ".linear2." in name:
            shape = tuple(64 if side == 2048 else side for side in shape)
        shapes[name] = shape
    return shapes


def seeded(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The weights by which the expected outputs were made."""
    seed_name = re.sub(
        rf"^({re.escape(_PREDICTOR)})(decoder\.)?bbox_embed\.\d\.", r"\1_bbox_embed.", name
    ).replace(f"{_PREDICTOR}decoder.norm.", f"{_PREDICTOR}decoder_norm.")
    digest = hashlib.sha256(f"haystack{seed_name}".encode()).digest()
    state = np.random.RandomState(int.from_bytes(digest[:4], "little"))
    values = np.asarray(state.standard_normal(shape), dtype=np.float32)
    if name.endswith("running_var"):
        values = 1 + 0.1 * np.abs(values)
    elif name.endswith("running_mean"):
        values = 0.1 * values
    elif (
        len(shape) == 1
        and name.endswith("weight")
        and ("norm" in name or name.endswith(".1.weight"))
    ):
        values = 1 + 0.1 * values
    elif len(shape) >= 2:
        values = values / math.sqrt(math.prod(shape[1:]))
    else:
        values = 0.1 * values
    return torch.from_numpy(values.astype(np.float32))


def thin_state() -> dict[str, torch.Tensor]:
    return {name: seeded(name, shape) for name, shape in thin_shapes().items()}
