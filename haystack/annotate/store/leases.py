"""Handing out questions: a lease keeps one from others until it is answered, or ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from haystack.annotate.records import Claim, Proposal, Purpose
from haystack.annotate.settings import QueueSettings
from haystack.annotate.store.rows import (
    answered_by,
    is_faulty,
    is_wanted,
    judgements,
    not_undone,
    to_proposal,
)
from haystack.annotate.store.schema import current_answers, events, gold, leases, proposals

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import (  # isort: skip
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    and_,
    cast,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

_LOOK_BACK = 1_000
"""Events among which a question to repeat is looked for; an annotator's own, newest first."""

_ENDED = 0.0


class Leases:
    """The questions that annotators have on their screens.

    A lease is live until it ends, on the clock that is asked now. One that ends further ahead than
    a lease is long was made before the clock was set back: it counts as ended, too. Nothing needs
    to clear ended leases away; whoever asks is given them in the same query.

    Every annotator's leases are written by that annotator's transactions alone, which take turns.

    Args:
        insert: of the database's dialect.
        clock: the time now.
        settings: how long leases are, and how often gold and repeated questions come.
        draw: gives a number of at least 0 and below 1, which decides between them.
    """

    def __init__(
        self,
        insert: Callable[..., Any],
        clock: Callable[[], datetime],
        settings: QueueSettings,
        draw: Callable[[], float],
    ) -> None:
        self._insert = insert
        self._clock = clock
        self._settings = settings
        self._draw = draw

    def claim(self, connection: Connection, predicate: int, annotator: str, limit: int) -> Claim:
        """Hand out questions: first those that the annotator holds, in the same order as before.

        Args:
            connection: a writing transaction, in which it is the annotator's turn.
            predicate: what they are about; leases on other predicates are given up.
            annotator: who asks.
            limit: at most so many.
        """
        now = self._clock().timestamp()
        ends = now + self._settings.lease_seconds
        own = connection.execute(_leases_of(annotator)).all()
        kept, given_up = [], []
        for row in own:
            is_live = now < row.expires_at <= ends
            if is_live and row.lease_predicate == predicate and _is_askable(row):
                kept.append(row)
            elif row.lease_purpose == "label" or is_live:
                given_up.append(row.id)
        self._end(connection, annotator, given_up)
        kept = kept[:limit]
        if kept:
            connection.execute(
                update(leases)
                .where(leases.c.annotator == annotator, leases.c.proposal_id.in_(_ids(kept)))
                .values(expires_at=ends)
            )
        fresh: list[tuple[Row[Any], Purpose]] = []
        if len(kept) < limit:
            fresh = self._fresh(connection, predicate, annotator, now, kept, limit - len(kept))
            last = max((row.position for row in own), default=0)
            self._lease(connection, annotator, fresh, last + 1, ends)
        questions = tuple(to_proposal(row) for row in (*kept, *(row for row, _ in fresh)))
        if questions and len(questions) == limit:
            return Claim(questions)
        return self._held(connection, predicate, annotator, now, questions)

    def purpose(self, connection: Connection, proposal_id: str, annotator: str) -> Purpose:
        """Why the annotator was asked; a lease that has ended still says it."""
        held = select(leases.c.purpose).where(
            leases.c.proposal_id == proposal_id, leases.c.annotator == annotator
        )
        purpose: Purpose | None = connection.execute(held).scalar_one_or_none()
        if purpose is not None:
            return purpose
        given = select(current_answers.c.purpose).where(
            current_answers.c.proposal_id == proposal_id, current_answers.c.annotator == annotator
        )
        before: Purpose | None = connection.execute(given).scalar_one_or_none()
        if before is not None:
            return before  # thought better of it
        is_gold = select(exists().where(gold.c.proposal_id == proposal_id))
        return "gold" if connection.execute(is_gold).scalar_one() else "label"

    def finish(self, connection: Connection, proposal_id: str, annotator: str) -> None:
        """The annotator has answered."""
        connection.execute(
            delete(leases).where(
                leases.c.proposal_id == proposal_id, leases.c.annotator == annotator
            )
        )

    def restore(
        self, connection: Connection, proposal: Proposal, annotator: str, purpose: Purpose
    ) -> None:
        """An answer was taken back: it is the next question again, asked for the same purpose."""
        first = connection.execute(
            select(func.min(leases.c.position)).where(leases.c.annotator == annotator)
        ).scalar_one()
        ends = self._clock().timestamp() + self._settings.lease_seconds
        self._lease(connection, annotator, [(proposal, purpose)], (first or 0) - 1, ends)

    def release(self, connection: Connection, annotator: str) -> None:
        """Give up whatever the annotator holds."""
        held = select(leases.c.proposal_id).where(leases.c.annotator == annotator)
        self._end(connection, annotator, connection.execute(held).scalars().all())

    # ------------------------------------------------------------------

    def _end(self, connection: Connection, annotator: str, ids: Sequence[str]) -> None:
        """Let others be asked; gold and repeats stay noted, for an answer that is on its way."""
        if not ids:
            return
        those = and_(leases.c.annotator == annotator, leases.c.proposal_id.in_(ids))
        connection.execute(delete(leases).where(those, leases.c.purpose == "label"))
        connection.execute(
            update(leases).where(those, leases.c.expires_at != _ENDED).values(expires_at=_ENDED)
        )

    def _lease(
        self,
        connection: Connection,
        annotator: str,
        asked: Iterable[tuple[Row[Any] | Proposal, Purpose]],
        position: int,
        ends: float,
    ) -> None:
        rows = [
            {
                "proposal_id": question.id,
                "annotator": annotator,
                "purpose": purpose,
                "position": position + number,
                "expires_at": ends,
            }
            for number, (question, purpose) in enumerate(asked)
        ]
        if rows:
            new = self._insert(leases)
            again = {name: new.excluded[name] for name in ("purpose", "position", "expires_at")}
            connection.execute(
                new.on_conflict_do_update(index_elements=("proposal_id", "annotator"), set_=again),
                rows,
            )

    def _fresh(
        self,
        connection: Connection,
        predicate: int,
        annotator: str,
        now: float,
        kept: Sequence[Row[Any]],
        count: int,
    ) -> list[tuple[Row[Any], Purpose]]:
        """Further questions: of the queue by rank, now and then one that measures the annotator."""
        settings = self._settings
        order: list[Purpose] = []
        for _ in range(count):
            drawn = self._draw()
            if drawn < settings.gold_rate:
                order.append("gold")
            elif drawn < settings.gold_rate + settings.repeat_rate:
                order.append("repeat")
            else:
                order.append("label")
        hidden = _gold_for(predicate, annotator, _ids(kept))
        before = _repeats_for(predicate, annotator, _ids(kept), settings.repeat_after)
        found = {
            "gold": _take(connection, hidden, order.count("gold")),
            "repeat": _take(connection, before, order.count("repeat")),
        }
        # A question is one thing at a time: gold that was answered as a label may be a repeat.
        measured = {row.id for row in found["gold"]}
        found["repeat"] = [row for row in found["repeat"] if row.id not in measured]
        missing = count - len(found["gold"]) - len(found["repeat"])
        waiting = self._labels(connection, predicate, annotator, now, kept, max(1, missing))
        if not waiting and not any(row.lease_purpose == "label" for row in kept):
            return []  # the queue has come to its end; nobody is kept just to be measured
        found["label"] = waiting[:missing]
        fresh: list[tuple[Row[Any], Purpose]] = []
        for purpose in order:
            source = purpose if found[purpose] else "label"
            if found[source]:
                fresh.append((found[source].pop(0), source))
        return fresh

    def _labels(
        self,
        connection: Connection,
        predicate: int,
        annotator: str,
        now: float,
        kept: Sequence[Row[Any]],
        count: int,
    ) -> list[Row[Any]]:
        free = self._is_free(annotator, now)
        query = claimable(predicate, annotator, _ids(kept)).where(free).limit(count)
        # Another transaction's rows are passed over, not waited for. A foreign key's check, which
        # the leases make, does not conflict with this lock.
        rows = list(connection.execute(query.with_for_update(skip_locked=True, key_share=True)))
        if not rows or connection.dialect.name == "sqlite":
            return rows
        # On PostgreSQL a lease may have been committed between the statement's beginning and its
        # lock of the row; a second look, with the lock in hand, sees it.
        still = select(proposals.c.id).where(
            proposals.c.id.in_(_ids(rows)), proposals.c.is_open, free
        )
        sure = set(connection.execute(still).scalars())
        return [row for row in rows if row.id in sure]

    def _is_free(self, annotator: str, now: float) -> ColumnElement[bool]:
        """An open proposal that needs one more annotator than answered and hold it."""
        held = and_(
            leases.c.proposal_id == proposals.c.id,
            leases.c.annotator != annotator,
            leases.c.purpose == "label",
            leases.c.expires_at > now,
            leases.c.expires_at <= now + self._settings.lease_seconds,
        )
        holders = select(func.count()).where(held).scalar_subquery()
        return or_(
            ~exists().where(held),
            and_(proposals.c.copies > 1, judgements() + holders < proposals.c.copies),
        )

    def _held(
        self,
        connection: Connection,
        predicate: int,
        annotator: str,
        now: float,
        questions: tuple[Proposal, ...],
    ) -> Claim:
        waiting = claimable(predicate, annotator, [question.id for question in questions])
        taken = waiting.with_only_columns(proposals.c.id).order_by(None).subquery()
        held = connection.execute(select(func.count()).select_from(taken)).scalar_one()
        if not held or questions:
            return Claim(questions, held)
        first_end = connection.execute(
            select(func.min(leases.c.expires_at)).where(
                leases.c.proposal_id.in_(select(taken.c.id)),
                leases.c.annotator != annotator,
                leases.c.expires_at > now,
                leases.c.expires_at <= now + self._settings.lease_seconds,
            )
        ).scalar_one()
        return Claim((), held, 0.0 if first_end is None else first_end - now)


def claimable(predicate: int, annotator: str, besides: Sequence[str]) -> Select[Any]:
    """Open proposals that the annotator did not answer, by rank, leases aside.

    Args:
        predicate: what they are about.
        annotator: who would answer.
        besides: ids of proposals to leave out.
    """
    query = (
        select(proposals)
        .where(proposals.c.predicate == predicate, proposals.c.is_open, ~answered_by(annotator))
        .order_by(proposals.c.rank, proposals.c.id)
    )
    return query.where(proposals.c.id.not_in(besides)) if besides else query


def _ids(rows: Iterable[Row[Any]]) -> list[str]:
    return [row.id for row in rows]


def _take(connection: Connection, query: Select[Any], count: int) -> list[Row[Any]]:
    return list(connection.execute(query.limit(count))) if count else []


def _leases_of(annotator: str) -> Select[Any]:
    """An annotator's leases with their proposals, in the order in which they are asked."""
    return (
        select(
            proposals,
            leases.c.purpose.label("lease_purpose"),
            proposals.c.predicate.label("lease_predicate"),
            leases.c.position,
            leases.c.expires_at,
            cast(is_faulty(), Integer).label("is_faulty"),
            cast(is_wanted(), Integer).label("is_wanted"),
        )
        .join_from(leases, proposals, proposals.c.id == leases.c.proposal_id)
        .where(leases.c.annotator == annotator)
        .order_by(leases.c.position)
    )


def _is_askable(row: Row[Any]) -> bool:
    """Whether a question that somebody holds is still one; it may have left the queue since."""
    if row.lease_purpose == "label":
        return bool(row.is_wanted)
    return not row.is_faulty


def _gold_for(predicate: int, annotator: str, besides: Sequence[str]) -> Select[Any]:
    """Gold items that the annotator has never answered, in an order that says nothing."""
    return (
        select(proposals)
        .join_from(gold, proposals, proposals.c.id == gold.c.proposal_id)
        .where(
            proposals.c.predicate == predicate,
            proposals.c.id.not_in(besides),
            ~answered_by(annotator, ("label", "gold", "repeat", "adjudication")),
            ~is_faulty(),
        )
        .order_by(proposals.c.id)
    )


def _repeats_for(predicate: int, annotator: str, besides: Sequence[str], after: int) -> Select[Any]:
    """Own labels that lie at least ``after`` answers back and were not asked again, newest first.

    So the answers in between are about as many each time, over the whole campaign.
    """
    mine = and_(events.c.annotator == annotator, not_undone())
    older = (
        select(events.c.id, events.c.proposal_id, events.c.purpose, events.c.verdict)
        .where(mine)
        .order_by(events.c.id.desc())
        .offset(after)
        .limit(_LOOK_BACK)
        .subquery()
    )
    since = events.alias()
    given_since = (
        select(func.max(since.c.id))
        .where(since.c.proposal_id == older.c.proposal_id, since.c.annotator == annotator)
        .where(not_undone(since))
        .scalar_subquery()
    )
    return (
        select(proposals)
        .join_from(older, proposals, proposals.c.id == older.c.proposal_id)
        .where(
            older.c.purpose == "label",
            older.c.verdict.in_(("correct", "incorrect", "no_relation")),
            older.c.id == given_since,
            proposals.c.predicate == predicate,
            proposals.c.id.not_in(besides),
            ~is_faulty(),
        )
        .order_by(older.c.id.desc())
    )
