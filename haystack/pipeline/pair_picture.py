"""A picture of a pair of segments, outlined and marked A and B, all in one small JPEG."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from haystack.drawing.palette import Colour
from haystack.drawing.placement import deepest_point
from haystack.errors import InputError
from haystack.io.images import as_rgb
from haystack.io.panoptic_png import IdMap
from haystack.pipeline.media import upright_turn

# Subject and object, as on the annotation page (Okabe and Ito, 2008).
_COLOURS: tuple[Colour, Colour] = ((86, 180, 233), (230, 159, 0))
_DARK: Colour = (16, 17, 20)
_MARKS = ("A", "B")
_FILL = 0.16
_LINE = 2  # pixels of an outline
_MARK = (8, 14)  # smallest and largest radius of a mark
_CONTEXT = 2.0  # what is shown, as a multiple of the pair's longer side ...
_LEAST = 0.4  # ... and of the whole picture's
_LARGEST = 3.0  # pixels of the result for one of the picture's

Pixels = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def draw_pair(
    content: bytes, id_map: IdMap, pair: tuple[int, int], *, side: int = 640, path: str = ""
) -> bytes:
    """The pair and what is around it, upright; the subject in blue (A), the object in orange (B).

    Args:
        content: bytes of the image file.
        id_map: segment id of every stored pixel, int32 [height, width].
        pair: ids of the subject's and the object's segment.
        side: longest side of the result in pixels; what is small is enlarged, to three times.
        path: named in errors.

    Returns:
        A JPEG.

    Raises:
        InputError: the image is broken, of another shape than the map, or a segment has no pixel.
    """
    try:
        with Image.open(io.BytesIO(content)) as opened:
            turn = upright_turn(opened)
            picture = as_rgb(opened)
    except InputError as error:
        raise InputError(error.message, path=path) from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more
        raise InputError(f"broken or truncated image: {error}", path=path) from error
    if picture.size != id_map.shape[::-1]:
        raise InputError(
            f"expected a picture of {id_map.shape[1]}x{id_map.shape[0]} pixels as its masks are, "
            f"got {picture.width}x{picture.height}",
            path=path,
        )
    masks = [Image.fromarray((id_map == segment).astype(np.uint8) * 255) for segment in pair]
    for segment, mask in zip(pair, masks, strict=True):
        if mask.getbbox() is None:
            raise InputError(f"segment {segment} has no pixel", path=path)
    if turn is not None:
        picture, masks = picture.transpose(turn), [mask.transpose(turn) for mask in masks]
    cut = _around(masks)
    picture, masks = picture.crop(cut), [mask.crop(cut) for mask in masks]
    scale = min(side / max(picture.size), _LARGEST)
    size = (max(1, round(scale * picture.width)), max(1, round(scale * picture.height)))
    picture = picture.resize(size, Image.Resampling.LANCZOS)
    # A pixel belongs to a segment if any of those that it stands for does: none is lost.
    shown = [np.asarray(mask.resize(size, Image.Resampling.BOX)) > 0 for mask in masks]
    pixels = np.array(picture)
    for covered, colour in zip(shown, _COLOURS, strict=True):
        _outline(pixels, covered, colour)
    picture = Image.fromarray(pixels)
    for covered, colour, mark in zip(shown, _COLOURS, _MARKS, strict=True):
        _mark(picture, covered, colour, mark)
    stream = io.BytesIO()
    picture.save(stream, format="JPEG", quality=86)
    return stream.getvalue()


def _around(masks: Sequence[Image.Image]) -> tuple[int, int, int, int]:
    """What is shown of a picture: the pair, and as much around it; all of it where that is most."""
    boxes = np.array([mask.getbbox() for mask in masks])
    low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    whole = np.array(masks[0].size)
    shown = np.maximum((high - low).max() * _CONTEXT, _LEAST * whole.max())
    shown = np.minimum(np.maximum(shown, high - low), whole)
    corner = np.clip((low + high - shown) / 2, 0, whole - shown)
    left, top = np.floor(corner).astype(int).tolist()
    right, bottom = np.minimum(np.ceil(corner + shown).astype(int), whole).tolist()
    return left, top, right, bottom


def _outline(pixels: Pixels, mask: Mask, colour: Colour) -> None:
    """Fill lightly; around it a line, and around that a dark one, to stand out anywhere."""
    tint = np.array(colour, dtype=np.float32)
    pixels[mask] = pixels[mask] * (1 - _FILL) + _FILL * tint
    wide = _grown(mask, _LINE)
    pixels[_grown(wide, 1) & ~wide] = _DARK
    pixels[wide & ~mask] = colour


def _grown(mask: Mask, by: int) -> Mask:
    """The mask with all pixels that are at most so many rows and columns away from it."""
    for axis in (0, 1):
        padded = np.pad(mask, [(by * (axis == 0),) * 2, (by * (axis == 1),) * 2])
        length = mask.shape[axis]
        shifted = (padded.take(range(k, k + length), axis) for k in range(2 * by + 1))
        mask = np.logical_or.reduce(list(shifted))
    return mask


def _mark(picture: Image.Image, mask: Mask, colour: Colour, mark: str) -> None:
    """A letter on a disc where the segment is thickest; smaller on a small segment."""
    radius = float(np.clip(np.sqrt(mask.sum()) / 5, *_MARK))
    across, down = deepest_point(mask) or (0.5, 0.5)
    x = min(max(across * picture.width, radius + 1), picture.width - radius - 1)
    y = min(max(down * picture.height, radius + 1), picture.height - radius - 1)
    draw = ImageDraw.Draw(picture)
    disc = (x - radius, y - radius, x + radius, y + radius)
    draw.ellipse(disc, fill=colour, outline=_DARK, width=2)
    font = ImageFont.load_default(1.35 * radius)
    draw.text((x, y), mark, fill=_DARK, font=font, anchor="mm")
