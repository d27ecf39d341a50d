"""Temporary files whose writers are gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from haystack import files

_PATTERN = ".tmp-*"
_DAY = 24 * 3600.0


def remove_strays(root: Path, stage: str) -> None:
    """Remove what dead processes left among a stage's outputs and at the top of the workspace.

    Whether a process of another machine lives cannot be seen from here: its files go after a day.
    Call it before this process writes anything: its own number on a file is a reused one.
    """
    for path in _temporaries(root, stage):
        process, machine = _owner(path)
        if machine == files.machine():
            dead = process == os.getpid() or not is_running(process)
        else:
            dead = _age(path) > _DAY
        if dead:
            path.unlink(missing_ok=True)


def remove_strays_of(root: Path, stage: str, process: int, machine: str) -> None:
    """Remove what one process left that is known to be dead."""
    for path in _temporaries(root, stage):
        if _owner(path) == (process, machine):
            path.unlink(missing_ok=True)


def is_running(process: int) -> bool:
    """Whether this machine has a process of that number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _temporaries(root: Path, stage: str) -> list[Path]:
    return [*(root / stage).rglob(_PATTERN), *root.glob(_PATTERN)]


def _owner(path: Path) -> tuple[int, str]:
    _, process, machine, *_ = [*path.name.split("-"), "", ""]
    return (int(process) if process.isdigit() else 0), machine


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
