"""Panoptic PNGs, both ways: segment id = R + 256 G + 65536 B, 0 = void (COCO panoptic format)."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from haystack import files
from haystack.errors import InputError
from haystack.scene_graph import NO_OBJECT

IdMap = npt.NDArray[np.int32]

MAX_SEGMENT_ID = 256**3 - 1
"""The largest id that three bytes hold."""

_HEADER = struct.Struct(">8sI4sIIBBBBB")
_BEGINS = (b"\x89PNG\r\n\x1a\n", 13, b"IHDR")
_RGB = 2


class SegmentGeometry(NamedTuple):
    """What an id map says of its segments, ordered by id; void (0) is not among them.

    ids: int64 [N]; areas: int64 [N], pixels; boxes: float32 [N, 4], x1, y1, x2, y2, the right
    and the bottom exclusive.
    """

    ids: npt.NDArray[np.int64]
    areas: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float32]


def read_panoptic_png(
    source: str | Path | bytes,
    *,
    size: tuple[int, int] | None = None,
    path: str | Path | None = None,
) -> IdMap:
    """The id map of a panoptic PNG.

    Args:
        source: a path, or the bytes of the file.
        size: expected (height, width), checked where given.
        path: named in errors when ``source`` is bytes.

    Returns:
        int32 [H, W], segment ids, 0 = void.

    Raises:
        InputError: missing or broken file, not an RGB PNG, or not of the expected size.
    """
    where = path if isinstance(source, bytes) else source
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the panoptic PNG: {error.strerror}", path=where) from error
    header = _Header.of(content)
    ids = None if header is None else _ids_by_kornia(content, header)
    if ids is None:
        ids = _ids_by_pillow(content, header, where)
    if size is not None and ids.shape != tuple(size):
        raise InputError(
            f"expected a panoptic PNG of {size[1]}x{size[0]} pixels as its record says, "
            f"got {ids.shape[1]}x{ids.shape[0]}",
            path=where,
        )
    return ids


class _Header(NamedTuple):
    """What a PNG says of itself before its pixels."""

    width: int
    height: int
    depth: int
    color: int
    interlaced: bool

    @classmethod
    def of(cls, content: bytes) -> _Header | None:
        """The header of a file; None where it is no PNG."""
        if len(content) < _HEADER.size:
            return None
        *begins, width, height, depth, color, _, _, interlace = _HEADER.unpack_from(content)
        return (
            cls(width, height, depth, color, interlace != 0) if tuple(begins) == _BEGINS else None
        )


def _ids_by_kornia(content: bytes, header: _Header) -> IdMap | None:
    """The ids, decoded in a quarter of Pillow's time; None where that is left to Pillow.

    Whatever is not plain is, and so are files that are refused: Pillow says why.
    """
    limit = Image.MAX_IMAGE_PIXELS  # a larger one may be made to exhaust the memory
    pixels = header.width * header.height
    plain = (header.depth, header.color, header.interlaced) == (8, _RGB, False)
    if not plain or not pixels or (limit is not None and pixels > limit):
        return None
    shape = header.height, header.width
    try:
        from kornia_rs.io import decode_image_png_u8

        channels = decode_image_png_u8(content, shape, "rgb")
    except Exception:
        return None
    flat = np.ascontiguousarray(channels).reshape(-1)
    if flat.dtype != np.uint8 or flat.size != 3 * pixels:
        return None
    # Each pixel as four bytes, of which the last is the next pixel's first. One pass like this
    # takes half the time of putting three channels together.
    ids = np.empty(pixels, dtype=np.int32)
    ids[:-1] = np.ndarray(pixels - 1, "<i4", flat.data, strides=(3,))
    ids[-1] = int.from_bytes(flat[-3:].tobytes(), "little")
    ids &= MAX_SEGMENT_ID
    return ids.reshape(shape)


def _ids_by_pillow(content: bytes, header: _Header | None, where: str | Path | None) -> IdMap:
    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            kind, mode, shape = picture.format, picture.mode, (picture.height, picture.width)
            # Four bytes a pixel read as one little-endian number: R + 256 G + 65536 B and a pad.
            packed = picture.tobytes("raw", "RGBX") if mode == "RGB" else b""
    except UnidentifiedImageError as error:  # its own text names a memory address
        raise InputError(
            "not a readable panoptic PNG: no image, or broken at its beginning", path=where
        ) from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more
        raise InputError(f"not a readable panoptic PNG: {error}", path=where) from error
    # Pillow would halve 16 bits without a word.
    depth = 8 if header is None else header.depth
    if kind != "PNG" or mode != "RGB" or depth != 8:
        bits = "" if depth == 8 else f" with {depth} bits a channel"
        raise InputError(
            f"expected a panoptic PNG with three 8-bit channels (RGB), got {kind} in mode "
            f"{mode}{bits}; save the ids as R + 256 G + 65536 B",
            path=where,
        )
    ids = np.frombuffer(packed, dtype="<i4").reshape(shape) & np.int32(MAX_SEGMENT_ID)
    return ids.astype(np.int32, copy=False)


def encode_panoptic_png(ids: npt.NDArray[np.integer]) -> bytes:
    """The bytes of a panoptic PNG for an id map [H, W]; equal maps give equal bytes.

    Raises:
        InputError: not two-dimensional, or an id that three bytes cannot hold.
    """
    if ids.ndim != 2:
        raise InputError(f"expected an id map [H, W], got shape {ids.shape}")
    if ids.size and (ids.min() < 0 or ids.max() > MAX_SEGMENT_ID):
        raise InputError(
            f"segment ids must lie in 0..{MAX_SEGMENT_ID}, got {int(ids.min())}..{int(ids.max())}"
        )
    wide = ids.astype(np.uint32)
    pixels = np.stack([wide & 255, (wide >> 8) & 255, wide >> 16], axis=-1).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels, mode="RGB").save(stream, format="PNG", optimize=False)
    return stream.getvalue()


def write_panoptic_png(path: str | Path, ids: npt.NDArray[np.integer]) -> None:
    """Write an id map [H, W] as a panoptic PNG, atomically."""
    files.write_bytes(path, encode_panoptic_png(ids))


def segment_positions(id_map: IdMap, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Position of each pixel's segment in a list of ids.

    Args:
        id_map: int32 [H, W].
        ids: int64 [N], distinct.

    Returns:
        int32 [H, W], ``NO_OBJECT`` where a pixel's id is not in the list.
    """
    if not len(ids):
        return np.full(id_map.shape, NO_OBJECT, dtype=np.int32)
    order = np.argsort(ids)
    place = np.searchsorted(ids[order], id_map).clip(max=len(ids) - 1)
    found = ids[order][place] == id_map
    return np.where(found, order[place], NO_OBJECT).astype(np.int32)


def segment_geometry(ids: IdMap) -> SegmentGeometry:
    """Ids, areas and boxes of all segments of an id map [H, W], in one pass.

    The boxes follow COCO: right and bottom exclusive, so that x2 = width for a full-width segment.
    """
    height, width = ids.shape
    if not ids.size:
        empty = np.empty(0, dtype=np.int64)
        return SegmentGeometry(empty, empty, np.empty((0, 4), dtype=np.float32))
    # By runs of pixels within rows, a hundredth of the pixels.
    begins = np.ones((height, width), dtype=np.bool_)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=begins[:, 1:])
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=ids.size)
    rows, left = np.divmod(starts, width)
    unique, inverse = np.unique(ids.reshape(-1)[starts], return_inverse=True)
    areas = np.bincount(inverse, weights=lengths)
    boxes = np.empty((len(unique), 4), dtype=np.float32)
    for column, (positions, function, start) in enumerate(
        (
            (left, np.minimum, width),
            (rows, np.minimum, height),
            (left + lengths, np.maximum, 0),
            (rows + 1, np.maximum, 0),
        )
    ):
        extreme = np.full(len(unique), start, dtype=np.int64)
        function.at(extreme, inverse, positions)
        boxes[:, column] = extreme
    real = unique != 0
    return SegmentGeometry(unique[real].astype(np.int64), areas[real].astype(np.int64), boxes[real])
