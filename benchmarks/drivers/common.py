"""What the drivers share: arguments, shells of packages, and the answer.

A driver runs a peer's evaluator in an interpreter of its own and writes CPU time and values as
JSON. It imports the peer from where it is installed or checked out; nothing of it lies here.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

KS = (20, 50, 100)


def parser() -> argparse.ArgumentParser:
    """Arguments of every driver."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--inputs", type=Path, required=True)
    arguments.add_argument("--output", type=Path, required=True)
    arguments.add_argument("--checkout", type=Path)
    arguments.add_argument("--mode", default="predcls")
    arguments.add_argument("--repeat", type=int, default=0, help="0: values only, no timing")
    return arguments


def shell(name: str, folder: Path | None = None, **members: Any) -> None:
    """Put a package into ``sys.modules`` whose own ``__init__`` is not run.

    Args:
        name: dotted.
        folder: where its modules are found; None: it has none.
        members: what importers ask of it.
    """
    module = ModuleType(name)
    module.__path__ = [] if folder is None else [str(folder)]
    vars(module).update(members)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


def answer(path: Path, **content: Any) -> None:
    """Write the result."""
    path.write_text(json.dumps(content, default=_plain))


def _plain(value: Any) -> Any:
    return value.tolist()
