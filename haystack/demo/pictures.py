"""Pictures of proposals: a photograph with the subject and the object outlined."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

# Blue and orange of the Okabe-Ito palette, distinct for colour-blind readers.
SUBJECT_COLOUR = (0, 114, 178)
OBJECT_COLOUR = (230, 121, 0)
_FILL = 0.35


def proposal_picture(
    image: Image.Image,
    ids: npt.NDArray[np.int32],
    subject_id: int,
    object_id: int,
    *,
    height: int = 220,
) -> bytes:
    """JPEG bytes of ``image`` with two segments filled lightly and outlined.

    Args:
        image: RGB.
        ids: int32 [H, W], segment ids, of the image's size.
        subject_id: drawn in blue.
        object_id: drawn in orange.
        height: of the picture, in pixels.
    """
    scale = height / image.height
    size = (max(1, round(image.width * scale)), height)
    pixels = np.asarray(image.resize(size, Image.Resampling.LANCZOS)).astype(np.float32)
    small = np.asarray(Image.fromarray(ids).resize(size, Image.Resampling.NEAREST))
    shown = (small == subject_id) | (small == object_id)
    pixels[~shown] *= 0.6
    for segment, colour in ((subject_id, SUBJECT_COLOUR), (object_id, OBJECT_COLOUR)):
        mask = small == segment
        tint = np.array(colour, np.float32)
        pixels[mask] = (1 - _FILL) * pixels[mask] + _FILL * tint
        pixels[_outline(mask)] = tint
    return _jpeg(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))


def thumbnail(image: Image.Image, *, width: int) -> bytes:
    """JPEG bytes of ``image`` at the given width in pixels, never enlarged."""
    small = image.copy()
    small.thumbnail((width, 10 * width))
    return _jpeg(small)


def _outline(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Pixels of the mask within two of its border, also where the image ends."""
    inner = np.pad(mask, 2)
    for _ in range(2):
        grown = inner.copy()
        grown[1:] &= inner[:-1]
        grown[:-1] &= inner[1:]
        grown[:, 1:] &= inner[:, :-1]
        grown[:, :-1] &= inner[:, 1:]
        inner = grown
    return mask & ~inner[2:-2, 2:-2]


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=82)
    return stream.getvalue()
