"""Swin Transformer (Liu et al., ICCV 2021) as a backbone; names of parameters are upstream's."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SIDE = 12  # of a window, in tokens
_SHIFT = _SIDE // 2
_PATCH = 4


class Swin(nn.Module):
    """Swin-L with windows of 12 x 12 tokens and a layer norm for each output."""

    channels: ClassVar[tuple[int, ...]] = (192, 384, 768, 1536)
    depths: ClassVar[tuple[int, ...]] = (2, 2, 18, 2)
    heads: ClassVar[tuple[int, ...]] = (6, 12, 24, 48)

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = _PatchEmbedding(self.channels[0])
        self.layers = nn.ModuleList(
            _Stage(width, depth, heads, is_last=width == self.channels[-1])
            for width, depth, heads in zip(self.channels, self.depths, self.heads, strict=True)
        )
        for number, width in enumerate(self.channels):
            self.add_module(f"norm{number}", nn.LayerNorm(width))

    def forward(self, pictures: Tensor) -> list[Tensor]:
        """Maps at strides 4, 8, 16 and 32 of pictures [B, 3, H, W], sides multiples of 32."""
        tokens = self.patch_embed(pictures)
        stages = []
        for number, stage in enumerate(self.layers):
            tokens, after = stage(tokens)
            norm = getattr(self, f"norm{number}")
            stages.append(norm(tokens).permute(0, 3, 1, 2))
            tokens = after
        return stages


class _PatchEmbedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, _PATCH, _PATCH)
        self.norm = nn.LayerNorm(width)

    def forward(self, pictures: Tensor) -> Tensor:
        """Tokens [B, H / 4, W / 4, C]."""
        return self.norm(self.proj(pictures).permute(0, 2, 3, 1))


class _Stage(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, *, is_last: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            _Block(width, heads, _SHIFT if number % 2 else 0) for number in range(depth)
        )
        self.downsample = None if is_last else _PatchMerging(width)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The stage's tokens [B, H, W, C], and what the next one starts from."""
        regions = _region_mask(tokens.shape[1], tokens.shape[2], tokens.device)
        for block in self.blocks:
            tokens = block(tokens, regions)
        return tokens, tokens if self.downsample is None else self.downsample(tokens)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.norm1 = nn.LayerNorm(width)
        self.attn = _WindowAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = _FeedForward(width)

    def forward(self, tokens: Tensor, regions: Tensor) -> Tensor:
        _, height, width, _ = tokens.shape
        shift = self.shift
        # Quirk: the map is filled up to whole windows with zeros, and these take part in the
        # attention like any token (only a shifted window keeps them apart, by its regions).
        seen = F.pad(self.norm1(tokens), (0, 0, 0, -width % _SIDE, 0, -height % _SIDE))
        if shift:
            seen = seen.roll((-shift, -shift), (1, 2))
        seen = self.attn(seen, regions if shift else None)
        if shift:
            seen = seen.roll((shift, shift), (1, 2))
        tokens = tokens + seen[:, :height, :width]
        return tokens + self.mlp(self.norm2(tokens))


class _WindowAttention(nn.Module):
    relative_position_index: Tensor

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * _SIDE - 1) ** 2, heads))
        self.register_buffer("relative_position_index", relative_positions())
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor, regions: Tensor | None) -> Tensor:
        """Attention inside windows.

        Args:
            tokens: [B, H, W, C], sides multiples of 12.
            regions: [windows, 144, 144], added to the logits, or None.
        """
        batch, height, width, channels = tokens.shape
        rows, columns, area = height // _SIDE, width // _SIDE, _SIDE**2
        windows = tokens.view(batch, rows, _SIDE, columns, _SIDE, channels)
        windows = windows.transpose(2, 3).reshape(-1, area, channels)
        query, key, value = (
            self.qkv(windows)
            .view(-1, area, 3, self.heads, channels // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind()
        )
        mask = self._biases()[None]
        if regions is not None:
            mask = (mask + regions[:, None]).repeat(batch, 1, 1, 1)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask.to(query.dtype))
        seen = self.proj(seen.transpose(1, 2).reshape(-1, area, channels))
        seen = seen.view(batch, rows, columns, _SIDE, _SIDE, channels).transpose(2, 3)
        return seen.reshape(batch, height, width, channels)

    def _biases(self) -> Tensor:
        """What each head adds to the logits of two tokens of a window: [heads, 144, 144]."""
        biases = self.relative_position_bias_table[self.relative_position_index]
        return biases.permute(2, 0, 1)


class _FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(tokens)))


class _PatchMerging(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(4 * width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Four neighbours become one token: [B, H, W, C] to [B, H / 2, W / 2, 2 C]."""
        # The order of the four is down before right.
        parts = [tokens[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.norm(torch.cat(parts, -1)))


def relative_positions() -> Tensor:
    """Which row of the table of biases belongs to two tokens of a window: int64 [144, 144]."""
    place = torch.arange(_SIDE)
    apart = place[:, None] - place + _SIDE - 1  # [12, 12]
    both = apart[:, None, :, None] * (2 * _SIDE - 1) + apart[None, :, None, :]
    return both.reshape(_SIDE**2, _SIDE**2)


def _region_mask(height: int, width: int, device: torch.device) -> Tensor:
    """What keeps apart tokens that a shift brought into one window: [windows, 144, 144].

    Quirk: -100 instead of minus infinity, so that logits further apart would leak.
    """
    regions = []
    for side in (height, width):
        full = side + -side % _SIDE
        place = torch.arange(full, device=device)
        bands = (place >= full - _SIDE).int() + (place >= full - _SHIFT).int()
        regions.append(bands.view(-1, _SIDE))
    rows, columns = regions
    both = 3 * rows[:, None, :, None] + columns[None, :, None, :]
    both = both.reshape(-1, _SIDE**2)
    return (both[:, :, None] != both[:, None, :]) * -100.0
