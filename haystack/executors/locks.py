"""Advisory locks on files; the system drops them when their process dies."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from haystack.errors import HaystackError

LOCK = ".lock"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def stage_lock(root: Path, stage: str, *, shared: bool) -> Iterator[None]:
    """Keep other launches of a stage out while this one runs.

    Args:
        root: the workspace.
        stage: its name.
        shared: this process is one of several of a launch; they may be there together.

    Raises:
        HaystackError: another launch is running.
    """
    lock = root / stage / LOCK
    try:
        with locked(lock, wait=False, shared=shared):
            yield
    except BlockingIOError:
        owner, _, host = lock.read_text(encoding="utf-8").strip().partition(" ")
        where = "" if host in ("", platform.node()) else f" on {host}"
        raise HaystackError(
            f"process {owner or 'unknown'}{where} is running the stage '{stage}' in the workspace "
            f"{root}; wait until it ends, or stop it"
        ) from None


@contextmanager
def locked(path: Path, *, wait: bool, shared: bool = False) -> Iterator[None]:
    """Hold a lock on ``path``; nothing is locked on a file system that has no locks.

    Raises:
        BlockingIOError: someone else holds it and ``wait`` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError as error:  # the claims of the shards hold without it
            if error.errno not in _UNSUPPORTED:
                raise
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
        yield
    finally:
        os.close(descriptor)
