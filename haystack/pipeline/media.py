"""Pictures for the annotation page: an image, and the overlay of a proposal's two segments."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from functools import cached_property

import numpy as np
from PIL import Image

from haystack.errors import InputError
from haystack.io.images import ImageSource, as_rgb
from haystack.pipeline import tables
from haystack.pipeline.segment_index import SegmentIndex
from haystack.pipeline.workspace import Workspace
from haystack.scene_graph import Segment

# Index 0 = neither, 1 = subject, 2 = object: a blue and an orange that people with any colour
# vision tell apart (Okabe and Ito, 2008).
_PALETTE = (0, 0, 0, 86, 180, 233, 230, 159, 0)
_DISPLAY_SIDE = 2048
_MIME_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
_ORIENTATION = 0x0112  # EXIF tag; its values 2..8 say how to turn the picture upright
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class WorkspaceMedia:
    """Serves a workspace's pictures; safe to call from several threads.

    Args:
        workspace: holds the segment shards.
        source: the images; the workspace's own if None.
        cached: images whose masks are kept in memory.
    """

    def __init__(
        self, workspace: Workspace, source: ImageSource | None = None, *, cached: int = 32
    ) -> None:
        self._workspace = workspace
        self._source = source or workspace.source
        self._cached = cached
        self._segmented: OrderedDict[str, tables.SegmentedImage] = OrderedDict()
        self._lock = threading.Lock()

    def image(self, image_key: str) -> tuple[bytes, str]:
        """An image as a browser can show it, upright and not huge, and its MIME type.

        Raises:
            InputError: unknown or unreadable image.
        """
        content = self._source.read(image_key)
        try:
            with Image.open(io.BytesIO(content)) as picture:
                mime = _MIME_TYPES.get(picture.format or "")
                turn = _turn(picture)
                if mime is not None and turn is None and max(picture.size) <= _DISPLAY_SIDE:
                    return content, mime
                shown = as_rgb(picture)
                if turn is not None:
                    shown = shown.transpose(turn)
        except InputError as error:
            raise InputError(error.message, path=image_key) from error
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more
            raise InputError(f"broken or truncated image: {error}", path=image_key) from error
        shown.thumbnail((_DISPLAY_SIDE, _DISPLAY_SIDE), Image.Resampling.LANCZOS)
        stream = io.BytesIO()
        shown.save(stream, format="JPEG", quality=92)
        return stream.getvalue(), "image/jpeg"

    def overlay(self, image_key: str, subject: int, object: int) -> bytes:
        """Palette PNG of the image's shape: 0 transparent, 1 subject, 2 object.

        Masks follow the stored pixels; it is turned as the image is, which browsers show upright.

        Args:
            image_key: the image.
            subject: position of the subject among its segments.
            object: position of the object.

        Raises:
            InputError: unknown image or segment.
        """
        segmented = self.segmented(image_key)
        id_map = segmented.id_map()
        pixels = np.zeros(id_map.shape, dtype=np.uint8)
        for index, segment in enumerate(self._pair(segmented, subject, object), start=1):
            pixels[id_map == segment.id] = index
        picture = Image.fromarray(pixels)
        turn = self._turn_of(image_key)
        if turn is not None:
            picture = picture.transpose(turn)
        picture.putpalette(_PALETTE)
        stream = io.BytesIO()
        picture.save(stream, format="PNG", transparency=0)
        return stream.getvalue()

    def class_names(self, image_key: str, subject: int, object: int) -> tuple[str, str]:
        """Class names of the subject's and the object's segment.

        Raises:
            InputError: unknown image or segment.
        """
        pair = self._pair(self.segmented(image_key), subject, object)
        names = self._workspace.vocabulary.object_classes
        return names[pair[0].category], names[pair[1].category]

    def segmented(self, image_key: str) -> tables.SegmentedImage:
        """The image's masks and segments.

        Raises:
            InputError: no segment shard has this image.
        """
        with self._lock:
            if image_key in self._segmented:
                self._segmented.move_to_end(image_key)
                return self._segmented[image_key]
            place = self._index.place_of_key(image_key)
            if place is None:
                raise InputError("this image has no segments in the workspace", record=image_key)
            (found,) = tables.read_segmented(self._workspace.root / place.path, [place.row])
            self._segmented[image_key] = found
            if len(self._segmented) > self._cached:
                self._segmented.popitem(last=False)
            return found

    def _pair(
        self, segmented: tables.SegmentedImage, subject: int, object: int
    ) -> tuple[Segment, Segment]:
        for position in (subject, object):
            if not 0 <= position < len(segmented.segments):
                raise InputError(
                    f"expected a segment position in 0..{len(segmented.segments) - 1}, "
                    f"got {position}",
                    record=segmented.image_key,
                )
        return segmented.segments[subject], segmented.segments[object]

    def _turn_of(self, image_key: str) -> Image.Transpose | None:
        try:
            with Image.open(io.BytesIO(self._source.read(image_key))) as picture:
                return _turn(picture)
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more
            raise InputError(f"broken or truncated image: {error}", path=image_key) from error

    @cached_property
    def _index(self) -> SegmentIndex:
        return SegmentIndex(self._workspace.root)


def _turn(picture: Image.Image) -> Image.Transpose | None:
    """How to turn the decoded pixels upright; TIFFs are turned by Pillow as it decodes them."""
    return None if picture.format == "TIFF" else _TURNS.get(picture.getexif().get(_ORIENTATION, 1))
