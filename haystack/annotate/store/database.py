"""Opening an annotation database: SQLite by path, PostgreSQL by URL; durable writes in turn."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from haystack.annotate.store.mounts import mount_of
from haystack.errors import InputError, MissingDependencyError
from haystack.times import timestamp, utc_now

try:
    import sqlalchemy
    from sqlalchemy import Connection, Engine, event, select, text
    from sqlalchemy.exc import ArgumentError, DatabaseError
except ImportError as error:
    raise MissingDependencyError("sqlalchemy", purpose="annotation", extra="annotate") from error

_WAIT_SECONDS = 30
_CHECK = (
    "INSERT INTO meta VALUES ('checked_at', :now) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


class Readable(Protocol):
    """What can be read: a database as it is, or a snapshot of it."""

    def read(self) -> AbstractContextManager[Connection]:
        """One consistent view of the database."""


class Snapshot:
    """A database as it was at the first reading, whatever is written meanwhile."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """The same view every time."""
        yield self._connection


class Database:
    """A migrated database with one reading and one writing kind of transaction.

    SQLite runs in WAL mode with ``synchronous=FULL``: a transaction that has returned survives
    the process being killed and the machine losing power. Its writers take turns under a lock of
    this process first, because SQLite's own waiting sleeps for up to 100 ms at a time.

    Args:
        location: a file path, ``sqlite:///FILE``, or ``postgresql://...``.

    Raises:
        InputError: the location is not usable, the file is damaged, or it belongs to something
            else or to a newer Haystack.
        MissingDependencyError: a PostgreSQL URL without the ``psycopg`` package.
    """

    def __init__(self, location: str | Path) -> None:
        # Imported here because it imports SQLAlchemy, whose absence is explained above.
        from haystack.annotate.store.schema import meta, migrate

        url = _parse(location)
        self.name = (url.database or "") if _is_sqlite(url) else str(url)
        self._write_lock = threading.Lock()
        self._engine = _sqlite_engine(url) if _is_sqlite(url) else _postgres_engine(url)
        try:
            with self.write(exclusive=True) as connection:
                if self.is_sqlite:
                    _check_sqlite(connection, self.name)
                self.version = migrate(connection, where=self.name)
                self.campaign: str = connection.execute(
                    select(meta.c.value).where(meta.c.key == "campaign")
                ).scalar_one()
        except DatabaseError as error:
            self.close()
            advice = (
                _advice(Path(self.name))
                if self.is_sqlite
                else "check that the server runs, and the user, password and database in the URL"
            )
            raise InputError(
                f"cannot open the annotation database: {_reason(error)}; {advice}", path=self.name
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def is_sqlite(self) -> bool:
        """Whether this is a file on this machine, not a server."""
        return self._engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the database."""
        reader = self._engine
        if not self.is_sqlite:
            reader = reader.execution_options(isolation_level="REPEATABLE READ")
        with reader.begin() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Let several readings, one after the other, see the same state."""
        with self.read() as connection:
            yield Snapshot(connection)

    @contextmanager
    def write(self, *, exclusive: bool = False) -> Iterator[Connection]:
        """A transaction that is on the disk when the block ends, or undone if it raises.

        Args:
            exclusive: keep every other writer out (on SQLite there is only ever one).
        """
        if self.is_sqlite:
            writer = self._engine.execution_options(haystack_writes=True)
            with self._write_lock, writer.begin() as connection:
                yield connection
        else:
            lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
            with self._engine.begin() as connection:
                connection.execute(text(f"SELECT {lock}(hashtext('haystack'))"))
                yield connection

    def take_turns(self, connection: Connection, kind: str, name: str) -> None:
        """Let writers of one thing take turns, so that each sees the events of the one before.

        Whoever needs two takes ``annotator`` before ``image``, or two could wait for each other.

        Args:
            connection: a writing transaction; the turn ends with it.
            kind: ``annotator`` or ``image``.
            name: of the annotator, or the image's id.
        """
        if not self.is_sqlite:
            connection.execute(
                text("SELECT pg_advisory_xact_lock(hashtext(:kind), hashtext(:name))"),
                {"kind": kind, "name": name},
            )

    def check(self) -> int:
        """Store a few bytes, as an answer would be, to see that the database takes some.

        Returns:
            The schema version that the database has now.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: it cannot be reached or written, or its disk is full.
            InputError: SQLite cannot keep a log there any more.
        """
        # Not by write() on a server: there answers wait while a queue is loaded, which is no fault.
        with self.write() if self.is_sqlite else self._engine.begin() as connection:
            connection.execute(text(_CHECK), {"now": timestamp(utc_now())})
            version = text("SELECT value FROM meta WHERE key = 'schema_version'")
            return int(connection.execute(version).scalar_one())

    def close(self) -> None:
        """Give up every connection."""
        self._engine.dispose()


def _parse(location: str | Path) -> sqlalchemy.URL:
    if isinstance(location, Path) or "://" not in location:
        return sqlalchemy.URL.create("sqlite", database=str(location))
    try:
        url = sqlalchemy.make_url(location)
    except (ArgumentError, ValueError) as error:
        raise InputError(f"cannot read the database URL: {error}") from error
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise InputError(
            "expected a file path, sqlite:///FILE or postgresql://USER@HOST/DATABASE, "
            f"got a URL that starts with {url.drivername!r}"
        )
    return url


def _is_sqlite(url: sqlalchemy.URL) -> bool:
    return url.drivername == "sqlite"


def _sqlite_engine(url: sqlalchemy.URL) -> Engine:
    if not url.database or url.database == ":memory:":
        raise InputError("expected the path of a database file, got none: answers must be on disk")
    path = Path(url.database)
    if path.is_dir():
        raise InputError("expected a database file, found a folder", path=path)
    if not path.parent.is_dir():
        raise InputError("the folder of the annotation database does not exist", path=path)
    mount = mount_of(path)
    if mount is not None and mount.network is not None:
        raise InputError(
            f"expected a local disk, found {mount.network} ({mount.source}): SQLite would damage "
            "the annotation database there; give one on a local disk (--database "
            "/local/annotations.db), or a PostgreSQL server (--database "
            "postgresql://USER@HOST/DATABASE)",
            path=path,
        )
    engine = sqlalchemy.create_engine(
        url,
        pool_size=8,
        max_overflow=64,
        connect_args={"timeout": _WAIT_SECONDS, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        # Python's driver would otherwise begin transactions by itself, too late and not IMMEDIATE.
        connection.isolation_level = None
        cursor = connection.cursor()
        mode = cursor.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()
        if mode != "wal":
            raise InputError(
                f"SQLite cannot keep a write-ahead log here (journal mode {mode!r}); put the "
                "annotation database on a local disk that can be written",
                path=path,
            )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("haystack_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgres_engine(url: sqlalchemy.URL) -> Engine:
    try:
        return sqlalchemy.create_engine(url, pool_size=8, max_overflow=64, pool_pre_ping=True)
    except ImportError as error:
        raise MissingDependencyError(
            "psycopg", purpose="a PostgreSQL annotation database", extra="postgres"
        ) from error


def _check_sqlite(connection: Connection, name: str) -> None:
    report = connection.execute(text("PRAGMA quick_check(1)")).scalar_one()
    if report != "ok":
        raise InputError(
            f"the annotation database is damaged ({str(report).splitlines()[0]}); restore it from "
            "a copy, or recover what can be read with: sqlite3 FILE .recover",
            path=name,
        )


def _advice(path: Path) -> str:
    """What to do about a file that SQLite cannot open; it keeps others beside it, even to read."""
    if not all(os.access(place, os.W_OK) for place in (path, path.parent) if place.exists()):
        return "it cannot be written there; copy it to a folder that can be written, and name that"
    return "give a Haystack annotation database, or the name of a file that does not exist yet"


def _reason(error: DatabaseError) -> str:
    return str(error.orig).strip().splitlines()[0] if error.orig else str(error)
