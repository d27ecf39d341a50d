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
    chunks = [
        _bags(values, sizes, some, shares)
        for some, shares in zip(places.split(_CHUNK, 1), weights.split(_CHUNK, 1), strict=True)
    ]
    return torch.cat(chunks, dim=1)


def _bags(
    values: Tensor, sizes: Sequence[tuple[int, int]], places: Tensor, weights: Tensor
) -> Tensor:
    batch, length, heads, channels = values.shape
    count = places.shape[1]
    integer = {"dtype": torch.int64 if values.numel() >= 2**31 else torch.int32}
    heights, widths = torch.tensor(sizes, **integer).t()[:, :, None, None]  # [L, 1, 1]
    starts = torch.tensor(_starts(sizes), **integer)[:, None]

    pixels = places * torch.stack([widths, heights], -1)[:, 0] - 0.5
    first = pixels.floor()
    share = pixels - first
    both = first.to(integer["dtype"])[..., None, :] + torch.tensor([[0], [1]], **integer)
    shares = torch.stack([1 - share, share], -2)  # [B, Q, M, L, P, 2, 2]: neighbour, axis
    columns, rows = both.unbind(-1)
    of_columns, of_rows = shares.unbind(-1)
    of_columns = of_columns * ((columns >= 0) & (columns < widths))
    of_rows = of_rows * ((rows >= 0) & (rows < heights)) * weights[..., None]
    columns = columns.clamp_min(0).minimum(widths - 1)
    rows = rows.clamp_min(0).minimum(heights - 1)

    image = torch.arange(batch, **integer)[:, None, None] * length  # [B, 1, 1]
    corner_rows = (rows * widths + (image[..., None, None] + starts)[..., None]) * heads
    corner_rows = corner_rows + torch.arange(heads, **integer)[:, None, None, None]
    indices = corner_rows[..., :, None] + columns[..., None, :] * heads
    corners = of_rows[..., :, None] * of_columns[..., None, :]
    bags = F.embedding_bag(
        indices.reshape(batch * count * heads, -1),
        values.reshape(-1, channels),
        per_sample_weights=corners.reshape(batch * count * heads, -1),
        mode="sum",
    )
    return bags.view(batch, count, heads * channels)


def _starts(sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Where each map's pixels begin."""
    return list(accumulate((prod(size) for size in sizes[:-1]), initial=0))
