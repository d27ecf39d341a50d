"""Answers as events, which are only ever appended: answering, undoing, settling disputes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from haystack.annotate.records import (
    Answer,
    KeyConflictError,
    Proposal,
    Purpose,
    Verdict,
    check_names,
    check_verdict,
)
from haystack.annotate.store.database import Database
from haystack.annotate.store.leases import Leases
from haystack.annotate.store.queue import Queue
from haystack.annotate.store.rows import (
    AS_ASKED,
    FAULTS,
    LABELS,
    Scope,
    answers_from,
    find_proposal,
    not_undone,
    to_answer,
)
from haystack.annotate.store.schema import (
    current_answers,
    events,
    gold,
    proposals,
    segment_faults,
)
from haystack.annotate.store.tallies import Tallies
from haystack.errors import InputError
from haystack.times import timestamp

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import Connection, Row, Select, bindparam, exists, or_, select  # isort: skip

_BY_KEY = answers_from(events).where(events.c.key == bindparam("key"))
_HAS_FAULTS = select(
    or_(
        exists().where(segment_faults.c.image_id == bindparam("image")),
        exists().where(
            gold.c.verdict.in_(tuple(FAULTS)),
            proposals.c.id == gold.c.proposal_id,
            proposals.c.image_id == bindparam("image"),
        ),
    )
)


class Events:
    """Appends events, and brings the queue and the counts up to date in the same transaction.

    Args:
        database: where they are kept.
        insert: of the database's dialect.
        clock: the time of an event; only recorded, never used to order events.
        queue: whose proposals are answered.
        leases: that end with an answer.
        tallies: counts to keep.
    """

    def __init__(
        self,
        database: Database,
        insert: Callable[..., Any],
        clock: Callable[[], datetime],
        queue: Queue,
        leases: Leases,
        tallies: Tallies,
    ) -> None:
        self._database = database
        self._add = insert(events).on_conflict_do_nothing().returning(events.c.id)
        self._clock = clock
        self._queue = queue
        self._leases = leases
        self._tallies = tallies

    def answer(
        self,
        connection: Connection,
        proposal_id: str,
        verdict: Verdict,
        annotator: str,
        key: str,
        dwell_ms: int | None,
    ) -> Answer:
        """Append an answer; see :meth:`AnnotationStore.answer`."""
        check_verdict(verdict)
        if dwell_ms is not None and not 0 <= dwell_ms < 2**31:
            raise InputError(f"expected dwell_ms to be 0 or more milliseconds, got {dwell_ms}")
        check_names(annotator, key)
        content = {"proposal_id": proposal_id, "annotator": annotator, "verdict": verdict}
        saved = self._saved(connection, key)
        if saved is not None:
            return _replayed(saved, content)
        asked = find_proposal(connection, proposal_id)
        self._database.take_turns(connection, "annotator", annotator)
        purpose = self._leases.purpose(connection, proposal_id, annotator)
        self._leases.finish(connection, proposal_id, annotator)
        return self._judge(connection, key, asked, content, purpose, dwell_ms)

    def adjudicate(
        self, connection: Connection, proposal_id: str, verdict: Verdict, lead: str, key: str
    ) -> Answer:
        """Append a lead's decision; see :meth:`AnnotationStore.adjudicate`."""
        check_verdict(verdict)
        if verdict == "skip":
            raise InputError("expected a verdict that settles the dispute, got 'skip'")
        check_names(lead, key)
        content = {"proposal_id": proposal_id, "annotator": lead, "verdict": verdict}
        content["purpose"] = "adjudication"
        saved = self._saved(connection, key)
        if saved is not None:
            return _replayed(saved, content)
        asked = find_proposal(connection, proposal_id)
        answered = exists().where(current_answers.c.proposal_id == proposal_id)
        if not connection.execute(select(answered)).scalar_one():
            raise InputError(
                "expected a proposal that somebody answered, got one without an answer; answer it "
                "on the page that asks",
                record=f"proposal {proposal_id}",
            )
        self._database.take_turns(connection, "annotator", lead)
        return self._judge(connection, key, asked, content, "adjudication", None)

    def undo(
        self,
        connection: Connection,
        annotator: str,
        key: str | None,
        purposes: Collection[Purpose],
    ) -> Proposal | None:
        """Retract the latest answer; see :meth:`AnnotationStore.undo`."""
        check_names(annotator, key)
        self._database.take_turns(connection, "annotator", annotator)
        replay = self._saved(connection, key) if key else None
        if replay is not None:
            _check_replay(replay, {"annotator": annotator, "verdict": "undo"})
            return find_proposal(connection, replay.proposal_id)
        last = connection.execute(_latest_of(annotator, purposes)).one_or_none()
        if last is None:
            return None
        asked = find_proposal(connection, last.proposal_id)
        content = {"annotator": annotator, "verdict": "undo", "proposal_id": asked.id}
        retracting = {"purpose": last.purpose, "retracts": last.id, "dwell_ms": None}
        # "/": no key from outside looks like it.
        self._append(connection, key or f"undo/{last.id}", asked, **content, **retracting)
        if last.purpose != "adjudication":
            self._leases.restore(connection, asked, annotator, last.purpose)
        return asked

    # ------------------------------------------------------------------

    def _judge(
        self,
        connection: Connection,
        key: str,
        asked: Proposal,
        content: dict[str, Any],
        purpose: Purpose,
        dwell_ms: int | None,
    ) -> Answer:
        given = content | {"purpose": purpose, "dwell_ms": dwell_ms}
        appended = self._append(connection, key, asked, **given)
        saved = connection.execute(_BY_KEY, {"key": key}).one()
        return to_answer(saved) if appended else _replayed(saved, content)

    def _append(self, connection: Connection, key: str, asked: Proposal, **content: Any) -> bool:
        """Append an event, and what follows from it; False if the key exists already."""
        verdict, annotator = content["verdict"], content["annotator"]
        row = content | {"key": key, "created_at": timestamp(self._clock())}
        row = {"retracts": None} | row | {name: getattr(asked, name) for name in AS_ASKED}
        if content["purpose"] not in LABELS:  # nothing follows from it
            return connection.execute(self._add, row).scalar_one_or_none() is not None
        self._database.take_turns(connection, "image", asked.image_id)
        scope = touched_by(connection, asked, verdict)
        with self._tallies.following(connection, annotator, scope):
            event_id = connection.execute(self._add, row).scalar_one_or_none()
            if event_id is None:
                return False
            if verdict in FAULTS:
                segment = getattr(asked, FAULTS[verdict])
                fault = {"event_id": event_id, "image_id": asked.image_id, "segment": segment}
                connection.execute(segment_faults.insert(), fault)
            self._queue.reopen(connection, scope)
        return True

    def _saved(self, connection: Connection, key: str) -> Row[Any] | None:
        return connection.execute(_BY_KEY, {"key": key}).one_or_none()


def touched_by(connection: Connection, asked: Proposal, verdict: str = "") -> Scope:
    """What an event can open or close: its proposal, or with faults all of the image's."""
    image = {"image": asked.image_id}
    if verdict in FAULTS or connection.execute(_HAS_FAULTS, image).scalar_one():
        return Scope("image_id", asked.image_id)
    return Scope("id", asked.id)


def _latest_of(annotator: str, purposes: Collection[Purpose]) -> Select[Any]:
    return (
        select(events)
        .where(events.c.annotator == annotator, events.c.purpose.in_(purposes), not_undone())
        .order_by(events.c.id.desc())
        .limit(1)
    )


def _replayed(saved: Row[Any], content: dict[str, Any]) -> Answer:
    _check_replay(saved, content)
    return to_answer(saved)


def _check_replay(saved: Row[Any], content: dict[str, Any]) -> None:
    for name, value in content.items():
        if getattr(saved, name) != value:
            raise KeyConflictError(
                f"the key {saved.key!r} already stands for another event ({name} was "
                f"{getattr(saved, name)!r}, now {value!r}); give every event a key of its own"
            )
