"""Pictures for the annotation page: an image, and the overlay of a proposal's two segments."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from haystack.errors import InputError
from haystack.io.images import ImageSource, as_rgb
from haystack.io.panoptic_png import MAX_SEGMENT_ID
from haystack.pipeline import tables
from haystack.pipeline.segment_index import SegmentIndex
from haystack.pipeline.workspace import Workspace
from haystack.scene_graph import Segment

# Index 0 = neither, 1 = subject, 2 = object: a blue and an orange that people with any colour
# vision tell apart (Okabe and Ito, 2008).
_PALETTE = (0, 0, 0, 86, 180, 233, 230, 159, 0)
_DISPLAY_SIDE = 1600
"""Longest side of what is sent, in pixels: about twice what a page shows, for zooming."""

_Z_RLE = 3
"""zlib's strategy that looks for runs alone: masks are little else."""

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

_Positions = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


class _Facts(NamedTuple):
    """What an image file says of itself: its MIME type if it is shown as it is, and its turn."""

    mime: str | None
    turn: Image.Transpose | None


@dataclass(frozen=True)
class _Masks:
    """The segments of an image, and of each pixel 1 + its segment's position [H, W]; 0 = none."""

    image_key: str
    segments: tuple[Segment, ...]
    numbers: _Positions

    def pair(self, subject: int, object: int) -> tuple[Segment, Segment]:
        for position in (subject, object):
            if not 0 <= position < len(self.segments):
                raise InputError(
                    f"expected a segment position in 0..{len(self.segments) - 1}, got {position}",
                    record=self.image_key,
                )
        return self.segments[subject], self.segments[object]


class WorkspaceMedia:
    """Serves a workspace's pictures; safe to call from several threads.

    What was made for one view is kept for the next: decoded masks, encoded overlays, and pictures
    that had to be made smaller or turned.

    Args:
        workspace: holds the segment shards.
        source: the images; the workspace's own if None.
        memory: bytes that are kept at most; what was used longest ago goes first.
    """

    def __init__(
        self, workspace: Workspace, source: ImageSource | None = None, *, memory: int = 2**28
    ) -> None:
        self._workspace = workspace
        self._source = source or workspace.source
        self._kept = _Kept(memory)
        self._reading = threading.Lock()

    def image(self, image_key: str) -> tuple[bytes, str]:
        """An image as a browser can show it, upright and not too long, and its MIME type.

        Raises:
            InputError: unknown or unreadable image.
        """
        facts = self._facts(image_key)
        if facts.mime is not None:
            return self._source.read(image_key), facts.mime
        made = self._kept.get(("image", image_key), lambda: self._for_display(image_key), len)
        return made, "image/jpeg"

    def overlay(self, image_key: str, subject: int, object: int) -> bytes:
        """Palette PNG: 0 transparent, 1 subject, 2 object; as long as the picture that is shown.

        Masks follow the stored pixels; it is turned as the image is, which browsers show upright.

        Args:
            image_key: the image.
            subject: position of the subject among its segments.
            object: position of the object.

        Raises:
            InputError: unknown image or segment.
        """
        key = ("overlay", image_key, subject, object)
        return self._kept.get(key, lambda: self._overlay(image_key, subject, object), len)

    def class_names(self, image_key: str, subject: int, object: int) -> tuple[str, str]:
        """Class names of the subject's and the object's segment.

        Raises:
            InputError: unknown image or segment.
        """
        pair = self._masks(image_key).pair(subject, object)
        names = self._workspace.vocabulary.object_classes
        return names[pair[0].category], names[pair[1].category]

    def segmented(self, image_key: str) -> tables.SegmentedImage:
        """The image's masks and segments, as the segment stage stored them.

        Raises:
            InputError: no segment shard has this image.
        """
        with self._reading:
            place = self._index.place_of_key(image_key)
            if place is None:
                raise InputError("this image has no segments in the workspace", record=image_key)
            (found,) = tables.read_segmented(self._workspace.root / place.path, [place.row])
        return found

    def _facts(self, image_key: str) -> _Facts:
        def read() -> _Facts:
            content = self._source.read(image_key)
            try:
                with Image.open(io.BytesIO(content)) as picture:
                    turn, mime = upright_turn(picture), _MIME_TYPES.get(picture.format or "")
                    as_it_is = turn is None and max(picture.size) <= _DISPLAY_SIDE
                    return _Facts(mime if as_it_is else None, turn)
            except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more
                raise InputError(f"broken or truncated image: {error}", path=image_key) from error

        return self._kept.get(("facts", image_key), read, lambda _: 200)

    def _for_display(self, image_key: str) -> bytes:
        content = self._source.read(image_key)
        try:
            with Image.open(io.BytesIO(content)) as picture:
                turn = upright_turn(picture)
                picture.draft(None, (_DISPLAY_SIDE, _DISPLAY_SIDE))  # JPEG: decode fewer pixels
                shown = as_rgb(picture)
        except InputError as error:
            raise InputError(error.message, path=image_key) from error
        except Exception as error:  # as above
            raise InputError(f"broken or truncated image: {error}", path=image_key) from error
        shown.thumbnail((_DISPLAY_SIDE, _DISPLAY_SIDE), Image.Resampling.LANCZOS)
        if turn is not None:
            shown = shown.transpose(turn)
        stream = io.BytesIO()
        shown.save(stream, format="JPEG", quality=90)
        return stream.getvalue()

    def _overlay(self, image_key: str, subject: int, object: int) -> bytes:
        masks = self._masks(image_key)
        areas = [segment.area for segment in masks.pair(subject, object)]
        # Where pixels are taken together, the smaller segment's counts: a line must not vanish.
        first = 1 if areas[0] >= areas[1] else 2
        colours = np.zeros(len(masks.segments) + 1, dtype=np.uint8)
        colours[subject + 1], colours[object + 1] = first, 3 - first
        pixels = _shorter(colours[masks.numbers])
        if first == 2:
            pixels = np.array((0, 2, 1), dtype=np.uint8)[pixels]
        picture = Image.fromarray(pixels)
        turn = self._facts(image_key).turn
        if turn is not None:
            picture = picture.transpose(turn)
        picture.putpalette(_PALETTE)
        stream = io.BytesIO()
        picture.save(
            stream, format="PNG", transparency=0, bits=2, compress_level=1, compress_type=_Z_RLE
        )
        return stream.getvalue()

    def _masks(self, image_key: str) -> _Masks:
        def read() -> _Masks:
            found = self.segmented(image_key)
            segments = found.segments
            kind = np.uint8 if len(segments) < 256 else np.uint16
            numbers = np.zeros(MAX_SEGMENT_ID + 1, dtype=kind)
            numbers[[segment.id for segment in segments]] = np.arange(1, len(segments) + 1)
            return _Masks(image_key, segments, numbers[found.id_map()])

        return self._kept.get(("masks", image_key), read, lambda masks: masks.numbers.nbytes)

    @cached_property
    def _index(self) -> SegmentIndex:
        return SegmentIndex(self._workspace.root)


class _Kept:
    """What was made, by key, as long as it fits into so many bytes; each is made once at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._making: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """The value of ``key``, made now if it is not kept; ``size`` says how many bytes it has."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
            making = self._making.setdefault(key, threading.Lock())
        with making:  # who asks for the same meanwhile waits, and finds it
            with self._lock:
                if key in self._values:
                    return self._values[key][0]
            try:
                value = make()
                with self._lock:
                    self._values[key] = value, size(value)
                    self._bytes += size(value)
                    while self._bytes > self._limit and len(self._values) > 1:
                        self._bytes -= self._values.popitem(last=False)[1][1]
            finally:
                with self._lock:
                    self._making.pop(key, None)
            return value


def _shorter(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """At most as long as pictures are shown, by taking blocks of pixels together: their largest."""
    step = -(-max(pixels.shape) // _DISPLAY_SIDE)
    if step == 1:
        return pixels
    height, width = (-(-side // step) for side in pixels.shape)
    padded = np.zeros((height * step, width * step), dtype=np.uint8)
    padded[: pixels.shape[0], : pixels.shape[1]] = pixels
    corners = [padded[row::step, column::step] for row in range(step) for column in range(step)]
    return reduce(np.maximum, corners)


def upright_turn(picture: Image.Image) -> Image.Transpose | None:
    """How to turn an opened picture's decoded pixels upright, None where they are.

    TIFFs are turned by Pillow as it decodes them.
    """
    return None if picture.format == "TIFF" else _TURNS.get(picture.getexif().get(_ORIENTATION, 1))
