"""From a backbone's maps to tokens that know their surroundings, and features for masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.models.maskdino.config import HIDDEN
from haystack.models.maskdino.deformable_attention import DeformableAttention
from haystack.models.maskdino.layers import NormedConv
from haystack.models.maskdino.positions import embed_pixels


class DecodedPixels(NamedTuple):
    """What the query decoder works on.

    Args:
        levels: tokens of each map, finest first: float [B, height * width, 256].
        sizes: height and width of each.
        mask_features: float [B, 256, H / 4, W / 4].
    """

    levels: tuple[Tensor, ...]
    sizes: list[tuple[int, int]]
    mask_features: Tensor


class PixelDecoder(nn.Module):
    """A transformer over all maps, and one step of a feature pyramid.

    Args:
        channels: of the backbone's maps, strides 4 to 32.
        first: number of the first map that the transformer sees; those after it follow, and one
            more at stride 64.
        layers: of the transformer.
        feedforward: inner width of its layers.
    """

    def __init__(self, channels: Sequence[int], first: int, layers: int, feedforward: int) -> None:
        super().__init__()
        self.first = first
        inputs = [nn.Conv2d(width, HIDDEN, 1) for width in channels[first:]]
        inputs.append(nn.Conv2d(channels[-1], HIDDEN, 3, stride=2, padding=1))
        self.input_proj = nn.ModuleList(
            nn.Sequential(conv, nn.GroupNorm(32, HIDDEN)) for conv in inputs
        )
        self.level_embed = nn.Parameter(torch.zeros(len(inputs), HIDDEN))
        self.layers = nn.ModuleList(_Layer(len(inputs), feedforward) for _ in range(layers))
        self.adapter_1 = NormedConv(channels[0], HIDDEN, 1)
        self.layer_1 = NormedConv(HIDDEN, HIDDEN, 3)
        self.mask_features = nn.Conv2d(HIDDEN, HIDDEN, 1)

    def forward(self, maps: Sequence[Tensor]) -> DecodedPixels:
        """Decode the backbone's maps, strides 4 to 32: float32 [B, C, H / stride, W / stride].

        Quirk: the official configurations call the order "low2high", and what enters is the finest
        map first; ``level_embed`` and the weights for levels are in that order. Quirk: the padding
        of pictures is not masked (it is no more than zeros to the network).
        """
        sources = [*maps[self.first :], maps[-1]]  # the last again, for stride 64
        maps_in = [proj(source) for proj, source in zip(self.input_proj, sources, strict=True)]
        sizes = [(tokens.shape[2], tokens.shape[3]) for tokens in maps_in]
        device = maps[0].device
        positions = torch.cat(
            [
                embed_pixels(*size, device) + level
                for size, level in zip(sizes, self.level_embed, strict=True)
            ]
        )
        centres = torch.cat([pixel_centres(*size, device) for size in sizes])[None]
        tokens = torch.cat([one.flatten(2).transpose(1, 2) for one in maps_in], 1)
        for layer in self.layers:
            tokens = layer(tokens, positions, centres, sizes)
        levels = tokens.split([height * width for height, width in sizes], 1)
        finest = levels[0].transpose(1, 2).unflatten(2, sizes[0])
        fine = self.adapter_1(maps[0])
        # Quirk: bilinear, where feature pyramids (and a comment upstream) have nearest.
        fine = fine + F.interpolate(finest, fine.shape[-2:], mode="bilinear", align_corners=False)
        fine = self.layer_1(fine).relu_()
        return DecodedPixels(levels, sizes, self.mask_features(fine))


class _Layer(nn.Module):
    """Attention, then a perceptron; each is normalised after its sum."""

    def __init__(self, levels: int, feedforward: int) -> None:
        super().__init__()
        self.self_attn = DeformableAttention(levels)
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.linear1 = nn.Linear(HIDDEN, feedforward)
        self.linear2 = nn.Linear(feedforward, HIDDEN)
        self.norm2 = nn.LayerNorm(HIDDEN)

    def forward(
        self, tokens: Tensor, positions: Tensor, centres: Tensor, sizes: Sequence[tuple[int, int]]
    ) -> Tensor:
        tokens = self.norm1(tokens + self.self_attn(tokens + positions, centres, tokens, sizes))
        return self.norm2(tokens + self.linear2(self.linear1(tokens).relu_()))


def pixel_centres(height: int, width: int, device: torch.device) -> Tensor:
    """Centres of a map's pixels, row by row, as shares of its sides: float32 [H * W, 2], (x, y)."""
    rows, columns = (
        (torch.arange(side, dtype=torch.float32, device=device) + 0.5) / side
        for side in (height, width)
    )
    size = (height, width)
    return torch.stack([columns[None].expand(size), rows[:, None].expand(size)], -1).flatten(0, 1)
