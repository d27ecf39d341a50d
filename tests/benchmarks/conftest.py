"""Lets tests import single modules of ``benchmarks/``, which is no package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]

# At the end: benchmarks import each other by short names, which must not hide anything.
sys.path.append(str(_ROOT / "benchmarks"))

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def run_benchmark() -> Run:
    """Runs a script of ``benchmarks/``: its name, arguments, and sizes as ``--name=value``."""

    def run(
        script: str, *arguments: str, sizes: Mapping[str, int] | None = None
    ) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, str(_ROOT / "benchmarks" / script), *arguments]
        return subprocess.run(
            [*command, *(f"--{name}={value}" for name, value in (sizes or {}).items())],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run
