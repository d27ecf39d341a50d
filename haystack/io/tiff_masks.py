"""Masks of a TIFF, a page each, or a channel each, as SGBench stores them.

SGBench writes them with tifffile, which takes three or four masks for the channels of one picture.
A pixel belongs to a mask where it is not 0.

Pages that are plain, as tifffile's are, are not put together: runs are read off their strips, and
of equal strips, most of which are empty, one is looked at.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from haystack.errors import InputError
from haystack.scene_graph import MaskRuns, mask_edges

try:
    from zlib_ng import zlib_ng as zlib  # the same interface, in a quarter of the time
except ImportError:
    import zlib  # type: ignore[no-redef]

_PLANAR_CONFIGURATION = 284
_SEPARATE = 2
_WIDTH, _HEIGHT, _COMPRESSION, _OFFSETS, _ROWS, _SIZES = 256, 257, 259, 273, 278, 279
_DEFLATE = (8, 32946)
# Tags of a plain page, with the value that they have where they are there: 8 bits a sample, black
# is 0, bits in the usual order, upright, one sample, no prediction, no tiles, unsigned numbers.
_PLAIN = {258: (8,), 262: 1, 266: 1, 274: 1, 277: 1, 317: 1, 322: None, 339: (1,)}


def read_tiff_masks(content: bytes, count: int) -> MaskRuns:
    """The masks of a TIFF.

    Args:
        content: the file.
        count: how many masks there should be.

    Raises:
        InputError: it is no such TIFF, or has another number of masks.
        OSError, ValueError: it is broken further in; the reason as Pillow gives it.
    """
    try:
        with Image.open(io.BytesIO(content), formats=["TIFF"]) as picture:
            pages = getattr(picture, "n_frames", 1)
            channels = picture.getbands()
            in_channels = picture.tag_v2.get(_PLANAR_CONFIGURATION) == _SEPARATE
            layers = pages * len(channels)
            if layers != count or (len(channels) > 1 and (pages > 1 or not in_channels)):
                raise InputError(
                    f"expected a TIFF with {count} masks, one an object, got {pages} pages of "
                    f"{len(channels)} channels"
                )
            height, width = picture.height, picture.width
            edges = _edges_of_pages(picture, pages, content)
            if edges is not None:
                return MaskRuns.from_edges(edges, height, width)
            return MaskRuns.from_masks(_layers(picture, pages), height, width)
    except UnidentifiedImageError as error:  # its own text names a memory address
        raise InputError(
            "not a readable TIFF: no TIFF, or broken at its beginning; write the masks again"
        ) from error
    except (Image.DecompressionBombError, SyntaxError, TypeError, KeyError) as error:
        raise InputError(f"not a readable TIFF: {error}") from error


def _layers(picture: Image.Image, pages: int) -> Iterator[npt.NDArray[np.bool_]]:
    for page in range(pages):
        picture.seek(page)
        if picture.mode not in ("L", "1", "RGB", "RGBA"):
            raise InputError(f"expected masks of 8 bits a pixel, got mode {picture.mode}")
        pixels = np.asarray(picture) != 0
        yield from (pixels,) if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def _edges_of_pages(
    picture: TiffImagePlugin.TiffImageFile, pages: int, content: bytes
) -> list[npt.NDArray[np.int64]] | None:
    """Edges of the mask on each page; None where a page is not plain: that is left to Pillow."""
    size = picture.width, picture.height
    known: dict[bytes, npt.NDArray[np.int64] | None] = {}
    found = []
    for page in range(pages):
        picture.seek(page)
        strips = _strips(picture, size)
        if strips is None:
            return None
        edges, first = [np.empty(0, np.int64)], 0
        for begin, stored, pixels in strips:
            strip = content[begin : begin + stored]
            if strip not in known:
                known[strip] = _edges_of_strip(strip, pixels)
            inside = known[strip]
            if inside is None:
                return None
            edges.append(inside + first)
            first += pixels
        found.append(_joined(np.concatenate(edges)))
    return found


def _strips(
    picture: TiffImagePlugin.TiffImageFile, size: tuple[int, int]
) -> Sequence[tuple[int, int, int]] | None:
    """Offset, bytes and pixels of each strip of the page; None if it is not plain."""
    tags = picture.tag_v2
    width, height = size
    offsets, sizes = tags.get(_OFFSETS, ()), tags.get(_SIZES, ())
    rows = min(tags.get(_ROWS, height), height)
    plain = (
        (tags.get(_WIDTH), tags.get(_HEIGHT)) == size
        and tags.get(_COMPRESSION) in _DEFLATE
        and all(tags.get(tag, value) == value for tag, value in _PLAIN.items())
        and 258 in tags
        and 262 in tags
        and rows > 0
        and len(offsets) == len(sizes) == -(-height // rows)
    )
    if not plain:
        return None
    pixels = [width * min(rows, height - first) for first in range(0, height, rows)]
    return list(zip(offsets, sizes, pixels, strict=True))


def _edges_of_strip(strip: bytes, pixels: int) -> npt.NDArray[np.int64] | None:
    """Edges of the mask inside a strip; None where it does not hold that many pixels."""
    inflating = zlib.decompressobj()
    try:
        values = inflating.decompress(strip, pixels + 1)
    except zlib.error:  # type: ignore[misc]  # the package's stub calls its class an instance
        return None
    if len(values) != pixels or not inflating.eof:
        return None
    return mask_edges(np.frombuffer(values, np.uint8))


def _joined(edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Edges of a page: a run that goes on into the next strip has no end between them."""
    met = np.flatnonzero(edges[1:] == edges[:-1])
    return np.delete(edges, np.concatenate([met, met + 1]))
