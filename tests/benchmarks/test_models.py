"""The benchmark of the relation models runs and says what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_TINY = {
    "images": 2,
    "objects": 4,
    "width": 32,
    "few": 3,
    "many": 30,
    "train-images": 2,
    "short-side": 64,
    "repeat": 1,
}


@pytest.fixture(scope="module")
def rows(run_benchmark, tmp_path_factory):
    scratch = f"--scratch={tmp_path_factory.mktemp('b')}"
    done = run_benchmark("models.py", "--json", scratch, sizes=_TINY)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["rows"]


def test_both_sides_of_the_head_are_timed(rows):
    ratios = {row["what"]: row["ratio"] for row in rows if row["peer"] == "one tree at a time"}
    assert len(ratios) == 7
    assert all(ratio > 0 for ratio in ratios.values())
    assert "agree within" in rows[0]["note"]


def test_what_both_sides_do_alike_stands_beside_the_whole_head(rows):
    shared = {row["what"]: row for row in rows if "up_dim alone" in row["what"]}
    assert shared.keys() == {
        "of it up_dim alone, forward",
        "of it up_dim alone, forward and backward",
    }
    assert all(row["ours"] > 0 and "of all the rest" in row["note"] for row in shared.values())


def test_without_a_checkout_openpsg_is_said_to_be_missing(rows):
    missing = [row for row in rows if row["peer"] == "OpenPSG: not given"]
    assert len(missing) == 4
    assert all(row["theirs"] is None for row in missing)


def test_memory_of_scoring_is_given_for_few_and_for_many_objects(rows):
    memory = {row["what"]: row["ours"] for row in rows if row["part"] == "memory"}
    for features in ("geometry", "visual"):
        assert f"score 6 pairs of 3 objects, {features}" in memory
        assert f"score 870 pairs of 30 objects, {features}" in memory
    few, many = (value for name, value in memory.items() if name.endswith("geometry"))
    assert 0 <= few < many < 64


def test_a_cache_saves_the_reading_and_encoding_of_pictures(rows):
    ratios = {row["what"]: row["ratio"] for row in rows if row["part"] == "training"}
    assert len(ratios) == 4
    assert ratios["a step, visual, encoded images kept in memory"] > 1
    assert ratios["a step, visual, encoded images on disk"] > 1
