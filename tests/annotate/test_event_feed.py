"""Events as they come, on every database, with nothing skipped while people answer."""

from __future__ import annotations

import threading

import sqlalchemy

from haystack.annotate.live import LiveSummary
from haystack.annotate.store.event_feed import (
    events_after,
    further_copies,
    gold_verdicts,
    open_questions,
)
from haystack.annotate.store.schema import gold, proposals
from haystack.annotate.summary import Summarizer


def test_events_are_given_once_in_order(store, make_queue):
    queue = make_queue(count=4)
    store.load_proposals(queue, round=3)
    store.answer(queue[0].id, "correct", "ann", "k1", dwell_ms=900)
    store.answer(queue[1].id, "incorrect", "bea", "k2")
    store.undo("ann", "k3")
    first = events_after(store.database)
    assert [one.verdict for one in first] == ["correct", "incorrect", None]
    assert [one.proposal_id for one in first] == [queue[0].id, queue[1].id, queue[0].id]
    assert first[2].retracts == first[0].id
    assert (first[0].predicate, first[0].round, first[0].dwell_ms) == (0, 3, 900)
    assert {one.purpose for one in first} == {"label"}
    assert events_after(store.database, first[-1].id) == []
    store.answer(queue[2].id, "skip", "ann", "k4")
    assert [one.verdict for one in events_after(store.database, first[-1].id)] == ["skip"]


def test_what_is_still_asked_counts_copies(store, make_queue):
    def to_ask():
        live = LiveSummary(store, Summarizer(str), every=0, queue_every=0)
        return {row.predicate: row.to_ask for row in live.get().predicates}

    queue = make_queue(count=4)
    store.load_proposals(queue, round=0)
    with store.database.write() as connection:
        more = sqlalchemy.update(proposals).where(proposals.c.id == queue[0].id).values(copies=3)
        connection.execute(more)
    assert open_questions(store.database) == {0: (4, 0), 1: (4, 0)}
    assert further_copies(store.database) == {0: 2}
    assert to_ask() == {0: 6, 1: 4}
    store.answer(queue[0].id, "correct", "ann", "k1")
    assert to_ask() == {0: 5, 1: 4}
    store.answer(queue[0].id, "incorrect", "bea", "k2")
    store.answer(queue[1].id, "incorrect", "bea", "k3")
    assert to_ask() == {0: 3, 1: 4}
    store.answer(queue[0].id, "incorrect", "cem", "k4")
    assert to_ask() == {0: 2, 1: 4}


def test_gold_is_known(store, make_queue):
    queue = make_queue(count=2)
    store.load_proposals(queue, round=0)
    assert gold_verdicts(store.database) == {}
    row = {"proposal_id": queue[1].id, "verdict": "correct", "set_by": "lea", "set_at": "now"}
    with store.database.write() as connection:
        connection.execute(gold.insert(), row)
    assert gold_verdicts(store.database) == {queue[1].id: "correct"}


def test_nothing_is_skipped_while_many_answer(store, make_queue):
    """An id that is given out before one that is committed first must not be lost."""
    queue = make_queue(count=6, predicates=range(5))
    store.load_proposals(queue, round=0)
    people = 4
    finished = threading.Event()

    def answer(who):
        for number, asked in enumerate(queue):
            store.answer(asked.id, "incorrect", f"ann{who}", f"{who}:{number}")

    def count():
        while not finished.is_set():
            seen.extend(events_after(store.database, seen[-1].id if seen else 0))

    seen = []
    counter = threading.Thread(target=count)
    crowd = [threading.Thread(target=answer, args=(who,)) for who in range(people)]
    for thread in (counter, *crowd):
        thread.start()
    for thread in crowd:
        thread.join(120)
    finished.set()
    counter.join(60)
    seen.extend(events_after(store.database, seen[-1].id if seen else 0))
    ids = [one.id for one in seen]
    assert ids == sorted(set(ids))
    assert len(ids) == store.event_count() == people * len(queue)
