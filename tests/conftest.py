"""Puts the helpers beside this file within reach of all tests; no property has to hold in time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.append(str(Path(__file__).parent))

# Hypothesis fails an example that takes 0.2 seconds, which a busy machine does by itself. All else
# stays as it is, also in the profile that Hypothesis loads where it sees a CI server.
settings.register_profile("haystack", parent=settings(), deadline=None)
settings.load_profile("haystack")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How large the runs are whose workers are killed at random; see ``docs/scale.md``."""
    group = parser.getgroup("haystack")
    group.addoption("--shards", type=int, help="shards of such a run; default: 24, slow: 200")
    group.addoption("--kills", type=int, help="workers to kill; default: a tenth of the shards")
