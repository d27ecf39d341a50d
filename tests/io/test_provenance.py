from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from haystack.cli import main
from haystack.errors import InputError
from haystack.io import read_psg, write_psg
from haystack.io.provenance import (
    of_dataset,
    provenance_file,
    provenance_schema,
    read_provenance,
    write_provenance,
)
from haystack.scene_graph import NO_RELATION, as_triplets

ANSWER = {
    **{"annotator": "ann", "verdict": "correct", "purpose": "label", "counted": True},
    **{"asked_predicate": 3, "wording": "sits on", "created_at": "2026-01-02T03:04:05.000006Z"},
    **{"dwell_ms": None, "score": 0.5, "rank": 4, "round": 1, "origin": "model rank 4"},
}


def record(image_id, row, label, who="ann"):
    subject, target, predicate = row
    return {
        **{"image_id": image_id, "subject": subject, "object": target, "predicate": predicate},
        **{"label": label, "rule": "unanimous", "known": None},
        "answers": [{**ANSWER, "annotator": who}],
    }


def file_of(path, *, relations=(), negatives=(), faulty=()):
    """One image of psg-mini, with labels of the test's own and a record for each."""
    mini = read_psg("psg-mini")
    graph = replace(
        mini.graphs[0],
        relations=as_triplets(relations),
        neg_relations=as_triplets(negatives),
    )
    dataset = replace(
        mini,
        graphs=(graph,),
        test_image_ids=(),
        faulty_segments={graph.image_id: tuple(faulty)} if faulty else {},
    )
    path.parent.mkdir()
    write_psg(dataset, path)
    rows = [record(graph.image_id, row, "positive", path.parent.name) for row in relations]
    for row in negatives:
        kind = "no_relation" if row[2] == NO_RELATION else "negative"
        rows.append(record(graph.image_id, row, kind, path.parent.name))
    for segment in faulty:
        rows.append(record(graph.image_id, (segment, None, None), "faulty_segment"))
    write_provenance(provenance_file(path), rows)
    return graph.image_id


def told(path):
    return {
        (r["image_id"], r["subject"], r["object"], r["predicate"], r["label"]): [
            answer["annotator"] for answer in r["answers"]
        ]
        for r in read_provenance(path)
    }


def test_records_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "a" / "annotation.json"
    file_of(path, relations=[(0, 1, 3)], negatives=[(1, 0, 2), (0, 2, -1)], faulty=[3])
    rows = read_provenance(path)
    assert [row["label"] for row in rows] == [
        *("positive", "negative", "no_relation", "faulty_segment"),
    ]
    moment = rows[0]["answers"][0].pop("created_at")
    assert moment.isoformat() == "2026-01-02T03:04:05.000006+00:00"
    assert rows[0]["answers"] == [
        {k: v for k, v in (ANSWER | {"annotator": "a"}).items() if k != "created_at"}
    ]
    first = provenance_file(path).read_bytes()
    write_provenance(provenance_file(path), read_provenance(path))
    assert provenance_file(path).read_bytes() == first
    assert of_dataset(rows, read_psg(path)) == rows
    assert read_provenance(tmp_path / "other.json") == []


def test_paths_of_models_in_files_of_earlier_versions_are_not_passed_on(tmp_path):
    path = tmp_path / "a" / "annotation.json"
    said = "cluster 0: /home/kim/model.safetensors rank 4 (score 1)"
    image = file_of(path, relations=[(0, 1, 3)])
    rows = read_provenance(path)
    rows[0]["answers"][0]["origin"] = said
    write_provenance(provenance_file(path), rows)
    (row,) = read_provenance(path)
    assert (row["image_id"], row["answers"][0]["origin"]) == (image, said.replace("/home/kim/", ""))


def test_merging_keeps_what_is_known_of_labels(tmp_path, capsys):
    base, addition, out = (tmp_path / name / "annotation.json" for name in ("a", "b", "out"))
    image = file_of(base, relations=[(0, 1, 3)], negatives=[(1, 0, 2)])
    file_of(addition, relations=[(1, 0, 2)], negatives=[(0, 1, 4)])
    verb = ["merge", str(base), str(addition), "--out", str(out)]
    assert main(verb) == 2
    assert "contradict each other" in capsys.readouterr().err
    assert not out.exists()
    assert main([*verb, "--on-conflict", "addition"]) == 0
    expected = {
        (image, 0, 1, 3, "positive"): ["a"],
        (image, 1, 0, 2, "positive"): ["b"],
        (image, 0, 1, 4, "negative"): ["b"],
    }
    assert told(out) == expected
    assert main([*verb, "--on-conflict", "base"]) == 0
    assert told(out) == {
        (image, 0, 1, 3, "positive"): ["a"],
        (image, 1, 0, 2, "negative"): ["a"],
        (image, 0, 1, 4, "negative"): ["b"],
    }
    assert main([*verb, "--prefix-ids", "x-"]) == 0
    assert {key[0] for key in told(out)} == {image, f"x-{image}"}


def test_a_merge_without_provenance_leaves_none_behind(tmp_path):
    base, out = tmp_path / "a" / "annotation.json", tmp_path / "out" / "annotation.json"
    file_of(base, relations=[(0, 1, 3)])
    assert main(["merge", "psg-mini", str(base), "--prefix-ids", "x", "--out", str(out)]) == 0
    assert len(told(out)) == 1
    provenance_file(base).unlink()
    assert main(["merge", "psg-mini", str(base), "--prefix-ids", "x", "--out", str(out)]) == 0
    assert told(out) == {}


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "annotation.json"
    provenance_file(path).write_bytes(b"no parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_provenance(path)
    pq.write_table(pa.table({"image_id": ["1"]}), provenance_file(path))
    with pytest.raises(InputError, match="expected the columns that haystack export writes"):
        read_provenance(path)
    assert provenance_schema().names[0] == "image_id"
