"""The benchmark of the pipeline runs and says what it should."""

from __future__ import annotations

import json

import pytest

_TINY = {
    "cluster-points": 600,
    "cluster-dimension": 8,
    "clusters": 4,
    "cluster-iterations": 5,
}


@pytest.fixture(scope="module")
def rows(run_benchmark):
    done = run_benchmark("pipeline.py", "--json", sizes=_TINY)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["rows"]


def test_clustering_is_compared_with_faiss(rows):
    row = next(row for row in rows if row["peer"] == "FAISS directly")
    assert row["part"] == "clustering"
    assert row["ratio"] > 0
