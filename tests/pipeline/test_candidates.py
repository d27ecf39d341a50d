from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.pipeline import candidates as candidates_module
from haystack.pipeline.candidates import Candidates, TopCandidates, concatenate

Row = tuple[int, int, str, int, int, float]

rows_strategy = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 1),
        st.sampled_from(["a/1.jpg", "a/10.jpg", "a/2.jpg", "é.jpg", "z.jpg"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from([-2.5, -0.0, 0.0, 0.5, 1e30]),
    ),
    max_size=60,
    unique_by=lambda row: row[:5],
)


def build(rows: list[Row]) -> Candidates:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 6
    keys = list(columns[2])
    return Candidates.from_keys(
        keys,
        {key: f"id of {key}" for key in keys},
        cluster=np.array(columns[0], dtype=np.int64),
        predicate=np.array(columns[1], dtype=np.int64),
        subject=np.array(columns[3], dtype=np.int64),
        object=np.array(columns[4], dtype=np.int64),
        score=np.array(columns[5], dtype=np.float32),
    )


def listed(found: Candidates) -> list[Row]:
    return [
        (
            int(found.cluster[row]),
            int(found.predicate[row]),
            found.image_keys[found.image[row]],
            int(found.subject[row]),
            int(found.object[row]),
            float(found.score[row]),
        )
        for row in range(len(found))
    ]


def globally_sorted(rows: list[Row], top: int) -> list[Row]:
    order = sorted(rows, key=lambda r: (r[0], r[1], -np.float32(r[5]), r[2], r[3], r[4]))
    best: list[Row] = []
    for row in order:
        if sum(other[:2] == row[:2] for other in best) < top:
            best.append(row)
    return [(*row[:5], float(np.float32(row[5]))) for row in best]


@settings(max_examples=150, deadline=None)
@given(rows=rows_strategy, top=st.integers(1, 5), data=st.data())
def test_equals_the_global_sort_for_any_sharding_and_order(
    rows: list[Row], top: int, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(rows))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    bounds = [0, *cuts, len(rows)]
    compact_rows = data.draw(st.sampled_from([1, 7, 1 << 16]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates_module, "_COMPACT_ROWS", compact_rows)
        best = TopCandidates(3, 2, top)
        for start, end in pairwise(bounds):
            best.add(build(shuffled[start:end]))
        assert listed(best.result()) == globally_sorted(rows, top)


@settings(max_examples=60, deadline=None)
@given(rows=rows_strategy, top=st.integers(1, 4), cut=st.integers(0, 60))
def test_tops_of_shards_merge_to_the_top_of_all(rows: list[Row], top: int, cut: int) -> None:
    def best_of(*parts: Candidates) -> Candidates:
        best = TopCandidates(3, 2, top)
        for part in parts:
            best.add(part)
        return best.result()

    left, right = build(rows[:cut]), build(rows[cut:])
    expected = listed(best_of(build(rows)))
    assert listed(best_of(best_of(left), best_of(right))) == expected
    assert listed(best_of(best_of(right), best_of(left))) == expected


def test_memory_is_bounded_and_images_that_dropped_out_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates_module, "_COMPACT_ROWS", 8)
    best = TopCandidates(1, 1, 3)
    for number in range(200):
        best.add(build([(0, 0, f"{number:03d}.jpg", 0, 1, float(number))]))
        assert len(best._kept) <= 3
        assert best._pending_rows < 8
    result = best.result()
    assert result.image_keys == ("197.jpg", "198.jpg", "199.jpg")
    assert result.image_ids == ("id of 197.jpg", "id of 198.jpg", "id of 199.jpg")
    assert best.floor[0, 0] == 197
    assert best.full_groups() == 1


def test_a_tie_with_the_last_place_is_decided_by_image_key() -> None:
    best = TopCandidates(1, 1, 1)
    best.add(build([(0, 0, "m.jpg", 0, 1, 2.0)]))
    best.result()
    best.add(build([(0, 0, "a.jpg", 0, 1, 2.0), (0, 0, "z.jpg", 0, 1, 2.0)]))
    assert listed(best.result()) == [(0, 0, "a.jpg", 0, 1, 2.0)]


def test_nothing_in_nothing_out() -> None:
    assert len(concatenate([])) == 0
    best = TopCandidates(2, 2, 3)
    best.add(Candidates.empty())
    assert len(best.result()) == 0
    assert best.full_groups() == 0
