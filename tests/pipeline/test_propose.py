from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from haystack.pipeline.candidates import Candidates
from haystack.pipeline.propose import drop_known, propose


def candidates(per_cluster: int, *, clusters: int = 4, predicates: int = 2) -> Candidates:
    """``per_cluster`` candidates for each cluster and predicate, one image each."""
    cluster, predicate, rank = (
        index.ravel()
        for index in np.meshgrid(
            np.arange(clusters), np.arange(predicates), np.arange(per_cluster), indexing="ij"
        )
    )
    keys = [f"{c}-{p}-{r:04d}.jpg" for c, p, r in zip(cluster, predicate, rank, strict=True)]
    return Candidates.from_keys(
        keys,
        {key: key.removesuffix(".jpg") for key in keys},
        cluster=cluster,
        predicate=predicate,
        subject=np.zeros(len(keys), dtype=np.int64),
        object=np.ones(len(keys), dtype=np.int64),
        score=np.random.default_rng(0).normal(size=len(keys)).astype(np.float32),
    )


def test_clusters_are_drawn_uniformly() -> None:
    queue = propose(candidates(4000, predicates=1), predicates=[0], limit=4000, seed=11)
    counts = np.bincount([row.cluster for row in queue], minlength=4)
    assert counts.sum() == 4000
    assert counts.max() < 4000 * 0.5, "no cluster ran out, so the draw was among all four"
    assert chisquare(counts).pvalue > 1e-3
    steps = np.bincount([4 * a.cluster + b.cluster for a, b in pairwise(queue)], minlength=16)
    assert chisquare(steps).pvalue > 1e-3, "successive draws are independent"


def test_a_large_cluster_is_drawn_no_more_often_than_a_small_one() -> None:
    many = candidates(2000, clusters=2, predicates=1)
    keep = (many.cluster == 0) | (np.arange(len(many)) % 2 == 0)
    queue = propose(many.take(keep), predicates=[0], limit=1500, seed=2)
    counts = np.bincount([row.cluster for row in queue])
    assert chisquare(counts).pvalue > 1e-3


def test_best_first_inside_a_cluster_and_everything_in_the_end() -> None:
    queue = propose(candidates(30), predicates=[1], limit=10_000, seed=5)
    assert len(queue) == 4 * 30
    assert [row.rank for row in queue] == list(range(120))
    for cluster in range(4):
        scores = [row.score for row in queue if row.cluster == cluster]
        assert len(scores) == 30
        assert scores == sorted(scores, reverse=True)


def test_reproducible_and_independent_of_row_order_and_of_other_predicates() -> None:
    rows = candidates(50)
    first = propose(rows, predicates=[0, 1], limit=60, seed=9)
    assert first == propose(rows, predicates=[0, 1], limit=60, seed=9)
    shuffled = rows.take(np.random.default_rng(1).permutation(len(rows)))
    assert first == propose(shuffled, predicates=[0, 1], limit=60, seed=9)
    alone = propose(rows, predicates=[1], limit=60, seed=9)
    assert alone == [row for row in first if row.predicate == 1]
    assert first != propose(rows, predicates=[0, 1], limit=60, seed=10)


def test_a_longer_queue_continues_a_shorter_one() -> None:
    rows = candidates(20)
    assert (
        propose(rows, predicates=[0], limit=15, seed=1)
        == (propose(rows, predicates=[0], limit=60, seed=1)[:15])
    )


def test_predicates_without_candidates_have_an_empty_queue() -> None:
    assert propose(candidates(3), predicates=[1, 5], limit=5, seed=0)[-1].predicate == 1
    assert propose(Candidates.empty(), predicates=[0], limit=5, seed=0) == []


@settings(max_examples=50, deadline=None)
@given(data=st.data(), seed=st.integers(0, 5))
def test_answered_and_faulty_are_never_proposed(data: st.DataObject, seed: int) -> None:
    rows = candidates(3, clusters=2)
    ids = st.sampled_from([*rows.image_ids, "elsewhere"])
    answered = data.draw(
        st.lists(st.tuples(ids, st.integers(0, 1), st.integers(0, 1), st.integers(-1, 1)))
    )
    faulty = data.draw(st.lists(st.tuples(ids, st.integers(0, 1)), max_size=4))
    kept = drop_known(rows, answered=answered, faulty=faulty)
    queue = propose(kept, predicates=[0, 1], limit=100, seed=seed)
    asked = {(row.image_id, row.subject, row.object, row.predicate) for row in queue}
    expected = {
        (rows.image_ids[rows.image[i]], 0, 1, int(rows.predicate[i])) for i in range(len(rows))
    }
    expected -= set(answered)
    expected = {
        row
        for row in expected
        if (*row[:3], -1) not in answered
        and (row[0], 0) not in faulty
        and (row[0], 1) not in faulty
    }
    assert asked == expected
