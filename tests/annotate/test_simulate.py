from __future__ import annotations

import pytest

from haystack.annotate.simulate import SteppingClock, answer_from_truth
from haystack.annotate.store.store import AnnotationStore
from haystack.errors import InputError

EATING, RIDING = 0, 1


def truth(asked):
    """Every third is a needle, of every fourth nothing is known."""
    if asked.rank % 4 == 3:
        return None
    return "correct" if asked.rank % 3 == 0 else "incorrect"


def test_the_whole_queue_is_answered_in_order(store, make_queue):
    store.load_proposals(make_queue(count=8), round=0)
    report = answer_from_truth(store, truth)
    expected = ("correct", "incorrect", "incorrect", "skip") * 2
    expected = (*expected[:4], "incorrect", "incorrect", "correct", "skip")
    assert report.verdicts == {EATING: expected, RIDING: expected}
    assert (report.answers, report.positives, report.unannotated) == (16, 4, 4)
    assert store.next_proposal(EATING, "truth") is None
    assert {answer.annotator for answer in store.answers()} == {"truth"}


def test_what_the_truth_does_not_say_can_be_incorrect(sqlite_store, make_queue):
    sqlite_store.load_proposals(make_queue(count=8), round=0)
    report = answer_from_truth(sqlite_store, truth, unannotated="incorrect")
    assert "skip" not in report.verdicts[EATING]
    assert report.unannotated == 4


def test_limit_and_predicates(sqlite_store, make_queue):
    sqlite_store.load_proposals(make_queue(count=8), round=0)
    report = answer_from_truth(sqlite_store, truth, predicates=[RIDING], limit=3)
    assert report.verdicts == {RIDING: ("correct", "incorrect", "incorrect")}
    assert answer_from_truth(sqlite_store, truth, limit=0).answers == 0


def test_a_true_fault_takes_its_proposals_away(sqlite_store, make_queue):
    sqlite_store.load_proposals(make_queue(count=18, predicates=(EATING,)), round=0)

    def faulty(asked):
        return "object_faulty" if asked.image_id == "0" and asked.object == 2 else "incorrect"

    report = answer_from_truth(sqlite_store, faulty)
    assert report.verdicts[EATING].count("object_faulty") == 1
    assert report.answers == 18 - 3


def test_a_run_goes_on_where_it_stopped(sqlite_store, make_queue):
    sqlite_store.load_proposals(make_queue(count=8), round=0)
    first = answer_from_truth(sqlite_store, truth, limit=3)
    second = answer_from_truth(sqlite_store, truth)
    assert first.answers + second.answers == 16
    assert first.verdicts[EATING] + second.verdicts[EATING] == (
        *("correct", "incorrect", "incorrect", "skip"),
        *("incorrect", "incorrect", "correct", "skip"),
    )


def test_what_was_undone_can_be_simulated_again(sqlite_store, make_queue):
    sqlite_store.load_proposals(make_queue(count=4, predicates=(EATING,)), round=0)
    answer_from_truth(sqlite_store, truth)
    undone = sqlite_store.undo("truth")
    assert undone is not None
    assert answer_from_truth(sqlite_store, truth).answers == 1


def test_two_runs_with_a_stepping_clock_are_equal(tmp_path, make_queue):
    runs = []
    for name in ("a.db", "b.db"):
        with AnnotationStore(tmp_path / name, clock=SteppingClock()) as store:
            store.load_proposals(make_queue(), round=0)
            answer_from_truth(store, truth)
            runs.append(list(store.answers()))
    assert runs[0] == runs[1]
    assert runs[0][1].created_at > runs[0][0].created_at or len(runs[0]) == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"limit": -1}, "expected a limit of 0 or more"), ({"unannotated": "correct"}, "skip or inc")],
)
def test_bad_arguments(sqlite_store, change, sentence):
    with pytest.raises(InputError, match=sentence):
        answer_from_truth(sqlite_store, truth, **change)
