"""DINOv2 (Oquab et al., 2023) in timm, with upstream's numbers.

timm has the architecture and reads upstream's files. What it does differently is to resize position
embeddings, which are stored for 518 px: done here by upstream's rule, before timm sees them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from haystack.errors import InputError

ENCODERS = {
    f"dinov2_vit{short}14{suffix}": f"vit_{size}_patch14{registers}_dinov2.lvd142m"
    for short, size in (("s", "small"), ("b", "base"), ("l", "large"), ("g", "giant"))
    for suffix, registers in (("", ""), ("_reg", "_reg4"))
}
"""Upstream's names of the models -> timm's."""

_WIDTHS = {384: "s", 768: "b", 1024: "l", 1536: "g"}
_STORED_GRID = 37


def held_model(state: Mapping[str, Tensor]) -> str | None:
    """Upstream's name of the DINOv2 that a state dict holds, in upstream's or timm's layout."""
    patches, positions, token = (
        state.get(name) for name in ("patch_embed.proj.weight", "pos_embed", "cls_token")
    )
    if patches is None or positions is None or token is None or "blocks.0.ls1.gamma" not in state:
        return None
    fits = patches.shape[-1] == 14 and positions.ndim == 3
    if not fits or positions.shape[1] not in (_STORED_GRID**2, _STORED_GRID**2 + 1):
        return None
    registers = "register_tokens" in state or "reg_token" in state
    size = _WIDTHS.get(int(token.shape[-1]))
    return None if size is None else f"dinov2_vit{size}14{'_reg' if registers else ''}"


def check_model(name: str, state: Mapping[str, Tensor], path: Path) -> None:
    """Raise ``InputError`` where the file holds another DINOv2 than the encoder asked for."""
    held = held_model(state)
    if held is not None and ENCODERS[held].partition(".")[0] != name.partition(".")[0]:
        raise InputError(
            f"this file holds {held}, not the weights of '{name}'; give embed.encoder={held}",
            path=path,
        )


def resized(state: dict[str, Tensor], side: int, name: str) -> dict[str, Tensor]:
    """A DINOv2's state dict for inputs of another size.

    Args:
        state: in upstream's or timm's layout.
        side: of the square input, in pixels.
        name: of the encoder, for the error.

    Raises:
        InputError: ``side`` is no multiple of the patch.
    """
    if not {"patch_embed.proj.weight", "pos_embed"} <= state.keys():
        return state  # the strict loading will refuse it
    patch = int(state["patch_embed.proj.weight"].shape[-1])
    if side % patch:
        near = round(side / patch) * patch
        raise InputError(
            f"embed.image_size must be a multiple of {patch} for '{name}', got {side}; "
            f"nearest: {near}"
        )
    registers = "register_tokens" in state or "reg_token" in state
    table = resize_position_embedding(state["pos_embed"], side // patch, registers=registers)
    return {**state, "pos_embed": table}


def resize_position_embedding(embedding: Tensor, grid: int, *, registers: bool = False) -> Tensor:
    """Upstream's rule for other sizes than the stored one; bicubic.

    Without registers: no antialiasing, scale factor (grid + 0.1) / 37; upstream keeps the 0.1
    against rounding, and features differ visibly without it (cosine 0.9992 at 224 px). With
    registers: antialiased, to the very size.

    Args:
        embedding: float [1, 1 + G * G, D], class token first, or [1, G * G, D] without one.
        grid: wanted patches a side.
        registers: whether the model has register tokens.

    Returns:
        float [1, (1 +) grid * grid, D].
    """
    count, dimension = embedding.shape[1:]
    stored = math.isqrt(count)
    if stored == grid:
        return embedding
    token, patches = embedding[:, : count - stored**2], embedding[:, count - stored**2 :]
    patches = patches.float().reshape(1, stored, stored, dimension).permute(0, 3, 1, 2)
    if registers:
        patches = F.interpolate(patches, size=(grid, grid), mode="bicubic", antialias=True)
    else:
        scale = (grid + 0.1) / stored
        patches = F.interpolate(patches, scale_factor=(scale, scale), mode="bicubic")
    patches = patches.permute(0, 2, 3, 1).reshape(1, grid * grid, dimension)
    return torch.cat([token, patches.to(embedding.dtype)], dim=1)
