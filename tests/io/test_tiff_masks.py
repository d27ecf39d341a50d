from __future__ import annotations

import importlib
import io
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from haystack.errors import InputError
from haystack.io import tiff_masks
from haystack.io.tiff_masks import read_tiff_masks

ROWS_PER_STRIP, PHOTOMETRIC, PREDICTOR, ORIENTATION = 278, 262, 317, 274


def tiff(masks, *, rows=2, compression="tiff_adobe_deflate", mode="L", **tags):
    """A page for each mask, with some rows in a strip; ``tags`` by the names above."""
    pages = [Image.fromarray(np.asarray(mask, np.uint8)).convert(mode) for mask in masks]
    info = {ROWS_PER_STRIP: rows, **{globals()[name]: value for name, value in tags.items()}}
    stream = io.BytesIO()
    pages[0].save(
        stream,
        "TIFF",
        save_all=True,
        append_images=pages[1:],
        compression=compression,
        tiffinfo=info,
    )
    return stream.getvalue()


def dense(content, count):
    return read_tiff_masks(content, count).dense()


@pytest.fixture
def without_pillow(monkeypatch):
    monkeypatch.setattr(tiff_masks, "_layers", None)


@pytest.fixture(params=["zlib-ng", "zlib"])
def inflate(request, monkeypatch):
    """Reads with the fast library where it is installed, and with Python's."""
    if request.param == "zlib-ng":
        pytest.importorskip("zlib_ng", reason="zlib-ng, which inflates fast, is not installed")
    else:
        monkeypatch.setattr(tiff_masks, "zlib", zlib)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5)),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    rows=st.integers(1, 10),
)
def test_runs_of_strips_are_those_of_pages(seed, shape, share, rows):
    generator = np.random.default_rng(seed)
    masks = (generator.random(shape) < share) * generator.integers(1, 256, shape)
    found = read_tiff_masks(tiff(masks, rows=rows), shape[0])
    np.testing.assert_array_equal(found.dense(), masks != 0)
    slow = tiff_masks.MaskRuns.from_masks(masks != 0, *shape[1:])
    np.testing.assert_array_equal(found.bounds, slow.bounds)
    np.testing.assert_array_equal(found.offsets, slow.offsets)


MASKS = np.zeros((3, 7, 5), np.uint8)
MASKS[0, 1:6, 2:], MASKS[1, 3], MASKS[2, :, 4] = 255, 1, 7


@pytest.mark.usefixtures("without_pillow", "inflate")
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_plain_pages_are_read_strip_by_strip(rows):
    np.testing.assert_array_equal(dense(tiff(MASKS, rows=rows), 3), MASKS != 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"compression": "tiff_lzw"},
        {"compression": None},
        {"PREDICTOR": 2},
        {"PHOTOMETRIC": 0},
        {"ORIENTATION": 3},
        {"mode": "1"},
    ],
)
def test_other_pages_are_left_to_pillow(changes, monkeypatch):
    content = tiff(MASKS, **changes)
    with Image.open(io.BytesIO(content)) as picture:
        pages = []
        for page in range(3):
            picture.seek(page)
            pages.append(np.asarray(picture) != 0)
    np.testing.assert_array_equal(dense(content, 3), pages)
    monkeypatch.setattr(tiff_masks, "_layers", None)
    with pytest.raises(InputError):  # Pillow it was
        read_tiff_masks(content, 3)


def test_one_page_among_plain_ones_may_be_another():
    first, second = tiff(MASKS[:1]), tiff(MASKS[1:2], compression="tiff_lzw")
    pages = [Image.open(io.BytesIO(content)) for content in (first, second)]
    stream = io.BytesIO()
    pages[0].save(stream, "TIFF", save_all=True, append_images=pages[1:])
    np.testing.assert_array_equal(dense(stream.getvalue(), 2), MASKS[:2] != 0)


@pytest.mark.usefixtures("inflate")
@pytest.mark.parametrize("size", [0, 13, 15, 10**6])
def test_strips_of_another_length_are_no_masks(size):
    good = zlib.compress(bytes(14), 0)  # stored as it is
    assert tiff_masks._edges_of_strip(good, 14).tolist() == []
    assert tiff_masks._edges_of_strip(zlib.compress(bytes(size)), 14) is None
    assert tiff_masks._edges_of_strip(good[:-1], 14) is None
    assert tiff_masks._edges_of_strip(b"nothing of the kind", 14) is None


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow, of what is cut off
@pytest.mark.usefixtures("inflate")
def test_broken_strips_are_errors():
    content = tiff(np.random.default_rng(0).integers(0, 2, (1, 40, 50)), rows=40)
    with Image.open(io.BytesIO(content)) as picture:
        begin = picture.tag_v2[273][0]
    for broken in (content[: begin + 30], content[:begin] + bytes(40) + content[begin + 40 :]):
        with pytest.raises((InputError, OSError, ValueError)):
            read_tiff_masks(broken, 1)


def test_without_zlib_ng_pythons_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "zlib_ng", None)  # importing it fails
    try:
        assert importlib.reload(tiff_masks).zlib is zlib
        np.testing.assert_array_equal(dense(tiff(MASKS), 3), MASKS != 0)
    finally:
        monkeypatch.undo()
        importlib.reload(tiff_masks)
