"""Handing out questions: leases, overlap, gold items, repeats, adjudication, other rounds."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
import sqlalchemy
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from haystack.annotate.labels import resolve
from haystack.annotate.records import Dispute, Proposal
from haystack.annotate.settings import QueueSettings
from haystack.annotate.store.gold import choose_gold
from haystack.annotate.store.leases import CLAIMABLE
from haystack.annotate.store.store import AnnotationStore
from haystack.annotate.store.tallies import read_progress, recount
from haystack.errors import InputError

EATING, RIDING = 0, 1
LEASE = 100


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self):
        self.now = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def __call__(self):
        return self.now

    def move(self, seconds):
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_store(location, clock):
    """Opens a store with settings of the queue, and with draws that are given in turn."""
    opened = []

    def open_it(draws=(0.99,), **changes):
        numbers = itertools.cycle(draws)
        queue = QueueSettings(**{"lease_seconds": LEASE} | changes)
        store = AnnotationStore(location, clock=clock, settings=queue, draw=lambda: next(numbers))
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()


def line(make_proposal, count, predicate=EATING):
    """Proposals of images of their own, by rank."""
    return [make_proposal(f"i{n:03}", predicate=predicate, rank=n) for n in range(count)]


def ids(claim):
    return [proposal.id for proposal in claim.questions]


def ranks(claim):
    return [proposal.rank for proposal in claim.questions]


def judge(store, proposal, verdict, who):
    key = f"{who}-{proposal.id}-{store.event_count()}"
    return store.answer(proposal.id, verdict, who, key)


# ---------------------------------------------------------------- leases


def test_two_people_are_handed_different_questions(open_store, make_proposal):
    store = open_store()
    store.load_proposals(line(make_proposal, 6), round=0)
    assert ranks(store.claim(EATING, "ann", 3)) == [0, 1, 2]
    assert ranks(store.claim(EATING, "bob", 2)) == [3, 4]
    assert ranks(store.claim(EATING, "ann", 3)) == [0, 1, 2]  # hers, again


def test_an_answer_hands_out_one_more(open_store, make_proposal):
    store = open_store()
    queue = line(make_proposal, 6)
    store.load_proposals(queue, round=0)
    store.claim(EATING, "ann", 2)
    store.claim(EATING, "bob", 2)
    saved, claim = store.answer_and_claim(queue[0].id, "correct", "ann", "k1", 5, limit=2)
    assert (saved.proposal, ranks(claim)) == (queue[0], [1, 4])
    again, claim = store.answer_and_claim(queue[0].id, "correct", "ann", "k1", 5, limit=2)
    assert (again, ranks(claim)) == (saved, [1, 4])
    assert store.event_count() == 1


def test_a_lease_ends_and_its_question_is_handed_on(open_store, make_proposal, clock):
    store = open_store()
    queue = line(make_proposal, 2)
    store.load_proposals(queue, round=0)
    store.claim(EATING, "ann", 2)
    clock.move(LEASE - 1)
    assert ids(store.claim(EATING, "bob", 2)) == []
    clock.move(1)
    assert ids(store.claim(EATING, "bob", 2)) == [proposal.id for proposal in queue]
    assert ids(store.claim(EATING, "ann", 2)) == []
    assert judge(store, queue[0], "correct", "ann").verdict == "correct"  # late, and kept
    assert ids(store.claim(EATING, "bob", 2)) == [queue[1].id]  # nobody need answer it now
    judge(store, queue[0], "incorrect", "bob")  # it was on his screen
    assert len(list(store.answers())) == 2


def test_asking_again_renews_a_lease(open_store, make_proposal, clock):
    store = open_store()
    store.load_proposals(line(make_proposal, 1), round=0)
    for _ in range(5):
        assert len(store.claim(EATING, "ann", 1).questions) == 1
        clock.move(LEASE * 0.9)
    assert store.claim(EATING, "bob", 1).questions == ()


def test_what_is_given_back_is_free_and_nothing_else(open_store, make_proposal):
    store = open_store()
    queue = line(make_proposal, 3) + line(make_proposal, 3, RIDING)
    store.load_proposals(queue, round=0)
    eating = store.claim(EATING, "ann", 3).questions
    riding = store.claim(RIDING, "ann", 3).questions  # in another tab
    assert store.claim(EATING, "bob", 3).questions == ()
    judge(store, riding[0], "incorrect", "ann")
    assert store.claim(RIDING, "ann", 3).questions == riding[1:]
    store.release("ann", [eating[0].id, eating[2].id, "unknown"])
    assert store.claim(EATING, "bob", 3).questions == (eating[0], eating[2])
    assert store.claim(EATING, "ann", 3).questions == (eating[1],)
    store.release("ann", [eating[0].id])  # it is bob's now
    store.release("ann")
    assert store.claim(EATING, "cleo", 3).questions == (eating[1],)
    assert store.claim(RIDING, "cleo", 3).questions == riding[1:]


def test_the_one_who_waits_is_told_that_others_hold_the_rest(open_store, make_proposal, clock):
    store = open_store()
    queue = line(make_proposal, 3)
    store.load_proposals(queue, round=0)
    store.claim(EATING, "ann", 2)
    clock.move(10)
    claim = store.claim(EATING, "bob", 5)
    assert (ranks(claim), claim.held, claim.free_in) == ([2], 2, None)
    judge(store, queue[2], "skip", "bob")
    claim = store.claim(EATING, "bob", 5)
    assert (claim.questions, claim.held, claim.free_in) == ((), 2, LEASE - 10)
    clock.move(claim.free_in)
    assert ranks(store.claim(EATING, "bob", 5)) == [0, 1]
    judge(store, queue[0], "correct", "bob")
    judge(store, queue[1], "correct", "bob")
    claim = store.claim(EATING, "bob", 5)
    assert (claim.questions, claim.held, claim.free_in) == ((), 0, None)


@pytest.mark.parametrize("jump", [-20, -LEASE / 2, -10 * LEASE, 10 * LEASE, 1e9])
def test_a_clock_that_jumps_keeps_nobody_waiting_longer_than_a_lease(
    open_store, make_proposal, clock, jump
):
    store = open_store()
    queue = line(make_proposal, 1)
    store.load_proposals(queue, round=0)
    store.claim(EATING, "ann", 1)
    clock.move(jump)
    # Set back, a lease seems to end further ahead than any can, unless it was only by little.
    # Set ahead, it ended early: the question may be answered twice, which loses nothing.
    claim = store.claim(EATING, "bob", 1)
    if not claim.questions:
        assert 0 < claim.free_in <= LEASE + 30
        clock.move(claim.free_in)
        claim = store.claim(EATING, "bob", 1)
    assert ids(claim) == [queue[0].id]
    assert judge(store, queue[0], "correct", "ann").annotator == "ann"


def test_a_clock_that_is_a_little_behind_anothers_hands_out_nothing_twice(
    open_store, make_proposal, clock
):
    store = open_store()
    store.load_proposals(line(make_proposal, 2), round=0)
    assert ranks(store.claim(EATING, "ann", 1)) == [0]
    clock.move(-5)  # another machine's; or a claim that looked at it, then waited
    assert ranks(store.claim(EATING, "bob", 2)) == [1]


def test_undoing_hands_the_question_back_first(open_store, make_proposal):
    store = open_store()
    queue = line(make_proposal, 5)
    store.load_proposals(queue, round=0)
    store.claim(EATING, "ann", 2)
    judge(store, queue[0], "correct", "ann")
    judge(store, queue[1], "correct", "ann")
    store.claim(EATING, "ann", 2)
    store.undo("ann")
    store.undo("ann")
    assert ranks(store.claim(EATING, "ann", 4)) == [0, 1, 2, 3]
    assert ranks(store.claim(EATING, "bob", 4)) == [4]


# ---------------------------------------------------------------- rounds and faults


def test_another_round_leaves_the_questions_on_screens_alone(open_store, make_proposal):
    store = open_store()
    queue = line(make_proposal, 4)
    store.load_proposals(queue, round=0)
    before = ids(store.claim(EATING, "ann", 2))
    fresh = [make_proposal(f"new{n}", rank=n) for n in range(2)]
    store.load_proposals([*fresh, replace(queue[1], rank=2), replace(queue[3], rank=3)], round=1)
    assert ids(store.claim(EATING, "ann", 2)) == before  # the first of them left the queue
    assert ids(store.claim(EATING, "bob", 9)) == [fresh[0].id, fresh[1].id, queue[3].id]
    _, claim = store.answer_and_claim(queue[0].id, "correct", "ann", "k", limit=2)
    assert ids(claim) == [queue[1].id]
    with store.database.read() as connection:
        found = connection.execute(sqlalchemy.text("SELECT * FROM rounds ORDER BY round")).all()
    assert [(row.round, row.proposals) for row in found] == [(0, 4), (1, 4)]


def test_a_fault_takes_questions_from_those_who_hold_them(open_store, make_proposal):
    store = open_store()
    same_image = [make_proposal("i", 0, other, rank=other) for other in range(1, 5)]
    store.load_proposals(same_image, round=0)
    store.claim(EATING, "ann", 2)
    assert ranks(store.claim(EATING, "bob", 2)) == [3, 4]
    judge(store, same_image[0], "subject_faulty", "ann")
    for who in ("ann", "bob"):
        claim = store.claim(EATING, who, 4)
        assert (claim.questions, claim.held) == ((), 0)
    judge(store, same_image[2], "correct", "bob")  # was on his screen
    assert len(list(store.answers())) == 2
    store.undo("ann")
    assert ranks(store.claim(EATING, "ann", 4))[0] == 1


# ---------------------------------------------------------------- overlap


def test_k_people_answer_each_question_and_nobody_twice(open_store, make_proposal):
    store = open_store(copies=2)
    queue = line(make_proposal, 5)
    store.load_proposals(queue, round=0)
    assert ranks(store.claim(EATING, "ann", 2)) == [0, 1]
    assert ranks(store.claim(EATING, "bob", 2)) == [0, 1]
    assert ranks(store.claim(EATING, "cleo", 2)) == [2, 3]  # two hold the first two
    judge(store, queue[0], "correct", "ann")
    store.release("bob")
    assert ranks(store.claim(EATING, "dan", 1)) == [0]
    assert ranks(store.claim(EATING, "eve", 1)) == [1]
    judge(store, queue[0], "correct", "dan")
    given = {"ann": {0}, "dan": {0}}
    for who in ("ann", "bob", "cleo", "dan", "eve") * 2:
        while claim := store.claim(EATING, who, 1).questions:
            judge(store, claim[0], "incorrect", who)
            assert claim[0].rank not in given.setdefault(who, set())
            given[who].add(claim[0].rank)
            if len(given[who]) % 2:
                break
    counts = [sum(rank in ranks for ranks in given.values()) for rank in range(5)]
    assert counts == [2] * 5
    assert store.progress()[EATING].open == 0


@pytest.mark.parametrize("tie_breaker", [False, True])
def test_a_question_that_others_should_answer_stays_through_rounds(
    open_store, make_proposal, tie_breaker
):
    store = open_store(copies=2, tie_breaker=tie_breaker)
    begun, tied, _, skipped, _ = queue = [
        *line(make_proposal, 4),
        make_proposal("r", predicate=RIDING),
    ]
    store.load_proposals(queue, round=0)
    for proposal, verdicts in zip(
        queue,
        (["correct"], ["correct", "incorrect"], ["correct"] * 2, ["skip"], ["correct"]),
        strict=True,
    ):
        for who, verdict in zip(("ann", "bob"), verdicts, strict=False):
            judge(store, proposal, verdict, who)
    fresh = [make_proposal(f"new{n}", rank=n + 10, round=1) for n in range(2)]
    store.load_proposals(fresh, round=1, asked=[EATING])
    unfinished = [begun, tied, skipped] if tie_breaker else [begun, skipped]
    assert store.upcoming(EATING, "cleo", 9) == [*unfinished, *fresh]
    assert store.upcoming(RIDING, "cleo", 9) == []
    assert store.progress("cleo")[EATING].open == len(unfinished) + 2
    judge(store, begun, "correct", "bob")
    assert store.answer(begun.id, "correct", "bob", "again").proposal.round == 0
    assert begun not in store.upcoming(EATING, "cleo", 9)


def test_a_skipped_question_waits_for_somebody_else_through_rounds(open_store, make_proposal):
    store = open_store()
    left, other, judged, faulty = queue = line(make_proposal, 4)
    unrelated, denied = (
        make_proposal("pair", predicate=predicate, rank=4) for predicate in (EATING, RIDING)
    )
    store.load_proposals([*queue, unrelated, denied], round=0)
    for asked in (left, other, judged, faulty, unrelated):
        judge(store, asked, "skip", "ann")
    judge(store, judged, "incorrect", "bob")
    judge(store, faulty, "subject_faulty", "bob")
    judge(store, denied, "no_relation", "bob")
    for number in (1, 2):
        fresh = make_proposal(f"new{number}", rank=9, round=number)
        store.load_proposals([fresh], round=number)
        assert store.upcoming(EATING, "bob", 9) == [left, other, fresh]
        assert store.upcoming(EATING, "ann", 9) == [fresh]
    judge(store, left, "correct", "bob")
    assert store.claim(EATING, "cleo", 1).questions == (other,)
    # Nobody has skipped it any more: the next queue alone says whether it is asked.
    assert store.undo("ann") == unrelated
    judge(store, other, "skip", "cleo")
    for _ in range(3):
        store.undo("ann")
    store.undo("cleo")
    store.load_proposals([make_proposal("new3", round=3)], round=3)
    assert other not in store.upcoming(EATING, "eve", 9)


def test_skips_of_earlier_rounds_come_back_from_databases_that_had_closed_them(
    open_store, make_proposal
):
    store = open_store()
    (skipped,) = line(make_proposal, 1)
    store.load_proposals([skipped], round=0)
    judge(store, skipped, "skip", "ann")
    with store.database.write() as connection:
        connection.execute(
            sqlalchemy.text("UPDATE proposals SET is_queued = FALSE, is_open = FALSE")
        )
        recount(connection)
    fresh = make_proposal("new", rank=5, round=1)
    store.load_proposals([fresh], round=1)
    assert store.upcoming(EATING, "bob", 9) == [skipped, fresh]


def test_fewer_copies_finish_what_was_begun(open_store, make_proposal):
    queue = line(make_proposal, 2)
    store = open_store(copies=2)
    store.load_proposals(queue, round=0)
    judge(store, queue[0], "correct", "ann")
    fresh = [make_proposal("new", round=1)]
    open_store(copies=1).load_proposals(fresh, round=1)
    assert store.upcoming(EATING, "bob", 9) == fresh


def test_a_skip_does_not_count_towards_k(open_store, make_proposal):
    store = open_store(copies=2)
    (asked,) = queue = line(make_proposal, 1)
    store.load_proposals(queue, round=0)
    judge(store, asked, "skip", "ann")
    judge(store, asked, "correct", "bob")
    assert ids(store.claim(EATING, "cleo", 1)) == [asked.id]
    assert store.progress("ann")[EATING].open == store.progress("bob")[EATING].open == 0
    assert store.progress("cleo")[EATING].open == 1


def test_a_segment_that_a_gold_item_calls_faulty_is_faulty_everywhere(open_store, make_proposal):
    store = open_store(draws=(0.0, 0.99), gold_rate=0.4)
    known = make_proposal("i", 0, 1, rank=0)
    uses, other = make_proposal("i", 1, 2, rank=1), make_proposal("i", 0, 2, rank=2)
    beside = make_proposal("i", 2, 1, predicate=RIDING, rank=3)
    store.load_proposals([known, uses, other, beside], round=0)

    def agree(expected):
        assert store.faulty_segments() == {("i", segment) for segment in expected}
        labels = resolve(store.answers(), store.gold_items()).images.get("i")
        assert (() if labels is None else labels.faulty) == expected
        with store.database.write() as connection:
            before = read_progress(connection, None)
            recount(connection)
            assert read_progress(connection, None) == before

    store.set_gold({known.id: "object_faulty"}, "lead")
    agree((1,))
    assert store.upcoming(EATING, "eve", 9) == [other]
    assert store.upcoming(RIDING, "eve", 9) == []
    # It still measures who sees the fault, and what is held is not taken away.
    assert store.claim(EATING, "eve", 2).questions == (known, other)
    assert store.claim(EATING, "eve", 2).questions == (known, other)
    judge(store, known, "correct", "eve")
    agree((1,))
    store.set_gold({known.id: "subject_faulty"}, "lead")
    agree((0,))
    assert store.upcoming(EATING, "bob", 9) == [uses]
    store.set_gold({known.id: "correct"}, "lead")
    agree(())
    assert store.upcoming(EATING, "bob", 9) == [uses, other]
    store.set_gold({known.id: "object_faulty"}, "lead")
    store.remove_gold(known.id, "lead")
    agree(())
    assert store.upcoming(EATING, "bob", 9) == [known, uses, other]
    assert store.upcoming(RIDING, "bob", 9) == [beside]


def test_a_share_is_shared_and_a_predicate_may_differ(open_store, make_proposal):
    store = open_store(copies=3, share=0.25, copies_of={RIDING: 2})
    store.load_proposals(line(make_proposal, 400) + line(make_proposal, 3, RIDING), round=0)
    with store.database.read() as connection:
        query = sqlalchemy.text(
            "SELECT predicate, copies, COUNT(*) AS n FROM proposals GROUP BY predicate, copies"
        )
        found = {(row.predicate, row.copies): row.n for row in connection.execute(query)}
    assert 70 <= found.pop((EATING, 3)) <= 130
    assert found.keys() == {(EATING, 1), (RIDING, 2)}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"copies": 0}, "expected 1 to 100 copies"),
        ({"copies_of": {1: 101}}, "expected 1 to 100 copies"),
        ({"share": 1.5}, "expected share to be 0 to 1"),
        ({"gold_rate": -0.1}, "expected gold_rate to be 0 to 1"),
        ({"gold_rate": 0.3, "repeat_rate": 0.3}, "leave half of the questions"),
        ({"lease_seconds": 0}, "expected lease_seconds above 0"),
        ({"lease_seconds": float("inf")}, "expected lease_seconds above 0"),
        ({"repeat_after": 0}, "expected repeat_after to be 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        QueueSettings(**change)


# ---------------------------------------------------------------- gold items and repeats


def test_gold_items_are_mixed_in_and_are_no_labels(open_store, make_proposal):
    store = open_store(draws=(0.9, 0.9, 0.1, 0.9), gold_rate=0.2)
    queue = line(make_proposal, 8)
    store.load_proposals(queue, round=0)
    store.set_gold({queue[6].id: "correct", queue[7].id: "incorrect"}, "lead")
    assert store.progress()[EATING].open == 6
    golden = {queue[6].id, queue[7].id}
    claim = store.claim(EATING, "ann", 4)
    assert [proposal.id in golden for proposal in claim.questions] == [False, False, True, False]
    assert ids(store.claim(EATING, "ann", 4)) == ids(claim)  # in its place whenever one looks
    asked = claim.questions[2]
    saved = judge(store, asked, "correct", "ann")
    assert saved.purpose == "gold"
    assert [answer.proposal.id for answer in store.measurements()] == [asked.id]
    assert list(store.answers()) == []
    assert store.progress()[EATING].open == 6
    assert store.undo("ann").id == asked.id
    assert store.measurements() == []
    assert ids(store.claim(EATING, "ann", 1)) == [asked.id]
    assert judge(store, asked, "incorrect", "ann").purpose == "gold"
    assert {item.proposal.id: item.verdict for item in store.gold_items()} == {
        queue[6].id: "correct",
        queue[7].id: "incorrect",
    }


def test_gold_is_asked_of_everybody_once(open_store, make_proposal):
    store = open_store(draws=(0.1, 0.9), gold_rate=0.5)
    queue = line(make_proposal, 12)
    store.load_proposals(queue, round=0)
    store.set_gold({queue[0].id: "correct"}, "lead")
    for who in ("ann", "bob"):
        for _ in range(5):
            (asked,) = store.claim(EATING, who, 1).questions
            judge(store, asked, "incorrect", who)
    assert [answer.annotator for answer in store.measurements()] == ["ann", "bob"]
    assert len(list(store.answers())) == 8


def test_an_answer_to_gold_is_no_label_even_when_its_lease_was_given_back(
    open_store, make_proposal
):
    store = open_store(draws=(0.9, 0.1), gold_rate=0.5)
    queue = line(make_proposal, 4)
    store.load_proposals(queue, round=0)
    store.set_gold({queue[3].id: "correct"}, "lead")
    assert queue[3].id in ids(store.claim(EATING, "ann", 2))
    store.release("ann")
    assert judge(store, queue[3], "correct", "ann").purpose == "gold"
    assert judge(store, queue[3], "correct", "bob").purpose == "gold"  # never handed out to him


def test_what_was_labelled_before_it_was_gold_stays_a_label(open_store, make_proposal):
    store = open_store(draws=(0.1,), gold_rate=0.5)
    queue = line(make_proposal, 9)
    store.load_proposals(queue, round=0)
    judge(store, queue[0], "correct", "ann")
    store.set_gold({queue[0].id: "correct"}, "lead")
    assert queue[0].id not in ids(store.claim(EATING, "ann", 3))
    assert queue[0].id in ids(store.claim(EATING, "bob", 3))
    assert judge(store, queue[0], "incorrect", "ann").purpose == "label"  # thought better of it
    store.remove_gold(queue[0].id, "lead")
    assert store.gold_items() == []
    assert [answer.verdict for answer in store.answers()] == ["incorrect"]


def test_gold_alone_keeps_nobody_at_work(open_store, make_proposal):
    store = open_store(draws=(0.1,), gold_rate=0.5)
    queue = line(make_proposal, 3)
    store.load_proposals(queue, round=0)
    store.set_gold({queue[0].id: "correct", queue[1].id: "correct"}, "lead")
    assert len(store.claim(EATING, "ann", 1).questions) == 1  # gold first, but work remains
    store.release("ann")
    judge(store, queue[2], "correct", "bob")
    assert store.claim(EATING, "ann", 3).questions == ()


def test_an_unknown_gold_item_or_verdict_changes_nothing(open_store, make_proposal):
    store = open_store()
    queue = line(make_proposal, 2)
    store.load_proposals(queue, round=0)
    with pytest.raises(InputError, match="there is no proposal"):
        store.set_gold({queue[0].id: "correct", "f00": "correct"}, "lead")
    with pytest.raises(InputError, match="expected the true answer"):
        store.set_gold({queue[0].id: "skip"}, "lead")
    assert store.gold_items() == []
    assert store.progress()[EATING].open == 2


def test_gold_is_chosen_with_needles_and_without_looking_at_the_order(make_proposal):
    queue = line(make_proposal, 40)
    truth = {p.id: "correct" if p.rank % 4 == 0 else "incorrect" for p in queue if p.rank < 30}
    chosen = choose_gold(queue, lambda p: truth.get(p.id), 6)
    assert sorted(chosen.values()) == ["correct"] * 3 + ["incorrect"] * 3
    assert chosen == choose_gold(reversed(queue), lambda p: truth.get(p.id), 6)
    assert all(truth[asked] == verdict for asked, verdict in chosen.items())
    only_no = choose_gold(queue, lambda p: "no_relation" if p.rank < 4 else None, 6)
    assert len(only_no) == 4


def test_own_questions_are_repeated_after_enough_others(open_store, make_proposal):
    store = open_store(draws=(0.1,), repeat_rate=0.5, repeat_after=3)
    queue = line(make_proposal, 12)
    store.load_proposals(queue, round=0)
    order = []
    for number in range(9):
        (asked,) = store.claim(EATING, "ann", 1).questions
        saved = store.answer(asked.id, "correct", "ann", f"k{number}")
        order.append((asked.rank, saved.purpose))
    # After three other answers the oldest is three back; what was repeated is not again.
    assert order[:4] == [(0, "label"), (1, "label"), (2, "label"), (3, "label")]
    assert order[4] == (0, "repeat")
    assert len(set(order)) == len(order)
    for at, (rank, purpose) in enumerate(order):
        if purpose == "repeat":
            assert at - order.index((rank, "label")) > 3
    repeats = [rank for rank, purpose in order if purpose == "repeat"]
    assert len(repeats) >= 3
    assert {answer.proposal.rank for answer in store.measurements()} == set(repeats)


def test_a_repeat_never_replaces_the_label_and_can_be_undone(open_store, make_proposal):
    store = open_store(draws=(0.1,), repeat_rate=0.5, repeat_after=1)
    queue = line(make_proposal, 6)
    store.load_proposals(queue, round=0)
    judge(store, queue[0], "correct", "ann")
    judge(store, queue[1], "correct", "ann")
    (asked,) = store.claim(EATING, "ann", 1).questions
    assert asked.id == queue[0].id
    store.release("ann")  # the page was closed with the answer on its way
    assert judge(store, asked, "incorrect", "ann").purpose == "repeat"
    assert [answer.verdict for answer in store.answers()] == ["correct", "correct"]
    assert store.undo("ann").id == asked.id
    assert judge(store, asked, "no_relation", "ann").purpose == "repeat"
    assert [answer.verdict for answer in store.measurements()] == ["no_relation"]
    assert store.claim(EATING, "bob", 9).questions[0].id == queue[2].id  # his own, nobody else's


# ---------------------------------------------------------------- adjudication


def test_a_tie_goes_to_one_more_person_where_so_set(open_store, make_proposal):
    store = open_store(copies=2, tie_breaker=True)
    queue = line(make_proposal, 2)
    store.load_proposals(queue, round=0)
    for who, verdict in (("ann", "correct"), ("bob", "incorrect")):
        judge(store, queue[0], verdict, who)
        judge(store, queue[1], "correct", who)
    assert store.claim(EATING, "ann", 2).questions == ()
    assert ids(store.claim(EATING, "cleo", 2)) == [queue[0].id]
    claim = store.claim(EATING, "dan", 2)
    assert (claim.questions, claim.held) == ((), 1)  # one is enough
    judge(store, queue[0], "correct", "cleo")
    assert store.claim(EATING, "dan", 2).questions == ()
    (dispute,) = store.disagreements()
    assert not dispute.is_tied


def test_the_lead_settles_what_annotators_dispute(open_store, make_proposal):
    store = open_store(copies=2)
    queue = line(make_proposal, 4)
    store.load_proposals(queue, round=0)
    for proposal, verdicts in zip(
        queue,
        (("correct", "incorrect"), ("correct", "correct"), ("correct", "skip"), ("no_relation",)),
        strict=True,
    ):
        for who, verdict in zip(("ann", "bob"), verdicts, strict=False):
            judge(store, proposal, verdict, who)
    votes = (("ann", "correct"), ("bob", "incorrect"))
    assert store.disagreements() == [Dispute(queue[0], votes, is_tied=True)]
    saved = store.adjudicate(queue[0].id, "incorrect", "lead", "a1")
    assert store.adjudicate(queue[0].id, "incorrect", "lead", "a1") == saved
    assert saved.purpose == "adjudication"
    assert store.disagreements() == []
    assert [a.annotator for a in store.answers() if a.purpose == "adjudication"] == ["lead"]
    assert store.undo("lead") is None  # decisions are undone where they are made
    assert store.undo("lead", purposes=("adjudication",)) == queue[0]
    assert len(store.disagreements()) == 1


@pytest.mark.parametrize("decided", ["adjudication", "gold"])
def test_whoever_decides_overrules_a_report_of_a_fault(open_store, make_proposal, decided):
    store = open_store()
    reported, beside = queue = [make_proposal("i", 0, other, rank=other) for other in (1, 2)]
    store.load_proposals(queue, round=0)
    judge(store, reported, "subject_faulty", "ann")
    assert store.faulty_segments() == {("i", 0)}
    if decided == "gold":
        store.set_gold({reported.id: "correct"}, "lead")
    else:
        store.adjudicate(reported.id, "correct", "lead", "a1")
    labels = resolve(store.answers(), store.gold_items())
    assert labels.images["i"].faulty == ()
    assert store.faulty_segments() == set()
    assert ids(store.claim(EATING, "bob", 9)) == [beside.id]
    store.release("bob")
    assert store.progress("bob")[EATING].open == 1
    if decided == "gold":
        store.remove_gold(reported.id, "lead")
    else:
        store.undo("lead", purposes=("adjudication",))
    assert store.faulty_segments() == {("i", 0)}
    assert store.upcoming(EATING, "bob", 9) == []
    assert store.progress("bob")[EATING].open == 0
    judge(store, beside, "object_faulty", "cleo")
    store.adjudicate(beside.id, "subject_faulty", "lead", "a2")  # a decision may report a fault
    labels = resolve(store.answers(), store.gold_items())
    assert store.faulty_segments() == {("i", s) for s in labels.images["i"].faulty} == {("i", 0)}


def test_a_settled_question_is_asked_of_nobody(open_store, make_proposal):
    store = open_store(copies=3)
    (asked,) = queue = line(make_proposal, 1)
    store.load_proposals(queue, round=0)
    judge(store, asked, "correct", "ann")
    store.adjudicate(asked.id, "correct", "lead", "a1")
    assert store.claim(EATING, "bob", 1) == store.claim(EATING, "cleo", 1)
    assert store.progress()[EATING].open == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"verdict": "skip"}, "a verdict that settles"),
        ({"verdict": "maybe"}, "expected a verdict of"),
        ({"lead": ""}, "expected an annotator's name"),
        ({"key": "a/b"}, "expected a key"),
        ({"proposal_id": "f00"}, "there is no proposal"),
    ],
)
def test_a_malformed_decision_is_refused(open_store, make_proposal, change, sentence):
    store = open_store()
    (asked, other) = queue = line(make_proposal, 2)
    store.load_proposals(queue, round=0)
    judge(store, asked, "correct", "ann")
    content = {"proposal_id": asked.id, "verdict": "correct", "lead": "lead", "key": "a1"}
    with pytest.raises(InputError, match=sentence):
        store.adjudicate(**content | change)
    with pytest.raises(InputError, match="expected a proposal that somebody answered"):
        store.adjudicate(**content | {"proposal_id": other.id})
    assert store.event_count() == 1


# ---------------------------------------------------------------- many at once


def test_threads_are_never_handed_the_same_question(open_store, make_proposal):
    store = open_store()
    count = 60
    store.load_proposals(line(make_proposal, count), round=0)
    given: list[tuple[str, str]] = []
    failures = []

    def annotate(who):
        try:
            claim = store.claim(EATING, who, 4)
            while claim.questions:
                asked = claim.questions[0]
                given.append((who, asked.id))
                _, claim = store.answer_and_claim(
                    asked.id, "correct", who, f"{who}-{asked.id}", limit=4
                )
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=annotate, args=(f"a{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(given) == len({proposal for _, proposal in given}) == count
    assert store.progress()[EATING].open == 0


_ANNOTATOR = """
import sys
from haystack.annotate.store.store import AnnotationStore
store = AnnotationStore(sys.argv[1])
who = sys.argv[2]
claim = store.claim(0, who, 3)
while claim.questions:
    asked = claim.questions[0]
    print(asked.id, flush=True)
    _, claim = store.answer_and_claim(asked.id, "incorrect", who, f"{who}-{asked.id}", limit=3)
"""


def test_processes_are_never_handed_the_same_question(location, open_store, make_proposal):
    count = 40
    store = open_store()
    store.load_proposals(line(make_proposal, count), round=0)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _ANNOTATOR, str(location), f"a{n}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(2)
    ]
    given = [process.communicate(timeout=100)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(itertools.chain(*given)) == sorted(
        answer.proposal.id for answer in store.answers()
    )
    assert len({*given[0], *given[1]}) == len(given[0]) + len(given[1]) == count


# ---------------------------------------------------------------- plans


def test_claiming_reads_the_queue_by_its_index(sqlite_store, make_proposal):
    sqlite_store.load_proposals(line(make_proposal, 50), round=0)
    statements = []

    def note(connection, cursor, statement, parameters, *_):
        statements.append((statement, parameters))

    with sqlite_store.database.write() as connection:
        sqlalchemy.event.listen(connection, "before_cursor_execute", note)
        sqlite_store._leases.claim(connection, EATING, "ann", 4)
        sqlite_store._events.answer(
            connection, claim_first(connection), "correct", "ann", "k", None
        )
        sqlalchemy.event.remove(connection, "before_cursor_execute", note)
        plans = [
            (row.detail, statement)
            for statement, parameters in statements
            if not isinstance(parameters, list)
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    assert any("proposals_queue (predicate=? AND is_open=?)" in detail for detail, _ in plans)
    scans = [
        (detail, statement)
        for detail, statement in plans
        # An empty list of ids is a subquery of one constant row.
        if detail.startswith("SCAN") and not detail.startswith(("SCAN CONSTANT", "SCAN (subquery"))
    ]
    assert scans == []
    assert not [detail for detail, _ in plans if "TEMP B-TREE FOR ORDER BY" in detail]


def claim_first(connection):
    return (
        connection.execute(CLAIMABLE.limit(1), {"predicate": EATING, "me": "ann", "besides": ()})
        .one()
        .id
    )


# ---------------------------------------------------------------- against a model


class SharedQueue(RuleBasedStateMachine):
    """Claims, answers, undoing, time and rounds against a queue in plain Python."""

    people = "abc"
    copies = 2

    @initialize()
    def open(self):
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.store = AnnotationStore(
            f"{self.folder.name}/annotations.db",
            clock=self.clock,
            settings=QueueSettings(copies=self.copies, lease_seconds=LEASE, tie_breaker=True),
        )
        self.all = [Proposal(f"i{n}", 0, 1, 0, f"i{n}.jpg", 0.0, 0, n) for n in range(5)]
        self.loaded = self.queued = list(self.all)
        self.store.load_proposals(self.queued, round=0)
        self.given: list[tuple[int, str, str]] = []  # (proposal, who, verdict), undone ones gone
        self.leases: dict[tuple[str, int], float] = {}
        self.order: dict[str, list[int]] = {who: [] for who in self.people}
        self.serial = 0

    def votes(self, at):
        return {who: verdict for asked, who, verdict in self.given if asked == at}

    def wanted(self, at):
        judged = [verdict for verdict in self.votes(at).values() if verdict != "skip"]
        faulty = any(verdict.endswith("faulty") for verdict in judged)
        yes = judged.count("correct")
        tied = 0 < yes == len(judged) - yes
        return not faulty and (len(judged) < self.copies or tied)

    def live(self, who, at):
        return self.leases.get((who, at), 0) > self.clock.now.timestamp()

    @rule(who=st.sampled_from(people), limit=st.integers(1, 4))
    def claim(self, who, limit):
        mine = [at for at in self.order[who] if self.live(who, at) and self.wanted(at)]
        fresh = []
        for at in (self.all.index(asked) for asked in self.queued):
            judged = sum(verdict != "skip" for verdict in self.votes(at).values())
            holders = sum(self.live(other, at) for other in self.people if other != who)
            free = holders == 0 or judged + holders < self.copies
            if self.wanted(at) and who not in self.votes(at) and at not in mine and free:
                fresh.append(at)
        fresh = fresh[: max(0, limit - len(mine))]
        expected = (mine + fresh)[:limit]
        found = self.store.claim(0, who, limit)
        assert ids(found) == [self.all[at].id for at in expected]
        waiting = [
            at
            for at, asked in enumerate(self.all)
            if asked in self.queued and self.wanted(at) and who not in self.votes(at)
        ]
        if len(expected) < limit:
            assert found.held == len(set(waiting) - set(expected))
        self.order[who] = mine + fresh
        for at in set(range(len(self.all))) - set(mine):
            self.leases.pop((who, at), None)
        self.leases.update({(who, at): self.clock.now.timestamp() + LEASE for at in expected})

    @rule(
        who=st.sampled_from(people),
        at=st.integers(0, 4),
        verdict=st.sampled_from(("correct", "incorrect", "skip", "subject_faulty")),
    )
    def answer(self, who, at, verdict):
        self.serial += 1
        self.store.answer(self.all[at].id, verdict, who, f"k{self.serial}")
        self.given.append((at, who, verdict))
        self.leases.pop((who, at), None)
        self.order[who] = [other for other in self.order[who] if other != at]

    @rule(who=st.sampled_from(people))
    def undo(self, who):
        mine = [number for number, entry in enumerate(self.given) if entry[1] == who]
        undone = self.store.undo(who)
        assert undone == (self.all[self.given[mine[-1]][0]] if mine else None)
        if mine:
            at, _, _ = self.given.pop(mine[-1])
            self.leases[who, at] = self.clock.now.timestamp() + LEASE
            self.order[who] = [at, *(other for other in self.order[who] if other != at)]

    @rule(seconds=st.sampled_from((LEASE / 2, LEASE)))
    def wait(self, seconds):
        self.clock.move(seconds)

    @rule(who=st.sampled_from(people))
    def leave(self, who):
        self.store.release(who)
        self.order[who] = []
        self.leases = {key: ends for key, ends in self.leases.items() if key[0] != who}

    @rule(kept=st.sets(st.integers(0, 4), min_size=1))
    def load(self, kept):
        loaded = [self.all[at] for at in sorted(kept)]
        self.store.load_proposals(loaded, round=0)
        if loaded == self.loaded:  # changes nothing
            return
        begun = {at for at in range(len(self.all)) if self.wanted(at) and self.votes(at)}
        self.loaded, self.queued = loaded, [self.all[at] for at in sorted(kept | begun)]

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "store"):
            return
        kept = {who: self.store.progress(who) for who in ("", *self.people)}
        with self.store.database.write() as connection:
            recount(connection)
        assert kept == {who: self.store.progress(who) for who in ("", *self.people)}
        open_now = sum(self.wanted(self.all.index(asked)) for asked in self.queued)
        assert sum(row.open for row in kept[""].values()) == open_now

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()


TestSharedQueue = SharedQueue.TestCase
TestSharedQueue.settings = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
