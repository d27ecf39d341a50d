"""Rows of the database as records, and the conditions that several queries share.

Statements that every answer runs are made once, with parameters: making one anew costs several
times what running it does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

from haystack.annotate.records import Answer, Proposal, UnknownProposalError
from haystack.annotate.store.schema import current_answers, events, faulty_segments, gold, proposals
from haystack.text import without_folders

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import (  # isort: skip
    ColumnElement,
    Connection,
    Row,
    ScalarSelect,
    Select,
    Table,
    and_,
    bindparam,
    case,
    exists,
    func,
    or_,
    select,
)

Statement = TypeVar("Statement")

AS_ASKED = ("score", "rank", "round", "origin")
"""Later queues change these of a proposal; an event keeps what they were."""
FAULTS = {"subject_faulty": "subject", "object_faulty": "object"}
"""Verdicts about a segment -> which of the proposal's."""
LABELS = ("label", "adjudication")
"""Purposes whose answers say what holds; the others measure people."""

PROPOSAL_FIELDS = tuple(field.name for field in dataclasses.fields(Proposal))
_ANSWER_FIELDS = tuple(
    field.name for field in dataclasses.fields(Answer) if field.name != "proposal"
)


def proposal_values(proposal: Proposal) -> dict[str, Any]:
    """A proposal as a row of its table."""
    return {"id": proposal.id} | {name: getattr(proposal, name) for name in PROPOSAL_FIELDS}


def to_proposal(row: Row[Any]) -> Proposal:
    """The proposal of a row that has its columns.

    Databases of earlier versions hold models' paths; these stay on their machine.
    """
    values = {name: getattr(row, name) for name in PROPOSAL_FIELDS}
    return Proposal(**values | {"origin": without_folders(row.origin)})


class Scope(NamedTuple):
    """Proposals that a change may touch.

    Args:
        column: of ``proposals``: ``id`` for one, ``image_id`` for all of an image.
        value: what it is.
    """

    column: Literal["id", "image_id"]
    value: str


def by_scope(build: Callable[[ColumnElement[bool]], Statement]) -> dict[str, Statement]:
    """A statement for every kind of scope, whose value is the parameter ``scope``."""
    return {name: build(proposals.c[name] == bindparam("scope")) for name in ("id", "image_id")}


_BY_ID = select(proposals).where(proposals.c.id == bindparam("id"))


def find_proposal(connection: Connection, proposal_id: str) -> Proposal:
    """The proposal with this id.

    Raises:
        UnknownProposalError: there is none.
    """
    # PostgreSQL refuses to look for a NUL.
    known = "\0" not in proposal_id
    row = connection.execute(_BY_ID, {"id": proposal_id}).one_or_none() if known else None
    if row is None:
        raise UnknownProposalError(
            f"there is no proposal {proposal_id!r} here; was another queue loaded meanwhile?"
        )
    return to_proposal(row)


def answers_from(source: Table) -> Select[Any]:
    """Events with their questions; ``AS_ASKED`` are those of the time of the answer."""
    asked = [source.c.get(name, proposals.c[name]) for name in PROPOSAL_FIELDS]
    said = [source.c[name] for name in _ANSWER_FIELDS]
    return select(*asked, source.c.proposal_id, *said).join_from(
        source, proposals, proposals.c.id == source.c.proposal_id
    )


def to_answer(row: Row[Any]) -> Answer:
    """The answer of a row of :func:`answers_from`."""
    return Answer(to_proposal(row), **{name: getattr(row, name) for name in _ANSWER_FIELDS})


# ---------------------------------------------------------------------- conditions on a proposal


def not_undone(given: Any = events) -> ColumnElement[bool]:
    """An event that no other one retracts; ``given`` is ``events`` or an alias."""
    undone = events.alias()
    return and_(given.c.verdict != "undo", ~exists().where(undone.c.retracts == given.c.id))


def answered_by_me(purposes: tuple[str, ...] = LABELS) -> ColumnElement[bool]:
    """The annotator of the parameter ``me`` answered the proposal."""
    given = events.alias()
    return exists().where(
        given.c.proposal_id == proposals.c.id,
        given.c.annotator == bindparam("me"),
        given.c.purpose.in_(purposes),
        not_undone(given),
    )


def is_known_fault() -> ColumnElement[bool]:
    """The proposal is a gold item whose true answer is that a segment is faulty."""
    return exists().where(gold.c.proposal_id == proposals.c.id, gold.c.verdict.in_(tuple(FAULTS)))


def is_faulty() -> ColumnElement[bool]:
    """An answer, or what is known of a gold item, calls one of the two segments faulty."""
    used = (proposals.c.subject, proposals.c.object)
    known = proposals.alias()
    return or_(
        exists().where(
            faulty_segments.c.image_id == proposals.c.image_id, faulty_segments.c.segment.in_(used)
        ),
        exists().where(
            known.c.image_id == proposals.c.image_id,
            gold.c.proposal_id == known.c.id,
            or_(
                *(
                    and_(gold.c.verdict == fault, known.c[end].in_(used))
                    for fault, end in FAULTS.items()
                )
            ),
        ),
    )


def is_unrelated() -> ColumnElement[bool]:
    """An answer to the proposal, or to another about the same pair, says "no relation"."""
    same = proposals.alias()
    return exists().where(
        *(same.c[name] == proposals.c[name] for name in ("image_id", "subject", "object")),
        current_answers.c.proposal_id == same.c.id,
        current_answers.c.verdict == "no_relation",
    )


def judgements() -> ScalarSelect[int]:
    """How many annotators judged the proposal; who skips does not judge."""
    return (
        select(func.count())
        .where(current_answers.c.proposal_id == proposals.c.id, current_answers.c.verdict != "skip")
        .scalar_subquery()
    )


def is_tied() -> ColumnElement[bool]:
    """As many annotators said that the predicate holds as said that it does not, and some did."""
    says = current_answers.c.verdict
    lead = func.sum(case((says == "correct", 1), (says == "skip", 0), else_=-1))
    return exists(
        select(current_answers.c.proposal_id)
        .where(current_answers.c.proposal_id == proposals.c.id)
        .group_by(current_answers.c.proposal_id)
        .having(lead == 0, func.max(case((says == "correct", 1), else_=0)) == 1)
    )


def is_wanted() -> ColumnElement[bool]:
    """A further annotator should answer the proposal, whether or not it is in the queue."""
    settled = exists().where(
        current_answers.c.proposal_id == proposals.c.id,
        current_answers.c.purpose == "adjudication",
    )
    known = exists().where(gold.c.proposal_id == proposals.c.id)
    too_few = judgements() < proposals.c.copies
    return and_(
        or_(too_few, and_(proposals.c.breaks_ties, is_tied())), ~settled, ~known, ~is_faulty()
    )
