"""Data sets found by name: those that come with the package."""

from __future__ import annotations

from pathlib import Path

from haystack.errors import InputError

BUNDLED = {"psg-mini": Path(__file__).parent.parent / "data" / "psg_mini" / "annotation.json"}
"""Name -> annotation file. Pictures, masks and attribution stand beside it."""


def find_annotations(name_or_path: str | Path) -> Path:
    """The annotation file of a bundled data set (``psg-mini``), or the given path, checked.

    Raises:
        InputError: it is neither a bundled name nor an existing file.
    """
    if str(name_or_path) in BUNDLED:
        return BUNDLED[str(name_or_path)]
    path = Path(name_or_path)
    if path.is_dir():
        raise InputError(
            "expected an annotation file, got a folder; name the file in it", path=path
        )
    if not path.is_file():
        known = ", ".join(sorted(BUNDLED))
        raise InputError(
            f"no such annotation file; give a path to a PSG or Haystack JSON, or one of: {known}",
            path=path,
        )
    return path
