from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).with_name("kill_every_point.py")
STAGES = (
    "embed",
    "segment",
    "cluster:cluster.k=3",
    "score:score.top=3",
    "gather",
    "propose:propose.seed=5",
    "export:labelled=4",  # its older outputs hold masks that the new ones do not
)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs os.fork, which this system lacks"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, source_root: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(source_root), str(folder), *STAGES],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("stage", "least_points"),
    [
        ("embed", 7),
        ("segment", 7),
        ("cluster", 12),
        ("score", 7),
        ("gather", 4),
        ("propose", 4),
        ("export", 8),
    ],
)
def test_killed_anywhere_and_resumed_equals_undisturbed(
    report: dict[str, Any], stage: str, least_points: int
) -> None:
    """SIGKILL between any two renames, and before every file that a stage writes."""
    assert report[stage]["points"] >= least_points
    assert report[stage]["differing"] == []
