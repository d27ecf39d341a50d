"""Multi-scale deformable attention (Zhu et al., ICLR 2021, equation 3).

Each query looks at a few places of each map, which it chooses itself, instead of at all pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import accumulate
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.models.maskdino.config import HEADS, HIDDEN, POINTS

_OPERATOR = "MultiScaleDeformableAttention"
_CHUNK = 2048  # queries at a time on the CPU: their 2 million corners fit in the caches


class DeformableAttention(nn.Module):
    """The attention with its four linear maps; names of parameters are upstream's.

    Args:
        levels: number of maps.
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels
        self.sampling_offsets = nn.Linear(HIDDEN, HEADS * levels * POINTS * 2)
        self.attention_weights = nn.Linear(HIDDEN, HEADS * levels * POINTS)
        self.value_proj = nn.Linear(HIDDEN, HIDDEN)
        self.output_proj = nn.Linear(HIDDEN, HIDDEN)

    def forward(
        self,
        queries: Tensor,
        references: Tensor,
        tokens: Tensor,
        sizes: Sequence[tuple[int, int]],
    ) -> Tensor:
        """What the queries see.

        Args:
            queries: float [B, Q, 256].
            references: points [B or 1, Q, 2] (x, y) or boxes [B or 1, Q, 4] (centre x, centre y,
                width, height), as shares of the picture. Offsets count in pixels from a point, in
                quarters of half the sides from a box's centre.
            tokens: float [B, S, 256], the maps' pixels one level after the other.
            sizes: height and width of each map.

        Returns:
            float [B, Q, 256].
        """
        batch, count, _ = queries.shape
        values = self.value_proj(tokens).view(batch, -1, HEADS, HIDDEN // HEADS)
        offsets = self.sampling_offsets(queries)
        offsets = offsets.view(batch, count, HEADS, self.levels, POINTS, 2)
        weights = self.attention_weights(queries).view(batch, count, HEADS, -1).softmax(-1)
        weights = weights.view(batch, count, HEADS, self.levels, POINTS)
        centres = references[:, :, None, None, None, :2]
        if references.shape[-1] == 2:
            extents = offsets.new_tensor([(width, height) for height, width in sizes])
            places = centres + offsets / extents[:, None]
        else:
            places = centres + offsets / POINTS * references[:, :, None, None, None, 2:] * 0.5
        return self.output_proj(sample(values, sizes, places, weights))


def sample(
    values: Tensor, sizes: Sequence[tuple[int, int]], places: Tensor, weights: Tensor
) -> Tensor:
    """Weighted sums of maps at fractional places: bilinear, zero outside.

    Three ways to the same numbers: upstream's CUDA operator where it is importable and no gradient
    is wanted, ``grid_sample`` on other devices, and on the CPU sums of table rows, which take a
    third of ``grid_sample``'s time.

    Args:
        values: float [B, S, M, D], pixels of all maps for M heads.
        sizes: height and width of each of L maps; their products add up to S.
        places: [B, Q, M, L, P, 2], x and y; a map's edges are at 0 and 1.
        weights: [B, Q, M, L, P].

    Returns:
        float [B, Q, M * D].
    """
    if values.is_cuda and not torch.compiler.is_compiling():
        operator = cuda_operator()
        wanted = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in (values, places, weights)
        )
        if operator is not None and not wanted:
            return sample_by_operator(operator, values, sizes, places, weights)
    if values.device.type == "cpu":
        return sample_by_rows(values, sizes, places, weights)
    return sample_by_grid(values, sizes, places, weights)


@cache
def cuda_operator() -> Any | None:
    """Upstream's compiled module, or None where it is not installed or does not load."""
    try:
        return import_module(_OPERATOR)
    except (ImportError, OSError):  # OSError: built for another PyTorch
        return None


def sample_by_operator(
    operator: Any, values: Tensor, sizes: Sequence[tuple[int, int]], places: Tensor, weights: Tensor
) -> Tensor:
    """See ``sample``; by ``ms_deform_attn_forward`` of upstream's module."""
    levels = torch.tensor(sizes, dtype=torch.int64, device=values.device)
    starts = torch.tensor(_starts(sizes), dtype=torch.int64, device=values.device)
    # The last number is how many images go together; it must divide their number.
    return operator.ms_deform_attn_forward(
        values.contiguous(), levels, starts, places.contiguous(), weights.contiguous(), len(values)
    )


def sample_by_grid(
    values: Tensor, sizes: Sequence[tuple[int, int]], places: Tensor, weights: Tensor
) -> Tensor:
    """See ``sample``; one ``grid_sample`` a map."""
    batch, _, heads, channels = values.shape
    count = places.shape[1]
    grids = (2 * places - 1).permute(3, 0, 2, 1, 4, 5).flatten(1, 2)  # [L, B * M, Q, P, 2]
    shares = weights.permute(3, 0, 2, 1, 4).flatten(1, 2)  # [L, B * M, Q, P]
    total = values.new_zeros(batch * heads, channels, count)
    levels = values.split([prod(size) for size in sizes], dim=1)
    for level, (height, width) in enumerate(sizes):
        maps = levels[level].permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        seen = F.grid_sample(maps, grids[level], align_corners=False)  # [B * M, D, Q, P]
        total = total + (seen * shares[level][:, None]).sum(-1)
    return total.view(batch, heads * channels, count).transpose(1, 2)


def sample_by_rows(
    values: Tensor, sizes: Sequence[tuple[int, int]], places: Tensor, weights: Tensor
) -> Tensor:
    """See ``sample``; a bag of 4 L P weighted rows of a table for each query and head.

    A pixel's channels lie together in ``values``, so that a corner is one row; ``grid_sample``
    reads channel by channel and keeps every place's value before they are summed.
    """
    batch, _, heads, channels = values.shape
    # Maps with zeros around them: no place needs to be asked whether it is outside. One column
    # between two rows is the end of one and the beginning of the next.
    levels = values.split([prod(size) for size in sizes], dim=1)
    table = torch.cat(
        [
            F.pad(level.unflatten(1, size), (0, 0, 0, 0, 1, 0, 1, 3)).flatten(1, 2)
            for level, size in zip(levels, sizes, strict=True)
        ],
        dim=1,
    )
    framed = [(height + 4, width + 1) for height, width in sizes]
    kind = torch.int32 if table.numel() < 2**31 else torch.int64
    extents = places.new_tensor([(width, height) for height, width in sizes])[:, None]
    strides = torch.tensor([width for _, width in framed], dtype=kind)[:, None]
    # Of pixel (0, 0) of each image's maps: [B, 1, 1, L, 1].
    origins = torch.tensor(_starts(framed), dtype=kind)[:, None] + strides + 1
    images = torch.arange(batch, dtype=kind)[:, None, None, None, None] * table.shape[1]
    origins = (origins + images) * heads
    origins = origins + torch.arange(heads, dtype=kind)[:, None, None]
    right = torch.full_like(strides, heads)
    below = strides * heads
    corners = torch.stack([0 * right, right, below, below + right], -1)  # [L, 1, 4]
    rows = table.reshape(-1, channels)

    def seen(some: Tensor, shares: Tensor) -> Tensor:
        # One pixel beyond the edge is as good as any further.
        pixels = torch.maximum(some * extents - 0.5, extents.new_tensor(-1)).minimum(extents)
        first = pixels.floor()
        column, row = first.to(kind).unbind(-1)
        indices = (row * below + column * heads + origins)[..., None] + corners
        x, y = (pixels - first).unbind(-1)
        lower = y * shares
        upper = shares - lower
        lower_right, upper_right = lower * x, upper * x
        parts = (upper - upper_right, upper_right, lower - lower_right, lower_right)
        count = some.shape[1]
        bags = F.embedding_bag(
            indices.view(batch * count * heads, -1),
            rows,
            per_sample_weights=torch.stack(parts, -1).view(batch * count * heads, -1),
            mode="sum",
        )
        return bags.view(batch, count, heads * channels)

    chunks = zip(places.split(_CHUNK, 1), weights.split(_CHUNK, 1), strict=True)
    return torch.cat([seen(*chunk) for chunk in chunks], dim=1)


def _starts(sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Where each map's pixels begin."""
    return list(accumulate((prod(size) for size in sizes[:-1]), initial=0))
