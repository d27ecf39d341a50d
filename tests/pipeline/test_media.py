from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pipeline_campaign import BROKEN, UNMASKED, Campaign

from haystack.errors import InputError
from haystack.io.images import decode_image
from haystack.pipeline.media import WorkspaceMedia

KEY = "image-05.jpg"


@pytest.fixture
def media(finished: Campaign) -> WorkspaceMedia:
    return WorkspaceMedia(finished.workspace, cached=2)


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


def test_overlay_marks_subject_and_object(media: WorkspaceMedia, finished: Campaign) -> None:
    graph = next(g for g in finished.dataset.graphs if g.file_name.endswith(KEY))
    ids = media.segmented(KEY).id_map()
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


def test_cache_is_bounded(media: WorkspaceMedia) -> None:
    for key in ("image-00.jpg", "image-01.jpg", "image-00.jpg", "image-05.jpg"):
        assert media.segmented(key).image_key == key
    assert list(media._segmented) == ["image-00.jpg", "image-05.jpg"]


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
    finished: Campaign, orientation: int
) -> None:
    """A bright segment must stay under its own mask, however the camera was held."""
    original = WorkspaceMedia(finished.workspace)
    ids = original.segmented(KEY).id_map()
    target = original.segmented(KEY).segments[0].id
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
def test_a_turned_tiff_is_not_turned_twice(finished: Campaign, orientation: int) -> None:
    """Pillow turns TIFFs as it decodes them, so that their masks are upright already."""
    ids = WorkspaceMedia(finished.workspace).segmented(KEY).id_map()
    target = WorkspaceMedia(finished.workspace).segmented(KEY).segments[0].id
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


def test_huge_and_exotic_images_become_jpegs(finished: Campaign) -> None:
    for content, size in (
        (encoded(Image.new("RGB", (3000, 1500))), (2048, 1024)),
        (encoded(Image.new("CMYK", (30, 20)), "TIFF"), (30, 20)),
    ):
        source: Any = OneImage(content)
        shown, mime = WorkspaceMedia(finished.workspace, source).image("x")
        assert mime == "image/jpeg"
        with Image.open(io.BytesIO(shown)) as picture:
            assert (picture.size, picture.mode) == (size, "RGB")
