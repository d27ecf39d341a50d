"""What foreign files say of images, checked before anything is opened or reserved for it.

PSG files are not among them: they are Haystack's own, and lead to pictures in other folders.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from haystack.errors import InputError

MOST_PIXELS = 2 * 89_478_485
"""Pixels of the largest image whose panoptic PNG Pillow reads (twice its MAX_IMAGE_PIXELS)."""


def image_size(height: object, width: object, path: Path, record: str) -> tuple[int, int]:
    """Height and width of an image, in pixels.

    Args:
        height: what the file says.
        width: likewise.
        path: the file, for errors.
        record: the image, for errors.

    Raises:
        InputError: no whole numbers of at least 1, or more than ``MOST_PIXELS`` together.
    """
    rows, columns = (
        _pixels(side, value, path, record) for side, value in (("height", height), ("width", width))
    )
    if rows * columns > MOST_PIXELS:
        raise InputError(
            f"expected an image of at most {MOST_PIXELS} pixels, which is what a panoptic PNG can "
            f"hold, got {str(columns)[:20]} x {str(rows)[:20]}; correct its size, or cut the "
            "picture into parts",
            path=path,
            record=record,
        )
    return rows, columns


def _pixels(side: str, value: object, path: Path, record: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(
            f"expected its {side} to be a whole number of pixels, 1 or more, got {str(value)[:40]}",
            path=path,
            record=record,
        )
    return value


def file_name_inside(name: str, path: Path, record: str) -> str:
    """A file's name that a foreign file gives, if it stays inside the folder it is looked for in.

    Args:
        name: what the file says.
        path: the file, for errors.
        record: the image, for errors.

    Raises:
        InputError: an empty or an absolute name, or one that leads out of the folder.
    """
    for kind in (PurePosixPath, PureWindowsPath):
        given = kind(name)
        if not given.name or given.anchor or ".." in given.parts or "\0" in name:
            raise InputError(
                "expected a file's name below the folder of the pictures, without '..' and not "
                f"absolute, got {name[:80]!r}; write it relative to that folder",
                path=path,
                record=record,
            )
    return name
