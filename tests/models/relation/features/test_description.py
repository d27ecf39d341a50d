"""Mask geometry against loops over pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from haystack.models.relation.features.description import (
    GRID,
    OBJECT_COLUMNS,
    OBJECT_WIDTH,
    PAIR_COLUMNS,
    PAIR_GRID,
    PAIR_WIDTH,
    REACHES,
    describe_scene,
    index_map,
    mask_tables,
    mass_in_boxes,
)
from haystack.models.relation.inputs import SceneInput, all_pairs

CPU = torch.device("cpu")


def random_scene(seed, height=24, width=31, count=6, max_side=None):
    """Rectangles over each other, void between them, ids in no order."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.arange(10, 10 + 7 * count, 7))[:count].astype(np.int64)
    id_map = np.zeros((height, width), np.int32)
    for number in ids:
        y, x = rng.integers(0, height - 6), rng.integers(0, width - 6)
        id_map[y : y + rng.integers(5, 14), x : x + rng.integers(5, 14)] = number
    return scene_of(id_map, ids, rng.integers(0, 5, count))


def scene_of(id_map, ids, labels):
    boxes = []
    for number in ids:
        ys, xs = np.nonzero(id_map == number)
        boxes.append((xs.min(), ys.min(), xs.max() + 1, ys.max() + 1) if len(xs) else (0, 0, 1, 1))
    return SceneInput(
        image_id="a",
        height=id_map.shape[0],
        width=id_map.shape[1],
        labels=np.asarray(labels, np.int64),
        boxes=np.asarray(boxes, np.float32),
        id_map=id_map,
        segment_ids=np.asarray(ids, np.int64),
    )


def column(table, names, name):
    return table[:, names.index(name)].numpy()


@pytest.mark.parametrize("seed", range(4))
def test_tables_equal_loops_over_pixels(seed):
    scene = random_scene(seed)
    count = len(scene)
    index = index_map(scene, CPU)
    numbers = {int(number): i for i, number in enumerate(scene.segment_ids)}
    expected = np.vectorize(lambda number: numbers.get(int(number), count))(scene.id_map)
    assert np.array_equal(index.numpy(), expected)

    tables = mask_tables(index, count)
    height, width = expected.shape
    for place, reach in enumerate(REACHES):
        beside = np.zeros((count + 1, count + 1))
        above = np.zeros((count + 1, count + 1))
        for y in range(height):
            for x in range(width):
                if x + reach < width:
                    beside[expected[y, x], expected[y, x + reach]] += 1
                if y + reach < height:
                    above[expected[y, x], expected[y + reach, x]] += 1
        assert np.array_equal(tables.beside[place].numpy(), beside)
        assert np.array_equal(tables.above[place].numpy(), above)
    for i in range(count):
        ys, xs = np.nonzero(expected == i)
        assert tables.areas[i] == len(xs)
        if len(xs):
            centre = ((xs + 0.5).mean() / width, (ys + 0.5).mean() / height)
            np.testing.assert_allclose(tables.centres[i], centre, atol=1e-5)
            np.testing.assert_allclose(
                tables.spreads[i], (xs.std() / width, ys.std() / height), atol=1e-4
            )
        edges = (expected[:, 0], expected[:, -1], expected[0], expected[-1])
        np.testing.assert_allclose(tables.borders[i], [(e == i).mean() for e in edges], atol=1e-6)
        assert tables.grid[i].sum() == len(xs)


@pytest.mark.parametrize("seed", range(4))
def test_pair_columns_equal_their_definitions(seed):
    scene = random_scene(seed)
    _, pairs = describe_scene(scene, CPU)
    index = index_map(scene, CPU).numpy()
    iou = column(pairs, PAIR_COLUMNS, "box IoU")
    length = column(pairs, PAIR_COLUMNS, "touch: log length")
    above = column(pairs, PAIR_COLUMNS, "touch: s above o")
    for row, (s, o) in enumerate(all_pairs(len(scene))):
        a, b = scene.boxes[s], scene.boxes[o]
        shared = np.prod(np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None))
        union = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared
        assert iou[row] == pytest.approx(shared / union, abs=1e-5)
        down = ((index[:-1] == s) & (index[1:] == o)).sum()
        contact = (
            down
            + ((index[:-1] == o) & (index[1:] == s)).sum()
            + ((index[:, :-1] == s) & (index[:, 1:] == o)).sum()
            + ((index[:, :-1] == o) & (index[:, 1:] == s)).sum()
        )
        assert length[row] == pytest.approx(np.log1p(contact) / 4, abs=1e-5)
        assert above[row] == pytest.approx(down / max(contact, 1), abs=1e-6)


def test_mass_in_boxes_is_exact_on_cell_borders():
    scene = random_scene(0, height=GRID, width=GRID)
    tables = mask_tables(index_map(scene, CPU), len(scene))
    integral = torch.nn.functional.pad(tables.grid, (1, 0, 1, 0)).cumsum(1).cumsum(2)
    box = torch.tensor([[4.0, 8.0, 28.0, 44.0]])
    for i, number in enumerate(scene.segment_ids):
        parts = mass_in_boxes(integral, torch.tensor([i]), box / GRID, 4)[0]
        mask = scene.id_map[8:44, 4:28] == number
        expected = mask.reshape(4, 9, 4, 6).sum((1, 3))
        np.testing.assert_allclose(parts, expected, atol=1e-3)


def test_mask_maps_show_where_the_masks_lie():
    id_map = np.zeros((48, 48), np.int32)
    id_map[:24, 12:36] = 1  # above
    id_map[24:, 12:36] = 2  # below
    _, pairs = describe_scene(scene_of(id_map, [1, 2], [0, 1]), CPU)
    subject, target = pairs[0, len(PAIR_COLUMNS) :].view(2, PAIR_GRID, PAIR_GRID)
    half = PAIR_GRID // 2
    np.testing.assert_allclose(subject[:half], 1, atol=1e-4)
    np.testing.assert_allclose(subject[half:], 0, atol=1e-4)
    np.testing.assert_allclose(target[half:], 1, atol=1e-4)
    assert column(pairs, PAIR_COLUMNS, "touch: s above o").tolist() == [1, 0]
    assert column(pairs, PAIR_COLUMNS, "touch: s below o").tolist() == [0, 1]
    height = column(pairs, PAIR_COLUMNS, "height difference in shared columns")
    np.testing.assert_allclose(height, [-0.5, 0.5], atol=0.02)


@pytest.mark.parametrize("count", [1, 2, 40])
def test_descriptions_are_finite_and_of_the_documented_width(count):
    scene = random_scene(1, count=count)  # with 40, many masks are hidden completely
    objects, pairs = describe_scene(scene, CPU)
    assert objects.shape == (count, OBJECT_WIDTH)
    assert pairs.shape == (count * (count - 1), PAIR_WIDTH)
    assert torch.isfinite(objects).all()
    assert torch.isfinite(pairs).all()


def test_columns_have_distinct_names():
    assert len(set(OBJECT_COLUMNS)) == len(OBJECT_COLUMNS)
    assert len(set(PAIR_COLUMNS)) == len(PAIR_COLUMNS)


def test_order_of_objects_does_not_change_their_descriptions():
    scene = random_scene(2)
    order = np.array([3, 0, 5, 1, 4, 2])
    shuffled = SceneInput(
        "a",
        scene.height,
        scene.width,
        scene.labels[order],
        scene.boxes[order],
        scene.id_map,
        scene.segment_ids[order],
    )
    objects, pairs = describe_scene(scene, CPU)
    objects_shuffled, pairs_shuffled = describe_scene(shuffled, CPU)
    torch.testing.assert_close(objects[order], objects_shuffled)
    rows = {tuple(pair): row for row, pair in enumerate(all_pairs(6).tolist())}
    chosen = [rows[order[s], order[o]] for s, o in all_pairs(6).tolist()]
    torch.testing.assert_close(pairs[chosen], pairs_shuffled)


def test_flipping_mirrors_left_and_right_and_nothing_else():
    scene = random_scene(3)
    twice = scene.flipped().flipped()
    assert np.array_equal(twice.boxes, scene.boxes)
    assert np.array_equal(twice.id_map, scene.id_map)
    _, pairs = describe_scene(scene, CPU)
    _, mirrored = describe_scene(scene.flipped(), CPU)
    for name, mirror, sign in (
        ("touch: s left of o", "touch: s right of o", 1),
        ("touch: s above o", "touch: s above o", 1),
        ("centre dx", "centre dx", -1),
        ("box IoU", "box IoU", 1),
    ):
        np.testing.assert_allclose(
            column(pairs, PAIR_COLUMNS, name),
            sign * column(mirrored, PAIR_COLUMNS, mirror),
            atol=1e-5,
        )


def test_without_masks_boxes_stand_for_them_small_ones_on_top():
    boxes = np.array([[2, 2, 6, 6], [0, 0, 20, 10]], np.float32)
    scene = SceneInput("a", 10, 20, np.array([0, 1]), boxes, None, np.array([1, 2], dtype=np.int64))
    index = index_map(scene, CPU).numpy()
    assert (index[2:6, 2:6] == 0).all()
    assert (index == 0).sum() == 16
    assert (index == 1).sum() == 200 - 16
