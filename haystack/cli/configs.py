"""Haystack's own configuration files, found from a checkout and from an installed wheel."""

from __future__ import annotations

from pathlib import Path

from haystack.errors import InputError

# An installed wheel carries configs/ inside the package; a checkout has it beside the package.
_PACKAGE = Path(__file__).parent.parent
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def find_config(name_or_path: str | Path) -> Path:
    """A configuration file by its path, or one of Haystack's own by its name.

    Args:
        name_or_path: ``my.yaml``, or ``pipeline/sa1b``, ``train/vctree_psg_mini`` and the like.

    Raises:
        InputError: there is no such file; the known names are listed.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    for folder in _FOLDERS:
        for candidate in (folder / path, folder / f"{path}.yaml"):
            if candidate.is_file():
                return candidate
    raise InputError(
        f"no such configuration file; Haystack's own are: {', '.join(own_configs())}",
        path=path,
    )


def own_configs(kind: str = "") -> list[str]:
    """Names of Haystack's own configurations, sorted; ``kind`` is a folder such as ``bench``."""
    return sorted(
        {
            file.relative_to(folder).with_suffix("").as_posix()
            for folder in _FOLDERS
            for file in (folder / kind).rglob("*.yaml")
        }
    )
