"""From answers to labels: one stated rule for every disagreement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from haystack.annotate.records import Answer, GoldItem, Proposal, Verdict

NO_RELATION = -1
"""Predicate of a negative row that says: no predicate at all holds for this pair."""

KNOWN = ""
"""Stands in votes for the known verdict of a gold item; no annotator can have this name."""

LABELLING = ("label", "adjudication")
"""Purposes of answers that make labels; answers to gold items and repeats measure people."""

Row = tuple[int, int, int]
"""Subject, object, predicate."""

Votes = tuple[tuple[str, Verdict], ...]
"""(annotator, what was said), sorted."""

Outcome = Literal["positive", "negative", "tie", "faulty"]
Rule = Literal["gold", "adjudication", "unanimous", "majority"]
_Asked = tuple[str, int, int, int]
_FAULTS = {"subject_faulty": 1, "object_faulty": 2}  # place of the segment in ``_Asked``


@dataclass(frozen=True)
class ImageLabels:
    """What is known about one image; rows are sorted, and none uses a faulty segment.

    Args:
        image_id: the image.
        image_key: what the image source calls it.
        positives: rows (subject, object, predicate) that hold.
        negatives: rows that do not hold.
        no_relation: rows (subject, object, -1): no predicate holds for the pair.
        faulty: indices of segments whose mask or class is wrong.
    """

    image_id: str
    image_key: str
    positives: tuple[Row, ...] = ()
    negatives: tuple[Row, ...] = ()
    no_relation: tuple[Row, ...] = ()
    faulty: tuple[int, ...] = ()


@dataclass(frozen=True)
class Decision:
    """What became of one row, and why.

    Args:
        image_id: the image.
        row: subject, object, predicate; predicate -1 for the pair as a whole.
        outcome: ``tie`` and ``faulty`` (a segment of it is) are left out of the labels.
        rule: what decided; of a tie, what failed to.
        votes: those that counted; ``KNOWN`` is a gold item's verdict.
    """

    image_id: str
    row: Row
    outcome: Outcome
    rule: Rule
    votes: Votes


@dataclass(frozen=True)
class Contradiction:
    """An annotator who said of one pair that something holds and that nothing does.

    Args:
        annotator: who.
        image_id: the image.
        subject: index of the subject's segment.
        object: index of the object's segment.
        related: predicates that this annotator called correct; these count.
        unrelated: predicates to which the answer was "no relation"; it counts for these alone.
    """

    annotator: str
    image_id: str
    subject: int
    object: int
    related: tuple[int, ...]
    unrelated: tuple[int, ...]


@dataclass(frozen=True)
class Labels:
    """Resolved labels of a campaign.

    Args:
        images: image id -> its labels, sorted by image id; images about which nothing is known
            (all skipped, tied or dropped, and no faulty segment) are absent.
        decisions: every row that was spoken of, those left out as well.
        skipped: answers that say nothing.
        contradictions: inside the answers of one annotator.
    """

    images: Mapping[str, ImageLabels]
    decisions: tuple[Decision, ...] = ()
    skipped: int = 0
    contradictions: tuple[Contradiction, ...] = ()

    @property
    def disagreements(self) -> tuple[Decision, ...]:
        """Rows left out because as many said yes as said no."""
        return tuple(row for row in self.decisions if row.outcome == "tie")

    @property
    def dropped(self) -> int:
        """Rows left out because one of their segments is faulty."""
        return sum(row.outcome == "faulty" for row in self.decisions)


@dataclass
class _Question:
    """Who decides about one proposal, and what they said of the relation."""

    rule: Rule | None  # None: everybody who answered
    votes: dict[str, Verdict]


@dataclass
class _Pair:
    """An ordered pair: predicate -> the question that was asked about it."""

    questions: dict[int, _Question] = field(default_factory=dict)

    def saying(self, verdict: Verdict) -> set[str]:
        """Who gave this verdict, to any predicate on which everybody votes."""
        return {
            who
            for question in self.questions.values()
            if question.rule is None
            for who, what in question.votes.items()
            if what == verdict
        }


def resolve(answers: Iterable[Answer], gold: Iterable[GoldItem] = ()) -> Labels:
    """Turn answers into labels.

    - **Who decides** about a proposal: the known verdict of a gold item; else those who
      adjudicated it, if any did and did not skip; else everybody who answered. Answers of purpose
      ``gold`` and ``repeat`` measure annotators and are no labels.
    - ``skip`` says nothing.
    - ``subject_faulty``, ``object_faulty``: one who decides is enough. Every row that uses the
      segment is dropped, since such objects are used neither to train nor to evaluate (Haystack
      paper, section 3.1).
    - A predicate of a pair: ``correct`` is a vote for it, ``incorrect`` one against it; the
      majority decides, and a tie is left out and reported. ``no_relation`` is the paper's shortcut
      for ``incorrect`` on every predicate, so it also votes against the pair's predicates that the
      same annotator did not answer, unless the annotator called one of them ``correct`` (a
      contradiction, which is reported).
    - A pair has "no relation" when more annotators said ``no_relation`` (and never ``correct``
      about that pair) than said ``correct``. Such a pair can have no positive row. A gold or
      adjudicated ``correct`` rules it out, a gold or adjudicated ``no_relation`` without one
      settles it, and the pair's other predicates with it.
    - Where a pair has "no relation", predicates that were refused only through it get no row of
      their own; those that somebody called ``incorrect`` keep theirs.

    Args:
        answers: current answers; if one annotator answered a proposal twice, the last counts.
        gold: proposals whose answer is known.

    Returns:
        The labels; they do not depend on the order of the answers.
    """
    latest: dict[_Asked, dict[str, Answer]] = defaultdict(dict)
    known: dict[_Asked, Verdict] = {}
    keys: dict[str, str] = {}
    for answer in answers:
        if answer.purpose in LABELLING:
            latest[_asked(answer.proposal)][answer.annotator] = answer
            keys[answer.proposal.image_id] = answer.proposal.image_key
    for item in gold:
        known[_asked(item.proposal)] = item.verdict
        keys[item.proposal.image_id] = item.proposal.image_key

    pairs: dict[tuple[str, int, int], _Pair] = defaultdict(_Pair)
    faulty: dict[str, set[int]] = defaultdict(set)
    for asked in sorted({*latest, *known}):
        question = _question(latest.get(asked, {}).values(), known.get(asked))
        for fault, place in _FAULTS.items():
            if fault in question.votes.values():
                faulty[asked[0]].add(int(asked[place]))
        question.votes = {
            who: what for who, what in question.votes.items() if what not in (*_FAULTS, "skip")
        }
        if question.votes:
            pairs[asked[:3]].questions[asked[3]] = question

    decisions: list[Decision] = []
    for (image_id, subject, object_), pair in pairs.items():
        found = _decide(image_id, subject, object_, pair)
        if {subject, object_} & faulty[image_id]:
            found = [replace(row, outcome="faulty") for row in found]
        decisions += found
    skipped = sum(said.verdict == "skip" for who in latest.values() for said in who.values())
    contradictions = tuple(_contradictions(latest))
    return Labels(_images(decisions, faulty, keys), tuple(decisions), skipped, contradictions)


def _asked(proposal: Proposal) -> _Asked:
    return (proposal.image_id, proposal.subject, proposal.object, proposal.predicate)


def _question(said: Iterable[Answer], known: Verdict | None) -> _Question:
    if known is not None and known != "skip":
        return _Question("gold", {KNOWN: known})
    votes = {answer.annotator: answer.verdict for answer in said}
    deciding: dict[str, Verdict] = {
        answer.annotator: answer.verdict
        for answer in said
        if answer.purpose == "adjudication" and answer.verdict != "skip"
    }
    return _Question("adjudication", deciding) if deciding else _Question(None, votes)


def _decide(image_id: str, subject: int, object_: int, pair: _Pair) -> list[Decision]:
    """The rows of a pair: the pair as a whole first, then its predicates in their order."""
    settled = {p: _outcome(q.votes) for p, q in pair.questions.items() if q.rule is not None}
    related = pair.saying("correct")
    unrelated = pair.saying("no_relation") - related

    def decision(
        predicate: int, outcome: Outcome, votes: Mapping[str, Verdict], rule: Rule | None
    ) -> Decision:
        said = tuple(sorted(votes.items()))
        if rule is None:
            agreed = len({verdict == "correct" for verdict in votes.values()}) == 1
            rule = "unanimous" if agreed else "majority"
        return Decision(image_id, (subject, object_, predicate), outcome, rule, said)

    whole, imposed = None, False
    unrelated_by_rule = [
        question
        for predicate, question in pair.questions.items()
        if settled.get(predicate) == "negative" and "incorrect" not in question.votes.values()
    ]
    if "positive" in settled.values():
        pass
    elif unrelated_by_rule:
        votes = dict(chain.from_iterable(question.votes.items() for question in unrelated_by_rule))
        rules = {question.rule for question in unrelated_by_rule}
        whole = decision(
            NO_RELATION, "negative", votes, "gold" if "gold" in rules else "adjudication"
        )
        imposed = True
    elif unrelated and len(unrelated) >= len(related):
        votes = dict.fromkeys(related, "correct")
        votes |= dict.fromkeys(unrelated, "no_relation")
        outcome: Outcome = "negative" if len(unrelated) > len(related) else "tie"
        whole = decision(NO_RELATION, outcome, votes, None)

    found = [] if whole is None else [whole]
    denied = whole is not None and whole.outcome == "negative"
    for predicate, question in sorted(pair.questions.items()):
        refused = "incorrect" in question.votes.values()
        if question.rule is not None:
            outcome, votes, rule = settled[predicate], question.votes, question.rule
        elif imposed and whole is not None:
            outcome, votes, rule = "negative", dict(whole.votes), whole.rule
        else:
            votes = {**dict.fromkeys(unrelated, "no_relation"), **question.votes}
            outcome, rule = _outcome(votes), None
        if outcome != "negative" or refused or not denied:
            found.append(decision(predicate, outcome, votes, rule))
    return found


def _outcome(votes: Mapping[str, Verdict]) -> Outcome:
    for_it = sum(verdict == "correct" for verdict in votes.values())
    against = len(votes) - for_it
    return "tie" if for_it == against else "positive" if for_it > against else "negative"


def _images(
    decisions: Iterable[Decision], faulty: Mapping[str, set[int]], keys: Mapping[str, str]
) -> dict[str, ImageLabels]:
    rows: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for decided in decisions:
        if decided.outcome in ("positive", "negative"):
            kind = "no_relation" if decided.row[2] == NO_RELATION else f"{decided.outcome}s"
            rows[decided.image_id][kind].append(decided.row)
    return {
        image_id: ImageLabels(
            image_id,
            keys[image_id],
            faulty=tuple(sorted(faulty.get(image_id, ()))),
            **{kind: tuple(sorted(found)) for kind, found in rows[image_id].items()},
        )
        for image_id in sorted(keys)
        if rows[image_id] or faulty.get(image_id)
    }


def _contradictions(latest: Mapping[_Asked, Mapping[str, Answer]]) -> Iterable[Contradiction]:
    said: dict[tuple[str, str, int, int], dict[str, list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for image_id, subject, object_, predicate in sorted(latest):
        for who, answer in latest[image_id, subject, object_, predicate].items():
            said[who, image_id, subject, object_][answer.verdict].append(predicate)
    for (who, image_id, subject, object_), by_verdict in sorted(said.items()):
        related, unrelated = by_verdict["correct"], by_verdict["no_relation"]
        if related and unrelated:
            yield Contradiction(who, image_id, subject, object_, tuple(related), tuple(unrelated))
