"""Where the labels of an annotation file come from: a Parquet file beside it.

``annotation.json`` has ``annotation.provenance.parquet``. PSG files have no place for it, and their
readers would trip over one. A record belongs to a label by image id and row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack import files
from haystack.errors import InputError
from haystack.scene_graph import NO_RELATION, SceneGraphDataset
from haystack.text import without_folders
from haystack.times import moment_of

if TYPE_CHECKING:
    import pyarrow as pa

Record = Mapping[str, Any]
_SUFFIX = ".provenance.parquet"
_KEY = ("image_id", "subject", "object", "predicate", "label")


def provenance_file(annotations: str | Path) -> Path:
    """The name of the file that belongs to an annotation file."""
    return Path(annotations).with_suffix(_SUFFIX)


def provenance_schema() -> pa.Schema:
    """Columns of the file.

    - ``image_id`` string; ``subject, object, predicate`` int32: the row, predicate -1 = no relation
      at all; of a faulty segment ``subject`` is its position and the others are null;
    - ``label`` string: ``positive``, ``negative``, ``no_relation``, ``faulty_segment``;
    - ``rule`` string, what decided: ``gold`` (``known``: the verdict that was known),
      ``adjudication``, ``unanimous``, ``majority``; ``report`` for faulty segments;
    - ``answers`` list of all answers that bear on the row: ``annotator, verdict, purpose`` string;
      ``counted`` bool, false where it was overruled or outvoted by a rule; ``asked_predicate``
      int32 (another than the row's where "no relation" was said of the pair), ``wording`` string in
      which it was asked; ``created_at`` timestamp[us, UTC]; ``dwell_ms`` int32; ``score`` float64,
      ``rank, round`` int32 of the proposal, ``origin`` string: the models that proposed it.
    """
    import pyarrow as pa

    text, number = pa.string(), pa.int32()
    answer = pa.struct(
        [
            ("annotator", text),
            ("verdict", text),
            ("purpose", text),
            ("counted", pa.bool_()),
            ("asked_predicate", number),
            ("wording", text),
            ("created_at", pa.timestamp("us", tz="UTC")),
            ("dwell_ms", number),
            ("score", pa.float64()),
            ("rank", number),
            ("round", number),
            ("origin", text),
        ]
    )
    return pa.schema(
        [
            ("image_id", text),
            ("subject", number),
            ("object", number),
            ("predicate", number),
            ("label", text),
            ("rule", text),
            ("known", text),
            ("answers", pa.list_(answer)),
        ]
    )


def write_provenance(path: str | Path, records: Iterable[Record]) -> int:
    """Write records, atomically; times may be ISO 8601 text. Returns their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{**record, "answers": [*map(_timed, record["answers"])]} for record in records]
    with files.atomic_path(path) as temporary:
        table = pa.Table.from_pylist(rows, schema=provenance_schema())
        pq.write_table(table, temporary, compression="zstd")
    return len(rows)


def read_provenance(annotations: str | Path) -> list[dict[str, Any]]:
    """The records that belong to an annotation file; none where there is no such file.

    Raises:
        InputError: it cannot be read, or has other columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = provenance_file(annotations)
    if not path.is_file():
        return []
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot be read as Parquet: {error}", path=path) from error
    if not table.schema.equals(provenance_schema()):
        raise InputError(
            "expected the columns that haystack export writes; export again, or remove this file "
            "to go on without provenance",
            path=path,
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    for answer in chain.from_iterable(row["answers"] or () for row in rows):
        # Earlier versions wrote where models lie on a machine.
        answer["origin"] = without_folders(answer["origin"] or "")
    return rows


def of_dataset(records: Iterable[Record], dataset: SceneGraphDataset) -> list[Record]:
    """Those records whose label the data set has; of several of one label the last."""
    known: dict[str, set[tuple[Any, ...]]] = {}
    for graph in dataset.graphs:
        labels: set[tuple[Any, ...]] = {
            (*row, "positive") for row in map(tuple, graph.relations.tolist())
        }
        for row in graph.neg_relations.tolist():
            labels.add((*row, "no_relation" if row[2] == NO_RELATION else "negative"))
        for segment in dataset.faulty_segments.get(graph.image_id, ()):
            labels.add((segment, None, None, "faulty_segment"))
        known[graph.image_id] = labels
    kept = {
        tuple(record[name] for name in _KEY): record
        for record in records
        if tuple(record[name] for name in _KEY[1:]) in known.get(record["image_id"], ())
    }
    return list(kept.values())


def merged_provenance(
    base: str | Path, additions: Sequence[str | Path], prefix_ids: str, merged: SceneGraphDataset
) -> list[Record]:
    """What is known of a merged file's labels, from the files beside those that were merged.

    Args:
        base: the annotation file that was added to.
        additions: the annotation files that were added.
        prefix_ids: put before the image ids of the additions.
        merged: the result; a label that lost a conflict is not in it.
    """
    records: list[Record] = list(read_provenance(base))
    for path in additions:
        records += (
            {**record, "image_id": prefix_ids + record["image_id"]}
            for record in read_provenance(path)
        )
    return of_dataset(records, merged)


def _timed(answer: Record) -> Record:
    moment = answer["created_at"]
    return {**answer, "created_at": moment_of(moment) if isinstance(moment, str) else moment}
