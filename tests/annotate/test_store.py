from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from haystack.annotate.records import (
    VERDICTS,
    KeyConflictError,
    Proposal,
    UnknownProposalError,
)
from haystack.annotate.store.store import AnnotationStore
from haystack.errors import InputError

EATING, RIDING = 0, 1


def ids(proposals):
    return [proposal.id for proposal in proposals]


def test_proposals_are_asked_by_rank_one_predicate_at_a_time(store, make_queue):
    queue = make_queue()
    assert store.load_proposals(reversed(queue), round=0) == len(queue)
    eating = [row for row in queue if row.predicate == EATING]
    assert store.upcoming(EATING, "ann", 100) == eating
    assert store.next_proposal(EATING, "ann") == eating[0]
    assert store.next_proposal(7, "ann") is None


def test_an_answered_proposal_is_not_asked_again_by_anybody(store, make_queue):
    store.load_proposals(make_queue(), round=0)
    first, second, *_ = store.upcoming(EATING, "ann", 10)
    saved = store.answer(first.id, "correct", "ann", "k1", dwell_ms=700)
    assert (saved.proposal, saved.verdict, saved.dwell_ms) == (first, "correct", 700)
    assert saved.created_at == "2000-01-01T00:00:01.000000Z"
    assert store.next_proposal(EATING, "ann") == second
    assert store.next_proposal(EATING, "bob") == second


def test_a_skip_hides_a_proposal_only_from_the_one_who_skipped(store, make_queue):
    store.load_proposals(make_queue(), round=0)
    first, second, *_ = store.upcoming(EATING, "ann", 10)
    store.answer(first.id, "skip", "ann", "k1")
    assert store.next_proposal(EATING, "ann") == second
    assert store.next_proposal(EATING, "bob") == first
    assert store.progress("ann")[EATING].open == 5
    assert store.progress("bob")[EATING].open == store.progress()[EATING].open == 6


def test_the_same_answer_under_the_same_key_is_saved_once(store, make_queue):
    store.load_proposals(make_queue(), round=0)
    asked = store.next_proposal(EATING, "ann")
    once = store.answer(asked.id, "incorrect", "ann", "k1", dwell_ms=5)
    again = store.answer(asked.id, "incorrect", "ann", "k1", dwell_ms=900)
    assert once == again
    assert store.event_count() == 1


def test_a_late_repetition_does_not_bring_back_an_answer_that_was_undone(store, make_queue):
    store.load_proposals(make_queue(), round=0)
    asked = store.next_proposal(EATING, "ann")
    store.answer(asked.id, "correct", "ann", "k1")
    store.undo("ann")
    store.answer(asked.id, "correct", "ann", "k1")
    assert list(store.answers()) == []
    assert store.next_proposal(EATING, "ann") == asked


@pytest.mark.parametrize(
    "change", [{"verdict": "correct"}, {"annotator": "bob"}, {"proposal_id": "other"}]
)
def test_a_key_that_stands_for_another_answer_is_refused(store, make_queue, change):
    store.load_proposals(make_queue(), round=0)
    first, other, *_ = store.upcoming(EATING, "ann", 10)
    content = {"proposal_id": first.id, "verdict": "skip", "annotator": "ann", "key": "k1"}
    store.answer(**content)
    if "proposal_id" in change:
        change = {"proposal_id": other.id}
    with pytest.raises(KeyConflictError, match="'k1' already stands for another event"):
        store.answer(**content | change)
    with pytest.raises(KeyConflictError):
        store.undo("ann", key="k1")
    assert store.event_count() == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"verdict": "maybe"}, "expected a verdict of correct, incorrect"),
        ({"verdict": "undo"}, "expected a verdict of"),
        ({"key": ""}, "expected a key of 1 to 128"),
        ({"key": "x" * 129}, "expected a key of 1 to 128"),
        ({"key": "undo/1"}, "expected a key of 1 to 128"),
        ({"annotator": " "}, "expected an annotator's name"),
        ({"annotator": "a\x00b"}, "expected an annotator's name"),
        ({"annotator": "x" * 10_000}, "expected an annotator's name"),
        ({"dwell_ms": -1}, "expected dwell_ms to be 0 or more"),
        ({"dwell_ms": 2**40}, "expected dwell_ms to be 0 or more"),
    ],
)
def test_a_malformed_answer_is_refused_and_leaves_nothing(store, make_queue, change, sentence):
    store.load_proposals(make_queue(), round=0)
    content = {
        "proposal_id": store.next_proposal(EATING, "ann").id,
        "verdict": "skip",
        "annotator": "ann",
        "key": "k1",
    }
    with pytest.raises(InputError, match=sentence):
        store.answer(**content | change)
    assert store.event_count() == 0


def test_sql_in_names_is_only_text(store, make_proposal):
    name = "Robert'); DROP TABLE events;--"
    store.load_proposals([make_proposal(image=name)], round=0)
    asked = store.next_proposal(EATING, name)
    store.answer(asked.id, "correct", name, "k1")
    (answer,) = store.answers()
    assert (answer.annotator, answer.proposal.image_id) == (name, name)


def test_an_unknown_proposal_is_refused(store):
    with pytest.raises(UnknownProposalError, match="there is no proposal 'f00'"):
        store.answer("f00", "correct", "ann", "k1")
    for unknown in ("f00", "", "\0"):
        with pytest.raises(UnknownProposalError):
            store.proposal(unknown)
    assert not store.has_image("\0")


def test_undo_goes_back_without_end_and_across_predicates(store, make_queue):
    store.load_proposals(make_queue(), round=0)
    asked = []
    for number, predicate in enumerate((EATING, RIDING, EATING, EATING)):
        proposal = store.next_proposal(predicate, "ann")
        store.answer(proposal.id, VERDICTS[number], "ann", f"k{number}")
        asked.append(proposal)
    store.answer(store.next_proposal(RIDING, "bob").id, "correct", "bob", "bob1")

    assert [store.undo("ann") for _ in range(5)] == [*reversed(asked), None]
    assert store.event_count() == 9  # 5 answers and 4 undos: nothing was ever deleted
    assert store.next_proposal(EATING, "ann") == asked[0]
    assert [answer.annotator for answer in store.answers()] == ["bob"]


def test_undo_after_answering_again_goes_on_from_there(store, make_queue):
    store.load_proposals(make_queue(), round=0)
    first, second, *_ = store.upcoming(EATING, "ann", 10)
    store.answer(first.id, "correct", "ann", "k1")
    store.answer(second.id, "correct", "ann", "k2")
    assert store.undo("ann") == second
    store.answer(second.id, "incorrect", "ann", "k3")
    assert store.undo("ann") == second
    assert store.undo("ann") == first
    assert store.undo("ann") is None


def test_undo_under_the_same_key_undoes_once(store, make_queue):
    store.load_proposals(make_queue(), round=0)
    first, second, *_ = store.upcoming(EATING, "ann", 10)
    store.answer(first.id, "correct", "ann", "k1")
    store.answer(second.id, "correct", "ann", "k2")
    assert store.undo("ann", key="u1") == store.undo("ann", key="u1") == second
    assert [answer.proposal for answer in store.answers()] == [first]


def test_a_second_answer_replaces_the_first_and_undo_brings_it_back(store, make_queue):
    store.load_proposals(make_queue(), round=0)
    asked = store.next_proposal(EATING, "ann")
    store.answer(asked.id, "correct", "ann", "k1")
    store.answer(asked.id, "no_relation", "ann", "k2")
    assert [answer.verdict for answer in store.answers()] == ["no_relation"]
    store.undo("ann")
    assert [answer.verdict for answer in store.answers()] == ["correct"]


@pytest.mark.parametrize(("verdict", "segment"), [("subject_faulty", 0), ("object_faulty", 2)])
def test_a_faulty_segment_takes_all_its_proposals_out_of_every_queue(
    store, make_queue, verdict, segment
):
    queue = make_queue(count=18)
    store.load_proposals(queue, round=0)
    asked = store.next_proposal(EATING, "ann")
    assert (asked.image_id, asked.subject, asked.object) == ("0", 0, 2)
    store.answer(asked.id, verdict, "ann", "k1")
    assert store.faulty_segments() == {("0", segment)}
    for predicate in (EATING, RIDING):
        expected = [
            row
            for row in queue
            if row.predicate == predicate
            and not (row.image_id == "0" and segment in (row.subject, row.object))
        ]
        assert len(expected) == 18 - 4
        assert store.upcoming(predicate, "bob", 100) == expected
        assert store.progress()[predicate].open == 14
    store.undo("ann")
    assert store.faulty_segments() == set()
    assert store.upcoming(RIDING, "bob", 100) == [r for r in queue if r.predicate == RIDING]


def test_a_fault_that_two_annotators_saw_stays_until_both_take_it_back(store, make_queue):
    store.load_proposals(make_queue(count=18), round=0)
    by_ann, by_bob = store.upcoming(EATING, "ann", 4)[:4:3]
    assert by_ann.image_id == by_bob.image_id == "0"
    assert by_ann.object == by_bob.object == 2
    store.answer(by_ann.id, "object_faulty", "ann", "k1")
    store.answer(by_bob.id, "object_faulty", "bob", "k2")  # it was open on his screen
    store.undo("ann")
    assert store.faulty_segments() == {("0", 2)}
    store.undo("bob")
    assert store.faulty_segments() == set()


def test_loading_the_same_queue_again_changes_nothing(store, make_queue):
    queue = make_queue()
    store.load_proposals(queue, round=0)
    first, second, *_ = store.upcoming(EATING, "ann", 10)
    store.answer(first.id, "correct", "ann", "k1")
    store.answer(second.id, "object_faulty", "ann", "k2")
    before = (list(store.answers()), store.upcoming(EATING, "ann", 10), store.progress())
    store.load_proposals(queue, round=0)
    assert before == (list(store.answers()), store.upcoming(EATING, "ann", 10), store.progress())


def test_a_new_queue_keeps_answers_and_asks_nothing_twice(store, make_queue, make_proposal):
    store.load_proposals([replace(row, origin="old") for row in make_queue()], round=0)
    first, second, third, *_ = store.upcoming(EATING, "ann", 10)
    store.answer(first.id, "correct", "ann", "k1")
    fresh = make_proposal("9", rank=0)
    reranked = make_proposal(third.image_id, third.subject, third.object, rank=1, score=9.0)
    answered = make_proposal(first.image_id, first.subject, first.object, rank=2, origin="new")
    store.load_proposals([answered, fresh, reranked], round=1)

    waiting = store.upcoming(EATING, "ann", 10)
    assert ids(waiting) == [fresh.id, third.id]  # `second` left the queue
    assert [(row.rank, row.round) for row in waiting] == [(0, 1), (1, 1)]
    assert waiting[1].score == 9.0
    (answer,) = store.answers()
    asked = answer.proposal  # as it was when it was answered
    assert (asked.rank, asked.round, asked.origin) == (0, 0, "old")
    assert store.proposal(first.id).origin == "new"
    late = store.answer(second.id, "incorrect", "ann", "k2")  # was on screen meanwhile
    assert late.verdict == "incorrect"
    assert store.progress()[EATING].total == 4


def test_a_question_twice_in_a_queue_is_refused_and_the_old_queue_stays(store, make_proposal):
    store.load_proposals([make_proposal("1")], round=0)
    with pytest.raises(InputError, match="image 2: subject 0, object 1, predicate 0 is in the"):
        store.load_proposals([make_proposal("2"), make_proposal("2", rank=1)], round=1)
    assert store.next_proposal(EATING, "ann").image_id == "1"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image": ""}, "expected an image id"),
        ({"image": "a\0"}, "without NUL"),
        ({"subject": -1}, "expected subject to be 0 or more, got -1"),
        ({"object_": 0}, "expected two different segments"),
        ({"predicate": -1}, "expected predicate"),
        ({"score": float("nan")}, "expected a finite score"),
        ({"rank": -2, "score": 0.0}, "expected rank"),
    ],
)
def test_a_proposal_that_makes_no_sense_is_refused(make_proposal, change, sentence):
    with pytest.raises(InputError, match=sentence):
        make_proposal(**change)


def test_a_proposal_id_follows_from_the_question_alone(make_proposal):
    assert make_proposal(rank=3, score=0.5, cluster=4).id == make_proposal().id
    others = [
        make_proposal(image="11"),
        make_proposal(subject=2),
        make_proposal(object_=11),
        make_proposal(predicate=1),
    ]
    assert len({make_proposal().id, *ids(others)}) == 5


def test_progress_counts_verdicts(store, make_queue):
    store.load_proposals(make_queue(count=9, predicates=(RIDING,)), round=0)
    asked = store.upcoming(RIDING, "ann", 9)
    for number, verdict in enumerate(("correct", "incorrect", "incorrect", "no_relation", "skip")):
        store.answer(asked[number].id, verdict, "ann", f"k{number}")
    (row,) = store.progress().values()
    assert (row.total, row.open, row.faulty) == (9, 5, 0)
    assert (row.correct, row.incorrect, row.no_relation, row.skip) == (1, 2, 1, 1)
    store.answer(asked[5].id, "subject_faulty", "ann", "fault")
    assert store.progress()[RIDING].faulty == 1


def test_answers_come_in_an_order_that_does_not_depend_on_the_answering(location, make_queue):
    with AnnotationStore(location) as store:
        store.load_proposals(make_queue(), round=0)
        for number, asked in enumerate(reversed(store.upcoming(EATING, "x", 10))):
            for annotator in ("zoe", "Ann"):
                store.answer(asked.id, "correct", annotator, f"{annotator}{number}")
        found = [
            (a.proposal.image_id, a.proposal.subject, a.proposal.object, a.annotator)
            for a in store.answers()
        ]
    assert len(found) == 12
    assert found == sorted(found)


def test_everything_is_there_after_opening_again(location, make_queue):
    with AnnotationStore(location) as store:
        store.load_proposals(make_queue(), round=3)
        store.answer(store.next_proposal(EATING, "ann").id, "subject_faulty", "ann", "k1")
        before = (list(store.answers()), store.upcoming(EATING, "ann", 9), store.campaign)
    with AnnotationStore(location) as store:
        assert before == (list(store.answers()), store.upcoming(EATING, "ann", 9), store.campaign)
        assert store.faulty_segments() == {("0", 0)}
        assert store.has_image("0.jpg")
        assert not store.has_image("../0.jpg")


def test_a_clock_that_jumps_back_changes_no_order(location, make_queue):
    times = iter(datetime(2030 - year, 1, 1, tzinfo=timezone.utc) for year in range(9))
    with AnnotationStore(location, clock=lambda: next(times)) as store:
        store.load_proposals(make_queue(), round=0)
        first, second, *_ = store.upcoming(EATING, "ann", 9)
        store.answer(first.id, "correct", "ann", "k1")
        store.answer(second.id, "correct", "ann", "k2")
        store.answer(second.id, "incorrect", "ann", "k3")
        assert [answer.verdict for answer in store.answers()] == ["correct", "incorrect"]
        assert store.undo("ann") == second


def test_four_threads_lose_and_double_nothing(store, make_proposal):
    count = 60
    store.load_proposals([make_proposal(str(n), rank=n) for n in range(count)], round=0)
    barrier = threading.Barrier(4)
    failures = []
    given: dict[str, list[str]] = {}

    def annotate(annotator):
        try:
            barrier.wait()
            mine = given[annotator] = []
            while asked := store.next_proposal(EATING, annotator):
                key = f"{annotator}-{len(mine)}"
                store.answer(asked.id, "correct", annotator, key)
                if len(mine) % 5 == 4:
                    store.undo(annotator, f"undo-{key}")
                    store.answer(asked.id, "incorrect", annotator, f"again-{key}")
                mine.append(asked.id)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=annotate, args=(f"a{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    saved = {(a.annotator, a.proposal.id) for a in store.answers()}
    assert saved == {(who, proposal) for who, mine in given.items() for proposal in mine}
    assert len({proposal for _, proposal in saved}) == count
    assert store.progress()[EATING].open == 0


def test_one_key_from_four_threads_at_once_is_one_event(store, make_queue):
    store.load_proposals(make_queue(), round=0)
    asked = store.next_proposal(EATING, "ann")
    results = []
    threads = [
        threading.Thread(
            target=lambda: results.append(store.answer(asked.id, "correct", "ann", "k1"))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results)) == store.event_count() == 1


_WRITER = """
import sys
from haystack.annotate.store.store import AnnotationStore
store = AnnotationStore(sys.argv[1])
number = 0
while asked := store.next_proposal(0, "ann"):
    key = f"{sys.argv[2]}-{number}"
    store.answer(asked.id, "correct", "ann", key)
    print(key, asked.id, flush=True)
    number += 1
"""


def test_kill_9_loses_no_answer_that_was_acknowledged(tmp_path, make_proposal):
    path = tmp_path / "annotations.db"
    with AnnotationStore(path) as store:
        store.load_proposals([make_proposal(str(n), rank=n) for n in range(5_000)], round=0)
    acknowledged = []
    for attempt in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), f"run{attempt}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        lines = [process.stdout.readline() for _ in range(10 + 7 * attempt)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.communicate()[0].splitlines()
        acknowledged += [tuple(line.split()) for line in lines if len(line.split()) == 2]
        assert process.returncode == -signal.SIGKILL
    with AnnotationStore(path) as store:
        saved = [(answer.key, answer.proposal.id) for answer in store.answers()]
        assert set(acknowledged) <= set(saved)
        # At most the one answer a run that was saved but not yet acknowledged; none doubled.
        assert len(saved) <= len(acknowledged) + 4
        assert len({proposal for _, proposal in saved}) == len(saved) == store.event_count()


class QueueAndEvents(RuleBasedStateMachine):
    """The store against a model of it that replays a plain list of events."""

    @initialize()
    def open(self):
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.store = AnnotationStore(f"{self.folder.name}/annotations.db")
        self.all = [
            Proposal("i", s, o, p, "i.jpg", 0.0, 0, rank)
            for rank, (s, o, p) in enumerate(
                (s, o, p) for s in range(3) for o in range(3) if s != o for p in range(2)
            )
        ]
        self.loaded = self.queued = self.all
        self.store.load_proposals(self.all, round=0)
        self.given: list[tuple[Proposal, str, str]] = []  # those that were not undone
        self.serial = 0

    def current(self):
        return {(who, asked): verdict for asked, verdict, who in self.given}

    @rule(at=st.integers(0, 11), verdict=st.sampled_from(VERDICTS), who=st.sampled_from("ab"))
    def answer(self, at, verdict, who):
        self.serial += 1
        self.store.answer(self.all[at].id, verdict, who, f"k{self.serial}")
        self.given.append((self.all[at], verdict, who))

    @rule(who=st.sampled_from("ab"))
    def undo(self, who):
        mine = [entry for entry in self.given if entry[2] == who]
        undone = self.store.undo(who)
        assert undone == (mine[-1][0] if mine else None)
        if mine:
            at = max(n for n, entry in enumerate(self.given) if entry[2] == who)
            del self.given[at]

    @rule(kept=st.sets(st.integers(0, 11), min_size=1))
    def load(self, kept):
        loaded = [self.all[at] for at in sorted(kept)]
        self.store.load_proposals(loaded, round=0)
        if loaded == self.loaded:  # changes nothing
            return
        current, faulty = self.current(), self.faulty()
        judged = {asked for (_, asked), verdict in current.items() if verdict != "skip"}
        skipped = {
            asked
            for _, asked in current
            if asked not in judged
            and not faulty & {asked.subject, asked.object}
            and not any(
                verdict == "no_relation"
                and (other.subject, other.object) == (asked.subject, asked.object)
                for (_, other), verdict in current.items()
            )
        }
        self.loaded = loaded
        self.queued = [asked for asked in self.all if asked in skipped or asked in loaded]

    def faulty(self):
        current = self.current()
        faulty = {a.subject for (_, a), v in current.items() if v == "subject_faulty"}
        return faulty | {a.object for (_, a), v in current.items() if v == "object_faulty"}

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def agrees(self):
        current, faulty = self.current(), self.faulty()
        assert {(a.annotator, a.proposal): a.verdict for a in self.store.answers()} == current
        assert self.store.faulty_segments() == {("i", segment) for segment in faulty}
        answered = {asked for (_, asked), verdict in current.items() if verdict != "skip"}
        for who in "ab":
            for predicate in (0, 1):
                assert self.store.upcoming(predicate, who, 99) == [
                    asked
                    for asked in self.queued
                    if asked.predicate == predicate
                    and asked not in answered
                    and (who, asked) not in current
                    and not faulty & {asked.subject, asked.object}
                ]

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()


TestQueueAndEvents = QueueAndEvents.TestCase
TestQueueAndEvents.settings = settings(
    max_examples=15,
    stateful_step_count=15,
    suppress_health_check=list(HealthCheck),
)


def test_an_image_answered_on_other_segments_is_refused(store, make_proposal):
    asked = replace(make_proposal("7", 0, 1), segments="before")
    store.load_proposals([asked], round=0)
    store.load_proposals([replace(asked, segments="after")], round=0)  # nobody answered yet
    store.load_proposals([asked], round=0)
    store.answer(asked.id, "correct", "ann", "k1")
    with pytest.raises(InputError, match=r"image 7: it was answered on other segments"):
        store.load_proposals([replace(asked, segments="after", rank=3)], round=1)
    (answer,) = store.answers()
    assert answer.proposal.segments == "before"
    assert store.load_proposals([replace(asked, rank=3)], round=1) == 1
