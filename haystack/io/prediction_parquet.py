"""Haystack's own prediction file: Parquet, one row an image, any image id, read piece by piece.

Columns: ``image_id`` string; ``pairs`` list of int32 [2 R], subject and object in turn; ``scores``
list of float32 [R P], row by row; ``no_relation`` list of float32 [R], or null. The schema's
metadata holds, as JSON under ``haystack``: the format's version, the names of the predicates, and
the kind of score (``probability``: comparable across pairs as they are; ``logit``: before the
softmax over predicates and "no relation").

``objects``, null where pairs refer to annotated segments, holds what the model found: ``labels``
[N]; ``scores`` [N], ``boxes`` [4 N], each may be null; masks as runs of pixels: ``size`` height and
width, ``mask_runs`` [N] how many runs each mask has, ``runs`` [2 M] the pixels between the last run
and this one, and its pixels, in turn; the first of a mask counts from the image's first pixel.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from haystack import files
from haystack.errors import InputError
from haystack.scene_graph import MaskRuns, PredictedObjects, RelationScores

ScoreKind = Literal["probability", "logit"]

VERSION = 2
"""Version 1 had no column ``objects``; it is read as well."""
_KEY = b"haystack"
_OBJECTS = pa.struct(
    [
        ("labels", pa.list_(pa.int32())),
        ("scores", pa.list_(pa.float32())),
        ("boxes", pa.list_(pa.float32())),
        ("size", pa.list_(pa.int32())),
        ("mask_runs", pa.list_(pa.int32())),
        ("runs", pa.list_(pa.int64())),
    ]
)
_COLUMNS = {
    "image_id": pa.string(),
    "pairs": pa.list_(pa.int32()),
    "scores": pa.list_(pa.float32()),
    "no_relation": pa.list_(pa.float32()),
    "objects": _OBJECTS,
}


class PredictionParquet:
    """Predictions of a Parquet file; iterate over it for one ``RelationScores`` an image.

    One row group is in memory at a time.

    Args:
        path: the file.

    Attributes:
        predicate_classes: names of the predicates, in the order of the scores.
        score_kind: ``probability`` or ``logit``.

    Raises:
        InputError: it is no such file, or of a later version; and, when an image is read, its
            lists do not fit each other or a score is not finite.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with pq.ParquetFile(self.path) as file:
                schema = file.schema_arrow
                self._num_images = file.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"cannot read it as Parquet: {error}", path=self.path) from error
        content = _metadata(schema, self.path)
        self._columns = _columns_of(content["version"])
        self.predicate_classes: tuple[str, ...] = tuple(content["predicate_classes"])
        self.score_kind: ScoreKind = content["score_kind"]

    def __len__(self) -> int:
        return self._num_images

    def __iter__(self) -> Iterator[RelationScores]:
        with pq.ParquetFile(self.path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=list(self._columns)).combine_chunks()
                for row in range(table.num_rows):
                    yield self._record({name: table.column(name)[row] for name in self._columns})

    def _record(self, row: dict[str, Any]) -> RelationScores:
        image_id = row["image_id"].as_py()
        pairs, scores, none = (
            None if row[name].values is None else np.array(row[name].values)
            for name in ("pairs", "scores", "no_relation")
        )
        where = f"image {image_id}"
        num_predicates = len(self.predicate_classes)
        if image_id is None or pairs is None or scores is None or len(pairs) % 2:
            raise InputError("expected an image id, pairs and scores", path=self.path, record=where)
        num_pairs = len(pairs) // 2
        wanted = (num_pairs * num_predicates, num_pairs)
        found = (len(scores), num_pairs if none is None else len(none))
        if wanted != found:
            raise InputError(
                f"expected {wanted[0]} scores and {wanted[1]} of 'no relation' for {num_pairs} "
                f"pairs, got {found[0]} and {found[1]}",
                path=self.path,
                record=where,
            )
        if not np.isfinite(scores).all() or (none is not None and not np.isfinite(none).all()):
            raise InputError(
                "expected finite scores, got NaN or an infinity", path=self.path, record=where
            )
        return RelationScores(
            image_id=image_id,
            pairs=pairs.reshape(-1, 2).astype(np.int64),
            scores=scores.reshape(-1, num_predicates),
            no_relation=none,
            objects=self._objects(row, where),
        )

    def _objects(self, row: dict[str, Any], where: str) -> PredictedObjects | None:
        stored = row.get("objects")
        if stored is None or not stored.is_valid:
            return None
        labels, scores, boxes, size, counts, runs = (
            None if stored[name].values is None else np.array(stored[name].values)
            for name in ("labels", "scores", "boxes", "size", "mask_runs", "runs")
        )
        count = 0 if labels is None else len(labels)
        lengths = [len(part) for part in (scores, counts) if part is not None]
        good = all(length == count for length in lengths)
        good &= boxes is None or len(boxes) == 4 * count
        masks = None if counts is None else _masks(size, counts, runs)
        good &= (masks is None) == (counts is None)
        if labels is None or not good:
            raise InputError(
                f"the lists of its {count} objects do not fit each other",
                path=self.path,
                record=where,
            )
        return PredictedObjects(
            labels=labels.astype(np.int64),
            scores=scores,
            boxes=None if boxes is None else boxes.reshape(-1, 4),
            masks=masks,
        )


def read_prediction_parquet(path: str | Path) -> PredictionParquet:
    """Open a Parquet prediction file; see :class:`PredictionParquet`."""
    return PredictionParquet(path)


def write_prediction_parquet(
    scores: Iterable[RelationScores],
    path: str | Path,
    predicate_classes: Sequence[str],
    *,
    score_kind: ScoreKind = "probability",
    images_per_group: int = 64,
) -> int:
    """Write predictions to Parquet, atomically, holding one row group in memory.

    Args:
        scores: predictions, in the order in which they are to stand in the file.
        path: the file.
        predicate_classes: names of the predicates, in the order of the scores.
        score_kind: what the scores are.
        images_per_group: images in a row group.

    Returns:
        The number of images written.

    Raises:
        InputError: scores or "no relation" do not fit the pairs or the predicates, or logits come
            without the logit of "no relation".
    """
    if score_kind not in get_args(ScoreKind):
        raise InputError(f"expected score_kind 'probability' or 'logit', got {score_kind!r}")
    content = {
        "version": VERSION,
        "predicate_classes": list(predicate_classes),
        "score_kind": score_kind,
    }
    metadata = {_KEY: json.dumps(content, ensure_ascii=False).encode("utf-8")}
    schema = pa.schema(list(_COLUMNS.items()), metadata=metadata)
    images, count = iter(scores), 0
    with (
        files.atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        while group := list(itertools.islice(images, images_per_group)):
            rows = [_row(image, len(predicate_classes), score_kind) for image in group]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def _row(image: RelationScores, num_predicates: int, score_kind: ScoreKind) -> dict[str, Any]:
    none = image.no_relation
    where = f"image {image.image_id}"
    if image.scores.shape != (len(image.pairs), num_predicates):
        raise InputError(
            f"expected scores [{len(image.pairs)}, {num_predicates}], got "
            f"{list(image.scores.shape)}",
            record=where,
        )
    if none is not None and none.shape != (len(image.pairs),):
        raise InputError(
            f"expected no_relation [{len(image.pairs)}], got {list(none.shape)}", record=where
        )
    if none is None and score_kind == "logit":
        raise InputError("logits need the logit of 'no relation' beside them", record=where)
    return {
        "image_id": image.image_id,
        "pairs": np.asarray(image.pairs, dtype=np.int32).ravel(),
        "scores": np.asarray(image.scores, dtype=np.float32).ravel(),
        "no_relation": None if none is None else np.asarray(none, dtype=np.float32),
        "objects": None if image.objects is None else _objects_row(image.objects),
    }


def _objects_row(objects: PredictedObjects) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(field.name for field in _OBJECTS)
    row["labels"] = objects.labels.astype(np.int32)
    if objects.scores is not None:
        row["scores"] = objects.scores.astype(np.float32)
    if objects.boxes is not None:
        row["boxes"] = objects.boxes.astype(np.float32).ravel()
    if objects.masks is not None:
        masks = objects.masks
        before = np.append(0, masks.bounds[:-1, 1])[: len(masks.bounds)]
        firsts = masks.offsets[:-1][np.diff(masks.offsets) > 0]
        before[firsts] = 0
        begins, ends = masks.bounds.T
        row["size"] = [masks.height, masks.width]
        row["mask_runs"] = np.diff(masks.offsets).astype(np.int32)
        row["runs"] = np.stack([begins - before, ends - begins], axis=1).ravel()
    return row


def _masks(
    size: npt.NDArray[np.int32] | None,
    counts: npt.NDArray[np.int32],
    runs: npt.NDArray[np.int64] | None,
) -> MaskRuns | None:
    """The masks, or None where the lists are none."""
    if size is None or len(size) != 2 or runs is None:
        return None
    offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
    if (counts < 0).any() or (runs < 0).any() or 2 * offsets[-1] != len(runs):
        return None
    ends = np.cumsum(runs.reshape(-1, 2).sum(1))
    passed = np.append(0, ends)[offsets[:-1]]  # pixels counted before each mask
    ends -= np.repeat(passed, counts)
    bounds = np.stack([ends - runs[1::2], ends], axis=1)
    if len(ends) and ends.max() > int(size[0]) * int(size[1]):
        return None
    return MaskRuns(int(size[0]), int(size[1]), bounds, offsets)


def _columns_of(version: int) -> dict[str, pa.DataType]:
    return {name: kind for name, kind in _COLUMNS.items() if version > 1 or name != "objects"}


def _metadata(schema: pa.Schema, path: Path) -> dict[str, Any]:
    try:
        content = json.loads((schema.metadata or {})[_KEY])
        version, kind = content["version"], content["score_kind"]
        names = content["predicate_classes"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "expected a Haystack prediction file, but its schema has no such metadata; "
            "'haystack predict' writes one",
            path=path,
        ) from error
    if version not in (1, VERSION):
        raise InputError(
            f"this is version {version!r} of the format, this Haystack reads {VERSION}; "
            "install a newer one",
            path=path,
        )
    fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if kind not in get_args(ScoreKind) or not fits:
        raise InputError(f"its metadata is damaged: {content!r}", path=path)
    for name, kind_of_column in _columns_of(version).items():
        if name not in schema.names or schema.field(name).type != kind_of_column:
            raise InputError(f"expected a column {name!r} of {kind_of_column}", path=path)
    return dict(content)
