"""Events in their order, as few columns as counting needs; what is new since the last look."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import case, func, select

from haystack.annotate.records import Purpose, Verdict
from haystack.annotate.store.database import Database
from haystack.annotate.store.schema import events, gold, proposals, tallies


class Event(NamedTuple):
    """An answer, or the undoing of one.

    Args:
        id: events are ordered by it.
        proposal_id: the question.
        predicate: of the question.
        annotator: who answered or undid.
        verdict: the answer; None for undoing.
        retracts: id of the event that is undone.
        purpose: why it was asked.
        round: the round of proposals that the question was of.
        dwell_ms: milliseconds from the picture being shown to the answer, where known.
        created_at: ISO 8601, UTC; a clock may jump, so nothing is ordered by it.
    """

    id: int
    proposal_id: str
    predicate: int
    annotator: str
    verdict: Verdict | None
    retracts: int | None
    purpose: Purpose
    round: int
    dwell_ms: int | None
    created_at: str


def events_after(database: Database, last: int = 0) -> list[Event]:
    """Events with larger ids than ``last``, in order.

    An event is never added below the largest id that this has returned, so that calling again with
    that id gives exactly what came since.
    """
    query = (
        select(
            events.c.id,
            events.c.proposal_id,
            proposals.c.predicate,
            events.c.annotator,
            case((events.c.verdict != "undo", events.c.verdict)),
            events.c.retracts,
            events.c.purpose,
            events.c.round,
            events.c.dwell_ms,
            events.c.created_at,
        )
        .join(proposals, proposals.c.id == events.c.proposal_id)
        .where(events.c.id > last)
        .order_by(events.c.id)
    )
    if not database.is_sqlite:
        # PostgreSQL gives out ids before it commits. With every writer kept out for a moment, no id
        # up to the largest one is still to come.
        with database.write(exclusive=True) as connection:
            newest = connection.execute(select(func.max(events.c.id))).scalar_one() or 0
        query = query.where(events.c.id <= newest)
    with database.read() as connection:
        return [Event._make(row) for row in connection.execute(query)]


def gold_verdicts(database: Database) -> dict[str, Verdict]:
    """Proposal id -> the answer that is known to be right."""
    with database.read() as connection:
        rows = connection.execute(select(gold.c.proposal_id, gold.c.verdict))
        return {row.proposal_id: row.verdict for row in rows}


def open_questions(database: Database) -> dict[int, tuple[int, int]]:
    """Predicate -> open questions, and the answers that were given to them so far."""
    query = select(
        tallies.c.predicate, func.sum(tallies.c.open), func.sum(tallies.c.seen_open)
    ).group_by(tallies.c.predicate)
    with database.read() as connection:
        return {row[0]: (int(row[1]), int(row[2])) for row in connection.execute(query)}


def further_copies(database: Database) -> dict[int, int]:
    """Predicate -> answers that open questions are to get beyond one each; reads all of them."""
    query = (
        select(proposals.c.predicate, func.sum(proposals.c.copies - 1))
        .where(proposals.c.is_open, proposals.c.copies > 1)
        .group_by(proposals.c.predicate)
    )
    with database.read() as connection:
        return {predicate: int(count) for predicate, count in connection.execute(query)}
