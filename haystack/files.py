"""Files that are never half-written, and hashes of what they hold.

Every output goes to a temporary name in the same folder, is flushed to the disk, then renamed
over its final name. A killed process leaves the old file or the new one, and at most a stray
``.tmp-*`` that nothing reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from haystack.errors import InputError


@lru_cache(maxsize=1)
def machine() -> str:
    """Eight hexadecimal digits; process numbers can be compared only where they are equal.

    They differ between hosts, between containers of a host, and before and after a reboot.
    """
    parts = [platform.node()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:  # not Linux: the host's name has to do
        pass
    return sha256_text("\n".join(parts))[:8]


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that no other process uses and that no reader looks at.

    It tells whose it is: ``.tmp-<process>-<machine>-...``.
    """
    owner = f"{os.getpid()}-{machine()}"
    return path.with_name(f".tmp-{owner}-{secrets.token_hex(4)}-{path.name}")


def sync_folder(folder: Path) -> None:
    """Make the names inside ``folder`` durable (a rename is not until its folder is synced)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, final: Path) -> None:
    """Flush ``temporary`` to the disk and rename it to ``final``."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, final)
    sync_folder(final.parent)


def make_folder(folder: str | Path) -> None:
    """Make a folder, and those above it, and see that files can be written there.

    Raises:
        InputError: it cannot be made, or nothing can be written to it.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make this folder: {error.strerror}", path=folder) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError("nothing can be written to this folder", path=folder)


def given_file(path: str | Path, setting: str, otherwise: str = "") -> Path:
    """The file that a setting names.

    Args:
        path: as given.
        setting: its name, for messages.
        otherwise: what else could be done, for the message where there is nothing of that name.

    Raises:
        InputError: there is none, or a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{setting} expects a file, got a folder; name the file in it", path=path)
    if not path.is_file():
        raise InputError(f"{setting} names a file that does not exist{otherwise}", path=path)
    return path


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path to write to; it becomes ``path`` when the block ends without an error.

    Raises:
        InputError: ``path`` is a folder, or its folder cannot be made or written to.
    """
    final = Path(path)
    if final.is_dir():
        raise InputError("expected the name of a file to write; there is a folder", path=final)
    make_folder(final.parent)
    temporary = temporary_name(final)
    try:
        yield temporary
        publish(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write ``content`` to ``path``, all of it or nothing."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | Path, content: str) -> None:
    """Write ``content`` to ``path`` as UTF-8, all of it or nothing."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: str | Path, content: Any, *, indent: int | None = 1) -> None:
    """Write ``content`` to ``path`` as UTF-8 JSON, all of it or nothing."""
    write_text(path, json.dumps(content, ensure_ascii=False, indent=indent) + "\n")


def canonical_json(content: Any) -> str:
    """One spelling for equal content: sorted keys, no spaces. Meant for hashing."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256_text(text: str) -> str:
    """Hexadecimal SHA-256 of ``text`` in UTF-8."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_file(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's content, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
