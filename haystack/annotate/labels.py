"""From answers to labels: one stated rule for every disagreement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from haystack.annotate.records import Answer, Verdict

NO_RELATION = -1
"""Predicate of a negative row that says: no predicate at all holds for this pair."""

Row = tuple[int, int, int]
"""Subject, object, predicate."""


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
class Disagreement:
    """A row that was left out because as many annotators said yes as said no.

    Args:
        image_id: the image.
        row: subject, object, predicate; predicate -1 where the pair as a whole is in dispute.
        votes: (annotator, what was said), sorted.
    """

    image_id: str
    row: Row
    votes: tuple[tuple[str, Verdict], ...]


@dataclass(frozen=True)
class Labels:
    """Resolved labels of a campaign.

    Args:
        images: image id -> its labels, sorted by image id; images about which nothing is known
            (all skipped, tied or dropped, and no faulty segment) are absent.
        disagreements: rows left out because of a tie.
        dropped: rows left out because one of their segments is faulty.
        skipped: answers that say nothing.
    """

    images: Mapping[str, ImageLabels]
    disagreements: tuple[Disagreement, ...] = ()
    dropped: int = 0
    skipped: int = 0


@dataclass
class _Pair:
    """What was said about one ordered pair: predicate -> annotator -> verdict."""

    said: dict[int, dict[str, Verdict]] = field(default_factory=lambda: defaultdict(dict))

    def annotators(self, verdict: Verdict) -> set[str]:
        """Who gave this verdict, to any predicate."""
        return {
            who for votes in self.said.values() for who, what in votes.items() if what == verdict
        }


def resolve(answers: Iterable[Answer]) -> Labels:
    """Turn answers into labels by majority; ties are left out and reported.

    - ``skip`` says nothing.
    - ``subject_faulty``, ``object_faulty``: one annotator is enough. Every row that uses the
      segment is dropped, since such objects are used neither to train nor to evaluate (Haystack
      paper, section 3.1).
    - A predicate of a pair: ``correct`` is a vote for it, ``incorrect`` one against it.
      ``no_relation`` is the paper's shortcut for ``incorrect`` on every predicate, so it also
      votes against the pair's predicates that the same annotator did not answer, unless the
      annotator called one of them ``correct``.
    - A pair has "no relation" when more annotators said ``no_relation`` (and never ``correct``
      about that pair) than said ``correct``. Such a pair can have no positive row.
    - Where a pair has "no relation", predicates that were refused only through it get no row of
      their own; those that somebody called ``incorrect`` keep theirs.

    Args:
        answers: current answers; if one annotator answered a proposal twice, the last counts.

    Returns:
        The labels; they do not depend on the order of the answers.
    """
    pairs: dict[tuple[str, int, int], _Pair] = defaultdict(_Pair)
    faulty: dict[str, set[int]] = defaultdict(set)
    keys: dict[str, str] = {}
    latest = {(answer.proposal.id, answer.annotator): answer for answer in answers}
    skipped = 0
    for answer in latest.values():
        asked, verdict = answer.proposal, answer.verdict
        keys[asked.image_id] = asked.image_key
        if verdict == "skip":
            skipped += 1
        elif verdict == "subject_faulty":
            faulty[asked.image_id].add(asked.subject)
        elif verdict == "object_faulty":
            faulty[asked.image_id].add(asked.object)
        else:
            pair = pairs[asked.image_id, asked.subject, asked.object]
            pair.said[asked.predicate][answer.annotator] = verdict

    rows: dict[str, _Rows] = defaultdict(_Rows)
    disagreements: list[Disagreement] = []
    dropped = 0
    for (image_id, subject, object_), pair in sorted(pairs.items()):
        found = _resolve_pair(image_id, subject, object_, pair)
        if {subject, object_} & faulty[image_id]:
            dropped += found.count() + len(found.ties)
            continue
        rows[image_id].extend(found)
        disagreements.extend(found.ties)

    images = {}
    for image_id in sorted(keys):
        found = rows[image_id]
        if found.count() or faulty[image_id]:
            images[image_id] = ImageLabels(
                image_id,
                keys[image_id],
                tuple(sorted(found.positives)),
                tuple(sorted(found.negatives)),
                tuple(sorted(found.no_relation)),
                tuple(sorted(faulty[image_id])),
            )
    return Labels(images, tuple(disagreements), dropped, skipped)


@dataclass
class _Rows:
    positives: list[Row] = field(default_factory=list)
    negatives: list[Row] = field(default_factory=list)
    no_relation: list[Row] = field(default_factory=list)
    ties: list[Disagreement] = field(default_factory=list)

    def count(self) -> int:
        return len(self.positives) + len(self.negatives) + len(self.no_relation)

    def extend(self, other: _Rows) -> None:
        self.positives += other.positives
        self.negatives += other.negatives
        self.no_relation += other.no_relation


def _resolve_pair(image_id: str, subject: int, object_: int, pair: _Pair) -> _Rows:
    found = _Rows()
    related = pair.annotators("correct")
    unrelated = pair.annotators("no_relation") - related
    if len(unrelated) > len(related):
        found.no_relation.append((subject, object_, NO_RELATION))
    elif unrelated and len(unrelated) == len(related):
        votes: dict[str, Verdict] = dict.fromkeys(related, "correct")
        votes |= dict.fromkeys(unrelated, "no_relation")
        found.ties.append(
            Disagreement(image_id, (subject, object_, NO_RELATION), tuple(sorted(votes.items())))
        )
    for predicate, said in sorted(pair.said.items()):
        row = (subject, object_, predicate)
        votes = dict.fromkeys(unrelated, "no_relation")
        votes |= said
        for_it = sum(verdict == "correct" for verdict in votes.values())
        against = len(votes) - for_it
        if for_it > against:
            found.positives.append(row)
        elif for_it == against:
            found.ties.append(Disagreement(image_id, row, tuple(sorted(votes.items()))))
        elif not found.no_relation or "incorrect" in said.values():
            found.negatives.append(row)
    return found
