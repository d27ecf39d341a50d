"""The benchmark of MaskDINO runs and says what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_TINY = {
    "height": 160,
    "width": 160,
    "output-height": 60,
    "output-width": 90,
    "kept": 3,
    "repeat": 1,
}


@pytest.fixture(scope="module")
def rows(run_benchmark):
    parts = ("--parts", "panoptic", "sampling", "resnet50")
    done = run_benchmark("maskdino.py", "--json", *parts, sizes=_TINY)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["rows"]


def test_both_sides_are_timed(rows):
    ratios = {(row["part"], row["unit"]): row["ratio"] for row in rows if row["theirs"]}
    assert ratios["panoptic", "s"] > 0
    assert ratios["sampling", "s"] > 0


def test_without_a_checkout_the_official_one_is_said_to_be_missing(rows):
    (forward,) = (row for row in rows if row["what"] == "forward, 160 x 160")
    assert forward["peer"] == "official: not given"
    assert forward["ours"] > 0
    assert forward["met"] is None
