"""MaskDINO's official panoptic models (Li et al., 2023), as their release holds them.

The files hold a state dict under ``model``, with detectron2's names for a ResNet and the authors'
for everything else. Every name must be there, with its shape, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.models.checkpoints.state_dicts import differences, read_state_dict, shapes
from haystack.models.maskdino.config import HIDDEN, MaskDINOConfig
from haystack.models.maskdino.network import MaskDINO
from haystack.models.maskdino.swin import relative_positions

_HEAD = "sem_seg_head."
_PREDICTOR = f"{_HEAD}predictor."
_MARKS = {"resnet50": "backbone.stem.", "swin_large": "backbone.patch_embed."}
_FIXED = ".attn.relative_position_index"

# Beginnings of our names and of theirs; the first that fits counts.
_PREFIXES = (
    ("pixel_decoder.layers.", f"{_HEAD}pixel_decoder.transformer.encoder.layers."),
    ("pixel_decoder.level_embed", f"{_HEAD}pixel_decoder.transformer.level_embed"),
    ("pixel_decoder.", f"{_HEAD}pixel_decoder."),
    ("query_decoder.layers.", f"{_PREDICTOR}decoder.layers."),
    ("query_decoder.ref_point_head.", f"{_PREDICTOR}decoder.ref_point_head."),
    ("query_decoder.box_embed.", f"{_PREDICTOR}_bbox_embed."),
    ("query_decoder.", _PREDICTOR),
)


def load_maskdino(path: str | Path, config: MaskDINOConfig | None = None) -> MaskDINO:
    """Read an official checkpoint.

    Args:
        path: a ``.pth`` or safetensors file, see ``read_state_dict``; nothing in it is executed.
        config: what the model looks like; by default the panoptic one for COCO whose backbone the
            file has. Number of queries and box initialisation leave no trace in a file.

    Raises:
        InputError: see ``read_state_dict`` and ``from_state_dict``.
    """
    return from_state_dict(read_state_dict(path), config, path=path)


def from_state_dict(
    tensors: Mapping[str, Tensor],
    config: MaskDINOConfig | None = None,
    *,
    path: str | Path | None = None,
) -> MaskDINO:
    """A model that holds these very tensors (not copies, where they are float32 already).

    Args:
        tensors: MaskDINO's state dict.
        config: see ``load_maskdino``.
        path: named in errors.

    Raises:
        InputError: not exactly the tensors of this model: names every one that is missing,
            unexpected or misshapen; or two names of one tensor hold different numbers.
    """
    config = config or MaskDINOConfig(backbone=_backbone_of(tensors, path))
    with torch.device("meta"):
        network = MaskDINO(config)
    expected = {**shapes(to_official(network)), **_unused(config)}
    complaints = differences(expected, tensors)
    if complaints:
        raise InputError(
            f"not the tensors of a MaskDINO on {config.backbone} with {config.classes} classes: "
            f"{'; '.join(complaints)}",
            path=path,
        )
    _check_copies(tensors, _aliases(expected, config.decoder_layers), path)
    weights = {
        name: tensors[_foreign(name)].to(empty.dtype)
        for name, empty in network.state_dict().items()
    }
    network.load_state_dict(weights, assign=True)
    return network.eval().requires_grad_(False)


def to_official(network: MaskDINO) -> dict[str, Tensor]:
    """A network's tensors under the names of official files, without what only training uses."""
    weights = {_foreign(name): tensor for name, tensor in network.state_dict().items()}
    aliases = _aliases(weights, network.config.decoder_layers)
    return {**weights, **{alias: weights[name] for alias, name in aliases.items()}}


def _backbone_of(tensors: Mapping[str, Tensor], path: str | Path | None) -> str:
    for backbone, mark in _MARKS.items():
        if any(name.startswith(mark) for name in tensors):
            return backbone
    raise InputError(
        "expected a MaskDINO on ResNet-50 or Swin-L, got no tensor under "
        f"{' or '.join(_MARKS.values())}",
        path=path,
    )


def _foreign(name: str) -> str:
    """A tensor's name in the files, from its name in a ``MaskDINO``."""
    for beginning, theirs in _PREFIXES:
        if name.startswith(beginning):
            return theirs + name.removeprefix(beginning)
    # detectron2 names a ResNet's parts by what they do; Swin's names are the same on both sides.
    name = re.sub(r"^backbone\.(conv1|bn1)\.", r"backbone.stem.\1.", name)
    name = re.sub(r"\.layer(\d)\.", lambda match: f".res{int(match[1]) + 1}.", name)
    name = re.sub(r"\.bn(\d)\.", r".conv\1.norm.", name)
    return name.replace(".downsample.0.", ".shortcut.").replace(".downsample.1.", ".shortcut.norm.")


def _aliases(expected: Mapping[str, object], layers: int) -> dict[str, str]:
    """Other names under which files hold a tensor again: alias -> name.

    Quirk: one box head is registered once by itself and once a layer in two lists, and the
    decoder's norm twice.
    """
    aliases = {}
    for name in expected:
        if name.startswith(f"{_PREDICTOR}_bbox_embed."):
            rest = name.removeprefix(f"{_PREDICTOR}_bbox_embed.")
            for owner in ("", "decoder."):
                for layer in range(layers):
                    aliases[f"{_PREDICTOR}{owner}bbox_embed.{layer}.{rest}"] = name
        elif name.startswith(f"{_PREDICTOR}decoder_norm."):
            aliases[name.replace("decoder_norm.", "decoder.norm.")] = name
    return aliases


def _unused(config: MaskDINOConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what only training uses: labels to denoise, the weights of a loss."""
    return {
        f"{_PREDICTOR}label_enc.weight": (config.classes, HIDDEN),
        "criterion.empty_weight": (config.classes + 1,),
    }


def _check_copies(
    tensors: Mapping[str, Tensor], aliases: Mapping[str, str], path: str | Path | None
) -> None:
    wrong = [
        f"{alias} differs from {name}"
        for alias, name in aliases.items()
        if not torch.equal(tensors[alias], tensors[name])
    ]
    positions = relative_positions()
    wrong += [
        f"{name} is not the table of positions in a window"
        for name, tensor in tensors.items()
        if name.endswith(_FIXED) and not torch.equal(tensor, positions)
    ]
    if wrong:
        raise InputError(
            f"the checkpoint contradicts itself: {'; '.join(wrong)}; get the file again", path=path
        )
