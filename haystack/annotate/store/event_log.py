"""Everything that people said, as records that leave one database and enter another.

A record is a plain mapping whose ``record`` says what it is:

- ``event``: one answer or undo, with the whole question, so that labels follow from events alone;
- ``gold``: a question whose answer is known;
- ``wording``: what someone called a relation; ``predicate_name``: the words that a lead chose;
- ``round``: a queue that was loaded.

Accounts and leases are left behind: tokens leave no database, and a lease lasts minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from haystack.annotate.labels import KNOWN
from haystack.annotate.store.database import Database, Readable
from haystack.annotate.store.schema import (
    events,
    gold,
    predicate_names,
    proposals,
    rounds,
    segment_faults,
    wordings,
)
from haystack.annotate.store.tallies import recount
from haystack.errors import InputError
from haystack.text import without_folders

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import Connection, Table, func, select, text  # isort: skip
from sqlalchemy.dialects import postgresql, sqlite  # isort: skip
from sqlalchemy.exc import IntegrityError  # isort: skip

Record = Mapping[str, Any]

_QUESTION = ("image_id", "image_key", "subject", "object", "predicate", "cluster", "segments")
_AS_ASKED = ("score", "rank", "round", "origin")
_SAID = ("key", "annotator", "verdict", "purpose", "dwell_ms", "created_at")
_FAULTS = {"subject_faulty": "subject", "object_faulty": "object"}
_PLAIN: Mapping[str, Table] = {
    "wording": wordings,
    "predicate_name": predicate_names,
    "round": rounds,
}
_PEOPLE = {
    "event": "annotator",
    "gold": "set_by",
    "wording": "annotator",
    "predicate_name": "set_by",
}
_BATCH = 2_000


def event_records(database: Readable) -> Iterator[dict[str, Any]]:
    """Every event in the order of arrival, undone ones and undos included; a few at a time.

    Keys: ``record, event`` (its number), ``proposal`` (id of the question), the question as in
    ``records.Proposal``, with the score, rank, round and origin that it had when it was answered;
    ``key, annotator, verdict, purpose, dwell_ms, created_at``; ``retracts``, the number of the
    event that an undo takes back; ``retracted_by``, that of the undo that took this one back.
    """
    undo = events.alias("undo")
    query = (
        select(
            events.c.id.label("event"),
            events.c.proposal_id.label("proposal"),
            *(proposals.c[name] for name in _QUESTION),
            *(events.c[name] for name in (*_AS_ASKED, *_SAID)),
            events.c.retracts,
            undo.c.id.label("retracted_by"),
        )
        .join(proposals, proposals.c.id == events.c.proposal_id)
        .outerjoin(undo, undo.c.retracts == events.c.id)
        .order_by(events.c.id)
    )
    with database.read() as connection:
        for row in connection.execute(query, execution_options={"yield_per": _BATCH}):
            origin = without_folders(row.origin)
            yield {"record": "event", **row._mapping, "origin": origin}


def other_records(database: Readable) -> Iterator[dict[str, Any]]:
    """Gold items, wordings, names of predicates and rounds, each kind in a fixed order."""
    items = (
        select(*_question_columns(), gold.c.verdict, gold.c.set_by, gold.c.set_at)
        .join(proposals, proposals.c.id == gold.c.proposal_id)
        .order_by(gold.c.proposal_id)
    )
    with database.read() as connection:
        for row in connection.execute(items):
            origin = without_folders(row.origin)
            yield {"record": "gold", **row._mapping, "origin": origin}
        for kind, table in _PLAIN.items():
            first = next(iter(table.primary_key.columns))
            for row in connection.execute(select(table).order_by(first)):
                yield {"record": kind, **row._mapping}


def wordings_shown(
    database: Database, otherwise: Callable[[int], str]
) -> Callable[[int, str], str]:
    """A function that gives the words in which a predicate was asked about at a time.

    Args:
        database: with the names that leads chose.
        otherwise: what is shown of a predicate that nobody named.
    """
    chosen: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for record in other_records(database):
        if record["record"] == "predicate_name":
            chosen[record["predicate"]].append((record["set_at"], record["name"]))

    def shown(predicate: int, moment: str) -> str:
        before = [name for set_at, name in chosen[predicate] if set_at <= moment]
        return (before[-1] if before else "") or otherwise(predicate)

    return shown


def pseudonyms(database: Readable) -> dict[str, str]:
    """Annotator -> ``annotator-1``, ``annotator-2``, ..., by who answered first."""
    query = select(events.c.annotator).group_by(events.c.annotator).order_by(func.min(events.c.id))
    with database.read() as connection:
        names = list(connection.execute(query).scalars())
    others = {record.get(_PEOPLE.get(record["record"], "")) for record in other_records(database)}
    names += sorted(others - {*names, None})
    return {name: f"annotator-{number}" for number, name in enumerate(names, start=1)} | {
        KNOWN: KNOWN
    }


def renamed(records: Iterable[Record], names: Mapping[str, str] | None) -> Iterator[Record]:
    """The records with people's names replaced; as they are where there are no other names."""
    for record in records:
        person = _PEOPLE.get(record["record"])
        if names is None or person is None:
            yield record
        else:
            yield {**record, person: names[record[person]]}


def enter(database: Database, records: Iterable[Record]) -> int:
    """Put records into a new database, all of them or none; events keep their numbers.

    Args:
        database: without proposals and events.
        records: as they left another database.

    Returns:
        The number of events.

    Raises:
        InputError: the database holds something already, or a record contradicts another.
    """
    count = 0
    try:
        with database.write(exclusive=True) as connection:
            _refuse_used(connection, database.name)
            iterator = iter(records)
            while batch := list(islice(iterator, _BATCH)):
                count += _enter_batch(connection, batch)
            recount(connection)
            _continue_numbers(connection)
            recount(connection)
    except IntegrityError as error:
        reason = str(error.orig).strip().splitlines()[0]
        raise InputError(
            f"the records contradict each other, and nothing was entered: {reason}",
            path=database.name,
        ) from error
    return count


def _question_columns() -> list[Any]:
    return [
        proposals.c.id.label("proposal"),
        *(proposals.c[name] for name in (*_QUESTION, *_AS_ASKED)),
    ]


def _refuse_used(connection: Connection, name: str) -> None:
    for table in (events, proposals, wordings, predicate_names):
        if connection.execute(select(table.c[next(iter(table.c.keys()))]).limit(1)).first():
            raise InputError(
                f"expected a new database to enter events into, this one holds {table.name} "
                "already; name a file that does not exist, or an empty PostgreSQL database",
                path=name,
            )


def _enter_batch(connection: Connection, batch: Sequence[Record]) -> int:
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    questions = {
        record["proposal"]: {"id": record["proposal"]}
        | {name: record[name] for name in (*_QUESTION, *_AS_ASKED)}
        | {"is_queued": False, "is_open": False, "copies": 1}
        for record in batch
        if record["record"] in ("event", "gold")
    }
    if questions:
        connection.execute(insert(proposals).on_conflict_do_nothing(), list(questions.values()))
    said = [record for record in batch if record["record"] == "event"]
    if said:
        names = (*_AS_ASKED, *_SAID, "retracts")
        rows = [
            {"id": record["event"], "proposal_id": record["proposal"]}
            | {name: record[name] for name in names}
            for record in said
        ]
        connection.execute(events.insert(), rows)
    faults = [
        {
            "event_id": record["event"],
            "image_id": record["image_id"],
            "segment": record[_FAULTS[record["verdict"]]],
        }
        for record in said
        if record["verdict"] in _FAULTS
    ]
    if faults:
        connection.execute(segment_faults.insert(), faults)
    for record in batch:
        if record["record"] == "gold":
            values = {name: record[name] for name in ("verdict", "set_by", "set_at")}
            connection.execute(gold.insert(), {"proposal_id": record["proposal"], **values})
        elif record["record"] in _PLAIN:
            connection.execute(_PLAIN[record["record"]].insert(), _row_of(record))
    return len(said)


def _row_of(record: Record) -> dict[str, Any]:
    values = {}
    for column in _PLAIN[record["record"]].columns:
        values[column.name] = record.get(column.name)
        if not isinstance(values[column.name], column.type.python_type):
            raise InputError(
                f"expected {column.name!r} of a {record['record']} to be "
                f"{column.type.python_type.__name__}, got {values[column.name]!r}"
            )
    return values


def _continue_numbers(connection: Connection) -> None:
    """PostgreSQL's counters do not notice numbers that were given; SQLite's do."""
    if connection.dialect.name == "sqlite":
        return
    for table in (events, wordings, predicate_names):
        connection.execute(
            text(
                f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), "
                f"coalesce((SELECT max(id) FROM {table.name}), 0) + 1, false)"
            )
        )
