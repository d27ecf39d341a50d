from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from haystack.errors import InputError
from haystack.scene_graph import NO_OBJECT, MaskRuns

SIZES = st.tuples(st.integers(0, 4), st.integers(1, 6), st.integers(1, 7))


@given(masks=SIZES.flatmap(lambda shape: arrays(np.bool_, shape)))
def test_masks_are_kept_exactly(masks):
    count, height, width = masks.shape
    runs = MaskRuns.from_masks(masks, height, width)
    assert len(runs) == count
    assert runs.bounds.dtype == runs.offsets.dtype == np.int64
    np.testing.assert_array_equal(runs.dense(), masks)
    for number, mask in enumerate(masks):
        np.testing.assert_array_equal(runs[number], mask)
        begins, ends = runs.bounds[runs.offsets[number] : runs.offsets[number + 1]].T
        assert (begins < ends).all()
        assert (ends[:-1] < begins[1:]).all()  # a gap: each run is as long as it can be
    np.testing.assert_array_equal(runs.areas, masks.sum((1, 2)))
    id_map = runs.id_map()
    assert (id_map is None) == bool((masks.sum(0) > 1).any())
    if id_map is not None:
        for number in range(count):
            np.testing.assert_array_equal(id_map == number, masks[number])


@given(
    id_map=SIZES.flatmap(
        lambda size: arrays(np.int64, size[1:], elements=st.integers(NO_OBJECT, size[0] - 1))
    ),
    more=st.integers(0, 2),
)
def test_id_maps_are_kept_exactly(id_map, more):
    count = int(id_map.max()) + 1 + more
    runs = MaskRuns.from_id_map(id_map, count)
    assert len(runs) == count
    np.testing.assert_array_equal(runs.id_map(), id_map)
    assert runs.id_map().dtype == np.int32
    again = MaskRuns.from_masks(runs.dense(), *id_map.shape)
    np.testing.assert_array_equal(again.bounds, runs.bounds)
    np.testing.assert_array_equal(again.offsets, runs.offsets)


def test_masks_of_another_size_are_an_error():
    with pytest.raises(InputError, match="expected masks of 2 x 3 pixels, got 3 x 2 for mask 1"):
        MaskRuns.from_masks([np.ones((2, 3), bool), np.ones((3, 2), bool)], 2, 3)


@pytest.mark.parametrize("wrong", [-2, 2])
def test_unknown_numbers_in_an_id_map_are_an_error(wrong):
    with pytest.raises(InputError, match=f"numbers 0..1, or -1 for none, got {wrong}"):
        MaskRuns.from_id_map(np.array([[0, wrong, 1]]), 2)
    with pytest.raises(InputError, match=r"expected an id map \[H, W\], got \[3\]"):
        MaskRuns.from_id_map(np.zeros(3, int), 2)


def test_a_mask_that_is_not_there():
    with pytest.raises(IndexError):
        MaskRuns.from_masks([], 2, 3)[0]
