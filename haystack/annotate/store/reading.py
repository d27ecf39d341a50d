"""What the events say: answers, measurements, faults and disputes."""

from __future__ import annotations

from haystack.annotate.records import Answer, Dispute, Proposal, Verdict
from haystack.annotate.store.rows import (
    FAULTS,
    LABELS,
    answers_from,
    is_faulty,
    not_undone,
    to_answer,
    to_proposal,
)
from haystack.annotate.store.schema import current_answers, events, faulty_segments, gold, proposals

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import Connection, exists, func, select  # isort: skip


def read_answers(connection: Connection) -> list[Answer]:
    """Every annotator's current answer to every proposal, in an order of the content alone."""
    rows = [to_answer(row) for row in connection.execute(answers_from(current_answers))]
    rows.sort(key=lambda answer: (*_place(answer.proposal), answer.annotator))
    return rows


def read_measurements(connection: Connection) -> list[Answer]:
    """Answers to gold items and repeats that were not undone, first one first."""
    query = (
        answers_from(events)
        .where(events.c.purpose.not_in(LABELS), not_undone())
        .order_by(events.c.id)
    )
    return [to_answer(row) for row in connection.execute(query)]


def read_faulty_segments(connection: Connection) -> set[tuple[str, int]]:
    """(image id, segment index) of every segment that an answer or a gold item calls faulty."""
    reported = select(faulty_segments.c.image_id, faulty_segments.c.segment)
    found = {(row.image_id, row.segment) for row in connection.execute(reported)}
    known = (
        select(proposals.c.image_id, proposals.c.subject, proposals.c.object, gold.c.verdict)
        .join_from(gold, proposals, proposals.c.id == gold.c.proposal_id)
        .where(gold.c.verdict.in_(tuple(FAULTS)))
    )
    for row in connection.execute(known):
        found.add((row.image_id, getattr(row, FAULTS[row.verdict])))
    return found


def read_disputes(connection: Connection, limit: int | None) -> list[Dispute]:
    """Proposals that some affirm and some deny, and no lead has settled; ties first, then by id."""
    given = events.alias()
    # A quick look first: the events of proposals that several people answered.
    answered_twice = (
        select(given.c.proposal_id)
        .where(given.c.purpose.in_(LABELS), given.c.verdict != "undo")
        .group_by(given.c.proposal_id)
        .having(func.count(func.distinct(given.c.annotator)) > 1)
    )
    settled = current_answers.alias()
    query = (
        select(proposals, current_answers.c.annotator, current_answers.c.verdict)
        .join_from(proposals, current_answers, current_answers.c.proposal_id == proposals.c.id)
        .where(
            proposals.c.id.in_(answered_twice),
            current_answers.c.verdict.not_in(("skip", *FAULTS)),
            ~exists().where(
                settled.c.proposal_id == proposals.c.id, settled.c.purpose == "adjudication"
            ),
            ~is_faulty(),
        )
        .order_by(proposals.c.id, current_answers.c.annotator)
    )
    asked: dict[str, Proposal] = {}
    votes: dict[str, list[tuple[str, Verdict]]] = {}
    for row in connection.execute(query):
        asked.setdefault(row.id, to_proposal(row))
        votes.setdefault(row.id, []).append((row.annotator, row.verdict))
    found = []
    for proposal_id, given_votes in votes.items():
        affirmed = sum(verdict == "correct" for _, verdict in given_votes)
        if 0 < affirmed < len(given_votes):
            is_tied = 2 * affirmed == len(given_votes)
            found.append(Dispute(asked[proposal_id], tuple(given_votes), is_tied))
    found.sort(key=lambda dispute: not dispute.is_tied)
    return found[:limit]


def _place(asked: Proposal) -> tuple[str, int, int, int]:
    return asked.image_id, asked.subject, asked.object, asked.predicate
