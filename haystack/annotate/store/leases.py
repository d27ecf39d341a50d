"""Handing out questions: a lease keeps one from others until it is answered, or ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from haystack.annotate.records import Claim, Proposal, Purpose
from haystack.annotate.settings import QueueSettings
from haystack.annotate.store.rows import (
    FAULTS,
    answered_by_me,
    is_faulty,
    is_known_fault,
    is_wanted,
    judgements,
    not_undone,
    to_proposal,
)
from haystack.annotate.store.schema import current_answers, events, gold, leases, proposals

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import (  # isort: skip
    Connection,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
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
_SKEW_SECONDS = 30.0
"""How far the clocks of two processes, and the reading of one and its use, may lie apart."""

# ---------------------------------------------------------------------- statements
# Parameters: me = the annotator, now, horizon = the latest end that a lease made by now can have,
# ends = of a lease made now, ids = of proposals, besides = those to leave out, many = at most so
# many, after = answers in between.

_ME = leases.c.annotator == bindparam("me")
_THESE = and_(_ME, leases.c.proposal_id.in_(bindparam("ids", expanding=True)))
_OTHERS = proposals.c.id.not_in(bindparam("besides", expanding=True))

_IS_LIVE = and_(leases.c.expires_at > bindparam("now"), leases.c.expires_at <= bindparam("horizon"))
_HELD_BY_OTHERS = and_(
    leases.c.proposal_id == proposals.c.id,
    leases.c.annotator != bindparam("me"),
    leases.c.purpose == "label",
    _IS_LIVE,
)
_IS_FREE = or_(
    ~exists().where(_HELD_BY_OTHERS),
    and_(
        proposals.c.copies > 1,
        judgements() + select(func.count()).where(_HELD_BY_OTHERS).scalar_subquery()
        < proposals.c.copies,
    ),
)
"""An open proposal needs one more annotator than answered and hold it."""

CLAIMABLE = (
    select(proposals)
    .where(
        proposals.c.predicate == bindparam("predicate"),
        proposals.c.is_open,
        ~answered_by_me(),
        _OTHERS,
    )
    .order_by(proposals.c.rank, proposals.c.id)
)
"""Open proposals that the annotator did not answer, by rank, leases aside."""

# Another transaction's rows are passed over, not waited for. A foreign key's check, which leases
# make, does not conflict with this lock.
_FREE = (
    CLAIMABLE.where(_IS_FREE)
    .limit(bindparam("many"))
    .with_for_update(skip_locked=True, key_share=True)
)
_STILL_FREE = select(proposals.c.id).where(
    proposals.c.id.in_(bindparam("ids", expanding=True)), proposals.c.is_open, _IS_FREE
)
_WAITING = CLAIMABLE.with_only_columns(proposals.c.id).order_by(None).subquery()
_COUNT_WAITING = select(func.count()).select_from(_WAITING)
_FIRST_END = select(func.min(leases.c.expires_at)).where(
    leases.c.proposal_id.in_(select(_WAITING.c.id)), leases.c.annotator != bindparam("me"), _IS_LIVE
)

_MINE = (
    select(
        proposals,
        leases.c.purpose.label("lease_purpose"),
        leases.c.position,
        leases.c.expires_at,
        cast(and_(is_faulty(), ~is_known_fault()), Integer).label("is_faulty"),
        cast(is_wanted(), Integer).label("is_wanted"),
    )
    .join_from(leases, proposals, proposals.c.id == leases.c.proposal_id)
    .where(_ME)
    .order_by(leases.c.position)
)
_MY_IDS = select(leases.c.proposal_id).where(_ME)
_MY_FIRST = select(func.min(leases.c.position)).where(_ME)
_RENEW = update(leases).where(_THESE).values(expires_at=bindparam("ends"))
_FORGET = delete(leases).where(_THESE, leases.c.purpose == "label")
_END = update(leases).where(_THESE, leases.c.expires_at != _ENDED).values(expires_at=_ENDED)
_FINISH = delete(leases).where(_ME, leases.c.proposal_id == bindparam("proposal"))
_WHY = select(leases.c.purpose).where(_ME, leases.c.proposal_id == bindparam("proposal"))
_WHY_BEFORE = select(current_answers.c.purpose).where(
    current_answers.c.proposal_id == bindparam("proposal"),
    current_answers.c.annotator == bindparam("me"),
)
_IS_GOLD = select(exists().where(gold.c.proposal_id == bindparam("proposal")))

_GOLD = (
    select(proposals)
    .join_from(gold, proposals, proposals.c.id == gold.c.proposal_id)
    .where(
        proposals.c.predicate == bindparam("predicate"),
        _OTHERS,
        ~answered_by_me(("label", "gold", "repeat", "adjudication")),
        or_(gold.c.verdict.in_(tuple(FAULTS)), ~is_faulty()),  # who sees that fault is measured
    )
    .order_by(proposals.c.id)
    .limit(bindparam("many"))
)
"""Gold items that the annotator has never answered, in an order that says nothing."""


def _repeats() -> Select[Any]:
    """Own labels that lie enough answers back and were not asked again, newest first.

    So the answers in between are about as many each time, over the whole campaign.
    """
    older = (
        select(events.c.id, events.c.proposal_id, events.c.purpose, events.c.verdict)
        .where(events.c.annotator == bindparam("me"), not_undone())
        .order_by(events.c.id.desc())
        .offset(bindparam("after"))
        .limit(_LOOK_BACK)
        .subquery()
    )
    since = events.alias()
    given_since = (
        select(func.max(since.c.id))
        .where(since.c.proposal_id == older.c.proposal_id, since.c.annotator == bindparam("me"))
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
            proposals.c.predicate == bindparam("predicate"),
            _OTHERS,
            ~is_faulty(),
        )
        .order_by(older.c.id.desc())
        .limit(bindparam("many"))
    )


_REPEATS = _repeats()


class Leases:
    """The questions that annotators have on their screens.

    A lease is live until it ends, on the clock that is asked now. One that ends much further ahead
    than a lease is long was made before the clock was set back: it counts as ended, too. Nothing
    needs to clear ended leases away; whoever asks is given them in the same query.

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
        new = insert(leases)
        again = {name: new.excluded[name] for name in ("purpose", "position", "expires_at")}
        self._add = new.on_conflict_do_update(
            index_elements=("proposal_id", "annotator"), set_=again
        )
        self._clock = clock
        self._settings = settings
        self._draw = draw

    def claim(self, connection: Connection, predicate: int, annotator: str, limit: int) -> Claim:
        """Hand out questions: first those that the annotator holds, in the same order as before.

        Args:
            connection: a writing transaction, in which it is the annotator's turn.
            predicate: what they are about; leases on other predicates stay as they are.
            annotator: who asks.
            limit: at most so many.
        """
        now = self._clock().timestamp()
        ends = now + self._settings.lease_seconds
        horizon = ends + _SKEW_SECONDS
        asker = {"me": annotator, "predicate": predicate, "now": now, "horizon": horizon}
        own = connection.execute(_MINE, asker).all()
        kept, given_up = [], []
        for row in own:
            is_live = now < row.expires_at <= horizon
            if is_live and row.predicate != predicate:
                continue  # it may be on the screen of another tab
            if is_live and _is_askable(row):
                kept.append(row)
            elif row.lease_purpose == "label" or is_live:
                given_up.append(row.id)
        self._end(connection, annotator, given_up)
        kept = kept[:limit]
        if kept:
            connection.execute(_RENEW, {"me": annotator, "ids": _ids(kept), "ends": ends})
        fresh: list[tuple[Row[Any], Purpose]] = []
        if len(kept) < limit:
            fresh = self._fresh(connection, asker, kept, limit - len(kept))
            last = max((row.position for row in own), default=0)
            self._lease(connection, annotator, fresh, last + 1, ends)
        questions = tuple(to_proposal(row) for row in (*kept, *(row for row, _ in fresh)))
        if questions and len(questions) == limit:
            return Claim(questions)
        return _held(connection, asker | {"besides": [asked.id for asked in questions]}, questions)

    def purpose(self, connection: Connection, proposal_id: str, annotator: str) -> Purpose:
        """Why the annotator was asked; a lease that has ended still says it."""
        asked = {"me": annotator, "proposal": proposal_id}
        for known in (_WHY, _WHY_BEFORE):  # without a lease: whoever thought better of an answer
            purpose: Purpose | None = connection.execute(known, asked).scalar_one_or_none()
            if purpose is not None:
                return purpose
        return "gold" if connection.execute(_IS_GOLD, asked).scalar_one() else "label"

    def finish(self, connection: Connection, proposal_id: str, annotator: str) -> None:
        """The annotator has answered."""
        connection.execute(_FINISH, {"me": annotator, "proposal": proposal_id})

    def restore(
        self, connection: Connection, proposal: Proposal, annotator: str, purpose: Purpose
    ) -> None:
        """An answer was taken back: it is the next question again, asked for the same purpose."""
        first = connection.execute(_MY_FIRST, {"me": annotator}).scalar_one()
        ends = self._clock().timestamp() + self._settings.lease_seconds
        self._lease(connection, annotator, [(proposal, purpose)], (first or 0) - 1, ends)

    def release(self, connection: Connection, annotator: str, ids: Collection[str] | None) -> None:
        """Give up what the annotator holds of these proposals; of all if None."""
        held = connection.execute(_MY_IDS, {"me": annotator}).scalars().all()
        if ids is not None:
            held = [identifier for identifier in held if identifier in ids]
        self._end(connection, annotator, held)

    # ------------------------------------------------------------------

    def _end(self, connection: Connection, annotator: str, ids: Sequence[str]) -> None:
        """Let others be asked; gold and repeats stay noted, for an answer that is on its way."""
        if ids:
            connection.execute(_FORGET, {"me": annotator, "ids": ids})
            connection.execute(_END, {"me": annotator, "ids": ids})

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
            connection.execute(self._add, rows)

    def _fresh(
        self, connection: Connection, asker: dict[str, Any], kept: Sequence[Row[Any]], count: int
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
        asker = asker | {"besides": _ids(kept), "after": settings.repeat_after}
        found: dict[str, list[Row[Any]]] = {"gold": [], "repeat": []}
        for measure, query in (("gold", _GOLD), ("repeat", _REPEATS)):
            if many := sum(purpose == measure for purpose in order):
                found[measure] = list(connection.execute(query, asker | {"many": many}))
                asker["besides"] = [*asker["besides"], *_ids(found[measure])]
        missing = count - len(found["gold"]) - len(found["repeat"])
        waiting = _labels(connection, asker | {"many": max(1, missing)})
        if not waiting and not any(row.lease_purpose == "label" for row in kept):
            return []  # the queue has come to its end; nobody is kept just to be measured
        found["label"] = waiting[:missing]
        fresh: list[tuple[Row[Any], Purpose]] = []
        for purpose in order:
            source: Purpose = purpose if found[purpose] else "label"
            if found[source]:
                fresh.append((found[source].pop(0), source))
        return fresh


def _labels(connection: Connection, asker: dict[str, Any]) -> list[Row[Any]]:
    rows = list(connection.execute(_FREE, asker))
    if not rows or connection.dialect.name == "sqlite":
        return rows
    # On PostgreSQL a lease may have been committed between the statement's beginning and its lock
    # of the row; a second look, with the lock in hand, sees it.
    sure = set(connection.execute(_STILL_FREE, asker | {"ids": _ids(rows)}).scalars())
    return [row for row in rows if row.id in sure]


def _held(connection: Connection, asker: dict[str, Any], questions: tuple[Proposal, ...]) -> Claim:
    held = connection.execute(_COUNT_WAITING, asker).scalar_one()
    if not held or questions:
        return Claim(questions, held)
    first_end = connection.execute(_FIRST_END, asker).scalar_one()
    return Claim((), held, 0.0 if first_end is None else first_end - asker["now"])


def _ids(rows: Iterable[Row[Any]]) -> list[str]:
    return [row.id for row in rows]


def _is_askable(row: Row[Any]) -> bool:
    """Whether a question that somebody holds is still one; it may have left the queue since."""
    if row.lease_purpose == "label":
        return bool(row.is_wanted)
    return not row.is_faulty
