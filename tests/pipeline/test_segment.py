from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from pipeline_campaign import VOCABULARY

from haystack.errors import InputError
from haystack.io.panoptic_png import read_panoptic_png, write_panoptic_png
from haystack.io.psg import read_psg
from haystack.pipeline.segment import segment_images
from haystack.pipeline.segmenters.precomputed import PrecomputedSegmenter
from haystack.pipeline.tables import SegmentedImage, read_segmented, read_segments, write_segmented
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment

KEY = "some/folder/image-00.jpg"


@pytest.fixture
def dataset(tmp_path: Path, source_root: Path) -> SceneGraphDataset:
    root = tmp_path / "source"
    shutil.copytree(source_root, root)
    return read_psg(root / "annotation.json")


def run(
    dataset: SceneGraphDataset, key: str = KEY, file: str = "image-00.jpg"
) -> tuple[list[SegmentedImage], dict[str, str]]:
    return run_all(dataset, [key], None, file)


def run_all(
    dataset: SceneGraphDataset,
    keys: Sequence[str],
    source: Sequence[str] | None,
    file: str = "image-00.jpg",
) -> tuple[list[SegmentedImage], dict[str, str]]:
    """Segment ``keys`` of a source that holds the images ``source``."""
    assert dataset.root is not None
    content = (dataset.root / "images" / file).read_bytes()
    reasons: dict[str, str] = {}
    segmenter = PrecomputedSegmenter(dataset, source)
    images = list(
        segment_images(
            [(key, content) for key in keys],
            segmenter,
            VOCABULARY,
            set_aside=reasons.__setitem__,
        )
    )
    assert len(images) + len(reasons) == len(keys)
    return images, reasons


def records(dataset: SceneGraphDataset, *file_names: str) -> SceneGraphDataset:
    """The first record under several names and ids "0", "1", ..."""
    graphs = tuple(
        replace(dataset.graphs[0], image_id=str(number), file_name=name)
        for number, name in enumerate(file_names)
    )
    return replace(dataset, graphs=graphs)


def first_changed(dataset: SceneGraphDataset, **changes: object) -> SceneGraphDataset:
    first: SceneGraph = replace(dataset.graphs[0], **changes)  # type: ignore[arg-type]
    return replace(dataset, graphs=(first, *dataset.graphs[1:]))


def test_finds_the_record_by_file_name(dataset: SceneGraphDataset) -> None:
    (image,), reasons = run(dataset)
    assert not reasons
    graph = dataset.graphs[0]
    assert (image.image_key, image.image_id) == (KEY, graph.image_id)
    assert image.segments == graph.segments
    expected = read_panoptic_png(dataset.path_of(str(graph.pan_seg_file_name)))
    np.testing.assert_array_equal(image.id_map(), expected)


def test_missing_png(dataset: SceneGraphDataset) -> None:
    dataset.path_of(str(dataset.graphs[0].pan_seg_file_name)).unlink()
    _, reasons = run(dataset)
    assert "cannot read the panoptic PNG" in reasons[KEY]
    _, reasons = run(first_changed(dataset, pan_seg_file_name=None))
    assert "names no panoptic PNG" in reasons[KEY]


def test_png_of_another_size(dataset: SceneGraphDataset) -> None:
    path = dataset.path_of(str(dataset.graphs[0].pan_seg_file_name))
    write_panoptic_png(path, read_panoptic_png(path)[:-1])
    _, reasons = run(dataset)
    assert "expected a panoptic PNG of 48x36 pixels" in reasons[KEY]
    assert "got 48x35" in reasons[KEY]


def test_image_of_another_size(dataset: SceneGraphDataset) -> None:
    _, reasons = run(first_changed(dataset, width=50))
    assert "the record says 50x36 pixels and the image has 48x36" in reasons[KEY]


def test_segment_that_the_png_lacks(dataset: SceneGraphDataset) -> None:
    segments = list(dataset.graphs[0].segments)
    segments[2] = replace(segments[2], id=12345)
    _, reasons = run(first_changed(dataset, segments=tuple(segments)))
    assert "segment 2 has the id 12345, which the panoptic PNG does not hold" in reasons[KEY]


def test_unknown_category(dataset: SceneGraphDataset) -> None:
    segments = list(dataset.graphs[0].segments)
    segments[1] = replace(segments[1], category=5)
    _, reasons = run(first_changed(dataset, segments=tuple(segments)))
    assert "segment 1 has the unknown category 5" in reasons[KEY]
    assert "0..4" in reasons[KEY]


def test_image_without_record_and_broken_image(dataset: SceneGraphDataset) -> None:
    _, reasons = run(dataset, key="stranger.jpg")
    assert "no record with the file name 'stranger.jpg'" in reasons["stranger.jpg"]
    _, reasons = run(dataset, key="image-03.jpg", file="image-03.jpg")
    assert "broken" in reasons["image-03.jpg"]


def test_two_records_of_one_file_name_are_refused(dataset: SceneGraphDataset) -> None:
    twin = replace(dataset.graphs[1], file_name="./images/image-00.jpg")
    with pytest.raises(InputError, match="1000 and 1001 have the same file name"):
        PrecomputedSegmenter(replace(dataset, graphs=(dataset.graphs[0], twin)))


@pytest.mark.parametrize(
    ("key", "file_names", "found"),
    [
        ("a/x.jpg", ("images/a/x.jpg", "images/b/x.jpg"), "0"),
        ("b/x.jpg", ("images/a/x.jpg", "images/b/x.jpg"), "1"),
        ("s/a/x.jpg", ("x.jpg", "b/x.jpg", "a/x.jpg"), "2"),
        ("x.jpg", ("b/x.jpg", "x.jpg"), "1"),
        ("far/away/x.jpg", ("images/x.jpg",), "0"),
        ("c/x.jpg", ("images/a/x.jpg", "images/b/x.jpg"), None),
        ("x.jpg", ("a/x.jpg", "b/x.jpg"), None),
    ],
)
def test_the_record_of_the_longest_equal_path_is_taken(
    dataset: SceneGraphDataset, key: str, file_names: tuple[str, ...], found: str | None
) -> None:
    images, reasons = run_all(records(dataset, *file_names), [key], [key])
    assert [image.image_id for image in images] == ([] if found is None else [found])
    if found is None:
        assert "2 records have the file name 'x.jpg'" in reasons[key]


@pytest.mark.parametrize(
    ("file_name", "source", "winner"),
    [
        ("images/x.jpg", ("a/x.jpg", "b/x.jpg"), None),
        ("images/x.jpg", ("a/x.jpg", "b/x.jpg", "x.jpg"), "x.jpg"),
        ("b/x.jpg", ("a/x.jpg", "b/x.jpg"), "b/x.jpg"),
        ("b/x.jpg", ("b/x.jpg", "c/b/x.jpg"), "b/x.jpg"),
    ],
)
def test_a_record_goes_to_one_image_in_whatever_order_shards_are_done(
    dataset: SceneGraphDataset, file_name: str, source: tuple[str, ...], winner: str | None
) -> None:
    one = records(dataset, file_name)
    for order in permutations(source):
        found = {}
        reasons = {}
        for key in order:  # each in a shard of its own
            images, why = run_all(one, [key], order)
            found.update({image.image_key: image.image_id for image in images})
            reasons.update(why)
        assert found == ({} if winner is None else {winner: "0"})
        for key in set(source) - {winner}:
            assert "its record (image id 0) is that of" in reasons[key]
            assert winner is None or f"is that of {winner} too" in reasons[key]
    alone = PrecomputedSegmenter(one, source[:1]).fingerprint()
    assert PrecomputedSegmenter(one, source).fingerprint() != alone


def test_without_a_listing_a_shard_gives_a_record_once(dataset: SceneGraphDataset) -> None:
    one = records(dataset, "images/x.jpg")
    images, reasons = run_all(one, ["s/a/x.jpg", "s/b/x.jpg"], None)
    assert [image.image_key for image in images] == ["s/a/x.jpg"]
    assert "is that of s/a/x.jpg too" in reasons["s/b/x.jpg"]


def test_segments_known_to_be_faulty_are_carried_along(dataset: SceneGraphDataset) -> None:
    known = replace(dataset, faulty_segments={dataset.graphs[0].image_id: (2, 1)})
    (image,), _ = run(known)
    assert image.faulty == (1, 2)
    assert run(dataset)[0][0].faulty == ()
    fingerprints = [PrecomputedSegmenter(data).fingerprint() for data in (known, dataset)]
    assert fingerprints[0] != fingerprints[1]


def test_fingerprint_follows_segments_and_masks(dataset: SceneGraphDataset) -> None:
    before = PrecomputedSegmenter(dataset).fingerprint()
    assert before == PrecomputedSegmenter(dataset).fingerprint()
    related = first_changed(dataset, relations=dataset.graphs[0].relations[:1])
    assert PrecomputedSegmenter(related).fingerprint() == before, "relations make no segments"
    segments = (
        *dataset.graphs[0].segments[:-1],
        replace(dataset.graphs[0].segments[-1], category=2),
    )
    other = first_changed(dataset, segments=segments)
    assert PrecomputedSegmenter(other).fingerprint() != before
    path = dataset.path_of(str(dataset.graphs[0].pan_seg_file_name))
    write_panoptic_png(path, read_panoptic_png(path)[::-1])
    assert PrecomputedSegmenter(dataset).fingerprint() != before


def test_segmented_images_round_trip(tmp_path: Path) -> None:
    images = [
        SegmentedImage(
            f"{number}.jpg",
            f"id {number}",
            3,
            4,
            bytes([number, 0, 255]),
            tuple(
                Segment(16_777_215 - i, i, 9, (0.1, 0.0, 1e-3, 4.0), is_crowd=bool(i % 2))
                for i in range(number % 3)
            ),
            tuple(range(number % 2)),
        )
        for number in range(130)
    ]
    path = tmp_path / "x.parquet"
    write_segmented(path, images)
    assert list(read_segmented(path)) == images
    for rows in ([5], [129, 64, 0, 63], []):
        expected = [images[row] for row in sorted(rows)]
        assert list(read_segmented(path, rows)) == expected
        assert read_segments(path, rows) == {i.image_id: i.segments for i in expected}
    again = tmp_path / "y.parquet"
    write_segmented(again, iter(images))
    assert path.read_bytes() == again.read_bytes()
    write_segmented(path, [])
    assert list(read_segmented(path)) == []
