from __future__ import annotations

import math

import pytest
import torch

from haystack.models.maskdino import deformable_attention
from haystack.models.maskdino.deformable_attention import (
    DeformableAttention,
    cuda_operator,
    sample,
    sample_by_grid,
    sample_by_operator,
    sample_by_rows,
)

SIZES = [(3, 5), (2, 2), (1, 4)]
WAYS = [sample_by_rows, sample_by_grid]


def inputs(*, batch=2, queries=4, heads=2, channels=3, points=2, reach=0.4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    length = sum(height * width for height, width in SIZES)
    values = drawn(batch, length, heads, channels)
    # Around the middle, and well outside.
    places = 0.5 + reach * drawn(batch, queries, heads, len(SIZES), points, 2)
    return values, places, drawn(batch, queries, heads, len(SIZES), points)


def one_by_one(values, sizes, places, weights):
    """Equation 3 of the paper, a sample at a time."""
    batch, queries, heads, levels, points, _ = places.shape
    total = torch.zeros(batch, queries, heads, values.shape[-1], dtype=values.dtype)
    starts = [sum(h * w for h, w in sizes[:level]) for level in range(levels)]
    for b, q, m, level, p in torch.cartesian_prod(
        *(torch.arange(side) for side in (batch, queries, heads, levels, points))
    ).tolist():
        height, width = sizes[level]
        x, y = places[b, q, m, level, p].tolist()
        x, y = x * width - 0.5, y * height - 0.5
        for row in (math.floor(y), math.floor(y) + 1):
            for column in (math.floor(x), math.floor(x) + 1):
                if 0 <= row < height and 0 <= column < width:
                    share = (1 - abs(y - row)) * (1 - abs(x - column))
                    pixel = values[b, starts[level] + row * width + column, m]
                    total[b, q, m] += weights[b, q, m, level, p] * share * pixel
    return total.flatten(2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reach", [0.4, 3.0])
def test_a_loop_over_samples_gives_the_same(way, reach):
    values, places, weights = inputs(reach=reach)
    expected = one_by_one(values, SIZES, places, weights)
    torch.testing.assert_close(way(values, SIZES, places, weights), expected)


@pytest.mark.parametrize("way", WAYS)
def test_corners_and_edges(way):
    """Pixel centres, the maps' edges, one pixel outside, and far outside."""
    values, _, _ = inputs(batch=1)
    sides = torch.tensor([-40.0, -0.5, -0.1, 0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 1.5, 40.0]).double()
    grid = torch.cartesian_prod(sides, sides)
    places = grid[None, :, None, None, None].expand(1, -1, 2, 3, 1, 2)
    weights = torch.ones(1, len(grid), 2, 3, 1, dtype=torch.float64)
    expected = one_by_one(values, SIZES, places, weights)
    torch.testing.assert_close(way(values, SIZES, places, weights), expected)


@pytest.mark.parametrize("way", WAYS)
def test_gradients(way):
    values, places, weights = (tensor.requires_grad_() for tensor in inputs(queries=2))
    assert torch.autograd.gradcheck(
        lambda *tensors: way(tensors[0], SIZES, tensors[1], tensors[2]),
        (values, places, weights),
    )


def test_queries_in_chunks_give_the_same(monkeypatch):
    values, places, weights = inputs(queries=7)
    whole = sample_by_rows(values, SIZES, places, weights)
    monkeypatch.setattr(deformable_attention, "_CHUNK", 3)
    assert torch.equal(sample_by_rows(values, SIZES, places, weights), whole)


def test_the_cpu_takes_rows_of_a_table(monkeypatch):
    tensors = inputs()
    monkeypatch.setattr(deformable_attention, "sample_by_grid", None)
    assert sample(tensors[0], SIZES, *tensors[1:]).shape == (2, 4, 6)


def test_what_the_compiled_operator_is_handed():
    """Its interface is upstream's: sizes, starts, and a step that divides the batch."""
    values, places, weights = inputs()

    class Operator:
        @staticmethod
        def ms_deform_attn_forward(values, sizes, starts, places, weights, step):
            assert (sizes.dtype, sizes.tolist()) == (torch.int64, [list(size) for size in SIZES])
            assert starts.tolist() == [0, 15, 19]
            assert len(values) % step == 0
            assert places.is_contiguous()
            return sample_by_grid(values, sizes.tolist(), places, weights)

    found = sample_by_operator(Operator, values, SIZES, places, weights)
    torch.testing.assert_close(found, sample_by_rows(values, SIZES, places, weights))


def test_an_operator_that_does_not_load_is_none(monkeypatch, tmp_path):
    def missing(name):
        raise OSError(f"{name}: undefined symbol")

    monkeypatch.setattr(deformable_attention, "import_module", missing)
    cuda_operator.cache_clear()
    try:
        assert cuda_operator() is None
    finally:
        cuda_operator.cache_clear()


@pytest.mark.parametrize("width", [2, 4])
def test_the_module_turns_offsets_into_places(width):
    """Offsets are pixels from a point, and quarters of half a box's sides from its centre."""
    torch.manual_seed(0)
    attention = DeformableAttention(2).double()
    sizes = [(4, 6), (2, 3)]
    tokens = torch.randn(1, 30, 256, dtype=torch.float64)
    queries = torch.randn(1, 5, 256, dtype=torch.float64)
    references = torch.rand(1, 5, width, dtype=torch.float64)
    offsets = attention.sampling_offsets(queries).view(5, 8, 2, 4, 2)
    places = torch.empty(1, 5, 8, 2, 4, 2, dtype=torch.float64)
    for query, head, level, point in torch.cartesian_prod(
        torch.arange(5), torch.arange(8), torch.arange(2), torch.arange(4)
    ).tolist():
        height, across = sizes[level]
        for axis, side in enumerate((across, height)):
            offset = offsets[query, head, level, point, axis]
            extent = 1 / side if width == 2 else references[0, query, 2 + axis] / 8
            step = offset * extent
            places[0, query, head, level, point, axis] = references[0, query, axis] + step
    weights = attention.attention_weights(queries).view(1, 5, 8, 8).softmax(-1)
    values = attention.value_proj(tokens).view(1, 30, 8, 32)
    expected = sample_by_grid(values, sizes, places, weights.view(1, 5, 8, 2, 4))
    found = attention(queries, references, tokens, sizes)
    torch.testing.assert_close(found, attention.output_proj(expected))
