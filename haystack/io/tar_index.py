"""Where the images of a tar lie, kept in a file: a tar has no table of contents.

An index belongs to one tar, as long as the tar's size and modification time stay what they were. It
is a cache: without it, or with one that does not fit, the tar's headers are read again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from haystack import files
from haystack.errors import InputError

logger = logging.getLogger(__name__)

Places = dict[str, tuple[int, int]]
"""Member name -> (byte offset of its content, size in bytes), in the order of the tar."""

_STATE = b"haystack"


class TarIndex:
    """Indices of several tars, a file each.

    Args:
        folder: where they lie; made when the first is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, shard: str, state: Sequence[int]) -> Places | None:
        """The places of a tar's images; None where there is no index of the tar as it is.

        Args:
            shard: names the tar.
            state: its size and modification time.
        """
        file = self._current(shard, state)
        if file is None:
            return None
        try:
            with file:
                names, offsets, sizes = (column.to_pylist() for column in file.read().columns)
        except (OSError, ValueError, pa.ArrowException) as error:
            self._warn(shard, error)
            return None
        return dict(zip(names, zip(offsets, sizes, strict=True), strict=True))

    def count(self, shard: str, state: Sequence[int]) -> int | None:
        """How many images it has; None as above. Reads the end of the file only."""
        file = self._current(shard, state)
        if file is None:
            return None
        with file:
            return int(file.metadata.num_rows)

    def write(self, shard: str, state: Sequence[int], places: Places) -> None:
        """Keep the places of a tar's images; where that is not possible, go on without.

        Args:
            shard: names the tar.
            state: its size and modification time, asked before it was read.
            places: of its images.
        """
        columns = {
            "name": pa.array(places, pa.string()),
            "offset": pa.array([offset for offset, _ in places.values()], pa.int64()),
            "size": pa.array([size for _, size in places.values()], pa.int64()),
        }
        table = pa.table(columns).replace_schema_metadata({_STATE: _stamp(shard, state)})
        try:
            with files.atomic_path(self._path(shard)) as temporary:
                pq.write_table(table, temporary, compression="zstd")
        except (OSError, InputError) as error:
            logger.warning("the index of the tar %s cannot be kept: %s", shard, error)

    def _path(self, shard: str) -> Path:
        return self._folder / f"{shard}.parquet"

    def _current(self, shard: str, state: Sequence[int]) -> pq.ParquetFile | None:
        try:
            file = pq.ParquetFile(self._path(shard))
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            self._warn(shard, error)
            return None
        if (file.schema_arrow.metadata or {}).get(_STATE) == _stamp(shard, state):
            return file
        file.close()
        return None

    @staticmethod
    def _warn(shard: str, error: Exception) -> None:
        logger.warning("the index of the tar %s cannot be read: %s", shard, error)


def _stamp(shard: str, state: Sequence[int]) -> bytes:
    """Which tar an index is of: by name too, since tars made alike have one size and time."""
    return json.dumps([shard, *state]).encode()
