"""Where weights lie on this machine, and whether they are still what they were."""

from __future__ import annotations

import logging
import os
import re
from functools import lru_cache
from importlib import resources
from pathlib import Path

from haystack import files
from haystack.errors import InputError, MissingDependencyError
from haystack.weights.catalogue import CATALOGUE, NAMES, Weights, known

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "HAYSTACK_WEIGHTS"
"""Environment variable: the folder of weights, which may be shared, and prepared elsewhere."""


def folder() -> Path:
    """Where weights are kept: ``$HAYSTACK_WEIGHTS``, else a folder in the user's cache."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen).expanduser() if chosen else _cache() / "haystack" / "weights"


def locate(weights: Weights) -> Path | None:
    """Where the file lies, unverified, or None: a package, the folder, or ``torch.hub``'s cache."""
    if weights.package:
        try:
            return Path(str(resources.files(weights.module))) / weights.member
        except ModuleNotFoundError:
            return None
    hub = Path(os.environ.get("TORCH_HOME") or _cache() / "torch") / "hub" / "checkpoints"
    for place in (folder(), hub):
        if (place / weights.file).is_file():
            return place / weights.file
    return None


def find(name: str) -> Path:
    """The file of the weights of that name, verified.

    Raises:
        InputError: unknown name, not on this machine (the message says the command that fetches
            it), or not the file that it was.
        MissingDependencyError: the package that brings it is not installed.
    """
    weights = known(name)
    path = locate(weights)
    if path is None:
        if weights.package:
            raise MissingDependencyError(
                weights.package, purpose=f"the encoder '{name}'", extra="demo"
            )
        raise InputError(missing(name))
    if not weights.package:
        verify(weights, path)
    return path


def missing(name: str) -> str:
    """What is said where weights are not on this machine."""
    return f"the weights '{name}' are not on this machine; run: haystack weights pull {name}"


def resolve(value: str | Path, setting: str) -> Path:
    """What a setting for weights means: a name that is known, else a file.

    Args:
        value: as given.
        setting: its name, for messages.

    Raises:
        InputError: see ``find``; or there is no such file, nor weights of that name;
            or it is a folder.
    """
    if str(value) in NAMES:
        return find(str(value))
    return files.given_file(value, setting, _instead(Path(value).name, setting))


def _instead(file: str, setting: str) -> str:
    """What could be given in place of a file that does not exist."""
    for weights in CATALOGUE:
        if weights.file == file and weights.url:
            return (
                f"; to download it, run: haystack weights pull {weights.name}, then give "
                f"{setting}={weights.name}"
            )
    names = ", ".join(weights.name for weights in CATALOGUE if weights.use == setting)
    return f"; or one of {names}, which haystack weights pull NAME downloads" if names else ""


def verify(weights: Weights, path: Path) -> None:
    """Compare a file with what is known of it; at first sight its checksum is recorded.

    Upstream puts the beginning of the checksum into some files' names; of the others nobody
    publishes any, so that the first download is believed, and every later look is compared.

    Raises:
        InputError: it is not the file that it was, or that its name says.
    """
    digest = checksum(path)
    prefix = weights.checksum_prefix
    again = f"remove it, then run: haystack weights pull {weights.name}"
    if not digest.startswith(prefix):
        raise InputError(
            f"its SHA-256 begins with {digest[: len(prefix)]}, by its name with {prefix}; {again}",
            path=path,
        )
    record, recorded = record_of(weights), recorded_checksum(weights)
    if not recorded:
        _record(record, digest, weights)
        return
    if recorded != digest:
        raise InputError(
            f"it is not the file that it was: its SHA-256 is {digest}, in {record} {recorded}; "
            f"{again} (remove the record too, if upstream has published another file)",
            path=path,
        )


def record_of(weights: Weights) -> Path:
    """Where the checksum is recorded, in the format of ``sha256sum``."""
    return folder() / f"{weights.file}.sha256"


def recorded_checksum(weights: Weights) -> str:
    """The checksum that was recorded, or "" where there is no record, or an empty one.

    Raises:
        InputError: the record holds something else; it is not made anew, since somebody meant it.
    """
    record = record_of(weights)
    try:
        words = record.read_text(encoding="utf-8-sig", errors="replace").split()
    except OSError:
        return ""
    if words and not re.fullmatch("[0-9a-fA-F]{64}", words[0]):
        raise InputError(
            f"expected a SHA-256 of 64 hexadecimal digits, got {words[0][:70]!r}; mend the record, "
            "or remove it to have the file that is there believed",
            path=record,
        )
    return words[0].lower() if words else ""


def checksum(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a weight file; computed once while the file does not change."""
    stat = os.stat(path)
    return _checksum(str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _checksum(path: str, *_: int) -> str:
    return files.sha256_file(path)


def _record(record: Path, digest: str, weights: Weights) -> None:
    try:
        files.write_text(record, f"{digest}  {weights.file}\n")
    except (OSError, InputError):
        logger.info("%s: its checksum cannot be recorded there, so it is not compared", record)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
