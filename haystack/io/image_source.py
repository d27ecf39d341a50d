"""What an image source is, and what its kinds share.

An **image key** names one image inside its source: the path relative to the folder, or
``<shard>/<member name>`` in a tar, so that names may repeat across shards.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from haystack.errors import InputError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})

Content = bytes | InputError
"""Encoded bytes of an image, or why there are none."""

UNDECODABLE = "its name is not valid UTF-8; rename it"


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


def state_of(path: Path) -> list[int] | None:
    """Size and modification time in nanoseconds; None where the file cannot be read."""
    # Readability is part of it: an image is looked at again once its permissions are mended.
    if not os.access(path, os.R_OK):
        return None
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def text_of(name: str) -> str:
    """A file name as valid Unicode: bytes that are no UTF-8 are spelled out."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
