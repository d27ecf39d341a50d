"""The queue: which proposals are asked at all, and in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from haystack.annotate.records import Proposal
from haystack.annotate.settings import QueueSettings
from haystack.annotate.store.database import Database
from haystack.annotate.store.rows import (
    AS_ASKED,
    Scope,
    by_scope,
    is_unrelated,
    is_wanted,
    proposal_values,
)
from haystack.annotate.store.schema import current_answers, meta, proposals, rounds
from haystack.annotate.store.tallies import recount
from haystack.errors import InputError
from haystack.times import timestamp

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import (  # isort: skip
    ColumnElement,
    Connection,
    Update,
    and_,
    bindparam,
    exists,
    not_,
    or_,
    select,
    text,
    true,
    update,
)

_LOAD_BATCH = 5_000


def _reopen(scope: ColumnElement[bool]) -> Update:
    is_open = and_(proposals.c.is_queued, is_wanted())
    return (
        update(proposals)
        .where(scope, proposals.c.is_open != is_open)
        .values(is_open=not_(proposals.c.is_open))
    )


_REOPEN = by_scope(_reopen)


class Queue:
    """The proposals of the newest round, and what is kept of earlier ones.

    Args:
        database: where it is kept.
        insert: of the database's dialect.
        clock: when a round was loaded.
        settings: how many annotators answer each question.
    """

    def __init__(
        self,
        database: Database,
        insert: Callable[..., Any],
        clock: Callable[[], datetime],
        settings: QueueSettings,
    ) -> None:
        self._database = database
        self._clock = clock
        self._insert = insert
        self._settings = settings

    def load(
        self, rows: Iterable[Proposal], round: int, notes: str, asked: Collection[int] | None
    ) -> int:
        """Make ``rows`` the queue; see :meth:`AnnotationStore.load_proposals`."""
        values: dict[str, dict[str, Any]] = {}
        digest = hashlib.sha256(repr(asked if asked is None else sorted(asked)).encode())
        for row in rows:
            content = proposal_values(row) | {
                "round": round,
                "copies": self._settings.copies_for(row.predicate, row.id),
                "breaks_ties": self._settings.tie_breaker,
            }
            if values.setdefault(content["id"], content) is not content:
                raise InputError(
                    f"subject {row.subject}, object {row.object}, predicate {row.predicate} is "
                    "in the queue twice; propose each question once",
                    record=f"image {row.image_id}",
                )
            digest.update(repr(list(content.values())).encode())
        statement = self._insert(proposals)
        replaced = (
            *("image_key", "cluster", "segments", "is_queued", "copies", "breaks_ties"),
            *AS_ASKED,
        )
        statement = statement.on_conflict_do_update(
            index_elements=["id"], set_={name: statement.excluded[name] for name in replaced}
        )
        batch = [content | {"is_queued": True, "is_open": False} for content in values.values()]
        with self._database.write(exclusive=True) as connection:
            if self._is_loaded(connection, digest.hexdigest()):
                return len(batch)
            self._refuse_other_segments(connection, values.values())
            self._keep_begun(connection, asked)
            for start in range(0, len(batch), _LOAD_BATCH):
                connection.execute(statement, batch[start : start + _LOAD_BATCH])
            self._record_round(connection, round, len(batch), notes)
            connection.execute(_reopen(true()))
            recount(connection)
            if not self._database.is_sqlite:
                connection.execute(text("ANALYZE proposals"))  # plans would be those of before
        return len(batch)

    def reopen(self, connection: Connection, scope: Scope) -> None:
        """Recompute ``is_open`` from the events.

        Args:
            connection: a writing transaction.
            scope: has every proposal that may have changed.
        """
        connection.execute(_REOPEN[scope.column], {"scope": scope.value})

    def _keep_begun(self, connection: Connection, asked: Collection[int] | None) -> None:
        """Leave in the queue only questions that were begun and still want somebody's answer.

        Begun are those that some annotators judged and others must, and those that were skipped:
        a skip leaves the question to others, unless somebody said that nothing relates the pair.
        """
        said = exists().where(current_answers.c.proposal_id == proposals.c.id)
        judged = said.where(current_answers.c.verdict != "skip")
        begun = and_(said, or_(judged, ~is_unrelated()), is_wanted())
        if asked is not None:
            begun = and_(begun, proposals.c.predicate.in_(asked))
        connection.execute(
            update(proposals).where(proposals.c.is_queued != begun).values(is_queued=begun)
        )
        kept = select(proposals.c.id, proposals.c.predicate).where(proposals.c.is_queued)
        changes = [
            {
                "kept": row.id,
                "copies": self._settings.copies_for(row.predicate, row.id),
                "breaks_ties": self._settings.tie_breaker,
            }
            for row in connection.execute(kept)
        ]
        if changes:
            connection.execute(
                update(proposals).where(proposals.c.id == bindparam("kept")), changes
            )

    def _record_round(self, connection: Connection, round: int, count: int, notes: str) -> None:
        loaded_at = timestamp(self._clock())
        row = {"loaded_at": loaded_at, "proposals": count, "notes": notes}
        connection.execute(
            self._insert(rounds)
            .values(round=round, **row)
            .on_conflict_do_update(index_elements=["round"], set_=row)
        )

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
