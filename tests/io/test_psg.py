import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from haystack.errors import InputError
from haystack.io import find_annotations, read_psg, write_psg
from haystack.io.psg_writer import PsgWriter
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment
from haystack.vocabulary import psg_vocabulary

VOCABULARY = psg_vocabulary()
DATA = Path(__file__).parent.parent / "data" / "psg"


def record(**changes):
    base = {
        "image_id": "17",
        "file_name": "sa_17.jpg",
        "pan_seg_file_name": "sa_17.png",
        "height": 30,
        "width": 40,
        "segments_info": [
            {"id": 1, "category_id": 0, "iscrowd": 0, "isthing": 1, "area": 9},
            {"id": 2, "category_id": 116, "iscrowd": 1, "isthing": 0, "area": 12},
        ],
        "annotations": [
            {"bbox": [0, 0, 3, 3], "bbox_mode": 0, "category_id": 0},
            {"bbox": [3.0, 0.0, 6.0, 4.0], "bbox_mode": 0, "category_id": 116},
        ],
        "relations": [[0, 1, 26]],
        "neg_relations": [[0, 1, 28], [1, 0, -1]],
    }
    base.update(changes)
    return {key: value for key, value in base.items() if value is not ...}


def write(tmp_path, *records, **top):
    content = {"data": list(records), "test_image_ids": [], **VOCABULARY.to_dict(), **top}
    path = tmp_path / "annotation.json"
    path.write_text(json.dumps(content))
    return path


def test_the_bundled_data_set_is_found_by_name():
    dataset = read_psg("psg-mini")
    assert len(dataset) == 53
    assert len(dataset.split("test")) == 21
    assert len(dataset.split("train")) == 32
    assert sum(len(graph.relations) for graph in dataset.graphs) == 707
    negatives = np.concatenate([graph.neg_relations for graph in dataset.graphs])
    assert (negatives[:, 2] >= 0).sum() == 608
    assert (negatives[:, 2] == -1).sum() == 137
    assert dataset.faulty_segments["257"] == (23, 24, 26, 33)
    assert all(dataset.path_of(graph.file_name).is_file() for graph in dataset.graphs)
    assert (find_annotations("psg-mini").parent / "ATTRIBUTION.md").is_file()


def test_writing_gives_back_the_bundled_file(tmp_path):
    source = find_annotations("psg-mini")
    write_psg(read_psg(source), tmp_path / "copy.json")
    assert json.loads((tmp_path / "copy.json").read_text()) == json.loads(source.read_text())
    written = json.loads((tmp_path / "faulty_segments.json").read_text())
    assert written == json.loads((source.parent / "faulty_segments.json").read_text())


@pytest.mark.parametrize("identifier", ["17", 17])
def test_ids_are_text_whatever_the_file_holds(tmp_path, identifier):
    path = write(tmp_path, record(image_id=identifier), test_image_ids=[identifier])
    dataset = read_psg(path)
    assert dataset.graphs[0].image_id == "17"
    assert dataset.split("test") == dataset.graphs


def test_integer_ids_can_be_written_for_the_authors_script(tmp_path):
    dataset = read_psg(write(tmp_path, record(), test_image_ids=["17"]))
    write_psg(dataset, tmp_path / "out.json", integer_ids=True)
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["data"][0]["image_id"] == 17
    assert content["test_image_ids"] == [17]
    with pytest.raises(InputError, match="not a plain integer"):
        write_psg(
            read_psg(write(tmp_path, record(image_id="0017"))),
            tmp_path / "out.json",
            integer_ids=True,
        )


def test_everything_of_a_record_is_read(tmp_path):
    graph = read_psg(write(tmp_path, record(coco_image_id="9"))).graphs[0]
    assert graph.labels.tolist() == [0, 116]
    assert graph.boxes.tolist() == [[0, 0, 3, 3], [3, 0, 6, 4]]
    assert graph.segment_ids.tolist() == [1, 2]
    assert [segment.is_crowd for segment in graph.segments] == [False, True]
    assert graph.relations.tolist() == [[0, 1, 26]]
    assert graph.neg_relations.tolist() == [[0, 1, 28], [1, 0, -1]]
    assert graph.extra == {"coco_image_id": "9"}


def test_a_placeholder_among_the_relations_is_a_no_relation_row(tmp_path):
    path = write(tmp_path, record(relations=[[0, 1, 26], [1, 0, -1]], neg_relations=...))
    graph = read_psg(path).graphs[0]
    assert graph.relations.tolist() == [[0, 1, 26]]
    assert graph.neg_relations.tolist() == [[1, 0, -1]]


def test_records_without_relations_are_kept(tmp_path):
    path = write(
        tmp_path,
        record(image_id="a", relations=[], neg_relations=[]),
        record(image_id="b", relations=..., neg_relations=...),
        record(image_id="c", relations=[]),
    )
    assert [len(graph.relations) for graph in read_psg(path).graphs] == [0, 0, 0]
    assert [len(graph.neg_relations) for graph in read_psg(path).graphs] == [0, 0, 2]


def test_boxes_alone_are_enough_and_number_their_segments(tmp_path):
    graph = read_psg(write(tmp_path, record(segments_info=..., pan_seg_file_name=...))).graphs[0]
    assert graph.segment_ids.tolist() == [1, 2]
    assert graph.pan_seg_file_name is None
    assert [segment.area for segment in graph.segments] == [9, 12]


def test_boxes_given_as_width_and_height_are_converted(tmp_path):
    annotations = copy.deepcopy(record()["annotations"])
    annotations[1] = {"bbox": [3, 0, 3, 4], "bbox_mode": 1, "category_id": 116}
    graph = read_psg(write(tmp_path, record(annotations=annotations))).graphs[0]
    assert graph.segments[1].box == (3, 0, 6, 4)


def test_a_vocabulary_can_be_given_or_compared(tmp_path):
    path = tmp_path / "bare.json"
    path.write_text(json.dumps({"data": [record()]}))
    assert read_psg(path, vocabulary=VOCABULARY).vocabulary is VOCABULARY
    with pytest.raises(InputError, match="missing: thing_classes"):
        read_psg(path)
    swapped = list(VOCABULARY.predicate_classes)
    swapped[0], swapped[1] = swapped[1], swapped[0]
    with pytest.raises(InputError, match="predicate_classes differ"):
        read_psg(write(tmp_path, record(), predicate_classes=swapped), vocabulary=VOCABULARY)


def _segment(position, **changes):
    segments = copy.deepcopy(record()["segments_info"])
    segments[position].update(changes)
    return segments


def _annotation(position, **changes):
    annotations = copy.deepcopy(record()["annotations"])
    annotations[position].update(changes)
    return annotations


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": True}, r"data\[0\].*text or integer, got True"),
        ({"image_id": 1.0}, "text or integer"),
        ({"image_id": ""}, "text or integer"),
        ({"image_id": ...}, "text or integer, got None"),
        ({"height": 0}, "image 17: expected a positive integer height, got 0"),
        ({"width": "40"}, "positive integer width"),
        ({"file_name": None}, "file_name"),
        ({"annotations": ...}, "list of boxes"),
        ({"segments_info": [{"id": 1}]}, "same length, got 1 and 2"),
        ({"segments_info": _segment(0, category_id=1)}, "segment 0.*same segments"),
        (
            {
                "segments_info": _segment(0, category_id=133),
                "annotations": _annotation(0, category_id=133),
            },
            r"unknown category_id 133; the vocabulary has classes 0..132",
        ),
        ({"segments_info": _segment(0, isthing=0)}, "person.*is a thing class"),
        ({"segments_info": _segment(1, id=1)}, "used by segments 0 and 1"),
        ({"segments_info": _segment(1, id=0)}, r"segment id of 1..16777215"),
        ({"segments_info": _segment(1, id=2**24)}, r"segment id of 1..16777215"),
        ({"segments_info": _segment(0, area="9")}, "area in pixels"),
        ({"segments_info": _segment(0, area=float("nan"))}, "area in pixels, got nan"),
        ({"segments_info": _segment(0, iscrowd="0")}, "iscrowd to be 0 or 1, got '0'"),
        ({"pan_seg_file_name": 5}, "pan_seg_file_name to be text, got 5"),
        ({"annotations": _annotation(0, bbox=[0, 0, 3, 10**400])}, "four finite numbers"),
        ({"relations": [[0, 10**30, 3]]}, "integer rows"),
        ({"annotations": _annotation(0, bbox=[0, 0, 3])}, "four finite numbers"),
        ({"annotations": _annotation(0, bbox=[5, 0, 3, 3])}, "ends before it begins"),
        ({"annotations": _annotation(0, bbox_mode=4)}, "expected bbox_mode"),
        ({"relations": [[0, 2, 26]]}, r"relations\[0\] = \[0, 2, 26\].*segment index out of range"),
        ({"relations": [[0, 1, 56]]}, r"predicate index out of range.*-1..55"),
        ({"relations": [[0, -1, 3]]}, "segment index out of range"),
        ({"neg_relations": [[0, 1, -2]]}, "predicate index out of range"),
        ({"relations": [[0, 1]]}, "integer rows"),
        ({"relations": [3, 4]}, "integer rows"),
        ({"relations": [[0, 1, 28]]}, "'feeding' segment 1 is labelled .* as a negative"),
        ({"relations": [[1, 0, 28]]}, "'no relation'"),
    ],
)
def test_bad_records_get_one_sentence(tmp_path, changes, message):
    path = write(tmp_path, record(**changes))
    with pytest.raises(InputError, match=message) as caught:
        read_psg(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_contradictions_are_kept_on_request(tmp_path):
    path = write(tmp_path, record(relations=[[0, 1, 28]]))
    graph = read_psg(path, allow_contradictions=True).graphs[0]
    assert graph.relations.tolist() == [[0, 1, 28]]
    assert [0, 1, 28] in graph.neg_relations.tolist()


def test_an_image_id_given_twice_is_refused_also_as_text_and_integer(tmp_path):
    with pytest.raises(InputError, match="17 is given twice, by records 0 and 1"):
        read_psg(write(tmp_path, record(), record(image_id=17)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("{", "not valid JSON"),
        ("[]", "list under 'data'"),
        ('{"data": 3}', "list under 'data'"),
        ('{"data": [3]}', "missing: thing_classes"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_files_get_one_sentence(tmp_path, text, message):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_psg(path)


def test_missing_files_and_folders_get_one_sentence(tmp_path):
    with pytest.raises(InputError, match="no such annotation file"):
        read_psg(tmp_path / "none.json")
    with pytest.raises(InputError, match="got a folder"):
        read_psg(tmp_path)


def test_faulty_segments_out_of_range_are_refused(tmp_path):
    path = write(tmp_path, record())
    (tmp_path / "faulty_segments.json").write_text('{"17": [2], "other": [99]}')
    with pytest.raises(InputError, match=r"positions 0..1, got \[2\]"):
        read_psg(path)


def test_a_real_psg_record_is_read(tmp_path):
    record = json.loads((DATA / "psg_record_107902.json").read_text())
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"data": [record]}))
    graph = read_psg(path, vocabulary=VOCABULARY).graphs[0]
    names = [VOCABULARY.object_classes[label] for label in graph.labels]
    assert names[:3] == ["person", "person", "umbrella"]
    triples = [(names[s], VOCABULARY.predicate_classes[p], names[o]) for s, o, p in graph.relations]
    assert ("fence-merged", "in front of", "tree-merged") in triples
    assert len(triples) == 6
    assert graph.extra["coco_image_id"] == "417720"


def test_scores_of_segments_are_kept(tmp_path):
    segments = (Segment(1, 0, 4, (0, 0, 2, 2), score=0.25), Segment(2, 1, 4, (0, 0, 2, 2)))
    graph = SceneGraph("a", 4, 4, "a.jpg", None, segments)
    write_psg(SceneGraphDataset(psg_vocabulary(), (graph,)), tmp_path / "a.json")
    assert read_psg(tmp_path / "a.json").graphs[0].segments == segments
    content = json.loads((tmp_path / "a.json").read_text())
    content["data"][0]["segments_info"][0]["score"] = "sure"
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="segment 0: expected a score as a number, got 'sure'"):
        read_psg(tmp_path / "a.json")


def test_records_are_written_one_by_one_and_all_or_nothing(tmp_path):
    graphs = read_psg("psg-mini").graphs[:3]
    with PsgWriter(tmp_path / "a.json", psg_vocabulary(), test_image_ids=("x",)) as writer:
        for graph in graphs:
            writer.add(graph)
            assert not (tmp_path / "a.json").exists()
    write_psg(SceneGraphDataset(psg_vocabulary(), graphs, ("x",)), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    before = (tmp_path / "a.json").read_bytes()
    with (
        pytest.raises(InputError, match="not a plain integer"),
        PsgWriter(tmp_path / "a.json", psg_vocabulary(), integer_ids=True) as writer,
    ):
        writer.add(replace(graphs[0], image_id="text"))
    with (
        pytest.raises(InputError, match="not a plain integer"),
        PsgWriter(
            tmp_path / "a.json", psg_vocabulary(), test_image_ids=("x",), integer_ids=True
        ) as writer,
    ):
        pass
    assert (tmp_path / "a.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]
