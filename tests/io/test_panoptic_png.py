import io
import struct
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from haystack.errors import InputError
from haystack.io import read_psg
from haystack.io.panoptic_png import (
    MAX_SEGMENT_ID,
    encode_panoptic_png,
    read_panoptic_png,
    segment_geometry,
    write_panoptic_png,
)


def test_large_ids_survive_both_ways(tmp_path):
    ids = np.array([[0, 1, 255], [256, 65535, 65536], [70000, 14079701, MAX_SEGMENT_ID]], np.int32)
    write_panoptic_png(tmp_path / "a.png", ids)
    assert np.array_equal(read_panoptic_png(tmp_path / "a.png"), ids)
    assert read_panoptic_png(encode_panoptic_png(ids)).dtype == np.int32
    assert encode_panoptic_png(ids) == encode_panoptic_png(ids)


@pytest.mark.parametrize("bad", [np.array([[-1]]), np.array([[MAX_SEGMENT_ID + 1]])])
def test_ids_that_do_not_fit_are_refused(bad):
    with pytest.raises(InputError, match="must lie in"):
        encode_panoptic_png(bad)


def test_shapes_other_than_two_dimensional_are_refused():
    with pytest.raises(InputError, match="id map"):
        encode_panoptic_png(np.zeros((2, 2, 3), np.int32))


def test_geometry_equals_the_records_of_real_images():
    dataset = read_psg("psg-mini")
    for graph in dataset.graphs[:8]:
        ids = read_panoptic_png(
            dataset.path_of(graph.pan_seg_file_name), size=(graph.height, graph.width)
        )
        geometry = segment_geometry(ids)
        order = np.searchsorted(geometry.ids, graph.segment_ids)
        assert geometry.ids[order].tolist() == graph.segment_ids.tolist()
        assert geometry.areas[order].tolist() == [segment.area for segment in graph.segments]
        assert np.array_equal(geometry.boxes[order], graph.boxes)


@given(
    arrays(
        np.int32,
        array_shapes(min_dims=2, max_dims=2, max_side=7),
        elements=st.sampled_from([0, 1, 2, 9, MAX_SEGMENT_ID]),
    )
)
def test_geometry_is_that_of_each_mask(ids):
    geometry = segment_geometry(ids)
    assert geometry.ids.tolist() == sorted(set(ids.flat) - {0})
    for number, area, box in zip(*geometry, strict=True):
        rows, columns = np.nonzero(ids == number)
        assert area == len(rows)
        assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def test_geometry_of_void_is_empty():
    assert segment_geometry(np.zeros((0, 4), np.int32)).areas.shape == (0,)
    geometry = segment_geometry(np.zeros((3, 4), np.int32))
    assert geometry.ids.shape == (0,)
    assert geometry.boxes.shape == (0, 4)


def _encoded(mode, kind="PNG"):
    stream = io.BytesIO()
    Image.new(mode, (4, 3)).save(stream, kind)
    return stream.getvalue()


def _chunk(kind, content):
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def _png(width, height, rows, *, depth=8, color=2, interlace=0, between=b""):
    """A PNG made by hand from its unfiltered or filtered rows, each with the byte of its filter."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + between
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )


IDS = np.repeat(np.repeat([[1, 70_000, 256, 0], [1, 1, MAX_SEGMENT_ID, 5]], 3, 0), 5, 1)
PIXELS = np.stack([IDS & 255, IDS >> 8 & 255, IDS >> 16], -1).astype(np.uint8)


def _paeth(left, above, corner):
    guess = left + above - corner
    far = [(abs(guess - value), rank) for rank, value in enumerate((left, above, corner))]
    return (left, above, corner)[min(far)[1]]


def _filtered(kind):
    """The rows of PIXELS as the PNG filter of that number stores them."""
    height, width, _ = PIXELS.shape
    padded = np.zeros((height + 1, width + 1, 3), int)
    padded[1:, 1:] = PIXELS
    guess = np.zeros_like(PIXELS, dtype=int)
    for place in np.ndindex(*PIXELS.shape):
        y, x, c = place
        left, above, corner = padded[y + 1, x, c], padded[y, x + 1, c], padded[y, x, c]
        guess[place] = (0, left, above, (left + above) // 2, _paeth(left, above, corner))[kind]
    stored = ((PIXELS - guess) & 255).astype(np.uint8).reshape(height, -1)
    return b"".join(bytes([kind]) + row.tobytes() for row in stored)


def _interlaced():
    """PIXELS in the seven passes of Adam7."""
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2))
    rows = b""
    for y, x, down, right in (*passes, (1, 0, 2, 1)):
        part = PIXELS[y::down, x::right]
        if part.size:
            rows += b"".join(b"\0" + row.tobytes() for row in part)
    return rows


SIZE = PIXELS.shape[1::-1]
READABLE = {
    **{f"filter {kind}": _png(*SIZE, _filtered(kind)) for kind in range(5)},
    "interlaced": _png(*SIZE, _interlaced(), interlace=1),
    "a color of transparency": _png(*SIZE, _filtered(0), between=_chunk(b"tRNS", bytes(6))),
    "gamma": _png(*SIZE, _filtered(0), between=_chunk(b"gAMA", struct.pack(">I", 45455))),
    "a palette to suggest": _png(*SIZE, _filtered(0), between=_chunk(b"PLTE", bytes(9))),
}


@pytest.fixture(params=["kornia-rs", "Pillow"])
def decoder(request, monkeypatch):
    """Reads with the fast decoder where it is installed, and without it."""
    if request.param == "Pillow":
        monkeypatch.setitem(sys.modules, "kornia_rs.io", None)  # importing it fails
    else:
        pytest.importorskip("kornia_rs", reason="kornia-rs, the fast decoder, is not installed")
    return request.param


@pytest.mark.parametrize("name", READABLE)
def test_every_decoder_reads_the_same_ids(decoder, name):
    ids = read_panoptic_png(READABLE[name])
    assert np.array_equal(ids, IDS)
    assert ids.dtype == np.int32
    assert ids.flags.writeable


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (64, 33)])
def test_every_decoder_reads_any_size(decoder, shape):
    ids = np.random.default_rng(0).integers(0, MAX_SEGMENT_ID + 1, shape).astype(np.int32)
    assert np.array_equal(read_panoptic_png(encode_panoptic_png(ids)), ids)


def test_plain_files_are_left_to_the_fast_decoder(monkeypatch):
    pytest.importorskip("kornia_rs", reason="kornia-rs, the fast decoder, is not installed")
    monkeypatch.setattr(Image, "open", None)
    assert np.array_equal(read_panoptic_png(READABLE["filter 4"]), IDS)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", IDS.size - 1)
    with pytest.raises(InputError, match="not a readable panoptic PNG"):
        read_panoptic_png(READABLE["filter 4"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable panoptic PNG: no image, or broken at its beginning"),
        (_encoded("RGB")[:20], "not a readable panoptic PNG: Truncated File Read"),
        (_encoded("RGB")[:40], "not a readable panoptic PNG"),
        (READABLE["filter 4"][:-30], "not a readable panoptic PNG"),
        (_png(*SIZE, _filtered(0)[:90]), "not a readable panoptic PNG"),
        (_encoded("P"), "got PNG in mode P"),
        (_encoded("L"), "got PNG in mode L"),
        (_encoded("RGBA"), "got PNG in mode RGBA"),
        (_encoded("I;16"), "got PNG in mode I;16 with 16 bits a channel"),
        (_png(2, 1, bytes(13), depth=16), "got PNG in mode RGB with 16 bits a channel; save the"),
        (_encoded("RGB", "JPEG"), "got JPEG in mode RGB"),
    ],
)
def test_files_of_another_kind_are_refused(decoder, content, message):
    with pytest.raises(InputError, match=message) as caught:
        read_panoptic_png(content, path="masks/7.png")
    assert "masks/7.png" in str(caught.value)
    assert "BytesIO" not in str(caught.value)


def test_a_png_of_another_size_is_refused():
    with pytest.raises(InputError, match=r"expected a panoptic PNG of 5x3 .* got 4x3"):
        read_panoptic_png(_encoded("RGB"), size=(3, 5))


def test_a_missing_png_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none.png: cannot read"):
        read_panoptic_png(tmp_path / "none.png")
