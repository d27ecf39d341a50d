"""Levels, RoIAlign and the two sources of regions, against loops written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.features.regions import (
    CachedRegions,
    PyramidRegions,
    align_boxes,
    pair_rows,
    pyramid_levels,
    union_boxes,
)
from haystack.models.relation.inputs import SceneInput

STRIDES = (4, 8, 16, 32)


def test_pyramid_levels_follow_the_box_scale():
    sides = torch.tensor([0.0, 54.9, 111.0, 112.0, 223.0, 447.0, 5000.0])
    boxes = torch.stack([torch.zeros(7), torch.zeros(7), sides, sides], dim=1)
    assert pyramid_levels(boxes, 4).tolist() == [0, 0, 1, 1, 2, 3, 3]


def test_pyramid_levels_take_the_area_and_count_one_pixel_more():
    # sqrt(112 * 112) = 112 begins level 1; one pixel less on one side is still level 0.
    boxes = torch.tensor([[5.0, 7, 116, 118], [5, 7, 116, 117], [0, 0, 27, 447], [0, 0, 1332, 8]])
    expected = [
        min(max(math.floor(math.log2(math.sqrt((x2 - x1 + 1) * (y2 - y1 + 1)) / 56 + 1e-6)), 0), 3)
        for x1, y1, x2, y2 in boxes.tolist()
    ]
    assert pyramid_levels(boxes, 4).tolist() == expected == [1, 0, 1, 0]
    assert pyramid_levels(torch.tensor([[0.0, 0, 2000, 2000]]), 3).tolist() == [2]


def make_pyramid(height, width, seed, channels=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn((channels, height // s, width // s), generator=generator) for s in STRIDES]


def sample(maps, y, x):
    """Bilinear value at a place between cells; beyond the border the border's."""
    height, width = maps.shape[1:]
    if y < -1 or y > height or x < -1 or x > width:
        return torch.zeros(len(maps))
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    dy, dx = y - top, x - left
    upper = maps[:, top, left] * (1 - dx) + maps[:, top, right] * dx
    lower = maps[:, bottom, left] * (1 - dx) + maps[:, bottom, right] * dx
    return upper * (1 - dy) + lower * dy


@pytest.mark.parametrize(
    "box", [(3.0, 5, 60, 40), (0, 0, 256, 192), (20, 30, 20, 90), (100, 10, 240, 180)]
)
def test_align_averages_two_by_two_samples_a_cell_on_the_boxs_level(box):
    pyramid = make_pyramid(192, 256, seed=0)
    boxes = torch.tensor([box])
    (region,) = align_boxes(pyramid, boxes, STRIDES)
    level = int(pyramid_levels(boxes, 4))
    x1, y1, x2, y2 = (v / STRIDES[level] - 0.5 for v in box)
    expected = torch.zeros(3, 7, 7)
    for row in range(7):
        for column in range(7):
            for dy in (0.25, 0.75):
                for dx in (0.25, 0.75):
                    y = y1 + (y2 - y1) * (row + dy) / 7
                    x = x1 + (x2 - x1) * (column + dx) / 7
                    expected[:, row, column] += sample(pyramid[level], y, x) / 4
    torch.testing.assert_close(region, expected, rtol=0, atol=1e-5)


def make_batch(counts=(4, 1, 3)):
    rng = np.random.default_rng(0)
    scenes = []
    for number, count in enumerate(counts):
        low = rng.uniform(0, 100, (count, 2))
        boxes = np.concatenate([low, low + rng.uniform(1, 120, (count, 2))], 1).astype(np.float32)
        ids = np.arange(1, count + 1)
        scenes.append(SceneInput(str(number), 190, 250, np.zeros(count, int), boxes, None, ids))
    return SceneBatch.from_scenes(scenes, torch.device("cpu"))


def test_pair_rows_number_all_pairs_in_order():
    for count in (1, 2, 7):
        first, second = torch.triu_indices(count, count)
        assert pair_rows(first, second, count).tolist() == list(range(count * (count + 1) // 2))


def test_cached_regions_are_those_of_the_maps():
    """Images of different sizes in one batch; each one alone gives the same regions."""
    batch = make_batch()
    sizes = [(192, 256), (224, 256), (192, 320)]
    pyramids = [make_pyramid(h, w, seed) for seed, (h, w) in enumerate(sizes)]
    cut = PyramidRegions(batch, pyramids, STRIDES)
    tables, pairs, start = [], [], 0
    for image, count in enumerate(batch.counts):
        first, second = torch.triu_indices(count, count) + start
        boxes = union_boxes(batch.boxes[first], batch.boxes[second])
        tables.append(align_boxes(pyramids[image], boxes, STRIDES))
        pairs.append(torch.stack([first, second]))
        start += count
    cached = CachedRegions(batch, tables)
    first, second = torch.cat(pairs, dim=1)
    shuffled = torch.randperm(len(first), generator=torch.Generator().manual_seed(1))
    expected = torch.cat(tables)[shuffled]
    assert torch.equal(cut(first[shuffled], second[shuffled]), expected)
    assert torch.equal(cached(first[shuffled], second[shuffled]), expected)

    halved = CachedRegions(batch, [table.half() for table in tables])
    some = halved(first, second)
    assert some.dtype == torch.float32
    torch.testing.assert_close(some, torch.cat(tables), rtol=1e-3, atol=1e-3)


def test_union_boxes():
    first = torch.tensor([[0.0, 5, 10, 6], [1, 1, 2, 2]])
    second = torch.tensor([[3.0, 1, 4, 9]] * 2)
    assert union_boxes(first, second).tolist() == [[0, 1, 10, 9], [1, 1, 4, 9]]
