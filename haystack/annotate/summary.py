"""What a campaign's events come to, in figures for people: yield, pace, agreement, advice.

Everything in a summary is plain data, and None where it is undefined, so that it is JSON as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from haystack.annotate.agreement import (
    THREE_CLASSES,
    Counts,
    bootstrap_interval,
    cohen_kappa,
    equally_rated,
    fleiss_kappa,
    krippendorff_alpha,
    merge_negatives,
    observed_agreement,
)
from haystack.annotate.records import Verdict
from haystack.annotate.tally import Pace, Person, Stream, Tally, patterns_of
from haystack.annotate.yields import Outcomes, StopRule, yield_curve
from haystack.proportion import Proportion

ACTIVE_SECONDS = 600.0
"""Who answered within this time is at work now."""

Classes = Literal["two", "three"]
"""Of ratings. ``two``: "no relation" says that the predicate does not hold; ``three``: it is a
class of its own."""

_CLASSES: tuple[Classes, ...] = ("two", "three")
_POINTS = 60  # of a curve
_SHOWN_BY = 10  # gold questions at a time
_PACE_NEEDS = 20  # answers of a predicate, before its own pace says how long the rest will take


@dataclass(frozen=True)
class Agreement:
    """How far annotators agree about the questions that several of them answered.

    Values are None where they are undefined; see :mod:`haystack.annotate.agreement`.

    Args:
        items: questions that two or more rated.
        observed: share of equal pairs of ratings.
        alpha: Krippendorff's.
        alpha_interval: its 95 % interval.
        fleiss: Fleiss' kappa, of the items that were rated ``fleiss_raters`` times.
        fleiss_interval: its 95 % interval.
        fleiss_raters: the number of ratings that most items have.
        fleiss_items: how many items that are.
    """

    items: int
    observed: float | None
    alpha: float | None
    alpha_interval: tuple[float, float] | None
    fleiss: float | None
    fleiss_interval: tuple[float, float] | None
    fleiss_raters: int
    fleiss_items: int


@dataclass(frozen=True)
class Share:
    """So many of so many, with Wilson's 95 % interval; None without trials."""

    hits: int
    trials: int
    value: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Curve:
    """Needles over questions, as :class:`~haystack.annotate.yields.YieldCurve`.

    Args:
        judged: numbers of questions, ascending.
        per_100: needles per 100 of them.
        recent: needles per 100 of the last ``window`` of them; None where there are fewer.
        window: see ``recent``.
    """

    judged: tuple[int, ...]
    per_100: tuple[float, ...]
    recent: tuple[float | None, ...]
    window: int


@dataclass(frozen=True)
class Advice:
    """As :class:`~haystack.annotate.yields.StopAdvice`; ``upper`` is None where nothing decided."""

    stop: bool
    target: float
    judged: int
    needles: int
    needed: int
    upper: float | None


@dataclass(frozen=True)
class RoundYield:
    """What one round of proposals yielded.

    Args:
        round: of proposals.
        judged: questions.
        needles: among them.
    """

    round: int
    judged: int
    needles: int


@dataclass(frozen=True)
class PredicateSummary:
    """How far one predicate is.

    Args:
        predicate: number.
        name: for people.
        verdicts: current labels, by verdict.
        judged: questions answered with correct, incorrect or no relation.
        needles: those of them that are positive.
        share: needles of judged.
        baseline: needles per question that random pairs would yield; None where not known.
        rounds: by round.
        curve: needles over questions.
        advice: whether to stop, by the questions of the newest round.
        agreement: by number of classes.
        pace: answers an hour of work; None where no time is known.
        to_ask: answers that are still asked for.
        hours_to_go: hours of one person's work for them; None where no pace is known.
    """

    predicate: int
    name: str
    verdicts: Mapping[Verdict, int]
    judged: int
    needles: int
    share: Share
    baseline: float | None
    rounds: tuple[RoundYield, ...]
    curve: Curve
    advice: Advice
    agreement: Mapping[Classes, Agreement]
    pace: float | None
    to_ask: int
    hours_to_go: float | None


@dataclass(frozen=True)
class PersonSummary:
    """One annotator.

    Args:
        name: who.
        answers: of every purpose, without those that were undone.
        verdicts: current labels, by verdict.
        gold: right answers where the answer is known.
        repeats: same answers where a question was asked again.
        own_gold, own_repeats: the same over the first ten, twenty, ... of them, which the person
            may see: a figure that moves with an answer would tell that its question was gold.
        hours: of work.
        pace: answers an hour of work, and of the latest 50 answers; None where no time is known.
        recent_pace: see ``pace``.
        active: whether the person is at work now.
    """

    name: str
    answers: int
    verdicts: Mapping[Verdict, int]
    gold: Mapping[Classes, Share]
    repeats: Mapping[Classes, Share]
    own_gold: Mapping[Classes, Share]
    own_repeats: Mapping[Classes, Share]
    hours: float
    pace: float | None
    recent_pace: float | None
    active: bool


@dataclass(frozen=True)
class PairSummary:
    """Two annotators who answered the same questions.

    Args:
        first, second: who.
        items: questions that both rated.
        observed: share that they rated the same, by number of classes.
        kappa: Cohen's; None where undefined.
    """

    first: str
    second: str
    items: int
    observed: Mapping[Classes, float | None]
    kappa: Mapping[Classes, float | None]


@dataclass(frozen=True)
class Summary:
    """A campaign.

    Args:
        last_event: the newest event that is in it.
        predicates: those that are asked about, by number.
        people: annotators, by name.
        pairs: pairs of annotators with questions in common, by name.
        agreement: over all predicates, by number of classes.
        answers, judged, needles: totals.
        hours: of work.
        to_ask: answers that are still asked for.
        hours_to_go: hours of one person's work; None where no pace is known.
        active: how many people are at work now.
        clock_hours_to_go: until those at work now are done; None where nobody is.
    """

    last_event: int
    predicates: tuple[PredicateSummary, ...]
    people: tuple[PersonSummary, ...]
    pairs: tuple[PairSummary, ...]
    agreement: Mapping[Classes, Agreement]
    answers: int
    judged: int
    needles: int
    hours: float
    to_ask: int
    hours_to_go: float | None
    active: int
    clock_hours_to_go: float | None


def seen_by(summary: Summary, annotator: str, wording: Callable[[int], str]) -> Summary:
    """What an annotator may see: the totals, and of people the one who looks.

    Args:
        summary: the campaign.
        annotator: who looks.
        wording: predicate number -> what annotators are asked about. The data set's own names are
            kept from them, as in the paper (section 3.1).
    """
    own = [
        replace(person, gold=person.own_gold, repeats=person.own_repeats)
        for person in summary.people
        if person.name == annotator
    ]
    named = [replace(row, name=wording(row.predicate)) for row in summary.predicates]
    return replace(summary, predicates=tuple(named), people=tuple(own), pairs=())


class Summarizer:
    """Makes summaries; what did not change since the last one is not computed again.

    Args:
        name_of: predicate number -> its name for people.
        baseline: gives predicate number -> needles per question that random pairs would yield;
            asked once, when it is first needed.
        rule: when to stop; its target is raised to the baseline.
        window: questions of a recent yield.
    """

    def __init__(
        self,
        name_of: Callable[[int], str],
        *,
        baseline: Callable[[], Mapping[int, float]] = dict,
        rule: StopRule | None = None,
        window: int = 100,
    ) -> None:
        self._name_of = name_of
        self._baseline = baseline
        self._rule = rule or StopRule()
        self._window = window
        self._kept: dict[object, tuple[object, Any]] = {}

    def summarize(
        self,
        tally: Tally,
        *,
        to_ask: Mapping[int, int],
        gold: Mapping[str, Verdict],
        now: float,
    ) -> Summary:
        """The summary of a campaign.

        Args:
            tally: its events.
            to_ask: predicate -> answers that are still asked for.
            gold: proposal id -> the answer that is known to be right.
            now: seconds since 1970.
        """
        overall = Pace()
        for person in tally.people.values():
            overall.seconds += person.pace.seconds
            overall.answers += person.pace.answers
        known = sorted({*tally.streams, *to_ask})
        predicates = tuple(
            self._predicate(p, tally.streams.get(p, Stream()), to_ask.get(p, 0), overall)
            for p in known
        )
        people = tuple(
            _person(name, tally.people[name], gold, now) for name in sorted(tally.people)
        )
        version = tally.last_event
        agreement = self._once(
            "all", version, lambda: _agreements(*patterns_of(tally.streams.values()))
        )
        hours = [predicate.hours_to_go for predicate in predicates]
        hours_to_go = None if None in hours else sum(filter(None, hours))
        at_work = [person for person in people if person.active]
        speed = sum(person.recent_pace or 0.0 for person in at_work)
        left = sum(predicate.to_ask for predicate in predicates)
        return Summary(
            last_event=tally.last_event,
            predicates=predicates,
            people=people,
            pairs=self._once("pairs", version, lambda: _pairs(tally)),
            agreement=agreement,
            answers=sum(person.answers for person in people),
            judged=sum(predicate.judged for predicate in predicates),
            needles=sum(predicate.needles for predicate in predicates),
            hours=overall.seconds / 3600,
            to_ask=left,
            hours_to_go=hours_to_go,
            active=len(at_work),
            clock_hours_to_go=left / speed if speed else None,
        )

    def _predicate(
        self, predicate: int, stream: Stream, to_ask: int, overall: Pace
    ) -> PredicateSummary:
        baseline = self._once("baseline", None, self._baseline).get(predicate)
        pace = stream.pace.per_hour if stream.pace.answers >= _PACE_NEEDS else None
        expected = pace or overall.per_hour

        def compute() -> dict[str, Any]:
            rounds = stream.rounds()
            yields = [(number, stream.outcomes(number)) for number in rounds]
            newest = yields[-1][1] if yields else np.zeros(0, dtype=np.bool_)
            outcomes = stream.outcomes()
            share = _share(Proportion(int(outcomes.sum()), len(outcomes)))
            return {
                "verdicts": dict(stream.verdicts),
                "judged": share.trials,
                "needles": share.hits,
                "share": share,
                "rounds": tuple(
                    RoundYield(number, len(found), int(found.sum())) for number, found in yields
                ),
                "curve": _curve(outcomes, self._window),
                "advice": _advice(self._rule.at_least(baseline), newest),
                "agreement": _agreements(*patterns_of([stream])),
            }

        return PredicateSummary(
            predicate=predicate,
            name=self._name_of(predicate),
            baseline=baseline,
            pace=stream.pace.per_hour,
            to_ask=to_ask,
            hours_to_go=0.0 if not to_ask else to_ask / expected if expected else None,
            **self._once(predicate, stream.version, compute),
        )

    def _once(self, key: object, version: object, compute: Callable[[], Any]) -> Any:
        kept = self._kept.get(key)
        if kept is None or kept[0] != version:
            kept = self._kept[key] = (version, compute())
        return kept[1]


def _agreements(counts: Counts, items: Counts) -> dict[Classes, Agreement]:
    return {
        "two": _agreement(merge_negatives(counts), items),
        "three": _agreement(counts, items),
    }


def _agreement(counts: Counts, items: Counts) -> Agreement:
    several = counts.sum(axis=1) >= 2
    counts, items = counts[several], items[several]
    equal = equally_rated(counts, items)
    raters = int(counts[equal][0].sum()) if equal.any() else 0
    return Agreement(
        items=int(items.sum()),
        observed=_known(observed_agreement(counts, items)),
        alpha=_known(krippendorff_alpha(counts, items)),
        alpha_interval=_interval(bootstrap_interval(krippendorff_alpha, counts, items)),
        fleiss=_known(fleiss_kappa(counts[equal], items[equal])),
        fleiss_interval=_interval(bootstrap_interval(fleiss_kappa, counts[equal], items[equal])),
        fleiss_raters=raters,
        fleiss_items=int(items[equal].sum()),
    )


def _curve(outcomes: Outcomes, window: int) -> Curve:
    curve = yield_curve(outcomes, window=window, points=_POINTS)
    return Curve(
        judged=tuple(curve.judged.tolist()),
        per_100=tuple(curve.per_100.round(2).tolist()),
        recent=tuple(map(_known, curve.recent.round(2).tolist())),
        window=window,
    )


def _advice(rule: StopRule, outcomes: Outcomes) -> Advice:
    said = rule.advise(outcomes)
    return Advice(
        said.stop, said.target, said.judged, said.needles, said.needed, _known(said.upper)
    )


def _person(name: str, person: Person, gold: Mapping[str, Verdict], now: float) -> PersonSummary:
    judged = [
        (THREE_CLASSES.index(gold[proposal]), THREE_CLASSES.index(said))
        for proposal, said in person.gold.items()
        if gold.get(proposal) in THREE_CLASSES and said in THREE_CLASSES
    ]
    repeated = list(person.repeats.values())
    return PersonSummary(
        name=name,
        answers=person.answers,
        verdicts=dict(person.verdicts),
        gold=_same(judged),
        repeats=_same(repeated),
        own_gold=_same(_complete(judged)),
        own_repeats=_same(_complete(repeated)),
        hours=person.pace.seconds / 3600,
        pace=person.pace.per_hour,
        recent_pace=person.pace.recent_per_hour,
        active=person.last_seen is not None and abs(now - person.last_seen) <= ACTIVE_SECONDS,
    )


def _same(pairs: list[tuple[int, int]]) -> dict[Classes, Share]:
    """How many pairs of class numbers are the same, by number of classes."""
    return {
        "two": _share(Proportion(sum(min(a, 1) == min(b, 1) for a, b in pairs), len(pairs))),
        "three": _share(Proportion(sum(a == b for a, b in pairs), len(pairs))),
    }


def _complete(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return pairs[: len(pairs) // _SHOWN_BY * _SHOWN_BY]


def _pairs(tally: Tally) -> tuple[PairSummary, ...]:
    summaries = []
    for (first, second), table in sorted(tally.pairs.items()):
        if not table.any():
            continue
        merged = merge_negatives(merge_negatives(table).T).T
        tables = dict(zip(_CLASSES, (merged, table), strict=True))
        items = int(table.sum())
        summaries.append(
            PairSummary(
                first,
                second,
                items,
                {classes: float(np.trace(t)) / items for classes, t in tables.items()},
                {classes: _known(cohen_kappa(t)) for classes, t in tables.items()},
            )
        )
    return tuple(summaries)


def _share(found: Proportion) -> Share:
    return Share(found.hits, found.trials, _known(found.value), _interval(found.interval()))


def _known(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number


def _interval(ends: tuple[float, float]) -> tuple[float, float] | None:
    return None if math.isnan(ends[0]) else ends
