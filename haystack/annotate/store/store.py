"""The store of an annotation campaign: a queue of proposals and the events that answer them."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from haystack.annotate.records import (
    VERDICTS,
    Answer,
    KeyConflictError,
    Progress,
    Proposal,
    UnknownProposalError,
    Verdict,
)
from haystack.annotate.store.database import Database
from haystack.annotate.store.schema import (
    current_answers,
    events,
    faulty_segments,
    meta,
    proposals,
    segment_faults,
)
from haystack.errors import InputError

# These follow the import above, which explains a missing SQLAlchemy.
from sqlalchemy import (  # isort: skip
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    Table,
    and_,
    case,
    cast,
    exists,
    false,
    func,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite  # isort: skip

_KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LONGEST_NAME = 200
_LOAD_BATCH = 5_000
_AS_ASKED = ("score", "rank", "round", "origin")
"""Later queues change these of a proposal; an event keeps what they were."""
_FAULTS = {"subject_faulty": "subject", "object_faulty": "object"}


def utc_now() -> datetime:
    """The time now, in UTC."""
    return datetime.now(timezone.utc)


class AnnotationStore:
    """Proposals to be asked, and every answer that was ever given.

    Answers are events that are only appended; undoing appends an event too. When a method that
    writes has returned, what it wrote survives the process being killed. Any number of threads
    may use one store; any number of processes may open the same database.

    Args:
        location: a file path (SQLite, made when it does not exist) or a ``postgresql://`` URL.
        clock: gives the time of an event; only recorded, never used to order events.

    Raises:
        InputError: the database is damaged, belongs to something else or to a newer Haystack.
        MissingDependencyError: SQLAlchemy, or for PostgreSQL psycopg, is not installed.
    """

    def __init__(self, location: str | Path, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = Database(location)
        self._clock = clock
        self._insert = sqlite.insert if self._database.is_sqlite else postgresql.insert

    def __enter__(self) -> AnnotationStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up every connection to the database."""
        self._database.close()

    @property
    def database(self) -> Database:
        """The database, for what else is kept in it; it is closed together with this store."""
        return self._database

    @property
    def schema_version(self) -> int:
        """The number of the newest migration."""
        return self._database.version

    @property
    def campaign(self) -> str:
        """A random name that this database got when it was made: one database, one campaign."""
        return self._database.campaign

    # ------------------------------------------------------------------ the queue

    def load_proposals(self, rows: Iterable[Proposal], round: int) -> int:
        """Make ``rows`` the queue; every answer given so far stays.

        Loading the same queue again changes nothing. A proposal of an earlier queue that is not
        among ``rows`` is not asked any more; one that was answered is not asked again.

        Args:
            rows: the whole queue, of all predicates.
            round: the round of proposals it belongs to; recorded with every row.

        Returns:
            The number of rows.

        Raises:
            InputError: a question is asked twice in ``rows``, or an image was answered on other
                segments than it has now; nothing was changed then.
        """
        values: dict[str, dict[str, Any]] = {}
        digest = hashlib.sha256()
        for row in rows:
            content = _values(row) | {"round": round}
            if values.setdefault(content["id"], content) is not content:
                raise InputError(
                    f"subject {row.subject}, object {row.object}, predicate {row.predicate} is "
                    "in the queue twice; propose each question once",
                    record=f"image {row.image_id}",
                )
            digest.update(repr(list(content.values())).encode())
        statement = self._insert(proposals)
        replaced = ("image_key", "cluster", "segments", "is_queued", *_AS_ASKED)
        statement = statement.on_conflict_do_update(
            index_elements=["id"], set_={name: statement.excluded[name] for name in replaced}
        )
        batch = [content | {"is_queued": True, "is_open": False} for content in values.values()]
        with self._database.write(exclusive=True) as connection:
            if self._is_loaded(connection, digest.hexdigest()):
                return len(batch)
            self._refuse_other_segments(connection, values.values())
            connection.execute(update(proposals).values(is_queued=False))
            for start in range(0, len(batch), _LOAD_BATCH):
                connection.execute(statement, batch[start : start + _LOAD_BATCH])
            self._reopen(connection)
        return len(batch)

    def upcoming(self, predicate: int, annotator: str, limit: int) -> list[Proposal]:
        """The next questions about ``predicate`` for ``annotator``, at most ``limit``, in order.

        Left out are those that anybody answered (a skip counts for the one who skipped), and
        those that use a segment which is known to be faulty.
        """
        own = exists().where(
            current_answers.c.proposal_id == proposals.c.id,
            current_answers.c.annotator == annotator,
        )
        query = (
            select(proposals)
            .where(proposals.c.predicate == predicate, proposals.c.is_open, ~own)
            .order_by(proposals.c.rank, proposals.c.id)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [_proposal(row) for row in connection.execute(query)]

    def next_proposal(self, predicate: int, annotator: str) -> Proposal | None:
        """The next question about ``predicate`` for ``annotator``; None when there is none."""
        return next(iter(self.upcoming(predicate, annotator, 1)), None)

    def proposal(self, proposal_id: str) -> Proposal:
        """The proposal with this id, in the queue or not.

        Raises:
            UnknownProposalError: there is none.
        """
        with self._database.read() as connection:
            return self._find(connection, proposal_id)

    def has_image(self, image_key: str) -> bool:
        """Whether any proposal is about the image with this key."""
        if "\0" in image_key:  # PostgreSQL refuses to look for it
            return False
        query = select(exists().where(proposals.c.image_key == image_key))
        with self._database.read() as connection:
            return bool(connection.execute(query).scalar_one())

    # ------------------------------------------------------------------ events

    def answer(
        self,
        proposal_id: str,
        verdict: Verdict,
        annotator: str,
        key: str,
        dwell_ms: int | None = None,
    ) -> Answer:
        """Save an answer; when this returns, it is on the disk.

        A later answer of the same annotator to the same proposal replaces this one. An answer to
        a proposal that has left the queue meanwhile is saved as well.

        Args:
            proposal_id: :attr:`Proposal.id` of the question.
            verdict: the answer.
            annotator: who answers.
            key: idempotency key; sending the same answer again under it saves nothing new.
            dwell_ms: milliseconds from the picture being shown to the answer.

        Raises:
            UnknownProposalError: there is no such proposal.
            KeyConflictError: the key already stands for another event.
            InputError: an unknown verdict, or a malformed key, annotator or time.
        """
        if verdict not in VERDICTS:
            raise InputError(f"expected a verdict of {', '.join(VERDICTS)}, got {verdict!r}")
        if dwell_ms is not None and not 0 <= dwell_ms < 2**31:
            raise InputError(f"expected dwell_ms to be 0 or more milliseconds, got {dwell_ms}")
        _check_names(annotator, key)
        content = {"proposal_id": proposal_id, "annotator": annotator, "verdict": verdict}
        with self._database.write() as connection:
            asked = self._find(connection, proposal_id)
            self._database.lock_image(connection, asked.image_id)
            event_id = self._append(connection, key, asked, **content, dwell_ms=dwell_ms)
            saved = connection.execute(_answers_from(events).where(events.c.key == key)).one()
            if event_id is None:
                _check_replay(saved, content)
            else:
                if verdict in _FAULTS:
                    segment = getattr(asked, _FAULTS[verdict])
                    fault = {"event_id": event_id, "image_id": asked.image_id, "segment": segment}
                    connection.execute(segment_faults.insert(), fault)
                self._reopen(connection, asked.image_id)
        return _answer(saved)

    def undo(self, annotator: str, key: str | None = None) -> Proposal | None:
        """Retract the annotator's latest answer that still counts; can be repeated without end.

        Args:
            annotator: whose answer.
            key: idempotency key; undoing again under it retracts nothing more.

        Returns:
            The proposal that is open again (unless others answered it or its segment is faulty);
            None when there is nothing left to undo.

        Raises:
            KeyConflictError: the key already stands for another event.
            InputError: a malformed key or annotator.
        """
        _check_names(annotator, key)
        while True:
            with self._database.write() as connection:
                replay = (
                    key
                    and connection.execute(select(events).where(events.c.key == key)).one_or_none()
                )
                if replay:
                    _check_replay(replay, {"annotator": annotator, "verdict": "undo"})
                    return self._find(connection, replay.proposal_id)
                last = connection.execute(_latest_of(annotator)).one_or_none()
                if last is None:
                    return None
                asked = self._find(connection, last.proposal_id)
                self._database.lock_image(connection, asked.image_id)
                done = self._append(
                    connection,
                    key or f"undo/{last.id}",  # "/": no key from outside looks like it
                    asked,
                    proposal_id=asked.id,
                    annotator=annotator,
                    verdict="undo",
                    retracts=last.id,
                    dwell_ms=None,
                )
                if done is not None:
                    self._reopen(connection, asked.image_id)
                    return asked
            # Somebody else undid the same answer at the same moment: look for the one before it.

    def event_count(self) -> int:
        """The number of events, undone ones and undos included."""
        with self._database.read() as connection:
            return connection.execute(select(func.count()).select_from(events)).scalar_one()

    # ------------------------------------------------------------------ what is known

    def answers(self) -> Iterator[Answer]:
        """Every annotator's current answer to every proposal.

        Ordered by image id, subject, object, predicate and annotator, so that the order does not
        depend on who answered first, nor on the database.
        """
        with self._database.read() as connection:
            rows = [_answer(row) for row in connection.execute(_answers_from(current_answers))]
        rows.sort(
            key=lambda answer: (
                answer.proposal.image_id,
                answer.proposal.subject,
                answer.proposal.object,
                answer.proposal.predicate,
                answer.annotator,
            )
        )
        return iter(rows)

    def faulty_segments(self) -> set[tuple[str, int]]:
        """(image id, segment index) of every segment that an answer calls faulty."""
        query = select(faulty_segments.c.image_id, faulty_segments.c.segment)
        with self._database.read() as connection:
            return {(row.image_id, row.segment) for row in connection.execute(query)}

    def progress(self, annotator: str | None = None) -> dict[int, Progress]:
        """Counts per predicate, in the order of the predicates.

        Args:
            annotator: leave what this annotator skipped out of ``open``.
        """
        answered = exists().where(current_answers.c.proposal_id == proposals.c.id)
        totals = (
            select(
                proposals.c.predicate,
                func.count().label("total"),
                func.sum(cast(proposals.c.is_open, Integer)).label("open"),
            )
            .where(or_(proposals.c.is_queued, answered))
            .group_by(proposals.c.predicate)
            .order_by(proposals.c.predicate)
        )
        skipped_here = func.sum(
            case((and_(proposals.c.is_open, current_answers.c.annotator == annotator), 1), else_=0)
        )
        verdicts = (
            select(
                proposals.c.predicate,
                current_answers.c.verdict,
                func.count().label("count"),
                skipped_here.label("skipped_here"),
            )
            .join(proposals, proposals.c.id == current_answers.c.proposal_id)
            .group_by(proposals.c.predicate, current_answers.c.verdict)
        )
        with self._database.read() as connection:
            counts = {
                row.predicate: {"total": row.total, "open": row.open}
                for row in connection.execute(totals)
            }
            for row in connection.execute(verdicts):
                count = counts[row.predicate]
                name = "faulty" if row.verdict in _FAULTS else row.verdict
                count[name] = count.get(name, 0) + row.count
                count["open"] -= row.skipped_here
        return {predicate: Progress(predicate, **count) for predicate, count in counts.items()}

    # ------------------------------------------------------------------ inside a transaction

    def _is_loaded(self, connection: Connection, digest: str) -> bool:
        """Whether the queue with this digest is the one that is loaded; remembers it if not."""
        remember = (
            self._insert(meta)
            .values(key="queue", value=digest)
            .on_conflict_do_update(
                index_elements=["key"], set_={"value": digest}, where=meta.c.value != digest
            )
            .returning(meta.c.key)
        )
        return connection.execute(remember).scalar_one_or_none() is None

    def _find(self, connection: Connection, proposal_id: str) -> Proposal:
        query = select(proposals).where(proposals.c.id == proposal_id)
        row = None if "\0" in proposal_id else connection.execute(query).one_or_none()
        if row is None:
            raise UnknownProposalError(
                f"there is no proposal {proposal_id!r} here; was another queue loaded meanwhile?"
            )
        return _proposal(row)

    def _append(
        self, connection: Connection, key: str, asked: Proposal, **content: object
    ) -> int | None:
        """Append an event; None if the key, or the retraction of that answer, exists already."""
        moment = self._clock().astimezone(timezone.utc)
        statement = (
            self._insert(events)
            .values(
                **content,
                key=key,
                created_at=moment.isoformat(timespec="microseconds").replace("+00:00", "Z"),
                **{name: getattr(asked, name) for name in _AS_ASKED},
            )
            .on_conflict_do_nothing()
            .returning(events.c.id)
        )
        return connection.execute(statement).scalar_one_or_none()

    def _refuse_other_segments(
        self, connection: Connection, rows: Iterable[Mapping[str, Any]]
    ) -> None:
        """An answer about positions must not be read as one about other segments."""
        now = {row["image_id"]: row["segments"] for row in rows}
        answered = exists().where(current_answers.c.proposal_id == proposals.c.id)
        query = select(proposals.c.image_id, proposals.c.segments).where(answered).distinct()
        for image_id, then in connection.execute(query.order_by(proposals.c.image_id)):
            if now.get(image_id, then) != then:
                raise InputError(
                    "it was answered on other segments than it has now; segment as before, or use "
                    "a new database for the new segmentation",
                    path=self._database.name,
                    record=f"image {image_id}",
                )

    def _reopen(self, connection: Connection, image_id: str | None = None) -> None:
        """Recompute ``is_open`` from the events, for one image or for all."""
        answered = exists().where(
            current_answers.c.proposal_id == proposals.c.id, current_answers.c.verdict != "skip"
        )
        faulty = exists().where(
            faulty_segments.c.image_id == proposals.c.image_id,
            faulty_segments.c.segment.in_((proposals.c.subject, proposals.c.object)),
        )
        is_open = and_(proposals.c.is_queued, ~answered, ~faulty)
        scope: ColumnElement[bool] = (
            true() if image_id is None else proposals.c.image_id == image_id
        )
        for state, holds in ((true(), is_open), (false(), ~is_open)):
            connection.execute(
                update(proposals)
                .where(scope, proposals.c.is_open != state, holds)
                .values(is_open=state)
            )


def _latest_of(annotator: str) -> Any:
    undone = events.alias("undone")
    return (
        select(events)
        .where(
            events.c.annotator == annotator,
            events.c.verdict != "undo",
            ~exists().where(undone.c.retracts == events.c.id),
        )
        .order_by(events.c.id.desc())
        .limit(1)
    )


def _check_names(annotator: str, key: str | None) -> None:
    if not annotator.strip() or len(annotator) > _LONGEST_NAME or not annotator.isprintable():
        raise InputError(
            f"expected an annotator's name of 1 to {_LONGEST_NAME} printable characters, "
            f"got {annotator[:40]!r}"
        )
    if key is not None and not _KEY.fullmatch(key):
        raise InputError(
            f"expected a key of 1 to 128 letters, digits and . _ : - characters, got {key[:40]!r}"
        )


def _check_replay(saved: Row[Any], content: dict[str, Any]) -> None:
    for name, value in content.items():
        if getattr(saved, name) != value:
            raise KeyConflictError(
                f"the key {saved.key!r} already stands for another event ({name} was "
                f"{getattr(saved, name)!r}, now {value!r}); give every event a key of its own"
            )


_PROPOSAL_FIELDS = tuple(field.name for field in dataclasses.fields(Proposal))
_ANSWER_FIELDS = tuple(
    field.name for field in dataclasses.fields(Answer) if field.name != "proposal"
)


def _values(proposal: Proposal) -> dict[str, Any]:
    return {"id": proposal.id} | {name: getattr(proposal, name) for name in _PROPOSAL_FIELDS}


def _proposal(row: Row[Any]) -> Proposal:
    return Proposal(**{name: getattr(row, name) for name in _PROPOSAL_FIELDS})


def _answers_from(source: Table) -> Select[Any]:
    """Events with their questions; ``_AS_ASKED`` are those of the time of the answer."""
    asked = [source.c.get(name, proposals.c[name]) for name in _PROPOSAL_FIELDS]
    said = [source.c[name] for name in _ANSWER_FIELDS]
    return select(*asked, source.c.proposal_id, *said).join_from(
        source, proposals, proposals.c.id == source.c.proposal_id
    )


def _answer(row: Row[Any]) -> Answer:
    return Answer(_proposal(row), **{name: getattr(row, name) for name in _ANSWER_FIELDS})
