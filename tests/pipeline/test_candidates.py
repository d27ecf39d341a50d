from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.pipeline.propose import rank
from haystack.pipeline.scoring import top_candidates
from haystack.pipeline.scoring.candidates import Candidates
from haystack.pipeline.scoring.rows import RowBuffer
from haystack.pipeline.scoring.top_candidates import TopCandidates

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
    return Candidates.from_columns(
        keys,
        [f"id of {key}" for key in keys],
        [f"segments of {key}" for key in keys],
        cluster=np.array(columns[0], dtype=np.int64),
        predicate=np.array(columns[1], dtype=np.int64),
        subject=np.array(columns[3], dtype=np.int64),
        object=np.array(columns[4], dtype=np.int64),
        score=np.array(columns[5], dtype=np.float32),
    )


def listed(found: Candidates) -> list[Row]:
    keys = found.images["image_key"].to_pylist()
    return [
        (
            int(found.cluster[row]),
            int(found.predicate[row]),
            keys[found.image[row]],
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


@settings(max_examples=150)
@given(rows=rows_strategy, top=st.integers(1, 5), data=st.data())
def test_equals_the_global_sort_for_any_sharding_and_order(
    rows: list[Row], top: int, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(rows))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    bounds = [0, *cuts, len(rows)]
    limits = {
        "_BLOCK_ROWS": st.sampled_from([1, 4, 1 << 17]),
        "_PENDING_ROWS": st.sampled_from([1, 7, 1 << 13]),
        "_LOOSE": st.sampled_from([1, 2, 3]),
        "_IMAGES": st.sampled_from([1, 5, 1 << 14]),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, choices in limits.items():
            patch.setattr(top_candidates, name, data.draw(choices, label=name))
        best = TopCandidates(3, 2, top)
        for start, end in pairwise(bounds):
            best.add(build(shuffled[start:end]))
        assert listed(best.result()) == globally_sorted(rows, top)


@settings(max_examples=60)
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


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are cut and images forgotten after a few rows already."""
    limits = {"_BLOCK_ROWS": 6, "_PENDING_ROWS": 4, "_LOOSE": 2, "_IMAGES": 8}
    for name, value in limits.items():
        monkeypatch.setattr(top_candidates, name, value)


@pytest.mark.usefixtures("small_limits")
def test_memory_is_bounded_and_images_that_dropped_out_are_forgotten() -> None:
    top, groups = 3, 5
    best = TopCandidates(groups, 1, top)
    for number in range(300):
        best.add(build([(number % groups, 0, f"{number:03d}.jpg", 0, 1, float(number))]))
        assert sum(block.kept for block in best._blocks) <= top * groups
        assert all(block.pending <= 4 + 2 for block in best._blocks)
        assert len(best._names) <= top * groups * 5 // 4 + 2
    result = best.result()
    assert result.images.to_pylist() == [
        {
            "image_key": f"{number}.jpg",
            "image_id": f"id of {number}.jpg",
            "segments": f"segments of {number}.jpg",
        }
        for number in range(300 - top * groups, 300)
    ]
    assert best.floor.view(-1).tolist() == [285, 286, 287, 288, 289]
    assert best.full_groups() == groups


@pytest.mark.usefixtures("small_limits")
def test_images_are_forgotten_where_few_rows_name_many() -> None:
    best = TopCandidates(1, 1, 3)
    images = build([(0, 0, f"{number}.jpg", 0, 1, 0.0) for number in range(10)])
    for number in range(100):
        row = images.take(np.array([number % 10]))
        row = replace(row, score=np.array([number], dtype=np.float32))
        best.add(row)
        assert len(best._names) <= 8 + 2
    assert listed(best.result()) == [(0, 0, f"{n % 10}.jpg", 0, 1, n) for n in (99, 98, 97)]


def test_a_result_can_be_asked_for_between_additions() -> None:
    best = TopCandidates(1, 2, 2)
    rows: list[Row] = [
        (0, p, key, 0, 1, score)
        for p, key, score in [(1, "b.jpg", 1.0), (0, "b.jpg", 2.0), (1, "a.jpg", 1.0)]
    ]
    for number, row in enumerate(rows):
        best.add(build([row]))
        for _ in range(2):
            assert listed(best.result()) == globally_sorted(rows[: number + 1], 2)


def test_equal_scores_of_all_images_leave_the_first_keys(small_limits: None) -> None:
    """As a baseline gives them that knows classes only: every row ties with the last place."""
    random = np.random.default_rng(0)
    rows: list[Row] = [
        (number % 4, 0, f"{key}.jpg", 0, 1, 1.0)
        for number, key in enumerate(random.permutation(400).tolist())
    ]
    best = TopCandidates(4, 1, 3)
    for row in rows:
        best.add(build([row]))
    assert listed(best.result()) == globally_sorted(rows, 3)


def test_a_tie_with_the_last_place_is_decided_by_image_key() -> None:
    best = TopCandidates(1, 1, 1)
    best.add(build([(0, 0, "m.jpg", 0, 1, 2.0)]))
    best.result()
    best.add(build([(0, 0, "a.jpg", 0, 1, 2.0), (0, 0, "z.jpg", 0, 1, 2.0)]))
    assert listed(best.result()) == [(0, 0, "a.jpg", 0, 1, 2.0)]


def test_nothing_in_nothing_out() -> None:
    best = TopCandidates(2, 2, 3)
    best.add(Candidates.empty())
    assert len(best.result()) == 0
    assert best.full_groups() == 0


@settings(max_examples=100)
@given(rows=rows_strategy, top=st.integers(1, 5), data=st.data())
def test_of_two_opinions_both_lists_are_kept_for_any_sharding_and_order(
    rows: list[Row], top: int, data: st.DataObject
) -> None:
    """Brute force: all ranks by both scores, those beyond M counted as M + 1."""
    coarse = st.sampled_from([-1.0, -0.0, 0.0, 2.5])
    second = data.draw(st.lists(coarse, min_size=len(rows), max_size=len(rows)))
    both = data.draw(st.permutations(list(zip(rows, second, strict=True))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    shards = []
    for start, end in pairwise([0, *cuts, len(rows)]):
        best = TopCandidates(3, 2, top, opinions=2)
        best.add(with_second(both[start:end]))
        shards.append(best.result())
    merged = TopCandidates(3, 2, top, opinions=2)
    for shard in data.draw(st.permutations(shards)):
        merged.add(shard)
    found = merged.result()
    ranks = rank(found, top)
    order = ranks.order(found)
    asked = [listed(found)[row][:5] for row in order]

    expected = []
    for group in sorted({row[:2] for row, _ in both}):
        members = [(row, other) for row, other in both if row[:2] == group]
        by_first = sorted(members, key=lambda m: (-m[0][5], m[0][2:5]))
        by_second = sorted(members, key=lambda m: (-m[1], m[0][2:5]))
        for member in members:
            first, other = by_first.index(member) + 1, by_second.index(member) + 1
            if min(first, other) <= top:
                first, other = min(first, top + 1), min(other, top + 1)
                expected.append((group, first + other, first, member[0][:5]))
    assert asked == [row[3] for row in sorted(expected)]
    assert ranks.model[order].tolist() == [row[2] for row in sorted(expected)]
    sums = (ranks.model + ranks.second)[order].tolist()
    assert sums == [row[1] for row in sorted(expected)]


def with_second(rows: list[tuple[Row, float]]) -> Candidates:
    second = np.array([other for _, other in rows], dtype=np.float32)
    return replace(build([row for row, _ in rows]), second_score=second)


def test_a_move_that_ran_out_of_memory_is_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("haystack.pipeline.scoring.top_candidates._BLOCK_ROWS", 1)
    best = TopCandidates(4, 1, 3)
    move, moved, room = RowBuffer.to, set(), [2]

    def to(self: RowBuffer, device: torch.device) -> None:
        if not room[0]:
            raise MemoryError
        room[0] -= 1
        move(self, device)
        moved.add(id(self))

    monkeypatch.setattr(RowBuffer, "to", to)
    elsewhere = torch.device("meta")
    with pytest.raises(MemoryError):
        best.to(elsewhere)
    room[0] = 100
    best.to(elsewhere)
    assert len(moved) == 1 + 4, "the loose rows and each block's"
    assert best.floor.device == elsewhere


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_keeps_the_same_rows() -> None:
    random = np.random.default_rng(0)
    rows = [
        (int(c), int(p), f"{i:03d}.jpg", int(s), int(o), float(round(v, 1)))
        for c, p, i, s, o, v in zip(
            *random.integers(0, 3, (2, 5000)),
            *random.integers(0, 40, (3, 5000)),
            random.normal(size=5000),
            strict=True,
        )
    ]
    rows = list({row[:5]: row for row in rows}.values())
    best = [TopCandidates(3, 3, 50, device=device) for device in ("cpu", "cuda")]
    for each in best:
        each.add(build(rows[:2000]))
        each.add(build(rows[2000:]))
    assert listed(best[0].result()) == listed(best[1].result())
