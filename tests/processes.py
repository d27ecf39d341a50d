"""Other processes and what they leave, for tests of several packages."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child; its wait status."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def folder_content(folder: Path) -> dict[str, bytes]:
    """Files below a folder by name, without those that a killed writer left unfinished."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".tmp-")
    }


def snapshot(root: Path) -> dict[str, object]:
    """Every file of a workspace and its content; manifests without ``seconds``, no lock files."""
    content: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        if path.is_dir() or path.name == ".lock":
            continue
        name = path.relative_to(root).as_posix()
        if name.endswith(".manifest.json"):
            manifest = json.loads(path.read_text())
            del manifest["seconds"]
            content[name] = manifest
        else:
            content[name] = path.read_bytes()
    return content
