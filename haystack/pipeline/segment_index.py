"""Where each segmented image lies: its shard and row, by image id or image key.

What answers and pages ask for is a few images of millions, so nobody should read the ids of all
shards for it. The index is a SQLite file of the workspace. It is derived: whoever needs it makes
it anew, all of it, once the segments are others than those that it was made from.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from haystack import files
from haystack.errors import InputError
from haystack.executors.locks import LOCK, locked
from haystack.executors.manifest import read_manifests
from haystack.pipeline import tables

logger = logging.getLogger(__name__)

INDEX = "segments.sqlite"
_FORMAT = 1
"""Of the tables below; an index of another one is made anew."""

_SCHEMA = """
CREATE TABLE made_from (digest TEXT NOT NULL);
CREATE TABLE shards (number INTEGER PRIMARY KEY, path TEXT NOT NULL);
CREATE TABLE images (
    image_id TEXT PRIMARY KEY, image_key TEXT NOT NULL, shard INTEGER NOT NULL, row INTEGER NOT NULL
) WITHOUT ROWID;
"""


class Place(NamedTuple):
    """Where a segmented image lies.

    Args:
        path: its shard, relative to the workspace.
        row: its row there, from 0.
    """

    path: str
    row: int


class SegmentIndex:
    """The images of all shards that are segmented by now.

    Args:
        root: the workspace.

    Raises:
        InputError: two images have one image id; both are named. Shards are segmented apart from
            each other, and answers are kept by image id.
    """

    def __init__(self, root: Path) -> None:
        made = {
            name: checksum
            for manifest in read_manifests(root, "segment")
            for name, checksum in manifest.checksums().items()
            if (root / name).is_file()
        }
        self._root = root
        self._shards = sorted(made)
        self._made_from = files.sha256_text(files.canonical_json([_FORMAT, made]))
        if _digest(root / INDEX) != self._made_from:
            self._make()
        self._connection = _open(root / INDEX)

    def places(self, image_ids: Collection[str]) -> dict[str, Place]:
        """Image id -> place, of those images that are segmented."""
        statement = "SELECT path, row FROM images JOIN shards ON number = shard WHERE image_id = ?"
        found = ((image_id, self._first(statement, image_id)) for image_id in image_ids)
        return {image_id: Place(*place) for image_id, place in found if place is not None}

    def place_of_key(self, image_key: str) -> Place | None:
        """Where the image with this key lies; None where it is not segmented."""
        statement = "SELECT path, row FROM images JOIN shards ON number = shard WHERE image_key = ?"
        place = self._first(statement, image_key)
        return None if place is None else Place(*place)

    def by_shard(self, image_ids: Collection[str]) -> Mapping[str, dict[int, str]]:
        """Path of a shard -> row -> image id, of those images that are segmented."""
        shards: dict[str, dict[int, str]] = defaultdict(dict)
        for image_id, place in self.places(image_ids).items():
            shards[place.path][place.row] = image_id
        return shards

    def _first(self, statement: str, value: str) -> tuple[str, int] | None:
        """The first row that is found; an index whose pages turn out damaged is made anew, once."""
        try:
            found = self._connection.execute(statement, (value,)).fetchone()
        except sqlite3.DatabaseError as error:
            logger.warning("%s is damaged (%s) and made anew", self._root / INDEX, error)
            self._connection.close()
            self._make(damaged=True)
            self._connection = _open(self._root / INDEX)
            found = self._connection.execute(statement, (value,)).fetchone()
        return found  # type: ignore[no-any-return]  # SQLite's rows have no types

    def _make(self, *, damaged: bool = False) -> None:
        path = self._root / INDEX
        with locked(self._root / LOCK, wait=True):
            if damaged or _digest(path) != self._made_from:  # not by another process meanwhile
                _build(path, self._root, self._shards, self._made_from)


def _open(path: Path) -> sqlite3.Connection:
    # Nobody changes the file, it is only ever replaced: no locks, which network folders may lack.
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, check_same_thread=False)


def _digest(path: Path) -> str | None:
    try:
        with closing(_open(path)) as connection:
            return str(connection.execute("SELECT digest FROM made_from").fetchone()[0])
    except (sqlite3.Error, TypeError):  # there is none, or it is no index
        return None


def _build(path: Path, root: Path, shards: Collection[str], digest: str) -> None:
    with (
        files.atomic_path(path) as temporary,
        closing(sqlite3.connect(temporary, isolation_level=None)) as connection,
    ):
        # A build that is cut short leaves nothing that anybody opens.
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
        connection.executescript(_SCHEMA)
        connection.execute("BEGIN")
        for number, name in enumerate(shards):
            connection.execute("INSERT INTO shards VALUES (?, ?)", (number, name))
            _insert(connection, number, root, tables.read_segmented_ids(root / name))
        connection.execute("CREATE INDEX keys ON images (image_key)")
        connection.execute("INSERT INTO made_from VALUES (?)", (digest,))
        connection.execute("COMMIT")


def _insert(
    connection: sqlite3.Connection, number: int, root: Path, id_of: Mapping[str, str]
) -> None:
    rows = [(id_of[key], key, number, row) for row, key in enumerate(id_of)]
    before = connection.total_changes
    connection.executemany("INSERT OR IGNORE INTO images VALUES (?, ?, ?, ?)", rows)
    if connection.total_changes - before == len(rows):
        return
    for image_id, key, *_ in rows:
        statement = "SELECT image_key FROM images WHERE image_id = ?"
        other = connection.execute(statement, (image_id,)).fetchone()[0]
        if other != key:
            raise InputError(
                f"the images {other} and {key} took the same record, image id {image_id}; give "
                "each a record with a file_name that ends as the image's path does, or remove "
                f"one of them, then run again: haystack segment {root}"
            )
