"""The files of a workspace, written and read: one pair of functions a format.

Equal content gives equal bytes: safetensors carry one metadata entry only (several would be
written in random order), Parquet rows come in a fixed order.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from haystack import files
from haystack.errors import InputError
from haystack.io.panoptic_png import IdMap, read_panoptic_png
from haystack.pipeline.propose import Proposal
from haystack.pipeline.scoring.candidates import IMAGES, Candidates
from haystack.scene_graph import Segment

SEGMENT_ROW_GROUP = 64
"""Images a row group: reading one image's masks decodes no more than this many."""

CANDIDATE_ROW_GROUP = 1 << 17
"""Candidates a row group: how many are in memory at a time where files are merged."""

_METADATA = "haystack"
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
_SEGMENT_TYPE = pa.struct(
    [
        ("id", pa.int64()),
        ("category", pa.int32()),
        ("area", pa.int64()),
        ("box", pa.list_(pa.float64(), 4)),
        ("is_crowd", pa.bool_()),
        ("score", pa.float64()),
    ]
)
_SEGMENTED = pa.schema(
    [
        ("image_key", pa.string()),
        ("image_id", pa.string()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("panoptic", pa.binary()),
        ("segments", pa.list_(_SEGMENT_TYPE)),
        ("faulty", pa.list_(pa.int32())),
    ]
)
_ASSIGNMENTS = pa.schema(
    [("image_key", pa.string()), ("cluster", pa.int32()), ("distance", pa.float32())]
)
_REPEATED = pa.dictionary(pa.int32(), pa.string())
_CANDIDATES = pa.schema(
    [
        ("cluster", pa.int32()),
        ("predicate", pa.int32()),
        ("image_key", _REPEATED),
        ("image_id", _REPEATED),
        ("segments", _REPEATED),
        ("subject", pa.int32()),
        ("object", pa.int32()),
        ("score", pa.float32()),
        ("second_score", pa.float32()),
    ]
)
_PROPOSALS = pa.schema(
    [
        ("predicate", pa.int32()),
        ("rank", pa.int32()),
        ("cluster", pa.int32()),
        ("image_key", pa.string()),
        ("image_id", pa.string()),
        ("subject", pa.int32()),
        ("object", pa.int32()),
        ("score", pa.float32()),
        ("model_rank", pa.int32()),
        ("second_score", pa.float32()),
        ("second_rank", pa.int32()),
        ("segments", pa.string()),
    ]
)


@dataclass(frozen=True)
class Features:
    """Feature vectors of images.

    Args:
        image_keys: N keys.
        features: float32 or float16 [N, D].
    """

    image_keys: tuple[str, ...]
    features: npt.NDArray[np.floating]


@dataclass(frozen=True)
class Assignments:
    """Which cluster each image belongs to.

    Args:
        image_keys: N keys.
        cluster: int64 [N].
        distance: float32 [N], Euclidean distance to the cluster's centroid.
    """

    image_keys: tuple[str, ...]
    cluster: npt.NDArray[np.int64]
    distance: npt.NDArray[np.float32]


@dataclass(frozen=True)
class SegmentedImage:
    """An image with its panoptic segments, as the segment stage stores it.

    Args:
        image_key: the image in its source.
        image_id: its id in annotations.
        height, width: in pixels.
        panoptic: bytes of the panoptic PNG.
        segments: in the order that subject and object positions refer to.
        faulty: positions of segments whose mask or class is known wrong, ascending.
    """

    image_key: str
    image_id: str
    height: int
    width: int
    panoptic: bytes
    segments: tuple[Segment, ...]
    faulty: tuple[int, ...] = ()

    def id_map(self) -> IdMap:
        """Segment id of every pixel, int32 [height, width], 0 = void."""
        return read_panoptic_png(self.panoptic, size=(self.height, self.width), path=self.image_key)


def write_features(path: Path, features: Features) -> None:
    """Write a shard's features and image keys as safetensors."""
    metadata = {_METADATA: files.canonical_json({"image_keys": list(features.image_keys)})}
    _write_tensors(path, {"features": features.features}, metadata)


def read_features(path: Path) -> Features:
    """Read a shard's features."""
    with open_tensors(path) as file:
        return Features(_image_keys(file), file.get_tensor("features"))


def read_feature_keys(path: Path) -> tuple[str, ...]:
    """Read a shard's image keys, in the order of its features; no feature is read."""
    with open_tensors(path) as file:
        return _image_keys(file)


def write_centroids(path: Path, centroids: npt.NDArray[np.float32]) -> None:
    """Write centroids float32 [k, D] as safetensors."""
    _write_tensors(path, {"centroids": centroids})


def read_centroids(path: Path) -> npt.NDArray[np.float32]:
    """Read centroids float32 [k, D]."""
    with open_tensors(path) as file:
        centroids: npt.NDArray[np.float32] = file.get_tensor("centroids")
        return centroids


def write_assignments(path: Path, parts: Iterable[Assignments]) -> None:
    """Write the cluster of every image as Parquet, a row group a part; one part is in memory."""
    with pq.ParquetWriter(path, _ASSIGNMENTS) as writer:
        for part in parts:
            columns = (list(part.image_keys), part.cluster, part.distance)
            writer.write_table(_table(columns, _ASSIGNMENTS))


def read_assignments(path: Path) -> Assignments:
    """Read the cluster of every image."""
    table = _read_table(path)
    return Assignments(
        tuple(table["image_key"].to_pylist()),
        table["cluster"].to_numpy().astype(np.int64),
        table["distance"].to_numpy(),
    )


def read_clusters(path: Path, image_keys: Collection[str]) -> dict[str, int]:
    """Image key -> cluster, of those of the images that have one.

    Row groups whose keys all lie below or above are not read: a shard is one or two of them.
    """
    wanted = pa.array(sorted(image_keys), pa.string())
    found: dict[str, int] = {}
    with _parquet(path) as file:
        for group in range(file.num_row_groups if len(wanted) else 0):
            keys = file.metadata.row_group(group).column(0).statistics
            known = keys is not None and keys.has_min_max
            if known and (keys.max < wanted[0].as_py() or wanted[-1].as_py() < keys.min):
                continue
            table = file.read_row_group(group, columns=["image_key", "cluster"])
            table = table.filter(pc.is_in(table["image_key"], wanted))
            columns = (table["image_key"].to_pylist(), table["cluster"].to_pylist())
            found.update(zip(*columns, strict=True))
    return found


def stream_clusters(path: Path) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Cluster and distance to its centroid of every image, one row group in memory at a time."""
    with _parquet(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["cluster", "distance"])
            yield table["cluster"].to_numpy().astype(np.int64), table["distance"].to_numpy()


def read_assigned_keys(path: Path, rows: Collection[int]) -> dict[int, str]:
    """Row -> image key, of some rows of the assignments; row groups without any are not read."""
    wanted = np.array(sorted(rows), dtype=np.int64)
    found: dict[int, str] = {}
    with _parquet(path) as file:
        start = 0
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            here = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, stop)]
            if len(here):
                keys = file.read_row_group(group, columns=["image_key"])["image_key"]
                keys = keys.take(pa.array(here - start)).to_pylist()
                found.update(zip(here.tolist(), keys, strict=True))
            start = stop
    return found


def count_by_cluster(path: Path, clusters: int) -> npt.NDArray[np.int64]:
    """Rows of each cluster int64 [clusters], of proposals or candidates; nothing else is read."""
    counts = np.zeros(clusters, dtype=np.int64)
    with _parquet(path) as file:
        for group in range(file.num_row_groups):
            column = file.read_row_group(group, columns=["cluster"])["cluster"].to_numpy()
            counts += np.bincount(column, minlength=clusters)[:clusters]
    return counts


def write_segmented(path: Path, images: Iterable[SegmentedImage]) -> None:
    """Write segmented images as Parquet, holding one row group in memory at a time."""
    with pq.ParquetWriter(path, _SEGMENTED) as writer:
        rows: list[dict[str, Any]] = []
        for image in images:
            rows.append(asdict(image))
            if len(rows) == SEGMENT_ROW_GROUP:
                writer.write_table(pa.Table.from_pylist(rows, _SEGMENTED))
                rows = []
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, _SEGMENTED))


def read_segmented(path: Path, rows: Collection[int] | None = None) -> Iterator[SegmentedImage]:
    """Read segmented images one after the other, one row group in memory at a time.

    Args:
        path: the shard.
        rows: only these, in the order of the file; row groups without any are not read.
    """
    for table in _row_groups(path, rows):
        for row in table.to_pylist():
            segments = _segments(row.pop("segments"))
            faulty = tuple(row.pop("faulty"))
            yield SegmentedImage(segments=segments, faulty=faulty, **row)


def read_segments(path: Path, rows: Collection[int]) -> dict[str, tuple[Segment, ...]]:
    """Image id -> segments, of some rows of a shard; no masks are read."""
    return {
        row["image_id"]: _segments(row["segments"])
        for table in _row_groups(path, rows, columns=["image_id", "segments"])
        for row in table.to_pylist()
    }


def _segmented_file(path: Path) -> pq.ParquetFile:
    file = _parquet(path)
    if not file.schema_arrow.equals(_SEGMENTED):
        file.close()
        raise _other_columns(path, "segment")
    return file


def _other_columns(path: Path, stage: str) -> InputError:
    return InputError(
        "this file has other columns than this version of Haystack writes; run haystack "
        f"{stage} again",
        path=path,
    )


def _row_groups(
    path: Path, rows: Collection[int] | None, columns: list[str] | None = None
) -> Iterator[pa.Table]:
    """Row groups of segmented images, or what ``rows`` names of them."""
    wanted: dict[int, list[int]] = defaultdict(list)
    for row in sorted(rows or ()):
        wanted[row // SEGMENT_ROW_GROUP].append(row % SEGMENT_ROW_GROUP)
    with _segmented_file(path) as file:
        for group in range(file.num_row_groups) if rows is None else wanted:
            table = file.read_row_group(group, columns=columns)
            yield table if rows is None else table.take(wanted[group])


def _segments(rows: Iterable[Mapping[str, Any]]) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            row["id"],
            row["category"],
            row["area"],
            tuple(row["box"]),
            row["is_crowd"],
            row["score"],
        )
        for row in rows
    )


def read_segmented_ids(path: Path) -> dict[str, str]:
    """Image key -> image id of a segment shard, in the order of its rows; decodes no masks."""
    table = _read_table(path, columns=["image_key", "image_id"])
    return dict(zip(table["image_key"].to_pylist(), table["image_id"].to_pylist(), strict=True))


def write_candidates(path: Path, candidates: Candidates) -> None:
    """Write candidates as Parquet, in their order."""
    second = candidates.second_score
    # Encoded anew: written bytes would vary if a dictionary held a value twice.
    images = {
        name: candidates.images[name].combine_chunks().dictionary_encode() for name in IMAGES.names
    }
    columns = {
        **{name: getattr(candidates, name) for name in ("cluster", "predicate")},
        **{name: column.take(pa.array(candidates.image)) for name, column in images.items()},
        **{name: getattr(candidates, name) for name in ("subject", "object", "score")},
        "second_score": pa.nulls(len(candidates), pa.float32()) if second is None else second,
    }
    pq.write_table(
        _table(list(columns.values()), _CANDIDATES),
        path,
        row_group_size=CANDIDATE_ROW_GROUP,
        compression="zstd",
        use_dictionary=[name for name in _CANDIDATES.names if "score" not in name],
        column_encoding=dict.fromkeys(("score", "second_score"), "BYTE_STREAM_SPLIT"),
    )


Hopeful = Callable[[Candidates], npt.NDArray[np.bool_]]
"""Which candidates are worth reading in full; their images are not listed yet."""


def stream_candidates(path: Path, hopeful: Hopeful | None = None) -> Iterator[Candidates]:
    """Read candidates, one row group after the other.

    Args:
        path: the shard.
        hopeful: rows to read; names of images are read only where it passes some.
    """
    with _parquet(path, read_dictionary=IMAGES.names) as file:
        if not file.schema_arrow.equals(_CANDIDATES):
            raise _other_columns(path, "score")
        for group in range(file.num_row_groups):
            numbers = file.read_row_group(group, columns=_NUMBERS)
            images = IMAGES.empty_table()
            part = Candidates(images, image=np.zeros(len(numbers), np.int64), **_numbers(numbers))
            rows = np.arange(len(numbers)) if hopeful is None else np.flatnonzero(hopeful(part))
            if len(rows):
                names = file.read_row_group(group, columns=IMAGES.names)
                named = [names[name].combine_chunks().take(rows) for name in IMAGES.names]
                yield Candidates.from_columns(*named, **_numbers(numbers.take(rows)))


_NUMBERS = ["cluster", "predicate", "subject", "object", "score", "second_score"]


def _numbers(table: pa.Table) -> dict[str, Any]:
    """The columns of candidates that are no strings."""
    second = table["second_score"]
    return {
        **{name: table[name].to_numpy().astype(np.int64) for name in _NUMBERS[:4]},
        "score": table["score"].to_numpy(),
        "second_score": second.to_numpy() if len(second) and not second.null_count else None,
    }


def count_rows(path: Path) -> int:
    """Rows of a Parquet file; reads none."""
    with _parquet(path) as file:
        return int(file.metadata.num_rows)


def read_candidates(path: Path) -> Candidates:
    """Read candidates."""
    table = _read_table(path, read_dictionary=IMAGES.names)
    images = [table[name].unify_dictionaries().combine_chunks() for name in IMAGES.names]
    return Candidates.from_columns(*images, **_numbers(table))


def write_proposals(path: Path, proposals: Sequence[Proposal]) -> None:
    """Write the queue as Parquet."""
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in proposals], _PROPOSALS), path)


def read_proposals(path: Path) -> list[Proposal]:
    """Read the queue."""
    return [Proposal(**row) for row in _read_table(path).to_pylist()]


def _table(columns: Sequence[Any], schema: pa.Schema) -> pa.Table:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _read_table(path: Path, columns: list[str] | None = None, **options: Any) -> pa.Table:
    with _parquet(path, **options) as file:
        return file.read(columns=columns)


def _parquet(path: Path, **options: Any) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, **options)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"cannot read this Parquet file: {error}", path=path) from error


def _write_tensors(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file.

    Raises:
        OSError: the system refuses it: a full disk, say.
    """
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    try:
        save_file(arrays, path, metadata=metadata)
    except SafetensorError as error:
        # safetensors has one class for all that goes wrong; the system's number is in its text.
        number = _SYSTEM_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


@contextmanager
def open_tensors(path: Path, framework: str = "numpy") -> Iterator[Any]:
    """A safetensors file as ``safe_open`` gives it.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read this safetensors file: {error}", path=path) from error


def _image_keys(file: Any) -> tuple[str, ...]:
    return tuple(json.loads(file.metadata()[_METADATA])["image_keys"])
