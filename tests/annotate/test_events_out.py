from __future__ import annotations

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from haystack.annotate.event_files import event_schema, read_jsonl, write_jsonl, write_parquet
from haystack.annotate.labels import resolve
from haystack.annotate.provenance import provenance_rows
from haystack.annotate.records import VERDICTS, Answer, GoldItem, Proposal
from haystack.annotate.simulate import SteppingClock
from haystack.annotate.store.event_log import (
    enter,
    event_records,
    other_records,
    pseudonyms,
    renamed,
    wordings_shown,
)
from haystack.annotate.store.schema import predicate_names, wordings
from haystack.annotate.store.store import AnnotationStore
from haystack.errors import InputError

NAMES = ("eating", "riding")


def labels_of(store):
    return resolve(store.answers(), store.gold_items())


def labels_from_file(path):
    """Labels from the file alone, by hand: the answers that are neither undone nor replaced."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    said = [record for record in records if record["record"] == "event"]
    undone = {record["retracts"] for record in said if record["verdict"] == "undo"}
    latest = {}
    for record in said:
        counts = record["purpose"] in ("label", "adjudication")
        if record["verdict"] != "undo" and record["event"] not in undone and counts:
            latest[record["proposal"], record["annotator"]] = record

    def proposal(record):
        names = ("image_id", "subject", "object", "predicate", "image_key", "score", "cluster")
        return Proposal(*(record[name] for name in names), record["rank"])

    names = ("verdict", "annotator", "key", "dwell_ms", "created_at", "purpose")
    answers = [Answer(proposal(r), *(r[name] for name in names)) for r in latest.values()]
    known = [
        GoldItem(proposal(r), r["verdict"], r["set_by"], r["set_at"])
        for r in records
        if r["record"] == "gold"
    ]
    return resolve(answers, known)


def fill(store, make_queue):
    """Two annotators, undone and replaced answers, faults, a gold item, names, a wording."""
    queue = make_queue(count=6)
    store.load_proposals(queue, round=1)
    for number, proposal in enumerate(queue):
        for who, shift in (("Ann Ö", 0), ("bob", 3)):
            verdict = VERDICTS[(number + shift) % len(VERDICTS)]
            store.answer(proposal.id, verdict, who, f"{who[0]}{number}", dwell_ms=number or None)
            if number % 5 == 2:
                store.undo(who)
    store.answer(queue[0].id, "incorrect", "bob", "again")
    store.set_gold({queue[5].id: "correct"}, "lead")
    moment = "2000-01-01T00:00:05.000000Z"
    with store.database.write() as connection:
        name = {"predicate": 1, "name": "sits on", "help": "", "set_by": "lead", "set_at": moment}
        connection.execute(predicate_names.insert(), name)
        wording = {
            **{"key": "w", "predicate": 0, "shown": '[["1", 0, 1]]'},
            **{"annotator": "Ann Ö", "words": "munching, “so”", "created_at": moment},
        }
        connection.execute(wordings.insert(), wording)


def everything(store):
    return [*event_records(store.database), *other_records(store.database)]


def test_labels_follow_from_the_exported_events_alone(store, make_queue, tmp_path):
    fill(store, make_queue)
    count = write_jsonl(tmp_path / "events.jsonl", everything(store), NAMES)
    assert count == len(everything(store)) > store.event_count() > 24
    found = labels_of(store)
    assert {row.rule for row in found.decisions} >= {"gold", "majority"}
    assert labels_from_file(tmp_path / "events.jsonl") == found


def test_a_new_database_gets_the_same_events_and_labels(store, make_queue, tmp_path):
    fill(store, make_queue)
    write_jsonl(tmp_path / "events.jsonl", everything(store), NAMES)
    with AnnotationStore(tmp_path / "moved.db", clock=SteppingClock()) as moved:
        entered = enter(moved.database, read_jsonl(tmp_path / "events.jsonl", NAMES))
        assert entered == store.event_count()
        assert everything(moved) == everything(store)
        assert labels_of(moved) == labels_of(store)
        assert moved.faulty_segments() == store.faulty_segments()
        assert {p: replace(c, total=0, open=0) for p, c in moved.progress("bob").items()} == {
            p: replace(c, total=0, open=0) for p, c in store.progress("bob").items()
        }
        write_jsonl(tmp_path / "again.jsonl", everything(moved), NAMES)
        assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "events.jsonl").read_bytes()
        with pytest.raises(InputError, match="expected a new database"):
            enter(moved.database, read_jsonl(tmp_path / "events.jsonl", NAMES))


def test_paths_of_models_that_an_older_database_holds_do_not_leave_it(store, make_queue, tmp_path):
    fill(store, make_queue)
    path = "cluster 0: /home/kim/secret/model.safetensors rank 1 (score 2)"
    with store.database.write() as connection:
        for table in ("proposals", "events"):
            connection.execute(text(f"UPDATE {table} SET origin = :path"), {"path": path})
    told = "cluster 0: model.safetensors rank 1 (score 2)"
    assert {asked.origin for asked in (*store.queued(), *store.upcoming(0, "eve", 9))} == {told}
    records = everything(store)
    write_jsonl(tmp_path / "events.jsonl", records, NAMES)
    write_parquet(tmp_path / "e.parquet", event_records(store.database), NAMES)
    assert set(pq.read_table(tmp_path / "e.parquet")["origin"].to_pylist()) == {told}
    assert "kim" not in (tmp_path / "events.jsonl").read_text(encoding="utf-8")
    rows = provenance_rows(labels_of(store), store.answers(), lambda *_: "", None)
    assert {answer["origin"] for row in rows for answer in row["answers"]} == {told}
    with AnnotationStore(tmp_path / "moved.db", clock=SteppingClock()) as moved:
        enter(moved.database, read_jsonl(tmp_path / "events.jsonl", NAMES))
        assert everything(moved) == records


@pytest.mark.postgres
def test_a_campaign_moves_to_postgresql_and_goes_on(
    sqlite_store, postgres_database, make_queue, tmp_path
):
    fill(sqlite_store, make_queue)
    write_jsonl(tmp_path / "events.jsonl", everything(sqlite_store), NAMES)
    with AnnotationStore(postgres_database, clock=SteppingClock()) as moved:
        enter(moved.database, read_jsonl(tmp_path / "events.jsonl", NAMES))
        write_jsonl(tmp_path / "again.jsonl", everything(moved), NAMES)
        assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "events.jsonl").read_bytes()
        assert labels_of(moved) == labels_of(sqlite_store)
        # The queue is loaded anew, nothing answered is asked, and new events get new numbers.
        moved.load_proposals([*make_queue(count=6), *make_queue(6, (2,))], round=2)
        before = moved.event_count()
        asked = moved.next_proposal(2, "bob")
        moved.answer(asked.id, "correct", "bob", "new")
        assert moved.event_count() == before + 1
        assert moved.undo("bob") == asked


def test_parquet_is_typed_and_holds_every_event(store, make_queue, tmp_path):
    fill(store, make_queue)
    for name in ("a.parquet", "b.parquet"):
        write_parquet(tmp_path / name, event_records(store.database), NAMES)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.schema.equals(event_schema())
    rows = table.to_pylist()
    assert [row["event"] for row in rows] == [r["event"] for r in event_records(store.database)]
    undos = [row for row in rows if row["verdict"] == "undo"]
    assert undos
    taken_back = {row["event"]: row["retracted_by"] for row in rows if row["retracted_by"]}
    assert taken_back == {row["retracts"]: row["event"] for row in undos}
    assert {row["predicate_name"] for row in rows} == set(NAMES)
    assert rows[0]["dwell_ms"] is None
    first = next(event_records(store.database))["created_at"]
    assert rows[0]["created_at"].isoformat(timespec="microseconds") == first.replace("Z", "+00:00")


def test_pseudonyms_replace_every_name(store, make_queue, tmp_path):
    fill(store, make_queue)
    names = pseudonyms(store.database)
    assert names == {"Ann Ö": "annotator-1", "bob": "annotator-2", "lead": "annotator-3", "": ""}
    write_jsonl(tmp_path / "e.jsonl", renamed(everything(store), names), NAMES)
    text = (tmp_path / "e.jsonl").read_text(encoding="utf-8")
    assert "Ann" not in text
    assert '"bob"' not in text
    assert "lead" not in text
    assert labels_from_file(tmp_path / "e.jsonl").images == labels_of(store).images


def test_a_snapshot_stays_as_it_is_while_people_answer(store, make_queue):
    fill(store, make_queue)
    before = everything(store)
    with store.database.snapshot() as state:
        names = pseudonyms(state)
        store.answer(make_queue()[0].id, "correct", "Newcomer", "n1")
        said = list(event_records(state))
        assert [*said, *other_records(state)] == before
        assert list(event_records(state)) == said
        assert list(renamed(said, names))
    assert len(list(event_records(store.database))) == len(said) + 1


def test_what_each_label_rests_on(store, make_queue):
    queue = make_queue(count=2, predicates=(1,))
    store.load_proposals(queue, round=3)
    for who, verdict in (("ann", "correct"), ("bob", "correct"), ("cat", "incorrect")):
        store.answer(queue[0].id, verdict, who, who, dwell_ms=700)
    moment = [event["created_at"] for event in event_records(store.database)][1]
    store.answer(queue[1].id, "object_faulty", "ann", "f")
    with store.database.write() as connection:
        name = {"predicate": 1, "name": "sits on", "help": "", "set_by": "lead"}
        connection.execute(predicate_names.insert(), name | {"set_at": moment})
    wording = wordings_shown(store.database, lambda predicate: NAMES[predicate])
    answers = list(store.answers())
    label, fault = provenance_rows(resolve(answers), answers, wording, None)
    assert (label["label"], label["rule"]) == ("positive", "majority")
    assert [(a["annotator"], a["counted"], a["wording"]) for a in label["answers"]] == [
        ("ann", True, "riding"),  # asked before the lead chose other words
        ("bob", True, "sits on"),
        ("cat", True, "sits on"),
    ]
    assert label["answers"][0] | {"created_at": ""} == {
        **{"annotator": "ann", "verdict": "correct", "purpose": "label", "counted": True},
        **{"asked_predicate": 1, "wording": "riding", "created_at": "", "dwell_ms": 700},
        **{"score": 1.0, "rank": 0, "round": 3, "origin": ""},
    }
    assert (fault["label"], fault["subject"], fault["object"]) == ("faulty_segment", 2, None)
    hidden = provenance_rows(resolve(answers), answers, wording, pseudonyms(store.database))
    assert {a["annotator"] for a in hidden[0]["answers"]} == {f"annotator-{n}" for n in (1, 2, 3)}


def on_line(number, *, after=False, **changes):
    """Changes a line of a file of events, or puts the changed line after it."""

    def change(lines):
        changed = json.dumps(json.loads(lines[number]) | changes) + "\n"
        return [*lines[: number + after], changed, *lines[number + 1 :]]

    return change


BROKEN = {
    "is cut off": (lambda lines: [*lines[:-1], lines[-1][:-20]], "cut off"),
    "is of another format": (lambda lines: ['{"record": "x"}\n', *lines[1:]], "of format 1"),
    "is about other predicates": (
        lambda lines: [lines[0].replace("riding", "eyeing"), *lines[1:]],
        "other predicates",
    ),
    "has an unknown record": (
        lambda lines: [*lines, '{"record": "x"}\n'],
        "expected a record of kind",
    ),
    "has a number for a name": (
        lambda lines: [lines[0], lines[1].replace('"Ann Ö"', "7"), *lines[2:]],
        "line 2: expected 'annotator' of this event to be str, got 7",
    ),
    "was edited": (
        lambda lines: [lines[0], lines[1].replace('"subject": 0', '"subject": 1'), *lines[2:]],
        "do not belong together",
    ),
    "has an event twice": (lambda lines: [*lines[:2], lines[1], *lines[2:]], "comes twice"),
    "has a key twice": (
        lambda lines: [*lines[:2], lines[2].replace('"b0"', '"A0"'), *lines[3:]],
        "nothing was entered",
    ),
    "has an unknown verdict": (
        lambda lines: [lines[0], lines[1].replace('"correct"', '"sure"'), *lines[2:]],
        "unknown verdict",
    ),
    "has a time that is none": (
        on_line(1, created_at="yesterday"),
        "line 2: expected 'created_at'",
    ),
    "has a time of another zone": (
        on_line(1, created_at="2026-01-01T00:00:00+05:00"),
        "line 2: expected 'created_at'",
    ),
    "has too large a number": (on_line(1, event=10**30), "line 2: expected 'event'"),
    "has a rank that no column holds": (on_line(1, rank=2**40), "line 2: expected 'rank'"),
    "has a negative time of looking": (on_line(1, dwell_ms=-1), "line 2: expected 'dwell_ms'"),
    "has a score that is no number": (on_line(1, score=10**400), "line 2: expected 'score'"),
    "has a name without end": (on_line(1, annotator="x" * 10_000), "1 to 200 printable"),
    "has a name that cannot be seen": (on_line(1, annotator="a\u202eb"), "1 to 200 printable"),
    "has a key that is none": (on_line(1, key="<b>"), "line 2: expected a key"),
    "has half a character": (on_line(1, origin="\ud800"), "line 2: expected 'origin' to be text"),
    "has a NUL": (on_line(1, image_key="a\0.jpg"), "line 2: expected 'image_key' to be text"),
    "undoes for somebody else": (
        on_line(1, after=True, event=99, key="u", verdict="undo", retracts=1, annotator="eve"),
        "of the same annotator",
    ),
    "undoes an undo": (
        lambda lines: on_line(2, after=True, event=100, key="v", verdict="undo", retracts=99)(
            on_line(1, after=True, event=99, key="u", verdict="undo", retracts=1)(lines)
        ),
        "of the same annotator",
    ),
    "names a predicate that there is not": (
        lambda lines: [
            *lines,
            json.dumps({"record": "predicate_name", "predicate": 99}) + "\n",
        ],
        "a predicate of the vocabulary, got 99",
    ),
    "has a gold item that says nothing": (
        on_line(1, after=True, record="gold", verdict="skip", set_by="lea", set_at="then"),
        "expected the true answer",
    ),
    "has a wording without words": (
        lambda lines: [line.replace('"words"', '"sword"') for line in lines],
        "expected 'words' of a wording to be str, got None",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that(case, sqlite_store, make_queue, tmp_path):
    fill(sqlite_store, make_queue)
    path = tmp_path / "events.jsonl"
    write_jsonl(path, everything(sqlite_store), NAMES)
    change, message = BROKEN[case]
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(change(lines)), encoding="utf-8")
    with AnnotationStore(tmp_path / "new.db") as new:
        with pytest.raises(InputError, match=message):
            enter(new.database, read_jsonl(path, NAMES))
        assert new.event_count() == 0
        assert list(event_records(new.database)) == []


@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from((*VERDICTS, "undo"))), max_size=25))
@settings(max_examples=20, deadline=None)
def test_any_history_gives_the_same_labels_elsewhere(tmp_path_factory, make_queue, history):
    folder = tmp_path_factory.mktemp("history")
    with AnnotationStore(folder / "a.db") as store, AnnotationStore(folder / "b.db") as other:
        queue = make_queue(count=6)
        store.load_proposals(queue, round=0)
        for number, (place, verdict) in enumerate(history):
            who = "ab"[number % 2]
            if verdict == "undo":
                store.undo(who)
            else:
                store.answer(queue[place].id, verdict, who, str(number))
        write_jsonl(folder / "e.jsonl", everything(store), NAMES)
        enter(other.database, read_jsonl(folder / "e.jsonl", NAMES))
        assert labels_of(other) == labels_of(store) == labels_from_file(folder / "e.jsonl")
