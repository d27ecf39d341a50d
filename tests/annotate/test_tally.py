"""Counts kept up event by event are those of counting all events at the end."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.annotate.agreement import THREE_CLASSES
from haystack.annotate.records import VERDICTS
from haystack.annotate.store.event_feed import Event
from haystack.annotate.summary import Summarizer
from haystack.annotate.tally import Tally, patterns_of
from haystack.annotate.yields import StopRule
from haystack.errors import InputError

START = datetime(2026, 3, 1, 9, tzinfo=timezone.utc)
NOW = START.timestamp()


def event(number, question, who, verdict, purpose="label", **changes):
    moment = START + timedelta(seconds=changes.pop("at", 2 * number))
    values = {
        "predicate": int(question) % 2,
        "retracts": None,
        "round": 0,
        "dwell_ms": None,
        "created_at": moment.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    } | changes
    return Event(
        id=number,
        proposal_id=str(question),
        annotator=who,
        verdict=verdict,
        purpose=purpose,
        **values,
    )


def undo(number, undone, **changes):
    return event(number, undone.proposal_id, undone.annotator, None, retracts=undone.id, **changes)


@st.composite
def histories(draw):
    """Answers of three people to five questions for all purposes, some taken back."""
    events, standing = [], defaultdict(list)
    for number in range(1, draw(st.integers(0, 60)) + 1):
        who = draw(st.sampled_from(("ann", "bea", "cem")))
        if standing[who] and draw(st.integers(0, 4)) == 0:
            which = draw(st.integers(0, len(standing[who]) - 1))
            events.append(undo(number, standing[who].pop(which)))
            continue
        verdict = draw(st.sampled_from(VERDICTS))
        purpose = draw(
            st.sampled_from(("label", "label", "label", "adjudication", "gold", "repeat"))
        )
        made = event(number, draw(st.integers(0, 4)), who, verdict, purpose, round=number // 20)
        standing[who].append(made)
        events.append(made)
    return events


def counted(events):
    tally = Tally()
    for one in events:
        tally.add([one])
    return tally


def latest(events):
    """(question, annotator, purpose) -> the verdict that counts."""
    undone = {one.retracts for one in events}
    return {
        (one.proposal_id, one.annotator, one.purpose): one.verdict
        for one in events
        if one.verdict is not None and one.id not in undone
    }


@settings(max_examples=60)
@given(histories())
def test_agreement_counts_what_stands(events):
    tally, standing = counted(events), latest(events)
    for predicate in (0, 1):
        votes = defaultdict(Counter)
        for (question, _, purpose), verdict in standing.items():
            if purpose == "label" and verdict in THREE_CLASSES and int(question) % 2 == predicate:
                votes[question][verdict] += 1
        expected = Counter(tuple(v[c] for c in THREE_CLASSES) for v in votes.values())
        assert tally.streams[predicate].patterns == expected
    counts, items = patterns_of(tally.streams.values())
    assert (counts * items[:, None]).sum() == sum(
        purpose == "label" and verdict in THREE_CLASSES
        for (_, _, purpose), verdict in standing.items()
    )


@settings(max_examples=60)
@given(histories())
def test_pairs_count_questions_that_both_rated(events):
    tally, standing = counted(events), latest(events)
    for first, second in (("ann", "bea"), ("ann", "cem"), ("bea", "cem")):
        expected = np.zeros((3, 3), dtype=int)
        for question in map(str, range(5)):
            both = [standing.get((question, who, "label")) for who in (first, second)]
            if all(verdict in THREE_CLASSES for verdict in both):
                expected[tuple(map(THREE_CLASSES.index, both))] += 1
        assert tally.pairs.get((first, second), np.zeros((3, 3))).tolist() == expected.tolist()


@settings(max_examples=60)
@given(histories())
def test_outcomes_follow_majority_and_settlement_in_the_order_of_first_answers(events):
    tally, standing = counted(events), latest(events)
    for predicate in (0, 1):
        asked = {}
        for one in events:
            judges = one.purpose in ("label", "adjudication") and one.verdict in THREE_CLASSES
            if judges and one.predicate == predicate:
                asked.setdefault(one.proposal_id, one.round)
        expected, rounds = [], []
        for question, number in asked.items():
            said = {
                purpose: [
                    verdict
                    for (q, _, p), verdict in standing.items()
                    if q == question and p == purpose and verdict in THREE_CLASSES
                ]
                for purpose in ("label", "adjudication")
            }
            votes = said["adjudication"] or said["label"]
            if votes:
                expected.append(votes.count("correct") > len(votes) / 2)
                rounds.append(number)
        stream = tally.streams[predicate]
        assert stream.outcomes().tolist() == expected
        for number in set(rounds):
            chosen = [e for e, r in zip(expected, rounds, strict=True) if r == number]
            assert stream.outcomes(number).tolist() == chosen


@settings(max_examples=60)
@given(histories())
def test_people_count_what_stands(events):
    tally, standing = counted(events), latest(events)
    for who, person in tally.people.items():
        own = {key: verdict for key, verdict in standing.items() if key[1] == who}
        labels = Counter(verdict for (*_, purpose), verdict in own.items() if purpose == "label")
        assert +person.verdicts == labels
        assert person.gold == {q: v for (q, _, p), v in own.items() if p == "gold"}
        both = {
            q: (own.get((q, who, "label")), own.get((q, who, "repeat"))) for q in map(str, range(5))
        }
        assert person.repeats == {
            q: tuple(map(THREE_CLASSES.index, pair))
            for q, pair in both.items()
            if all(verdict in THREE_CLASSES for verdict in pair)
        }
        undone = {one.retracts for one in events}
        assert person.answers == sum(
            one.annotator == who and one.verdict is not None and one.id not in undone
            for one in events
        )


@settings(max_examples=60)
@given(histories(), st.integers(0, 60))
def test_a_summary_made_in_between_changes_nothing(events, when):
    def summary(tally, summarizer):
        return summarizer.summarize(
            tally, to_ask={0: 3, 1: 8}, gold={"0": "correct", "1": "no_relation"}, now=NOW
        )

    tally, summarizer = Tally(), Summarizer(str)
    tally.add(events[:when])
    summary(tally, summarizer)
    tally.add(events[when:])
    assert repr(summary(tally, summarizer)) == repr(summary(counted(events), Summarizer(str)))


def test_undoing_what_was_never_said_is_refused():
    made = event(1, 0, "ann", "correct")
    tally = Tally()
    tally.add([made, undo(2, made)])
    with pytest.raises(InputError, match="event 3 undoes event 1, which is no answer of 'ann'"):
        tally.add([undo(3, made)])


# ---------------------------------------------------------------------- time


def pace(*events):
    return counted(events).people["ann"].pace


def answers(*moments, dwell=None):
    return [
        event(number, number, "ann", "incorrect", at=at, dwell_ms=dwell)
        for number, at in enumerate(moments, start=1)
    ]


def test_breaks_are_nobodys_working_time():
    assert (pace(*answers(0, 10, 20)).seconds, pace(*answers(0, 10, 20)).answers) == (20, 2)
    lunch = pace(*answers(0, 10, 20, 4000, 4010))
    assert (lunch.seconds, lunch.answers) == (30, 3)
    assert lunch.per_hour == 360
    assert pace(*answers(0)).per_hour is None


def test_a_clock_that_jumps_costs_and_gives_nothing():
    back = pace(*answers(1000, 1010, 200, 210))
    assert (back.seconds, back.answers) == (20, 2)
    ahead = pace(*answers(0, 10, 1e8, 1e8 + 10))
    assert (ahead.seconds, ahead.answers) == (20, 2)


def test_the_page_knows_how_long_somebody_looked():
    # Sent together after the connection came back: two seconds each, as the page measured.
    offline = pace(*answers(0, 0.01, 0.02, 0.03, dwell=2000))
    assert (offline.seconds, offline.answers) == (8, 4)
    # Looking is not all of the time that an answer takes.
    assert pace(*answers(0, 5, dwell=2000)).seconds == 2 + 5
    # A page that was left open over night says nothing.
    assert pace(*answers(0, 5, dwell=30_000_000)).seconds == 5


def test_taking_back_takes_time_and_gives_no_answer():
    first, second = answers(0, 10)
    tally = counted([first, second, undo(3, second, at=14)])
    found = tally.people["ann"].pace
    assert (found.seconds, found.answers) == (14, 1)


# ---------------------------------------------------------------------- summaries


def summarize(events, *, to_ask=(), gold=(), baseline=None, now=NOW, rule=None):
    summarizer = Summarizer(
        ("eating", "riding").__getitem__, baseline=lambda: baseline or {}, rule=rule
    )
    return summarizer.summarize(counted(events), to_ask=dict(to_ask), gold=dict(gold), now=now)


def test_a_campaign_by_hand():
    events = [
        event(1, 0, "ann", "correct"),
        event(2, 0, "bea", "correct"),
        event(3, 2, "ann", "incorrect"),
        event(4, 2, "bea", "no_relation"),
        event(5, 4, "ann", "correct"),
        event(6, 4, "bea", "incorrect"),
        event(7, 6, "ann", "skip"),
        event(8, 8, "bea", "subject_faulty"),
    ]
    summary = summarize(events, to_ask={0: 10, 1: 4}, now=NOW + 16)
    eating, riding = summary.predicates
    assert (eating.name, eating.judged, eating.needles) == ("eating", 3, 1)
    assert eating.share.value == pytest.approx(1 / 3)
    assert eating.verdicts["skip"] == eating.verdicts["subject_faulty"] == 1
    assert (riding.judged, riding.needles, riding.share.value) == (0, 0, None)
    two, three = (summary.agreement[classes] for classes in ("two", "three"))
    assert (two.items, two.observed) == (3, pytest.approx(2 / 3))
    assert three.observed == pytest.approx(1 / 3)
    (pair,) = summary.pairs
    assert (pair.first, pair.second, pair.items) == ("ann", "bea", 3)
    # Two classes: yes-yes, no-no, yes-no; p_o = 2/3, p_e = (2·1 + 1·2) / 9.
    assert pair.kappa["two"] == pytest.approx((2 / 3 - 4 / 9) / (5 / 9))
    assert two.fleiss_raters == 2
    # Both work at four seconds an answer, 6 of them timed; 14 answers are to come.
    assert summary.hours == pytest.approx(6 * 4 / 3600)
    assert summary.hours_to_go == pytest.approx(14 * 4 / 3600)
    assert (summary.active, summary.clock_hours_to_go) == (2, pytest.approx(7 * 4 / 3600))
    assert summarize(events, now=NOW + 700).active == 0


def test_a_predicates_own_pace_counts_once_it_is_known():
    slow = [event(i, 2 * i, "ann", "incorrect", at=10 * i) for i in range(1, 22)]
    fast = [event(21 + i, 2 * i + 1, "ann", "incorrect", at=210 + i) for i in range(1, 12)]
    eating, riding = summarize(slow + fast, to_ask={0: 60, 1: 60}).predicates
    assert eating.hours_to_go == pytest.approx(60 * 10 / 3600)
    assert riding.hours_to_go == pytest.approx(60 * (20 * 10 + 11) / 31 / 3600)
    (unknown,) = summarize([], to_ask={0: 5}).predicates
    assert unknown.hours_to_go is None


def test_gold_and_repeats_by_hand():
    gold = {"0": "correct", "2": "incorrect", "4": "no_relation", "6": "skip"}
    events = [
        event(1, 0, "ann", "correct", "gold"),
        event(2, 2, "ann", "no_relation", "gold"),
        event(3, 4, "ann", "correct", "gold"),
        event(4, 6, "ann", "correct", "gold"),
        event(5, 8, "ann", "correct", "gold"),  # no gold any more
        event(6, 2, "ann", "skip", "gold", round=1),
        event(7, 1, "ann", "incorrect"),
        event(8, 1, "ann", "no_relation", "repeat"),
    ]
    (person,) = summarize(events[:5] + events[6:], gold=gold).people
    assert (person.gold["two"].hits, person.gold["two"].trials) == (2, 3)
    assert (person.gold["three"].hits, person.gold["three"].trials) == (1, 3)
    assert (person.repeats["two"].hits, person.repeats["three"].hits) == (1, 0)
    assert person.answers == 7
    assert person.own_gold["two"].trials == 0
    (skipped,) = summarize(events, gold=gold).people
    assert skipped.gold["two"].trials == 2
    assert summarize(events[:6], gold=gold).judged == 0  # gold is no label


def test_the_person_sees_gold_in_tens():
    gold = {str(number): "correct" for number in range(40)}
    events = [
        event(number + 1, number, "ann", "correct" if number < 9 else "incorrect", "gold")
        for number in range(25)
    ]
    (person,) = summarize(events, gold=gold).people
    assert (person.gold["two"].hits, person.gold["two"].trials) == (9, 25)
    assert (person.own_gold["two"].hits, person.own_gold["two"].trials) == (9, 20)


def test_the_stop_rule_looks_at_the_newest_round_and_at_the_baseline():
    rule = StopRule(target=0.5, shortest=10)
    dry = [event(i, 2 * i, "ann", "incorrect", round=0) for i in range(1, 30)]
    (eating,) = summarize(dry, rule=rule).predicates
    assert eating.advice.stop
    again = [*dry, event(31, 100, "ann", "correct", round=1)]
    (eating,) = summarize(again, rule=rule).predicates
    assert (eating.advice.stop, eating.advice.judged) == (False, 1)
    assert [(r.round, r.judged, r.needles) for r in eating.rounds] == [(0, 29, 0), (1, 1, 1)]
    (eating,) = summarize(dry, baseline={0: 0.7}).predicates
    assert (eating.baseline, eating.advice.target) == (0.7, 0.7)


def test_an_empty_campaign_has_no_figures_and_no_errors():
    summary = summarize([])
    assert (summary.predicates, summary.people, summary.pairs) == ((), (), ())
    assert summary.agreement["two"].alpha is None
    assert not math.isnan(summary.hours)
