"""Predictions that repeat the annotated objects are PredCls, as OpenPSG's results are."""

from __future__ import annotations

import json
import pickle
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from haystack.evaluation import evaluate
from haystack.io.panoptic_png import write_panoptic_png
from haystack.scene_graph import (
    MaskRuns,
    PredictedObjects,
    RankedTriplets,
    RelationScores,
    SceneGraph,
    SceneGraphDataset,
    Segment,
    as_triplets,
)
from haystack.vocabulary import Vocabulary

FIXTURE = Path(__file__).parents[1] / "data" / "openpsg" / "openpsg_eval_fixture.json"
VOCABULARY = Vocabulary(("person",), ("sky",), ("on", "beside", "eating"))
ID_MAP = np.array([[5, 5, 5, 5], [0, 77, 900, 900]], dtype=np.int32)
POSITIONS = np.array([[0, 0, 0, 0], [-1, -1, 1, 1]])


class Result:
    __module__ = "openpsg.models"

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def write_pickle(path, results, monkeypatch):
    for name in ("openpsg", "openpsg.models"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["openpsg.models"].Result = Result
    path.write_bytes(pickle.dumps(results))
    return path


def openpsg_files(path, monkeypatch, **changes):
    """OpenPSG's evaluator fixture as annotations and as the PredCls result that it would pickle."""
    content = json.loads(FIXTURE.read_text())
    graphs, results = [], []
    for number, image in enumerate(content["images"]):
        if not image["rels"]:
            continue
        boxes, labels = np.array(image["boxes"], np.float32), np.array(image["labels"])
        segments = tuple(
            Segment(k + 1, label - 1, 1, tuple(box))
            for k, (label, box) in enumerate(zip(labels.tolist(), boxes.tolist(), strict=True))
        )
        relations = as_triplets(np.array(image["rels"]) - [0, 0, 1])
        graphs.append(
            SceneGraph(str(number), content["H"], content["W"], "", None, segments, relations)
        )
        pairs, dists = np.array(image["pairs"]), np.array(image["dists"], np.float32)
        order = np.argsort(-dists[:, 1:].max(1), kind="stable")
        factor = np.float32(1333 / 640)  # boxes go to the model's image size and back
        scored = np.concatenate([boxes * factor / factor, np.ones((len(boxes), 1))], axis=1)
        attributes = {
            "refine_bboxes": scored.astype(np.float32),
            "labels": labels,
            "masks": None,
            "rel_pair_idxes": pairs[order],
            "rel_dists": dists[order],
        }
        results.append(Result(**attributes | changes))
    predicates = tuple(f"predicate {i}" for i in range(56))
    things = tuple(f"class {i}" for i in range(6))
    dataset = SceneGraphDataset(Vocabulary(things, (), predicates), tuple(graphs))
    return dataset, write_pickle(path, results, monkeypatch), content["expected"]


@pytest.mark.parametrize("kind", ["bbox", "pan_seg"])
def test_an_openpsg_result_of_predcls_gives_all_its_evaluator_gives(tmp_path, monkeypatch, kind):
    dataset, path, expected = openpsg_files(tmp_path / "r.pkl", monkeypatch)
    protocol = "openpsg" if kind == "bbox" else "openpsg-pan_seg"
    report = evaluate(dataset, path, protocol)
    names = {"recall": "R", "mean": "mR", "accuracy": "A"}
    wanted = expected[f"predcls/{kind}"]["metrics"]
    assert len(wanted) == 9
    for key, value in wanted.items():
        _, name, *_, k = key.split("_")
        assert report.metrics[f"{names[name]}@{k}"] == pytest.approx(value, abs=1e-6), key
    assert report.support["own_objects"] == 0


def graph(image_id="1", png=None):
    boxes = ((0.0, 0.0, 4.0, 1.0), (2.0, 1.0, 4.0, 2.0))
    segments = tuple(
        Segment(number, category, 4, box)
        for number, category, box in zip((5, 900), (0, 1), boxes, strict=True)
    )
    relations = as_triplets(((0, 1, 0),))
    return SceneGraph(image_id, 2, 4, "1.jpg", png, segments=segments, relations=relations)


REPEATED = PredictedObjects(
    np.array([0, 1]),
    np.ones(2, np.float32),
    np.array([[0, 0, 4, 1], [2, 1, 4, 2]], np.float32),
)


def prediction(objects, image_id="1"):
    pairs = np.array([[0, 1], [1, 0]])
    scores = np.array([[0.6, 0.3, 0.1], [0.2, 0.1, 0.5]], np.float32)
    return RelationScores(image_id, pairs, scores, objects=objects)


@pytest.mark.parametrize("scores", [None, np.ones(2, np.float32)])
def test_repeated_objects_are_the_annotated_ones(scores):
    data = SceneGraphDataset(VOCABULARY, (graph(),))
    report = evaluate(data, [prediction(replace(REPEATED, scores=scores))])
    assert report.metrics["A@20"] == 1
    assert report.to_dict()["metrics"] == evaluate(data, [prediction(None)]).to_dict()["metrics"]
    assert "predicted objects" not in str(report)


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": np.array([1, 1])},
        {"labels": np.array([1, 0]), "boxes": REPEATED.boxes[::-1]},
        {"labels": np.array([0, 1, 1]), "boxes": REPEATED.boxes[[0, 1, 1]], "scores": None},
        {"scores": np.array([1, 0.999], np.float32)},
        {"boxes": REPEATED.boxes + np.float32(0.1)},
    ],
)
def test_other_objects_are_the_models_own(changes):
    data = SceneGraphDataset(VOCABULARY, (graph(),))
    report = evaluate(data, [prediction(replace(REPEATED, **changes))])
    assert np.isnan(report.metrics["A@20"])
    assert report.support["own_objects"] == 1
    assert "1 images have predicted objects, not the annotated ones" in str(report)


def test_one_image_with_other_objects_leaves_a_undefined():
    data = SceneGraphDataset(VOCABULARY, tuple(graph(str(i)) for i in range(4)))
    moved = replace(REPEATED, boxes=REPEATED.boxes + np.float32(0.1))
    found = [prediction(moved if i == 2 else REPEATED, str(i)) for i in range(4)]
    report = evaluate(data, iter(found))
    assert np.isnan(report.metrics["A@20"])
    assert report.metrics["R@20"] == report.metrics["InstR"] == 1
    assert (report.images, report.support["own_objects"]) == (4, 1)


def positions(row, column, value):
    changed = POSITIONS.copy()
    changed[row, column] = value
    return changed


@pytest.mark.parametrize(
    ("id_map", "same"),
    [
        (POSITIONS, True),  # 77 is no segment, so its pixel is void
        (positions(0, 0, -1), False),
        (positions(0, 0, 1), False),
        (positions(1, 0, 1), False),
        (positions(1, 1, 0), False),
        (POSITIONS[:1], None),
    ],
)
def test_masks_are_compared_pixel_by_pixel(tmp_path, id_map, same):
    write_panoptic_png(tmp_path / "1.png", ID_MAP)
    data = SceneGraphDataset(VOCABULARY, (graph(png="1.png"),), root=tmp_path)
    objects = replace(REPEATED, masks=MaskRuns.from_id_map(id_map, 2))
    if same is None:
        with pytest.raises(Exception, match="of one shape"):
            evaluate(data, [prediction(objects)])
    else:
        assert evaluate(data, [prediction(objects)]).support["own_objects"] == (not same)
        without_boxes = [prediction(replace(objects, boxes=None))]
        assert evaluate(data, without_boxes).support["own_objects"] == (not same)
    # A protocol of boxes looks at no mask.
    assert evaluate(data, [prediction(objects)], "openpsg").support["own_objects"] == 0


def test_masks_that_overlap_are_no_annotated_ones(tmp_path):
    write_panoptic_png(tmp_path / "1.png", ID_MAP)
    data = SceneGraphDataset(VOCABULARY, (graph(png="1.png"),), root=tmp_path)
    dense = np.stack([POSITIONS == 0, POSITIONS == 1])
    dense[1, 0, 0] = True
    objects = replace(REPEATED, masks=MaskRuns.from_masks(dense, 2, 4))
    assert evaluate(data, [prediction(objects)]).support["own_objects"] == 1


def test_ranked_triplets_keep_their_objects():
    data = SceneGraphDataset(VOCABULARY, (graph(),))
    report = evaluate(data, [RankedTriplets("1", np.array([[0, 1, 0]]), REPEATED)], "sgbench")
    assert report.support["own_objects"] == 1
    assert np.isnan(report.metrics["A@20"])
    assert report.metrics["R@20"] == 1
