"""The encoder whose weights come inside a package: EfficientNet-Lite0 (ImageNet), Apache-2.0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

SMALL_ENCODER = "efficientnet-lite0"
"""Its name as ``embed.encoder``; features have 1280 numbers."""

PREPROCESSING = {
    "input_size": (3, 224, 224),
    "mean": (127 / 255,) * 3,
    "std": (128 / 255,) * 3,
    "crop_pct": 0.875,
    "interpolation": "bicubic",
}

_ARCHITECTURE = "tf_efficientnet_lite0"


def build_small(state: dict[str, Tensor]) -> Any:
    """Build the model in timm and fill it with the package's weights.

    Raises:
        RuntimeError, KeyError, IndexError: not exactly its tensors.
    """
    import timm

    model: Any = timm.create_model(_ARCHITECTURE, pretrained=False)
    blocks = [
        f"blocks.{stage}.{number}"
        for stage, blocks in enumerate(model.blocks)
        for number in range(len(blocks))
    ]
    renamed = {_renamed(key, blocks): value for key, value in state.items()}
    model.load_state_dict(renamed, strict=True)
    return model


_TOP_NAMES = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_FIRST_BLOCK_NAMES = {  # block 0 does not expand
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}
_BLOCK_NAMES = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def _renamed(key: str, blocks: Sequence[str]) -> str:
    """The package's key -> timm's key; the package counts blocks through all stages."""
    parts = key.split(".")
    if parts[0] != "_blocks":
        return ".".join([_TOP_NAMES[parts[0]], *parts[1:]])
    number = int(parts[1])
    names = _BLOCK_NAMES if number else _FIRST_BLOCK_NAMES
    return ".".join([blocks[number], names[parts[2]], *parts[3:]])
