"""Where images come from, a folder of pictures or SA-1B-style tar shards; and what they hold."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from haystack.errors import InputError
from haystack.io.image_source import (
    IMAGE_SUFFIXES,
    UNDECODABLE,
    Content,
    ImageSource,
    state_of,
    text_of,
)
from haystack.io.tar_source import TarSource, refuse_compressed, shard_names

__all__ = [
    "IMAGE_SUFFIXES",
    "Content",
    "FolderSource",
    "ImageSource",
    "TarSource",
    "as_rgb",
    "decode_image",
    "open_pictures",
    "open_source",
    "read_rgb",
]


def decode_image(content: bytes, image_key: str, *, draft_edge: int | None = None) -> Image.Image:
    """Decode an image to RGB, all of it, as stored (no EXIF rotation: masks follow the pixels).

    TIFFs alone come upright: Pillow turns them as it decodes them.

    Args:
        content: the file's bytes.
        image_key: named in errors.
        draft_edge: a JPEG may come at a half, a quarter or an eighth of its size, which its
            decoder gives at a fraction of the cost, as long as both edges keep so many pixels.

    Raises:
        InputError: broken, truncated, not an image, or of values without a scale.
    """
    if not content:
        raise InputError("the image file is empty", path=image_key)
    try:
        with Image.open(io.BytesIO(content)) as picture:
            if draft_edge is not None:
                picture.draft(None, (draft_edge, draft_edge))
            return as_rgb(picture)
    except InputError as error:
        raise InputError(error.message, path=image_key) from error
    except UnidentifiedImageError as error:  # its own text names a memory address
        raise InputError("not an image, or broken at its beginning", path=image_key) from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more
        raise InputError(f"broken or truncated image: {error}", path=image_key) from error


def as_rgb(picture: Image.Image) -> Image.Image:
    """The picture with 8 bits a channel; 16-bit grey keeps its upper 8 bits.

    Pillow's own conversion would clip 16-bit grey at 255, which is nearly all white.

    Raises:
        InputError: 32-bit integers or floats: nothing says which value is white.
    """
    picture.load()
    # Pillow before 11 opens a 16-bit PNG with 32-bit values.
    sixteen = picture.mode.startswith("I;16") or (picture.mode, picture.format) == ("I", "PNG")
    if sixteen:
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode[0] in "IF":
        raise InputError(
            f"the image's values are of Pillow's mode {picture.mode!r}, which has no fixed white; "
            "expected 8 or 16 bits a channel; convert it"
        )
    return picture.convert("RGB")


def read_rgb(
    source: str | Path | bytes,
    *,
    size: tuple[int, int] | None = None,
    path: str | Path | None = None,
) -> npt.NDArray[np.uint8]:
    """A picture as a relation model sees it: see ``decode_image``.

    Args:
        source: a path, or the bytes of the file.
        size: expected (height, width), checked where given.
        path: named in errors when ``source`` is bytes.

    Returns:
        uint8 [H, W, 3], RGB.

    Raises:
        InputError: missing or broken file, or not of the expected size.
    """
    where = str(path if isinstance(source, bytes) else source)
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the image: {error.strerror}", path=where) from error
    picture = np.asarray(decode_image(content, where))
    if size is not None and picture.shape[:2] != tuple(size):
        raise InputError(
            f"expected an image of {size[1]}x{size[0]} pixels as its record says, "
            f"got {picture.shape[1]}x{picture.shape[0]}",
            path=where,
        )
    return picture


def open_source(
    path: str | Path, *, shard_size: int = 1000, index_folder: Path | None = None
) -> ImageSource:
    """The image source at ``path``: a folder of images, a folder of tars, or one tar.

    Args:
        path: searched recursively for images or for ``*.tar``. Hidden files and folders, and links
            to folders, are passed over.
        shard_size: images a shard, for a folder of images; a tar is one shard.
        index_folder: where it is kept at which places of the tars images lie, made by whoever
            reads a tar first; None = nowhere.

    Raises:
        InputError: nothing there, nothing usable there, images and tars mixed, compressed tars, two
            tars of one shard name, or a folder that cannot be listed.
    """
    root = Path(path)
    if shard_size < 1:
        raise InputError(f"expected a shard_size of at least 1, got {shard_size}")
    if root.is_file():
        refuse_compressed([root])
        if root.suffix != ".tar":
            raise InputError("expected a folder of images or a .tar file, got this file", path=root)
        return TarSource({root.stem: root}, index_folder)
    if not root.is_dir():
        raise InputError("no such folder of images or .tar file", path=root)
    found = sorted(_files(root))
    tars = [file for file in found if file.suffix == ".tar"]
    images = [file for file in found if file.suffix.lower() in IMAGE_SUFFIXES]
    if tars and images:
        raise InputError(
            f"found {len(tars)} tar shards and {len(images)} loose images; keep one kind a folder",
            path=root,
        )
    if not images:
        refuse_compressed(found)
    if tars:
        return TarSource(shard_names(tars, root), index_folder)
    if not images:
        suffixes = " ".join(sorted(IMAGE_SUFFIXES))
        raise InputError(f"no images ({suffixes}) and no .tar shards in this folder", path=root)
    return FolderSource(root, images, shard_size)


def open_pictures(paths: Sequence[str | Path]) -> tuple[ImageSource, Path | None]:
    """The images that a user names: one folder or tar, or pictures one by one.

    Args:
        paths: a folder, a ``.tar``, picture files, or a quoted pattern such as ``'*.jpg'``.

    Returns:
        The source, and the folder that its image keys are relative to; None for tars.

    Raises:
        InputError: nothing there, or folders and files mixed.
    """
    found: list[Path] = []
    for path in paths:
        there = Path(path).exists()
        matches = [] if there else sorted(glob.glob(str(path), recursive=True))
        found += map(Path, matches or [str(path)])
    if len(found) == 1 and (found[0].is_dir() or found[0].suffix == ".tar"):
        source = open_source(found[0])
        return source, found[0] if isinstance(source, FolderSource) else None
    for file in found:
        if not file.is_file():
            what = "give one folder at a time" if file.is_dir() else "no such picture"
            raise InputError(f"expected picture files; {what}", path=file)
        if file.suffix.lower() not in IMAGE_SUFFIXES:
            suffixes = " ".join(sorted(IMAGE_SUFFIXES))
            raise InputError(f"expected a picture ({suffixes})", path=file)
    places = sorted({Path(os.path.abspath(file)) for file in found})
    root = Path(os.path.commonpath([place.parent for place in places]))
    return FolderSource(root, places, len(places)), root


class FolderSource:
    """Loose images under one folder, cut into shards of ``shard_size`` in the order of names."""

    def __init__(self, root: Path, images: list[Path], shard_size: int) -> None:
        self._root = root
        self._places = {text_of(file.relative_to(root).as_posix()): file for file in images}
        keys = list(self._places)
        chunks = range(0, len(keys), shard_size)
        self._shards = {f"{i:06d}": keys[at : at + shard_size] for i, at in enumerate(chunks)}

    def shards(self) -> list[str]:
        """Names of the shards: 000000, 000001, ..."""
        return list(self._shards)

    def keys(self) -> Collection[str]:
        """All image keys."""
        return self._places.keys()

    def iterate(self, shard: str) -> Iterator[tuple[str, Content]]:
        """Image key and bytes of every image of the shard, by name."""
        for key in self._shards[shard]:
            try:
                yield key, self.read(key)
            except InputError as error:
                yield key, error

    def read(self, image_key: str) -> bytes:
        """Bytes of one image; only keys of this source are read, never a path made from them."""
        place = self._places.get(image_key)
        if place is None:
            raise InputError("this image is not in the source", path=self._root, record=image_key)
        if place.relative_to(self._root).as_posix() != image_key:
            raise InputError(UNDECODABLE, path=image_key)
        if not place.is_file():
            raise InputError("not a file, or a link that leads nowhere", path=image_key)
        try:
            return place.read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path=image_key) from error

    def signature(self, shard: str) -> dict[str, Any]:
        """Key -> [size, modification time in nanoseconds]; None: cannot be read."""
        return {key: state_of(self._places[key]) for key in self._shards[shard]}


def _files(root: Path) -> Iterator[Path]:
    """Everything below ``root`` that is no folder and not hidden, links that lead nowhere too."""

    def stop(error: OSError) -> NoReturn:
        raise InputError(f"cannot list this folder: {error.strerror}", path=error.filename)

    for folder, folders, names in os.walk(root, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))
