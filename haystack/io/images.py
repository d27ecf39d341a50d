"""Where images come from: a folder of pictures, or SA-1B-style tar shards.

An **image key** names one image inside its source: the path relative to the folder, or
``<tar name>/<member name>``, so that names may repeat across shards.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from PIL import Image, UnidentifiedImageError

from haystack.errors import InputError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})


class ImageSource(Protocol):
    """Images in shards: the unit of work, of resuming, and of distribution."""

    def shards(self) -> list[str]:
        """Names of the shards, in a fixed order."""

    def iterate(self, shard: str) -> Iterator[tuple[str, bytes]]:
        """Image key and encoded bytes of every image of a shard, in a fixed order.

        Raises:
            InputError: the shard itself breaks off (a truncated tar), after what came before.
        """

    def read(self, image_key: str) -> bytes:
        """Encoded bytes of one image."""

    def signature(self, shard: str) -> dict[str, Any]:
        """What changes when the shard's images change: names, sizes, modification times."""


def decode_image(content: bytes, image_key: str) -> Image.Image:
    """Decode an image to RGB, all of it, as stored (no EXIF rotation: masks follow the pixels).

    Raises:
        InputError: broken, truncated, or not an image.
    """
    if not content:
        raise InputError("the image file is empty", path=image_key)
    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            return picture.convert("RGB")
    except UnidentifiedImageError as error:  # its own text names a memory address
        raise InputError("not an image, or broken at its beginning", path=image_key) from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more
        raise InputError(f"broken or truncated image: {error}", path=image_key) from error


def open_source(path: str | Path, *, shard_size: int = 1000) -> ImageSource:
    """The image source at ``path``: a folder of images, a folder of tars, or one tar.

    Args:
        path: searched recursively for images, or not recursively for ``*.tar``.
        shard_size: images a shard, for a folder of images; a tar is one shard.

    Raises:
        InputError: nothing there, nothing usable there, or images and tars mixed.
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
    tars = sorted(root.glob("*.tar"))
    images = sorted(
        file
        for file in root.rglob("*")
        if file.suffix.lower() in IMAGE_SUFFIXES
        and not any(part.startswith(".") for part in file.relative_to(root).parts)
    )
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


class FolderSource:
    """Loose images under one folder, cut into shards of ``shard_size`` in the order of names."""

    def __init__(self, root: Path, images: list[Path], shard_size: int) -> None:
        self._root = root
        keys = [file.relative_to(root).as_posix() for file in images]
        chunks = range(0, len(keys), shard_size)
        self._shards = {f"{i:06d}": keys[at : at + shard_size] for i, at in enumerate(chunks)}
        self._keys = frozenset(keys)

    def shards(self) -> list[str]:
        """Names of the shards: 000000, 000001, ..."""
        return list(self._shards)

    def iterate(self, shard: str) -> Iterator[tuple[str, bytes]]:
        """Image key and bytes of every image of the shard, by name."""
        for key in self._shards[shard]:
            yield key, (self._root / key).read_bytes()

    def read(self, image_key: str) -> bytes:
        """Bytes of one image; only keys of this source are read, never a path made from them."""
        if image_key not in self._keys:
            raise InputError("this image is not in the source", path=self._root, record=image_key)
        return (self._root / image_key).read_bytes()

    def signature(self, shard: str) -> dict[str, Any]:
        """Key -> [size, modification time in nanoseconds]."""
        stats = {key: (self._root / key).stat() for key in self._shards[shard]}
        return {key: [stat.st_size, stat.st_mtime_ns] for key, stat in stats.items()}


class TarSource:
    """One shard a tar file; members that are not images (SA-1B's JSON) are passed over."""

    def __init__(self, tars: list[Path]) -> None:
        self._tars = {tar.stem: tar for tar in tars}
        self._index = lru_cache(maxsize=64)(self._scan)

    def shards(self) -> list[str]:
        """Names of the shards: the tars' names without ``.tar``."""
        return list(self._tars)

    def iterate(self, shard: str) -> Iterator[tuple[str, bytes]]:
        """Image key and bytes of every image of the tar, in the order of the tar."""
        with self._open(shard) as archive:
            count = 0
            while True:
                try:
                    member = archive.next()
                    if member is None:
                        return
                    stream = archive.extractfile(member) if _is_image(member) else None
                    content = stream.read() if stream is not None else None
                except (tarfile.TarError, OSError, EOFError) as error:
                    raise InputError(
                        f"the tar breaks off after {count} images: {error}",
                        path=self._tars[shard],
                    ) from error
                if content is not None:
                    count += 1
                    yield f"{shard}/{member.name}", content

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
        """The tar's size and modification time in nanoseconds."""
        stat = self._tars[shard].stat()
        return {"tar": [stat.st_size, stat.st_mtime_ns]}

    def _open(self, shard: str) -> tarfile.TarFile:
        path = self._tars[shard]
        try:
            return tarfile.open(path, "r:")
        except (tarfile.TarError, OSError) as error:
            raise InputError(f"not a readable tar: {error}", path=path) from error

    def _scan(self, shard: str) -> dict[str, tuple[int, int]]:
        with self._open(shard) as archive:
            places = {}
            try:
                for member in archive:
                    if _is_image(member):
                        places[member.name] = (member.offset_data, member.size)
            except (tarfile.TarError, OSError):
                pass  # what stands before the break can be read; iterate() reports the break
            return places


def _is_image(member: tarfile.TarInfo) -> bool:
    return member.isfile() and Path(member.name).suffix.lower() in IMAGE_SUFFIXES
