"""The benchmark of the pipeline runs and says what it should."""

from __future__ import annotations

import json

import pytest

_TINY = {
    "cluster-points": 600,
    "cluster-dimension": 8,
    "clusters": 4,
    "cluster-iterations": 5,
    "cluster-repeat": 1,
    "shard-members": 20,
    "shard-repeat": 1,
    "embed-images": 4,
    "embed-height": 120,
    "embed-width": 180,
    "embed-side": 28,
    "embed-batch": 2,
    "embed-repeat": 1,
    "score-images": 400,
    "score-images-numpy": 200,
    "score-objects": 6,
    "score-images-many": 500,
    "score-top": 3,
    "score-top-few": 0,
}


@pytest.fixture(scope="module")
def rows(run_benchmark):
    done = run_benchmark("pipeline.py", "--json", sizes=_TINY)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["rows"]


def test_clustering_is_compared_from_the_same_start(rows):
    rows = [row for row in rows if row["part"] == "clustering"]
    ours = {"k-means by FAISS", "streaming k-means", "streaming k-means, float16"}
    peers = {"FAISS directly", "sklearn's KMeans", "MiniBatchKMeans"}
    expected = {(one, peer, unit) for one in ours for peer in peers for unit in ("s", "MiB")}
    assert {(row["what"], row["peer"], row["unit"]) for row in rows} == expected
    assert all(row["ratio"] > 0 for row in rows if row["unit"] == "s")
    (goal,) = (row for row in rows if row["goal"])
    assert (goal["what"], goal["peer"]) == ("k-means by FAISS", "FAISS directly")


def test_a_first_image_is_read_with_and_without_an_index(rows):
    (row,) = (row for row in rows if row["part"] == "shards")
    assert row["ours"] > 0
    assert row["theirs"] > 0
    assert row["note"].startswith("index of ")


def test_embedding_is_timed_in_turn_and_overlapped(rows):
    embedding = [row for row in rows if row["part"] == "embedding"]
    peers = {row["peer"] for row in embedding}
    assert {"full decoding", "decode in turn", "DataLoader, 2 processes"} <= peers
    (share,) = [row for row in embedding if "share of decode" in row["what"]]
    assert 0 < share["ours"] < 1


def test_scoring_keeps_what_the_yardstick_keeps(rows):
    rows = [row for row in rows if row["part"] == "scoring"]
    few, goal, _ = (row for row in rows if row["unit"] == "ns/pair")
    assert "the same candidates" in few["note"]
    assert few["what"].startswith("200 images")
    assert goal["what"].startswith("400 images")
    assert [few["goal"], goal["goal"]] == ["", ">= 10"]
    assert few["ratio"] > 0
    assert goal["ratio"] > 0
    memory = [row for row in rows if row["unit"] == "MiB"]
    assert [row["goal"] == "" for row in memory] == [True, True, False]
    assert all("M = 3, " in row["what"] for row in memory)
