"""The benchmark of the pipeline runs and says what it should."""

from __future__ import annotations

import json

_TINY = {
    "cluster-points": 600,
    "cluster-dimension": 8,
    "clusters": 4,
    "cluster-iterations": 5,
    "cluster-repeat": 1,
}


def test_clustering_is_compared_from_the_same_start(run_benchmark):
    done = run_benchmark("pipeline.py", "--json", "--parts", "clustering", sizes=_TINY)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    ours = {"k-means by FAISS", "streaming k-means", "streaming k-means, float16"}
    peers = {"FAISS directly", "sklearn's KMeans", "MiniBatchKMeans"}
    expected = {(one, peer, unit) for one in ours for peer in peers for unit in ("s", "MiB")}
    assert {(row["what"], row["peer"], row["unit"]) for row in rows} == expected
    assert all(row["ratio"] > 0 for row in rows if row["unit"] == "s")
    (goal,) = (row for row in rows if row["goal"])
    assert (goal["what"], goal["peer"]) == ("k-means by FAISS", "FAISS directly")
