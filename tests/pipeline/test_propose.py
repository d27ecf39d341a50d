from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from haystack.pipeline.propose import Proposal, is_known, propose
from haystack.pipeline.scoring.candidates import Candidates


def candidates(per_cluster: int, *, clusters: int = 4, predicates: int = 2) -> Candidates:
    """``per_cluster`` candidates for each cluster and predicate, one image each."""
    cluster, predicate, rank = (
        index.ravel()
        for index in np.meshgrid(
            np.arange(clusters), np.arange(predicates), np.arange(per_cluster), indexing="ij"
        )
    )
    keys = [f"{c}-{p}-{r:04d}.jpg" for c, p, r in zip(cluster, predicate, rank, strict=True)]
    return Candidates.from_columns(
        keys,
        [key.removesuffix(".jpg") for key in keys],
        [""] * len(keys),
        cluster=cluster,
        predicate=predicate,
        subject=np.zeros(len(keys), dtype=np.int64),
        object=np.ones(len(keys), dtype=np.int64),
        score=np.random.default_rng(0).normal(size=len(keys)).astype(np.float32),
    )


def ask(rows: Candidates, *, top: int = 4000, **choices: object) -> list[Proposal]:
    return propose(rows, top=top, **choices)  # type: ignore[arg-type]


def test_clusters_are_drawn_uniformly() -> None:
    queue = ask(candidates(4000, predicates=1), predicates=[0], limit=4000, seed=11)
    counts = np.bincount([row.cluster for row in queue], minlength=4)
    assert counts.sum() == 4000
    assert counts.max() < 4000 * 0.5, "no cluster ran out, so the draw was among all four"
    assert chisquare(counts).pvalue > 1e-3
    steps = np.bincount([4 * a.cluster + b.cluster for a, b in pairwise(queue)], minlength=16)
    assert chisquare(steps).pvalue > 1e-3, "successive draws are independent"


def test_a_large_cluster_is_drawn_no_more_often_than_a_small_one() -> None:
    many = candidates(2000, clusters=2, predicates=1)
    keep = (many.cluster == 0) | (np.arange(len(many)) % 2 == 0)
    queue = ask(many.take(keep), predicates=[0], limit=1500, seed=2)
    counts = np.bincount([row.cluster for row in queue])
    assert chisquare(counts).pvalue > 1e-3


def test_best_first_inside_a_cluster_and_everything_in_the_end() -> None:
    queue = ask(candidates(30), predicates=[1], limit=10_000, seed=5)
    assert len(queue) == 4 * 30
    assert [row.rank for row in queue] == list(range(120))
    for cluster in range(4):
        scores = [row.score for row in queue if row.cluster == cluster]
        assert len(scores) == 30
        assert scores == sorted(scores, reverse=True)


def test_reproducible_and_independent_of_row_order_and_of_other_predicates() -> None:
    rows = candidates(50)
    first = ask(rows, predicates=[0, 1], limit=60, seed=9)
    assert first == ask(rows, predicates=[0, 1], limit=60, seed=9)
    shuffled = rows.take(np.random.default_rng(1).permutation(len(rows)))
    assert first == ask(shuffled, predicates=[0, 1], limit=60, seed=9)
    alone = ask(rows, predicates=[1], limit=60, seed=9)
    assert alone == [row for row in first if row.predicate == 1]
    assert first != ask(rows, predicates=[0, 1], limit=60, seed=10)


def test_a_longer_queue_continues_a_shorter_one() -> None:
    rows = candidates(20)
    assert (
        ask(rows, predicates=[0], limit=15, seed=1)
        == (ask(rows, predicates=[0], limit=60, seed=1)[:15])
    )


def test_predicates_without_candidates_have_an_empty_queue() -> None:
    assert ask(candidates(3), predicates=[1, 5], limit=5, seed=0)[-1].predicate == 1
    assert ask(Candidates.empty(), predicates=[0], limit=5, seed=0) == []


@settings(max_examples=50)
@given(data=st.data(), seed=st.integers(0, 5))
def test_answered_and_faulty_are_never_proposed(data: st.DataObject, seed: int) -> None:
    rows = candidates(3, clusters=2)
    image_ids = rows.images["image_id"].to_pylist()
    ids = st.sampled_from([*image_ids, "elsewhere"])
    answered = data.draw(
        st.lists(st.tuples(ids, st.integers(0, 1), st.integers(0, 1), st.integers(-1, 1)))
    )
    faulty = data.draw(st.lists(st.tuples(ids, st.integers(0, 1)), max_size=4))
    known = is_known(rows, answered=answered, faulty=faulty)
    queue = ask(rows, predicates=[0, 1], limit=100, seed=seed, known=known)
    asked = {(row.image_id, row.subject, row.object, row.predicate) for row in queue}
    expected = {(image_ids[rows.image[i]], 0, 1, int(rows.predicate[i])) for i in range(len(rows))}
    expected -= set(answered)
    expected = {
        row
        for row in expected
        if (*row[:3], -1) not in answered
        and (row[0], 0) not in faulty
        and (row[0], 1) not in faulty
    }
    assert asked == expected


def test_every_draw_is_uniform_over_many_seeds() -> None:
    """The first draw, and the tenth, of a thousand queues each."""
    rows = candidates(40, clusters=8, predicates=1)
    queues = [ask(rows, predicates=[0], limit=10, seed=seed) for seed in range(1000)]
    for place in (0, 9):
        counts = np.bincount([queue[place].cluster for queue in queues], minlength=8)
        assert chisquare(counts).pvalue > 1e-3


def test_a_cluster_that_runs_out_leaves_the_others_equally_likely() -> None:
    rows = candidates(3000, clusters=4, predicates=1)
    rows = rows.take((rows.cluster != 2) | (rows.image < rows.image[rows.cluster == 2][5]))
    queue = ask(rows, predicates=[0], limit=3000, seed=3)
    last = max(row.rank for row in queue if row.cluster == 2)
    counts = np.bincount([row.cluster for row in queue[last + 1 :]], minlength=4)[[0, 1, 3]]
    assert counts.sum() > 2900
    assert chisquare(counts).pvalue > 1e-3


def test_ranks_say_where_a_model_sees_a_candidate() -> None:
    rows = candidates(5, clusters=2, predicates=1)
    queue = ask(rows, top=5, predicates=[0], limit=100, seed=0)
    for cluster in range(2):
        assert [row.model_rank for row in queue if row.cluster == cluster] == [1, 2, 3, 4, 5]
    assert {(row.second_score, row.second_rank) for row in queue} == {(None, None)}


def test_two_opinions_are_averaged_and_answers_change_no_rank() -> None:
    rows = candidates(4, clusters=1, predicates=1)
    rows = replace(
        rows,
        score=np.array([9, 8, 7, 6], dtype=np.float32),
        second_score=np.array([1, 4, 3, 2], dtype=np.float32),
    )
    # Ranks by both: (1, 4), (2, 1), (3, 2), (4, 3); the first and the third have one mean.
    queue = ask(rows, top=4, predicates=[0], limit=10, seed=0)
    assert [(row.model_rank, row.second_rank) for row in queue] == [(2, 1), (1, 4), (3, 2), (4, 3)]
    assert [(row.score, row.second_score) for row in queue] == [(8, 4), (9, 1), (7, 3), (6, 2)]
    known = np.array([False, True, False, False])
    rest = ask(rows, top=4, predicates=[0], limit=10, seed=0, known=known)
    assert [(row.model_rank, row.second_rank) for row in rest] == [(1, 4), (3, 2), (4, 3)]
    cut = ask(rows, top=2, predicates=[0], limit=10, seed=0)
    assert [(row.model_rank, row.second_rank) for row in cut] == [(2, 1), (1, 3), (3, 2), (3, 3)]
