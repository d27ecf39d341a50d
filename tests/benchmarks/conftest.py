"""Lets tests import single modules of ``benchmarks/``, which is no package."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end: benchmarks import each other by short names, which must not hide anything.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
