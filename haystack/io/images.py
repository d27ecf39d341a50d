"""Where images come from: a folder of pictures, or SA-1B-style tar shards.

An **image key** names one image inside its source: the path relative to the folder, or
``<tar name>/<member name>``, so that names may repeat across shards.
"""

from __future__ import annotations

import glob
import io
import os
import tarfile
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from haystack.errors import InputError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})

Content = bytes | InputError
"""Encoded bytes of an image, or why there are none."""


class ImageSource(Protocol):
    """Images in shards: the unit of work, of resuming, and of distribution."""

    def shards(self) -> list[str]:
        """Names of the shards, in a fixed order."""

    def keys(self) -> Collection[str] | None:
        """All image keys, or None where only reading every shard would tell."""

    def iterate(self, shard: str) -> Iterator[tuple[str, Content]]:
        """Image key and encoded bytes of every image of a shard, in a fixed order.

        An image that cannot be read comes with its error instead of bytes.

        Raises:
            InputError: the shard itself breaks off (a truncated tar), after what came before.
        """

    def read(self, image_key: str) -> bytes:
        """Encoded bytes of one image."""

    def signature(self, shard: str) -> dict[str, Any]:
        """What changes when the shard's images change: names, sizes, modification times."""


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


def open_source(path: str | Path, *, shard_size: int = 1000) -> ImageSource:
    """The image source at ``path``: a folder of images, a folder of tars, or one tar.

    Args:
        path: searched recursively for images, or not recursively for ``*.tar``. Hidden files and
            folders, and links to folders, are passed over.
        shard_size: images a shard, for a folder of images; a tar is one shard.

    Raises:
        InputError: nothing there, nothing usable there, images and tars mixed, or a folder that
            cannot be listed.
    """
    root = Path(path)
    if shard_size < 1:
        raise InputError(f"expected a shard_size of at least 1, got {shard_size}")
    if root.is_file():
        if root.suffix != ".tar":
            raise InputError("expected a folder of images or a .tar file, got this file", path=root)
        return TarSource([root])
    if not root.is_dir():
        raise InputError("no such folder of images or .tar file", path=root)
    found = sorted(_files(root))
    tars = [file for file in found if file.parent == root and file.suffix == ".tar"]
    images = [file for file in found if file.suffix.lower() in IMAGE_SUFFIXES]
    if tars and images:
        raise InputError(
            f"found {len(tars)} tar shards and {len(images)} loose images; keep one kind a folder",
            path=root,
        )
    if tars:
        return TarSource(tars)
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
        self._places = {_text(file.relative_to(root).as_posix()): file for file in images}
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
            raise _undecodable(image_key)
        if not place.is_file():
            raise InputError("not a file, or a link that leads nowhere", path=image_key)
        try:
            return place.read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path=image_key) from error

    def signature(self, shard: str) -> dict[str, Any]:
        """Key -> [size, modification time in nanoseconds]; None: cannot be read."""
        return {key: _state(self._places[key]) for key in self._shards[shard]}


class TarSource:
    """One shard a tar file; members that are not images (SA-1B's JSON) are passed over."""

    def __init__(self, tars: list[Path]) -> None:
        self._tars = {tar.stem: tar for tar in tars}
        self._index = lru_cache(maxsize=64)(self._scan)

    def shards(self) -> list[str]:
        """Names of the shards: the tars' names without ``.tar``."""
        return list(self._tars)

    def keys(self) -> None:
        """Unknown: a tar has no table of contents."""
        return

    def iterate(self, shard: str) -> Iterator[tuple[str, Content]]:
        """Image key and bytes of every image of the tar, in the order of the tar."""
        names: set[str] = set()
        for archive, member in self._members(shard):
            key = _text(f"{shard}/{member.name}")
            if key != f"{shard}/{member.name}":
                yield key, _undecodable(key)
            elif not member.isfile():
                yield key, InputError("a link inside the tar; store the image itself", path=key)
            elif member.name in names:
                yield (
                    key,
                    InputError(
                        "the tar has a second image of this name; the first one is used; rename it",
                        path=key,
                    ),
                )
            else:
                try:
                    stream = archive.extractfile(member)
                    content = stream.read() if stream is not None else b""
                except (tarfile.TarError, OSError, EOFError) as error:
                    self._breaks_off(shard, len(names), str(error), error)
                names.add(member.name)
                yield key, content

    def read(self, image_key: str) -> bytes:
        """Bytes of one image, by its offset inside the tar."""
        shard, _, name = image_key.partition("/")
        if shard in self._tars:
            place = self._index(shard).get(name)
            if place is not None:
                with self._tars[shard].open("rb") as stream:
                    stream.seek(place[0])
                    return stream.read(place[1])
        raise InputError("this image is in none of the tars", record=image_key)

    def signature(self, shard: str) -> dict[str, Any]:
        """The tar's size and modification time in nanoseconds; None: cannot be read."""
        return {"tar": _state(self._tars[shard])}

    def _members(self, shard: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
        """Members that are named like images; ends only where the tar says that it ends."""
        path = self._tars[shard]
        try:
            archive = tarfile.open(path, "r:")  # noqa: SIM115  closed below
        except (tarfile.TarError, OSError) as error:
            raise InputError(f"not a readable tar: {error}", path=path) from error
        with archive:
            images = 0
            while True:
                try:
                    member = archive.next()
                except (tarfile.TarError, OSError, EOFError) as error:
                    self._breaks_off(shard, images, str(error), error)
                if member is None:
                    # tarfile takes a damaged or missing header for the end.
                    reason = _why_no_end(path, archive.offset)
                    if reason:
                        self._breaks_off(shard, images, reason)
                    return
                named = Path(member.name).suffix.lower() in IMAGE_SUFFIXES
                if named and not member.isdir():
                    yield archive, member
                    images += 1

    def _breaks_off(
        self, shard: str, images: int, reason: str, cause: BaseException | None = None
    ) -> NoReturn:
        raise InputError(
            f"the tar breaks off after {images} images: {reason}", path=self._tars[shard]
        ) from cause

    def _scan(self, shard: str) -> dict[str, tuple[int, int]]:
        places: dict[str, tuple[int, int]] = {}
        try:
            for _, member in self._members(shard):
                if member.isfile():
                    places.setdefault(member.name, (member.offset_data, member.size))
        except InputError:
            pass  # what stands before the break can be read; iterate() reports the break
        return places


def _why_no_end(tar: Path, offset: int) -> str:
    """Why no tar ends at ``offset``, or "" where it does: zeros, from there to the file's end."""
    with tar.open("rb") as stream:
        stream.seek(offset)
        block = stream.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE:
            return "the file ends before the tar's end mark"
        if any(block):
            return f"no valid member header at byte {offset}"
        while block := stream.read(1 << 20):
            if block.count(0) != len(block):
                return f"more data behind the end mark at byte {offset}"
    return ""


def _files(root: Path) -> Iterator[Path]:
    """Everything below ``root`` that is no folder and not hidden, links that lead nowhere too."""

    def stop(error: OSError) -> NoReturn:
        raise InputError(f"cannot list this folder: {error.strerror}", path=error.filename)

    for folder, folders, names in os.walk(root, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _state(path: Path) -> list[int] | None:
    # Readability is part of it: an image is looked at again once its permissions are mended.
    if not os.access(path, os.R_OK):
        return None
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _text(name: str) -> str:
    """A file name as valid Unicode: bytes that are no UTF-8 are spelled out."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _undecodable(key: str) -> InputError:
    return InputError("its name is not valid UTF-8; rename it", path=key)
