from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from functools import partial

import pytest
import sqlalchemy

from haystack.annotate.store import schema
from haystack.annotate.store.database import Database
from haystack.annotate.store.schema import (
    MIGRATIONS,
    Migration,
    migrate,
    tables,
    views,
)
from haystack.annotate.store.store import AnnotationStore
from haystack.errors import InputError


def test_the_migrations_make_exactly_the_tables_that_the_queries_use(location):
    database = Database(location)
    with database.read() as connection:
        inspector = sqlalchemy.inspect(connection)
        assert set(inspector.get_table_names()) == set(tables.tables)
        assert set(inspector.get_view_names()) == set(views.tables)
        for table in (*tables.sorted_tables, *views.sorted_tables):
            found = [column["name"] for column in inspector.get_columns(table.name)]
            assert found == [column.name for column in table.columns]
    database.close()


def test_migrations_are_numbered_from_one_without_gaps():
    assert [step.number for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_an_older_database_is_brought_up_and_keeps_its_rows(location, make_queue):
    with AnnotationStore(location) as store:
        store.load_proposals(make_queue(), round=0)
        store.answer(store.next_proposal(0, "ann").id, "correct", "ann", "k1")
    further = (
        *MIGRATIONS,
        Migration(len(MIGRATIONS) + 1, ("ALTER TABLE events ADD COLUMN client TEXT",)),
    )
    database = Database(location)
    with database.write(exclusive=True) as connection:
        assert migrate(connection, where="x", migrations=further) == len(further)
        assert migrate(connection, where="x", migrations=further) == len(further)
        rows = connection.execute(sqlalchemy.text("SELECT verdict, client FROM events")).all()
    database.close()
    assert rows == [("correct", None)]
    with pytest.raises(InputError, match=rf"knows versions up to {len(MIGRATIONS)}; upgrade"):
        AnnotationStore(location)


def test_a_database_of_the_first_schema_is_brought_up(location, make_proposal, monkeypatch):
    answered, waiting = make_proposal(rank=0), make_proposal(subject=2, rank=1)
    with monkeypatch.context() as older:
        older.setattr(schema, "migrate", partial(migrate, migrations=MIGRATIONS[:1]))
        database = Database(location)
    assert database.version == 1
    event = {"proposal_id": answered.id, "key": "k1", "annotator": "ann", "verdict": "correct"}
    event |= {"created_at": "2026-01-01", "score": 1.0, "rank": 0, "round": 0}
    with database.write() as connection:
        for row in (answered, waiting):
            values = vars(row) | {"id": row.id, "is_queued": True, "is_open": row is waiting}
            del values["origin"]
            connection.execute(tables.tables["proposals"].insert().values(values))
        connection.execute(tables.tables["events"].insert().values(event))
    database.close()
    with AnnotationStore(location) as store:
        assert store.upcoming(0, "ann", 5) == [waiting]
        (answer,) = store.answers()
        assert answer.proposal == answered
        named = [replace(row, origin="a model") for row in (answered, waiting)]
        store.load_proposals(named, round=0)
        store.answer(waiting.id, "subject_faulty", "ann", "k2")
        assert store.faulty_segments() == {("1", 2)}
        origins = {answer.key: answer.proposal.origin for answer in store.answers()}
        assert origins == {"k1": "", "k2": "a model"}


def test_faults_of_gold_items_close_questions_of_older_databases(location, make_proposal):
    known, uses, other = (make_proposal("i", *pair) for pair in ((0, 1), (1, 2), (0, 2)))
    with AnnotationStore(location) as store:
        store.load_proposals([known, uses, other], round=0)
        store.set_gold({known.id: "object_faulty"}, "lead")
    database = Database(location)
    with database.write(exclusive=True) as connection:  # as migration 3 left it
        connection.execute(
            sqlalchemy.text("UPDATE proposals SET is_open = TRUE WHERE id = :id"), {"id": uses.id}
        )
        connection.execute(
            sqlalchemy.text("UPDATE meta SET value = '3' WHERE key = 'schema_version'")
        )
    database.close()
    with AnnotationStore(location) as store:
        assert store.schema_version == len(MIGRATIONS)
        assert store.upcoming(0, "ann", 5) == [other]
        assert store.progress()[0].open == 1
        assert store.faulty_segments() == {("i", 1)}


def test_a_migration_that_fails_leaves_the_database_as_it_was(location):
    AnnotationStore(location).close()
    broken = (
        *MIGRATIONS,
        Migration(
            len(MIGRATIONS) + 1,
            ("ALTER TABLE events ADD COLUMN client TEXT", "INSERT INTO nowhere VALUES (1)"),
        ),
    )
    database = Database(location)
    with (
        pytest.raises(sqlalchemy.exc.DatabaseError),
        database.write(exclusive=True) as connection,
    ):
        migrate(connection, where="x", migrations=broken)
    with database.read() as connection:
        columns = sqlalchemy.inspect(connection).get_columns("events")
    database.close()
    assert "client" not in {column["name"] for column in columns}
    AnnotationStore(location).close()


def test_an_acknowledged_answer_is_flushed_to_the_disk(tmp_path):
    database = Database(tmp_path / "annotations.db")
    with database.read() as connection:
        mode = connection.execute(sqlalchemy.text("PRAGMA journal_mode")).scalar_one()
        synchronous = connection.execute(sqlalchemy.text("PRAGMA synchronous")).scalar_one()
    database.close()
    assert (mode, synchronous) == ("wal", 2)  # 2: FULL


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "notes.db"
    path.write_text("not a database, " * 100)
    with pytest.raises(
        InputError, match=r"notes\.db: cannot open the annotation database: file is"
    ):
        AnnotationStore(path)
    assert path.read_text().startswith("not a database")


def test_a_database_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    AnnotationStore(tmp_path / "a.db").close()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with monkeypatch.context() as refusing:
        refusing.setattr(schema, "migrate", _refuse)
        with pytest.raises(InputError, match="copy it to a folder that can be written"):
            AnnotationStore(tmp_path / "a.db")


def _refuse(*_, **__):
    raise sqlalchemy.exc.OperationalError("", {}, sqlite3.OperationalError("readonly database"))


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "photos.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    with pytest.raises(InputError, match=r"found one with other tables \(photos\)"):
        AnnotationStore(path)
    with sqlite3.connect(path) as connection:
        names = connection.execute("SELECT name FROM sqlite_master").fetchall()
    assert names == [("photos",)]


def test_a_meta_table_of_something_else_is_refused(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE meta (key TEXT, value TEXT)")
        connection.execute("INSERT INTO meta VALUES ('schema_version', '1')")
    with pytest.raises(InputError, match="found one with other tables"):
        AnnotationStore(path)


def test_a_damaged_database_is_refused(tmp_path, make_proposal):
    path = tmp_path / "annotations.db"
    with AnnotationStore(path) as store:
        store.load_proposals([make_proposal(str(n), rank=n) for n in range(2_000)], round=0)
    content = bytearray(path.read_bytes())
    for page in range(4, len(content) // 4096, 2):
        content[page * 4096 : page * 4096 + 512] = b"\xff" * 512
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged|malformed"):
        AnnotationStore(path)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("", "expected a database file, found a folder"),
        ("missing/annotations.db", "the folder of the annotation database does not exist"),
    ],
)
def test_a_place_where_no_database_can_be_is_refused(tmp_path, place, sentence):
    with pytest.raises(InputError, match=sentence):
        AnnotationStore(tmp_path / place)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql://someone@host/db", "expected a file path, sqlite:///FILE or postgresql://"),
        ("sqlite://", "expected the path of a database file"),
        ("sqlite:///:memory:", "expected the path of a database file"),
        ("://x", "cannot read the database URL"),
    ],
)
def test_a_url_of_another_kind_is_refused(url, sentence):
    with pytest.raises(InputError, match=sentence):
        AnnotationStore(url)


def test_a_sqlite_url_is_a_path(tmp_path):
    AnnotationStore(f"sqlite:///{tmp_path}/annotations.db").close()
    assert (tmp_path / "annotations.db").is_file()


@pytest.mark.postgres
def test_a_server_that_does_not_answer_is_a_sentence_without_the_password():
    pytest.importorskip("psycopg", reason="PostgreSQL tests need the package psycopg")
    with pytest.raises(InputError, match="check that the server runs") as caught:
        AnnotationStore("postgresql://ann:s3cret@127.0.0.1:1/haystack")
    assert "s3cret" not in str(caught.value)
