"""Events as files: JSON lines, which can be read back, and Parquet, which is typed.

Equal databases give equal bytes, whatever database system they are in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from haystack import files
from haystack.annotate.records import Proposal, Purpose, Verdict, check_names
from haystack.errors import InputError
from haystack.times import moment_of

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
_BATCH = 10_000
_HEADER = "campaign"
_VERDICTS = (*get_args(Verdict), "undo")
_LONGEST_LINE = 1 << 20

_QUESTION: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("proposal", "image_id", "image_key", "segments", "origin"), (str,)),
    **dict.fromkeys(("subject", "object", "predicate", "cluster", "rank", "round"), (int,)),
    "score": (float, int),
}
_BOUNDS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("event", "retracts", "retracted_by", "id"), (1, 2**63)),
    "score": (-(2**63), 2**63),
}
_Giver = tuple[str, str, str]
"""Annotator, question and purpose of an answer."""

_KINDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "event": {
        **_QUESTION,
        **dict.fromkeys(("key", "annotator", "verdict", "purpose", "created_at"), (str,)),
        **dict.fromkeys(("dwell_ms", "retracts"), (int, type(None))),
        "event": (int,),
    },
    "gold": {**_QUESTION, **dict.fromkeys(("verdict", "set_by", "set_at"), (str,))},
    # Tables that are entered as they are; the database knows their columns.
    **{name: {} for name in ("wording", "predicate_name", "round")},
}


def event_schema() -> pa.Schema:
    """Columns of the Parquet file.

    ``event`` int64, its number in the order of arrival; ``proposal`` string, id of the question;
    ``image_id, image_key`` string; ``subject, object`` int32, positions among the image's segments;
    ``predicate`` int32 and ``predicate_name`` string; ``cluster`` int32; ``segments`` string,
    identity of the list of segments; ``score`` float64, ``rank, round`` int32, ``origin`` string:
    as they were when it was answered; ``annotator, verdict, purpose`` string; ``dwell_ms`` int32,
    null where unknown; ``created_at`` timestamp[us, UTC]; ``retracts`` int64, the event that an
    undo takes back; ``retracted_by`` int64, the undo that took this event back; ``key`` string.
    """
    import pyarrow as pa

    text, number = pa.string(), pa.int32()
    return pa.schema(
        [
            ("event", pa.int64()),
            ("proposal", text),
            ("image_id", text),
            ("image_key", text),
            ("subject", number),
            ("object", number),
            ("predicate", number),
            ("predicate_name", text),
            ("cluster", number),
            ("segments", text),
            ("score", pa.float64()),
            ("rank", number),
            ("round", number),
            ("origin", text),
            ("annotator", text),
            ("verdict", text),
            ("purpose", text),
            ("dwell_ms", number),
            ("created_at", pa.timestamp("us", tz="UTC")),
            ("retracts", pa.int64()),
            ("retracted_by", pa.int64()),
            ("key", text),
        ]
    )


def write_jsonl(
    path: str | Path, records: Iterable[Mapping[str, Any]], predicates: Sequence[str]
) -> int:
    """Write records, a line each, after a line that names the predicates.

    Args:
        path: the file; it appears when all is written.
        records: see :mod:`haystack.annotate.store.event_log`.
        predicates: names of the predicates, by number.

    Returns:
        The number of records.
    """
    count = 0
    header = {"record": _HEADER, "format": FORMAT, "predicates": list(predicates)}
    with (
        files.atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        stream.write(_line(header))
        for record in records:
            stream.write(_line(record))
            count += 1
    return count


def write_parquet(
    path: str | Path, events: Iterable[Mapping[str, Any]], predicates: Sequence[str]
) -> int:
    """Write events, and only these, with the columns of :func:`event_schema`.

    Returns:
        The number of events.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, count = event_schema(), 0
    iterator = iter(events)
    with (
        files.atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        while batch := [_typed(event, predicates) for event in islice(iterator, _BATCH)]:
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


def read_jsonl(path: str | Path, predicates: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The records of a file of :func:`write_jsonl`, one after the other.

    Args:
        path: the file.
        predicates: names of the predicates that the file must have been written with.

    Raises:
        InputError: another format, other predicates, or a line that is no record; names it.
    """
    path = files.given_file(path, "events")
    seen: dict[int, _Giver | None] = {}
    with path.open(encoding="utf-8") as stream:
        try:
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), ""), 1):
                record = _parsed(line, path, f"line {number}")
                if number == 1:
                    _check_header(record, predicates, path)
                    continue
                _check(record, path, f"line {number}")
                if record["record"] == "event":
                    _check_event(record, seen, path, f"line {number}")
                elif record.get("predicate", 0) not in range(len(predicates)):
                    raise InputError(
                        f"expected a predicate of the vocabulary, got {record['predicate']!r}",
                        path=path,
                        record=f"line {number}",
                    )
                if record["record"] == "gold":
                    _check_gold(record, path, f"line {number}")
                if record["record"] in ("event", "gold"):
                    _check_question(record, len(predicates), path, f"line {number}")
                yield record
        except UnicodeDecodeError as error:
            raise InputError(f"not a file of events: {error}", path=path) from error


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(", ", ": ")) + "\n"


def _typed(event: Mapping[str, Any], predicates: Sequence[str]) -> dict[str, Any]:
    name = predicates[event["predicate"]]
    return {**event, "predicate_name": name, "created_at": _moment(event)}


def _moment(event: Mapping[str, Any]) -> datetime:
    text = event["created_at"]
    if not text.endswith("Z"):
        raise ValueError(f"expected 'created_at' as 2026-01-31T12:00:00.000000Z, got {text!r}")
    return moment_of(text)


def _parsed(line: str, path: Path, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        advice = "it was cut off; export again" if not line.endswith("\n") else "export again"
        raise InputError(f"not JSON ({error}); {advice}", path=path, record=where) from error
    if not isinstance(record, dict):
        raise InputError(
            "expected a JSON object, as haystack export --events writes them",
            path=path,
            record=where,
        )
    if "\\u" in line:  # only so can JSON hold what is no text to a database
        _check_text(record, path, where)
    return record


def _check_text(record: Mapping[str, Any], path: Path, where: str) -> None:
    for name, value in record.items():
        if isinstance(value, str) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
            raise InputError(
                f"expected {name!r} to be text, got {value[:40]!r}", path=path, record=where
            )


def _check_header(record: Mapping[str, Any], predicates: Sequence[str], path: Path) -> None:
    if record.get("record") != _HEADER or record.get("format") != FORMAT:
        raise InputError(
            f"expected a file of events of format {FORMAT}, as haystack export --events writes it, "
            f"got one that begins with record {record.get('record')!r}, format "
            f"{record.get('format')!r}",
            path=path,
        )
    if record.get("predicates") != list(predicates):
        raise InputError(
            "the events are about other predicates than this workspace's vocabulary has; enter "
            "them in a workspace with theirs",
            path=path,
        )


def _check(record: Mapping[str, Any], path: Path, where: str) -> None:
    kind = record.get("record")
    expected = _KINDS.get(kind) if isinstance(kind, str) else None
    if expected is None:
        raise InputError(
            f"expected a record of kind {', '.join(_KINDS)}, got {kind!r}", path=path, record=where
        )
    for name, kinds in expected.items():
        value = record.get(name)
        if name not in record or isinstance(value, bool) or not isinstance(value, kinds):
            wanted = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
            raise InputError(
                f"expected {name!r} of this {kind} to be {wanted}, got {value!r}",
                path=path,
                record=where,
            )
    for name, value in record.items():
        least, most = _BOUNDS.get(name, (0, 2**31))
        if isinstance(value, int) and not least <= value < most:
            raise InputError(
                f"expected {name!r} of this {kind} to be {least} to {most - 1}, got another number",
                path=path,
                record=where,
            )


def _check_event(
    record: Mapping[str, Any], seen: dict[int, _Giver | None], path: Path, where: str
) -> None:
    if record["verdict"] not in _VERDICTS or record["purpose"] not in get_args(Purpose):
        raise InputError(
            f"unknown verdict or purpose: {record['verdict']!r}, {record['purpose']!r}",
            path=path,
            record=where,
        )
    if (record["verdict"] == "undo") != (record["retracts"] is not None):
        raise InputError(
            "expected undos, and only undos, to retract an event", path=path, record=where
        )
    retracts = record["retracts"]
    if record["event"] in seen or not (retracts is None or retracts in seen):
        raise InputError(
            f"event {record['event']} comes twice, or retracts one that does not come before it",
            path=path,
            record=where,
        )
    giver = (record["annotator"], record["proposal"], record["purpose"])
    if retracts is not None and seen[retracts] != giver:
        raise InputError(
            f"expected event {record['event']} to take back an answer of the same annotator to the "
            f"same question, event {retracts} is none",
            path=path,
            record=where,
        )
    try:
        # An undo without a key of its own has one that no key from outside looks like.
        check_names(record["annotator"], None if retracts is not None else record["key"])
        _moment(record)
    except (InputError, ValueError) as error:
        raise InputError(str(error), path=path, record=where) from error
    seen[record["event"]] = None if retracts is not None else giver


def _check_gold(record: Mapping[str, Any], path: Path, where: str) -> None:
    if record["verdict"] not in get_args(Verdict) or record["verdict"] == "skip":
        raise InputError(
            f"expected the true answer of a gold item, got {record['verdict']!r}",
            path=path,
            record=where,
        )


def _check_question(record: Mapping[str, Any], predicates: int, path: Path, where: str) -> None:
    names = ("image_id", "subject", "object", "predicate", "image_key", "score", "cluster", "rank")
    try:
        question = Proposal(*(record[name] for name in names))
    except InputError as error:
        raise InputError(error.message, path=path, record=where) from error
    if question.id != record["proposal"] or question.predicate >= predicates:
        raise InputError(
            "the question and its id do not belong together, or its predicate is none of the "
            "vocabulary's; the line was edited",
            path=path,
            record=where,
        )
