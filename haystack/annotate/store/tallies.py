"""Counts of every predicate and annotator, kept beside the events so that reading them is cheap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from haystack.annotate.records import Progress
from haystack.annotate.store.rows import FAULTS, Scope, by_scope
from haystack.annotate.store.schema import RECOUNT, current_answers, proposals, tallies

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import Connection, bindparam, case, func, select, text  # isort: skip

_KEY = ("predicate", "annotator")
_COUNTS = tuple(column.name for column in tallies.columns if column.name not in _KEY)
_NOBODY = ""

Counts = Counter[tuple[int, str, str]]
"""(predicate, annotator, name of a count) -> number."""


class Tallies:
    """Counts that follow from the events; a change adds the difference that it makes.

    Both states of what a change can touch are counted from the events themselves, so a count
    cannot drift from them.

    Args:
        insert: of the database's dialect.
    """

    def __init__(self, insert: Callable[..., Any]) -> None:
        new = insert(tallies)
        grown = {name: tallies.c[name] + new.excluded[name] for name in _COUNTS}
        self._add = new.on_conflict_do_update(index_elements=_KEY, set_=grown)

    @contextmanager
    def following(self, connection: Connection, annotator: str, scope: Scope) -> Iterator[None]:
        """Count what the block changes.

        Args:
            connection: a writing transaction.
            annotator: who changes it.
            scope: has every proposal that the block may change.
        """
        before = _counted(connection, annotator, scope)
        yield
        change = _counted(connection, annotator, scope)
        change.subtract(before)
        rows: dict[tuple[int, str], dict[str, int]] = {}
        for (predicate, who, name), number in change.items():
            if number:
                rows.setdefault((predicate, who), dict.fromkeys(_COUNTS, 0))[name] = number
        if rows:
            # In order, so that no two transactions wait for each other.
            connection.execute(
                self._add, [dict(zip(_KEY, key, strict=True)) | rows[key] for key in sorted(rows)]
            )


_STATES = by_scope(
    lambda scope: (
        select(
            proposals.c.id,
            proposals.c.predicate,
            proposals.c.is_open,
            proposals.c.is_queued,
            current_answers.c.annotator,
            current_answers.c.verdict,
        )
        .join_from(
            proposals,
            current_answers,
            current_answers.c.proposal_id == proposals.c.id,
            isouter=True,
        )
        .where(scope)
    )
)


def _counted(connection: Connection, annotator: str, scope: Scope) -> Counts:
    counts: Counts = Counter()
    seen: set[str] = set()
    for row in connection.execute(_STATES[scope.column], {"scope": scope.value}):
        if row.id not in seen and (row.is_queued or row.verdict is not None):
            counts[row.predicate, annotator, "total"] += 1
            counts[row.predicate, annotator, "open"] += row.is_open
            seen.add(row.id)
        if row.verdict is not None:
            name = "faulty" if row.verdict in FAULTS else row.verdict
            counts[row.predicate, row.annotator, name] += 1
            counts[row.predicate, row.annotator, "seen_open"] += row.is_open
    return counts


def recount(connection: Connection) -> None:
    """Count everything anew, as after another queue was loaded."""
    for statement in RECOUNT:
        connection.execute(text(statement))


_PROGRESS = (
    select(
        tallies.c.predicate,
        *(func.sum(tallies.c[name]).label(name) for name in _COUNTS),
        func.sum(
            case((tallies.c.annotator == bindparam("me"), tallies.c.seen_open), else_=0)
        ).label("seen_here"),
    )
    .group_by(tallies.c.predicate)
    .having(func.sum(tallies.c.total) > 0)
    .order_by(tallies.c.predicate)
)


def read_progress(connection: Connection, annotator: str | None) -> dict[int, Progress]:
    """Counts per predicate; ``open`` leaves out what this annotator answered already."""
    return {
        row.predicate: Progress(
            row.predicate,
            row.total,
            row.open - row.seen_here,
            row.correct,
            row.incorrect,
            row.no_relation,
            row.skip,
            row.faulty,
        )
        for row in connection.execute(_PROGRESS, {"me": annotator or _NOBODY})
    }
