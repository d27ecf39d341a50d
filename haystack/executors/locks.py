"""Advisory locks on files; the system drops them when their process dies."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from haystack.errors import HaystackError

LOCK = ".lock"
_SECONDS_TO_JOIN = 5.0
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def stage_lock(root: Path, stage: str, *, plan: str, shared: bool) -> Iterator[None]:
    """Keep other launches of a stage out while this one runs.

    Args:
        root: the workspace.
        stage: its name.
        plan: checksum of what this process is about to make.
        shared: this process is one of several of a launch; they may be there together, if they
            are about to make the same.

    Raises:
        HaystackError: another launch is running, or processes that make something else.
    """
    lock = root / stage / LOCK
    try:
        with _joined(lock, plan) if shared else locked(lock, wait=False):
            yield
    except _OtherPlan:
        raise HaystackError(
            f"other processes are running the stage '{stage}' in the workspace {root} with other "
            "settings, weights or images; wait until they end, or stop them"
        ) from None
    except BlockingIOError:
        owner, host, *_ = [*lock.read_text(encoding="utf-8").split(), "", ""]
        where = "" if host in ("", platform.node()) else f" on {host}"
        raise HaystackError(
            f"process {owner or 'unknown'}{where} is running the stage '{stage}' in the workspace "
            f"{root}; wait until it ends, or stop it"
        ) from None


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock on ``path``; nothing is locked on a file system that has no locks.

    Raises:
        BlockingIOError: someone else holds it and ``wait`` is False.
    """
    with _opened(path) as descriptor:
        _flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        _sign(descriptor)
        yield


@contextmanager
def _joined(path: Path, plan: str) -> Iterator[None]:
    """Hold the lock together with processes of the same plan: the first one notes it there."""
    with _opened(path) as descriptor:
        deadline = time.monotonic() + _SECONDS_TO_JOIN
        while True:
            try:
                if not _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    break
                _sign(descriptor, plan)
            except BlockingIOError:
                pass
            try:
                _flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # another one may just be signing
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        # What is read now stays: to write, all that share it would have to be gone.
        _, _, noted = [*os.pread(descriptor, 4096, 0).decode().split(), "", "", ""][:3]
        if noted not in ("", plan):
            raise _OtherPlan
        yield


class _OtherPlan(Exception):  # noqa: N818  it is put into a sentence above
    """Processes of another plan hold the lock."""


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _flock(descriptor: int, kind: int) -> bool:
    """Lock; False on a file system that has no locks: the claims of the shards hold without."""
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def _sign(descriptor: int, plan: str = "") -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {platform.node()} {plan}\n".encode(), 0)
