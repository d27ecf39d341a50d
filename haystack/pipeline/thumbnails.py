"""Small pictures of a source's images, for pages that show many at once."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict

from PIL import Image

from haystack.errors import InputError
from haystack.io.images import ImageSource, as_rgb
from haystack.pipeline.media import upright_turn

_DECODERS = 2
"""Pictures that are decoded at the same time: an annotator's next question must not wait."""


class Thumbnails:
    """JPEGs that fit into a square, upright; safe to call from several threads.

    Args:
        source: the images, loose or in tars.
        side: longest side of a thumbnail in pixels.
        memory: bytes of thumbnails that are kept, the latest ones.
    """

    def __init__(self, source: ImageSource, *, side: int = 320, memory: int = 64 << 20) -> None:
        self._source = source
        self._side = side
        self._memory = memory
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._decoding = threading.Semaphore(_DECODERS)

    def get(self, image_key: str) -> bytes:
        """The image's thumbnail (JPEG).

        Raises:
            InputError: unknown, broken or unreadable image.
        """
        with self._lock:
            if image_key in self._kept:
                self._kept.move_to_end(image_key)
                return self._kept[image_key]
        with self._decoding:
            content = small_jpeg(self._source.read(image_key), image_key, self._side)
        with self._lock:
            if image_key not in self._kept:
                self._kept[image_key] = content
                self._bytes += len(content)
            while self._bytes > self._memory:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= len(oldest)
        return content


def small_jpeg(content: bytes, image_key: str, side: int) -> bytes:
    """An encoded image as a JPEG whose longest side is at most ``side``, upright.

    Args:
        content: the file's bytes.
        image_key: named in errors.
        side: pixels; smaller pictures stay as small as they are.

    Raises:
        InputError: broken, truncated, not an image, or of values without a scale.
    """
    try:
        with Image.open(io.BytesIO(content)) as picture:
            # A JPEG's decoder gives a half, a quarter or an eighth at a fraction of the cost.
            picture.draft(None, (side, side))
            turn = upright_turn(picture)
            shown = as_rgb(picture)
            if turn is not None:
                shown = shown.transpose(turn)
    except InputError as error:
        raise InputError(error.message, path=image_key) from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more
        raise InputError(f"broken or truncated image: {error}", path=image_key) from error
    shown.thumbnail((side, side), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    shown.save(stream, format="JPEG", quality=82)
    return stream.getvalue()
