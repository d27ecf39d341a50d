"""Counts over events, kept up as they come: what progress, yield and agreement are computed from.

Adding an event costs the same however many there were, so a page can look every few seconds at a
campaign of any size. Events are taken in their order; their times only say how long people worked.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from haystack.annotate.agreement import THREE_CLASSES, Counts
from haystack.annotate.records import VERDICTS, Purpose, Verdict
from haystack.annotate.yields import Outcomes
from haystack.errors import InputError
from haystack.times import moment_of

if TYPE_CHECKING:
    from haystack.annotate.store.event_feed import Event

BREAK_SECONDS = 300.0
"""A longer pause between two answers is a break, and nobody's working time."""

_RECENT = 50  # answers of a person that say how fast he or she is now
_CLASS: dict[Verdict | None, int] = {verdict: i for i, verdict in enumerate(THREE_CLASSES)}
_PURPOSES: tuple[Purpose, ...] = ("label", "adjudication", "gold", "repeat")
_LABEL, _REPEAT = _PURPOSES.index("label"), _PURPOSES.index("repeat")
_UNJUDGED, _OTHER, _NEEDLE = 0, 1, 2


@dataclass
class Pace:
    """How fast answers are given.

    Args:
        seconds: working time.
        answers: answers whose time is known.
        recent: seconds of the latest answers.
    """

    seconds: float = 0.0
    answers: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    @property
    def per_hour(self) -> float | None:
        """Answers an hour of work; None where no time is known."""
        return 3600 * self.answers / self.seconds if self.answers and self.seconds else None

    @property
    def recent_per_hour(self) -> float | None:
        """The same of the latest answers."""
        taken = sum(self.recent)
        return 3600 * len(self.recent) / taken if taken else None

    def add(self, seconds: float, *, is_answer: bool) -> None:
        """Somebody worked so long, and gave an answer or took one back."""
        self.seconds += seconds
        if is_answer:
            self.answers += 1
            self.recent.append(seconds)


@dataclass
class Stream:
    """The questions of one predicate in the order of their first judging answers.

    Args:
        verdicts: current labels, by verdict.
        patterns: (correct, incorrect, no relation) -> questions that were so often called so.
        pace: of its answers.
        version: changes whenever anything of it does.
    """

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    patterns: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    pace: Pace = field(default_factory=Pace)
    version: int = 0
    _states: bytearray = field(default_factory=bytearray)
    _rounds: array[int] = field(default_factory=lambda: array("l"))

    def outcomes(self, round: int | None = None) -> Outcomes:
        """Needle or not, of every judged question; of one round alone if it is given."""
        states = np.frombuffer(bytes(self._states), dtype=np.uint8)
        chosen = states != _UNJUDGED
        if round is not None:
            chosen &= np.array(self._rounds, dtype=np.int64) == round
        found: Outcomes = states[chosen] == _NEEDLE
        return found

    def rounds(self) -> list[int]:
        """Rounds whose questions were judged, ascending."""
        return sorted(set(self._rounds))

    def append(self, round: int) -> int:
        """A question that is judged for the first time; gives its place."""
        self._states.append(_UNJUDGED)
        self._rounds.append(round)
        return len(self._states) - 1

    def judge(self, place: int, votes_for: int, votes_against: int) -> None:
        """What the votes say of a question now. A tie is no needle until it is settled."""
        if votes_for + votes_against == 0:
            self._states[place] = _UNJUDGED
        else:
            self._states[place] = _NEEDLE if votes_for > votes_against else _OTHER


@dataclass
class Person:
    """One annotator.

    Args:
        number: order of appearance.
        answers: answers of every purpose that were not undone.
        verdicts: current labels, by verdict.
        gold: proposal id -> what was said of it, where its answer is known; in the order of asking.
        repeats: proposal id -> (the label, what was said when asked again), both ratings.
        pace: how fast.
        last_seen: when the latest event came, seconds since 1970; None before the first.
    """

    number: int
    answers: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    gold: dict[str, Verdict] = field(default_factory=dict)
    repeats: dict[str, tuple[int, int]] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    last_seen: float | None = None


class Tally:
    """What the events so far come to.

    A question's outcome is the majority of its current labels; where somebody settled it, the
    majority of the answers given for that purpose. "No relation" is a vote against. Agreement
    counts labels alone: who settles a disagreement knows of it. A question that was judged before
    somebody called its segment faulty stays judged.

    Args:
        break_seconds: longer pauses are breaks.
    """

    def __init__(self, break_seconds: float = BREAK_SECONDS) -> None:
        self.break_seconds = break_seconds
        self.last_event = 0
        self.streams: dict[int, Stream] = defaultdict(Stream)
        self.people: dict[str, Person] = {}
        self.pairs: dict[tuple[str, str], Counts] = {}
        self._questions: dict[str, int] = {}
        self._places = array("l")
        self._votes = array("l")  # three a question
        self._raters: list[list[str]] = []
        self._settled: dict[int, list[int]] = {}
        # (question, person, purpose) -> the event, or the events, that were not undone; an event
        # is its id and verdict in one number.
        self._given: dict[tuple[int, int, int], int | list[int]] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Count events, in their order.

        Raises:
            InputError: an event undoes one that was not among those before; nothing can be counted
                on then.
        """
        for event in events:
            person = self.people.get(event.annotator)
            if person is None:
                person = self.people[event.annotator] = Person(len(self.people))
            stream = self.streams[event.predicate]
            self._time(event, person, stream)
            if event.verdict is None:
                self._undo(event, person, stream)
            else:
                self._answer(event, event.verdict, person, stream)
            stream.version += 1
            self.last_event = event.id

    # ------------------------------------------------------------------ which answers count

    def _answer(self, event: Event, verdict: Verdict, person: Person, stream: Stream) -> None:
        question = self._questions.setdefault(event.proposal_id, len(self._questions))
        if question == len(self._places):
            self._places.append(-1)
            self._votes.extend((0, 0, 0))
            self._raters.append([])
        slot = (question, person.number, _PURPOSES.index(event.purpose))
        before = self._latest(slot)
        packed = event.id * len(VERDICTS) + VERDICTS.index(verdict)
        given = self._given.get(slot)
        if given is None:
            self._given[slot] = packed
        elif isinstance(given, int):
            self._given[slot] = [given, packed]
        else:
            given.append(packed)
        person.answers += 1
        self._changed(event, question, person, stream, event.purpose, before, verdict)

    def _undo(self, event: Event, person: Person, stream: Stream) -> None:
        question = self._questions.get(event.proposal_id, -1)
        for number, purpose in enumerate(_PURPOSES):
            slot = (question, person.number, number)
            given = self._given.get(slot, [])
            stack = [given] if isinstance(given, int) else given
            for packed in stack:
                if packed // len(VERDICTS) == event.retracts:
                    before = self._latest(slot)
                    stack.remove(packed)
                    if stack:
                        self._given[slot] = stack
                    else:
                        del self._given[slot]
                    person.answers -= 1
                    after = self._latest(slot)
                    self._changed(event, question, person, stream, purpose, before, after)
                    return
        raise InputError(
            f"event {event.id} undoes event {event.retracts}, which is no answer of "
            f"{event.annotator!r} to the same question; the events were changed, restore a copy"
        )

    def _latest(self, slot: tuple[int, int, int]) -> Verdict | None:
        given = self._given.get(slot)
        if given is None:
            return None
        return VERDICTS[(given if isinstance(given, int) else given[-1]) % len(VERDICTS)]

    # ------------------------------------------------------------------ what follows from one

    def _changed(
        self,
        event: Event,
        question: int,
        person: Person,
        stream: Stream,
        purpose: Purpose,
        before: Verdict | None,
        after: Verdict | None,
    ) -> None:
        """The person's current answer for this purpose was ``before`` and is ``after``."""
        if purpose == "gold":
            _put(person.gold, event.proposal_id, after)
            return
        if purpose in ("label", "repeat"):
            first, again = (
                _CLASS.get(self._latest((question, person.number, number)))
                for number in (_LABEL, _REPEAT)
            )
            complete = None if first is None or again is None else (first, again)
            _put(person.repeats, event.proposal_id, complete)
        if purpose == "repeat" or before == after:
            return
        if purpose == "label":
            for counter in (person.verdicts, stream.verdicts):
                if before is not None:
                    counter[before] -= 1
                if after is not None:
                    counter[after] += 1
            self._count_ratings(question, event.annotator, stream, before, after)
        else:
            settled = self._settled.setdefault(question, [0, 0, 0])
            _move(settled, 0, before, after)
        self._judge(question, stream, event.round)

    def _count_ratings(
        self,
        question: int,
        annotator: str,
        stream: Stream,
        before: Verdict | None,
        after: Verdict | None,
    ) -> None:
        if _CLASS.get(before) == _CLASS.get(after):
            return
        start = 3 * question
        old = self._pattern(start)
        _move(self._votes, start, before, after)
        new = self._pattern(start)
        for pattern, step in ((old, -1), (new, 1)):
            if any(pattern):
                stream.patterns[pattern] += step
                if not stream.patterns[pattern]:
                    del stream.patterns[pattern]
        raters = self._raters[question]
        if annotator not in raters:
            raters.append(annotator)
        for name in raters:
            theirs = _CLASS.get(self._latest((question, self.people[name].number, _LABEL)))
            if name == annotator or theirs is None:
                continue
            for mine, step in ((_CLASS.get(before), -1), (_CLASS.get(after), 1)):
                if mine is not None:
                    first, second = sorted((annotator, name))
                    cell = (mine, theirs) if first == annotator else (theirs, mine)
                    table = self.pairs.setdefault((first, second), np.zeros((3, 3), np.int64))
                    table[cell] += step

    def _pattern(self, start: int) -> tuple[int, int, int]:
        return self._votes[start], self._votes[start + 1], self._votes[start + 2]

    def _judge(self, question: int, stream: Stream, round: int) -> None:
        votes = self._settled.get(question)
        if not votes or not any(votes):
            votes = list(self._votes[3 * question : 3 * question + 3])
        place = self._places[question]
        if place < 0:
            if not any(votes):
                return  # skipped or faulty so far
            place = self._places[question] = stream.append(round)
        stream.judge(place, votes[0], votes[1] + votes[2])

    # ------------------------------------------------------------------ how long people worked

    def _time(self, event: Event, person: Person, stream: Stream) -> None:
        now = moment_of(event.created_at).timestamp()
        gap = -1.0 if person.last_seen is None else now - person.last_seen
        person.last_seen = now
        looked = (event.dwell_ms or 0) / 1000
        if looked > self.break_seconds:
            looked = 0.0  # the page was left open
        if 0 <= gap <= self.break_seconds:
            # Answers given without a connection arrive together: the page knows better then.
            seconds = max(gap, looked)
        elif looked:
            seconds = looked  # after a break, or a clock that jumped
        else:
            return
        for pace in (person.pace, stream.pace):
            pace.add(seconds, is_answer=event.verdict is not None)


def patterns_of(streams: Iterable[Stream]) -> tuple[Counts, Counts]:
    """Rows of counts and how many questions each stands for, as the measures of agreement take.

    Returns:
        int64 [N, 3], int64 [N]; sorted, so that nothing depends on who answered first.
    """
    together: Counter[tuple[int, int, int]] = Counter()
    for stream in streams:
        together.update(stream.patterns)
    rows = sorted(together.items())
    counts = np.array([pattern for pattern, _ in rows], dtype=np.int64).reshape(-1, 3)
    return counts, np.array([number for _, number in rows], dtype=np.int64)


def _put(where: dict[str, Any], key: str, value: object) -> None:
    if value is None:
        where.pop(key, None)
    else:
        where[key] = value


def _move(
    votes: array[int] | list[int], start: int, before: Verdict | None, after: Verdict | None
) -> None:
    for verdict, step in ((before, -1), (after, 1)):
        if verdict in _CLASS:
            votes[start + _CLASS[verdict]] += step
