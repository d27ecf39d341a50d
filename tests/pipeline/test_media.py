from __future__ import annotations

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pipeline_campaign import BROKEN, UNMASKED, Campaign

from haystack.errors import InputError
from haystack.io.images import decode_image
from haystack.io.panoptic_png import encode_panoptic_png
from haystack.pipeline import tables
from haystack.pipeline.media import WorkspaceMedia, _Kept
from haystack.pipeline.tables import SegmentedImage
from haystack.scene_graph import Segment

KEY = "image-05.jpg"


@pytest.fixture
def media(finished: Campaign) -> WorkspaceMedia:
    return WorkspaceMedia(finished.workspace)


@pytest.fixture
def segmented(finished: Campaign) -> SegmentedImage:
    """What the segment stage stored of the image."""
    shards = finished.workspace.source.shards()
    images = (image for shard in shards for image in finished.workspace.segmented(shard))
    return next(image for image in images if image.image_key == KEY)


class OneImage:
    """A source of a single image with given bytes."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, image_key: str) -> bytes:
        return self.content


def encoded(picture: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format=kind, **options)
    return stream.getvalue()


def test_image_is_the_stored_file(media: WorkspaceMedia, source_root: Path) -> None:
    content, mime = media.image(KEY)
    assert content == (source_root / "images" / KEY).read_bytes()
    assert mime == "image/jpeg"


def test_overlay_marks_subject_and_object(
    media: WorkspaceMedia, finished: Campaign, segmented: SegmentedImage
) -> None:
    graph = next(g for g in finished.dataset.graphs if g.file_name.endswith(KEY))
    ids = segmented.id_map()
    for subject, target in ((0, 3), (3, 0), (1, 2)):
        with Image.open(io.BytesIO(media.overlay(KEY, subject, target))) as overlay:
            assert (overlay.format, overlay.mode) == ("PNG", "P")
            pixels = np.asarray(overlay)
            colours = np.asarray(overlay.convert("RGBA"))
        expected = np.zeros_like(ids)
        expected[ids == graph.segments[subject].id] = 1
        expected[ids == graph.segments[target].id] = 2
        np.testing.assert_array_equal(pixels, expected)
        assert (colours[expected == 0][:, 3] == 0).all()
        assert (colours[expected == 1] == (86, 180, 233, 255)).all()
        assert (colours[expected == 2] == (230, 159, 0, 255)).all()


def test_class_names(media: WorkspaceMedia, finished: Campaign) -> None:
    names = finished.workspace.vocabulary.object_classes
    graph = next(g for g in finished.dataset.graphs if g.file_name.endswith(KEY))
    expected = tuple(names[graph.segments[i].category] for i in (2, 1))
    assert media.class_names(KEY, 2, 1) == expected


class CountingSource:
    """A source that notes what is read."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.reads: list[str] = []

    def read(self, image_key: str) -> bytes:
        self.reads.append(image_key)
        return self.source.read(image_key)


def test_a_second_view_makes_nothing_anew(
    finished: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = CountingSource(finished.workspace.source)
    media = WorkspaceMedia(finished.workspace, source)
    shown = media.image(KEY), media.overlay(KEY, 0, 3)
    source.reads.clear()
    for module in (tables, Image):
        name = "read_segmented" if module is tables else "open"
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("it is made anew"))
    assert (media.image(KEY), media.overlay(KEY, 0, 3)) == shown
    assert source.reads == [KEY]  # the file itself, which is shown as it is
    media.overlay(KEY, 1, 2)
    assert source.reads == [KEY]


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    kept = _Kept(10)
    made: list[str] = []

    def get(key: str) -> str:
        def make() -> str:
            made.append(key)
            return key * 4

        return kept.get(key, make, len)

    assert [get("a"), get("b"), get("a"), get("c"), get("a"), get("b")] == [
        "aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"
    ]  # fmt: skip
    assert made == ["a", "b", "c", "b"]
    assert kept.get("d", lambda: "d" * 99, len) == "d" * 99  # larger than all that is allowed
    made.clear()
    get("b")
    assert made == ["b"]


def test_what_many_ask_for_at_once_is_made_once() -> None:
    kept = _Kept(100)
    made: list[int] = []
    together = threading.Barrier(8)

    def make() -> str:
        made.append(1)
        time.sleep(0.05)
        return "x"

    def ask(_: int) -> str:
        together.wait(10)
        return kept.get("key", make, len)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == ["x"] * 8
    assert made == [1]


def test_what_could_not_be_made_is_tried_again() -> None:
    kept = _Kept(100)
    with pytest.raises(InputError):
        kept.get("key", lambda: (_ for _ in ()).throw(InputError("broken")), len)
    assert kept.get("key", lambda: "x", len) == "x"


def test_what_is_not_there_is_named(media: WorkspaceMedia) -> None:
    with pytest.raises(InputError, match="has no segments in the workspace"):
        media.overlay(UNMASKED, 0, 1)
    with pytest.raises(InputError, match="not in the source"):
        media.image("../secret.jpg")
    with pytest.raises(InputError, match="broken"):
        media.image(BROKEN)
    for subject, target in ((0, 4), (-1, 0)):
        with pytest.raises(InputError, match=r"segment position in 0\.\.3"):
            media.overlay(KEY, subject, target)


@pytest.mark.parametrize("orientation", range(2, 9))
def test_turned_photographs_are_shown_upright_with_their_masks(
    finished: Campaign, segmented: SegmentedImage, orientation: int
) -> None:
    """A bright segment must stay under its own mask, however the camera was held."""
    ids = segmented.id_map()
    target = segmented.segments[0].id
    picture = Image.fromarray(np.repeat((ids == target)[..., None] * np.uint8(255), 3, axis=2))
    exif = Image.Exif()
    exif[0x0112] = orientation
    source: Any = OneImage(encoded(picture, quality=100, exif=exif))
    media = WorkspaceMedia(finished.workspace, source)
    content, _ = media.image(KEY)
    with Image.open(io.BytesIO(content)) as shown:
        assert shown.getexif().get(0x0112, 1) == 1
        bright = np.asarray(shown.convert("L")) > 128
    with Image.open(io.BytesIO(media.overlay(KEY, 0, 1))) as overlay:
        marked = np.asarray(overlay) == 1
    assert bright.shape == marked.shape
    assert (bright != marked).mean() < 0.02


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_turned_tiff_is_not_turned_twice(
    finished: Campaign, segmented: SegmentedImage, orientation: int
) -> None:
    """Pillow turns TIFFs as it decodes them, so that their masks are upright already."""
    ids = segmented.id_map()
    target = segmented.segments[0].id
    upright = Image.fromarray(np.repeat((ids == target)[..., None] * np.uint8(255), 3, axis=2))
    back = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}
    stored = upright.transpose(back[orientation]) if orientation in back else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(stored, "TIFF", exif=exif)
    np.testing.assert_array_equal(decode_image(content, KEY), upright)
    source: Any = OneImage(content)
    media = WorkspaceMedia(finished.workspace, source)
    with Image.open(io.BytesIO(media.image(KEY)[0])) as shown:
        bright = np.asarray(shown.convert("L")) > 128
    with Image.open(io.BytesIO(media.overlay(KEY, 0, 1))) as overlay:
        marked = np.asarray(overlay) == 1
    assert bright.shape == marked.shape
    assert (bright != marked).mean() < 0.02


def test_sixteen_bit_pictures_keep_their_shades(finished: Campaign) -> None:
    grey = np.full((20, 30), 0x4030, dtype=np.uint16)
    grey[:, 15:] = 0xC010
    source: Any = OneImage(encoded(Image.fromarray(grey), "TIFF"))
    shown, _ = WorkspaceMedia(finished.workspace, source).image("x")
    with Image.open(io.BytesIO(shown)) as picture:
        pixels = np.asarray(picture).astype(int)
    assert pixels.shape == (20, 30, 3)
    assert abs(pixels[:, 3].mean() - 0x40) < 3
    assert abs(pixels[:, -3].mean() - 0xC0) < 3
    source = OneImage(encoded(Image.fromarray(grey.astype(np.float32)), "TIFF"))
    with pytest.raises(InputError, match="x: the image's values are of Pillow's mode 'F'"):
        WorkspaceMedia(finished.workspace, source).image("x")


@pytest.mark.parametrize("turn", [None, Image.Transpose.ROTATE_90])
def test_overlays_of_huge_images_are_shorter_and_lose_no_thin_segment(
    finished: Campaign, monkeypatch: pytest.MonkeyPatch, turn: Image.Transpose | None
) -> None:
    """Of every block of pixels the smaller segment counts; brute force over blocks."""
    ids = np.zeros((1501, 3205), dtype=np.int32)
    ids[100:1400, 50:3200] = 7
    ids[701, 200:3000] = 9  # one pixel thin, inside the other
    ids[3, 3204] = 9
    segments = (
        Segment(7, 0, int((ids == 7).sum()), (50, 100, 3200, 1400)),
        Segment(9, 1, int((ids == 9).sum()), (200, 3, 3205, 702)),
    )
    stored = SegmentedImage(KEY, "1", *ids.shape, encode_panoptic_png(ids), segments)
    monkeypatch.setattr(tables, "read_segmented", lambda *_: iter([stored]))
    exif = Image.Exif()
    exif[0x0112] = 1 if turn is None else 8
    source: Any = OneImage(encoded(Image.new("RGB", (3205, 1501)), exif=exif))
    media = WorkspaceMedia(finished.workspace, source)
    expected = np.zeros((-(-1501 // 3), -(-3205 // 3)), dtype=np.uint8)
    for row in range(expected.shape[0]):
        for column in range(expected.shape[1]):
            block = ids[3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
            expected[row, column] = 2 if (block == 9).any() else (block == 7).any()
    if turn is not None:
        expected = np.rot90(expected)
    for pair, wanted in (((0, 1), expected), ((1, 0), np.array([0, 2, 1])[expected])):
        with Image.open(io.BytesIO(media.overlay(KEY, *pair))) as overlay:
            np.testing.assert_array_equal(np.asarray(overlay), wanted)
    with Image.open(io.BytesIO(media.image(KEY)[0])) as shown:
        size = (1600, 749) if turn is None else (749, 1600)
        assert shown.size == size


def test_images_with_hundreds_of_segments(
    finished: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.arange(1, 601, dtype=np.int32).repeat(4).reshape(40, 60)
    segments = tuple(Segment(n, 0, 4, (0, 0, 1, 1)) for n in range(1, 601))
    stored = SegmentedImage(KEY, "1", *ids.shape, encode_panoptic_png(ids), segments)
    monkeypatch.setattr(tables, "read_segmented", lambda *_: iter([stored]))
    media = WorkspaceMedia(finished.workspace)
    with Image.open(io.BytesIO(media.overlay(KEY, 299, 555))) as overlay:
        pixels = np.asarray(overlay)
    np.testing.assert_array_equal(pixels, np.where(ids == 300, 1, np.where(ids == 556, 2, 0)))


def test_huge_and_exotic_images_become_jpegs(finished: Campaign) -> None:
    for content, size in (
        (encoded(Image.new("RGB", (3000, 1500))), (1600, 800)),
        (encoded(Image.new("CMYK", (30, 20)), "TIFF"), (30, 20)),
    ):
        source: Any = OneImage(content)
        shown, mime = WorkspaceMedia(finished.workspace, source).image("x")
        assert mime == "image/jpeg"
        with Image.open(io.BytesIO(shown)) as picture:
            assert (picture.size, picture.mode) == (size, "RGB")
