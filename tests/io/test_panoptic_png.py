import io

import numpy as np
import pytest
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


def test_geometry_of_void_is_empty():
    geometry = segment_geometry(np.zeros((3, 4), np.int32))
    assert geometry.ids.shape == (0,)
    assert geometry.boxes.shape == (0, 4)


def _encoded(mode, kind="PNG"):
    stream = io.BytesIO()
    Image.new(mode, (4, 3)).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable panoptic PNG"),
        (_encoded("RGB")[:40], "not a readable panoptic PNG"),
        (_encoded("P"), "got PNG in mode P"),
        (_encoded("L"), "got PNG in mode L"),
        (_encoded("RGB", "JPEG"), "got JPEG in mode RGB"),
    ],
)
def test_files_of_another_kind_are_refused(content, message):
    with pytest.raises(InputError, match=message) as caught:
        read_panoptic_png(content, path="masks/7.png")
    assert "masks/7.png" in str(caught.value)


def test_a_png_of_another_size_is_refused():
    with pytest.raises(InputError, match=r"expected a panoptic PNG of 5x3 .* got 4x3"):
        read_panoptic_png(_encoded("RGB"), size=(3, 5))


def test_a_missing_png_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none.png: cannot read"):
        read_panoptic_png(tmp_path / "none.png")
