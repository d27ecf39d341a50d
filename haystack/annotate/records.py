"""What is asked, what was answered, and how far a campaign is."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from haystack.errors import InputError

Verdict = Literal["correct", "incorrect", "no_relation", "skip", "subject_faulty", "object_faulty"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""The answers that an annotator can give (Haystack paper, section 3.1).

``incorrect``: this predicate does not hold, another one may. ``no_relation``: no predicate holds.
``subject_faulty`` and ``object_faulty``: the segment's mask or class is wrong; nothing about it
is asked or exported any more.
"""

Purpose = Literal["label", "gold", "repeat", "adjudication"]
"""Why a question was asked.

``label``: to learn the answer. ``gold``: the answer is known, to measure the annotator.
``repeat``: the annotator gave it before, to measure how steady he or she is. ``adjudication``: to
settle what annotators disagree about.
"""


_KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LONGEST_NAME = 200


class UnknownProposalError(InputError):
    """An answer names a proposal that the store does not hold."""


class KeyConflictError(InputError):
    """An idempotency key that already stands for something else was used again."""


@dataclass(frozen=True)
class Proposal:
    """One question: does ``predicate`` hold between two segments of an image?

    Args:
        image_id: the image's id in the exported annotation file.
        subject: index of the subject's segment in its image, from 0.
        object: index of the object's segment in its image, from 0; another one than the subject.
        predicate: predicate number, from 0.
        image_key: what the image source calls the image.
        score: log p(predicate) - log p(no relation); higher is shown earlier.
        cluster: cluster of the image.
        rank: position in the queue of its predicate; lower is asked earlier.
        round: the round of proposals that it came from.
        segments: stands for the image's list of segments, in which ``subject`` and ``object`` are
            positions; another value means another list. Empty where it is not known.
        origin: which models proposed it, in words: names, ranks and scores. Empty where it is not
            known.

    Raises:
        InputError: an empty image id, a negative number, a subject that is its own object, or a
            score that is not finite.
    """

    image_id: str
    subject: int
    object: int
    predicate: int
    image_key: str
    score: float
    cluster: int
    rank: int
    round: int = 0
    segments: str = ""
    origin: str = ""

    def __post_init__(self) -> None:
        if not self.image_id or not self.image_key:
            raise InputError(
                f"expected an image id and an image key, got {self.image_id!r}, {self.image_key!r}"
            )
        if "\0" in self.image_id + self.image_key:
            raise InputError(
                "expected an image id and key without NUL characters", record=self.image_id
            )
        for name in ("subject", "object", "predicate", "rank"):
            value = getattr(self, name)
            if value < 0:
                raise InputError(
                    f"expected {name} to be 0 or more, got {value}", record=f"image {self.image_id}"
                )
        if self.subject == self.object:
            raise InputError(
                f"expected two different segments, got segment {self.subject} twice",
                record=f"image {self.image_id}",
            )
        if not math.isfinite(self.score):
            raise InputError(
                f"expected a finite score, got {self.score}", record=f"image {self.image_id}"
            )

    @property
    def id(self) -> str:
        """Twenty hexadecimal digits that follow from what is asked alone.

        The same question has the same id in every round and every database, so an answer that
        arrives late, after the queue was re-ranked or even in another campaign's database, can
        never land on a different question.
        """
        question = json.dumps(
            [self.image_id, self.subject, self.object, self.predicate], separators=(",", ":")
        )
        return hashlib.sha256(question.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Answer:
    """One annotator's answer to one proposal.

    Args:
        proposal: what was asked, with the score, rank, round and origin it had when it was
            answered.
        verdict: the answer.
        annotator: who answered.
        key: the idempotency key it was saved under.
        dwell_ms: milliseconds from the picture being shown to the answer, where known.
        created_at: ISO 8601, UTC. Events are ordered by their arrival, never by this time.
        purpose: why it was asked; answers to gold and repeated questions are no labels.
    """

    proposal: Proposal
    verdict: Verdict
    annotator: str
    key: str
    dwell_ms: int | None
    created_at: str
    purpose: Purpose = "label"


@dataclass(frozen=True)
class Claim:
    """Questions that an annotator was handed out.

    Args:
        questions: in the order in which they are asked; nobody can tell from them which are gold
            or repeated.
        held: how many further ones others hold. They come free when they are not answered in time.
        free_in: seconds until the first of those comes free; None where none is held, or where
            questions were given.
    """

    questions: tuple[Proposal, ...]
    held: int = 0
    free_in: float | None = None


@dataclass(frozen=True)
class Dispute:
    """A proposal that annotators answered differently, and that no lead has settled.

    Args:
        proposal: what was asked.
        votes: (annotator, verdict), sorted by annotator; skips left out.
        is_tied: as many said yes as said no. Otherwise the majority is its label.
    """

    proposal: Proposal
    votes: tuple[tuple[str, Verdict], ...]
    is_tied: bool


@dataclass(frozen=True)
class GoldItem:
    """A proposal whose answer is known; annotators are measured by it.

    Args:
        proposal: the question.
        verdict: its true answer.
        set_by: who said so.
        set_at: ISO 8601, UTC.
    """

    proposal: Proposal
    verdict: Verdict
    set_by: str
    set_at: str


@dataclass(frozen=True)
class Progress:
    """How far one predicate is.

    Args:
        predicate: predicate number.
        total: proposals in the queue, and those answered in earlier rounds.
        open: proposals still to be asked.
        correct: answers so far, by verdict; so are the next four.
        incorrect: see ``correct``.
        no_relation: see ``correct``.
        skip: see ``correct``.
        faulty: answers that a segment is faulty.
    """

    predicate: int
    total: int
    open: int
    correct: int = 0
    incorrect: int = 0
    no_relation: int = 0
    skip: int = 0
    faulty: int = 0


def check_verdict(verdict: str) -> None:
    """Refuse what is no verdict.

    Raises:
        InputError: names those that are.
    """
    if verdict not in VERDICTS:
        raise InputError(f"expected a verdict of {', '.join(VERDICTS)}, got {verdict!r}")


def check_names(annotator: str, key: str | None = None) -> None:
    """Refuse names and keys that cannot be kept or shown.

    Raises:
        InputError: says what is expected.
    """
    if not annotator.strip() or len(annotator) > _LONGEST_NAME or not annotator.isprintable():
        raise InputError(
            f"expected an annotator's name of 1 to {_LONGEST_NAME} printable characters, "
            f"got {annotator[:40]!r}"
        )
    if key is not None and not _KEY.fullmatch(key):
        raise InputError(
            f"expected a key of 1 to 128 letters, digits and . _ : - characters, got {key[:40]!r}"
        )
