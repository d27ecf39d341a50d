"""Evaluation of predictions with the model's own objects, and against training annotations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from haystack.errors import InputError
from haystack.evaluation import compare, evaluate
from haystack.evaluation import records as records_module
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

VOCABULARY = Vocabulary(("person",), ("sky",), ("on", "beside", "eating"))
ID_MAP = np.array([[5, 5, 5, 5], [0, 0, 900, 900]], dtype=np.int32)


def graph(image_id, relations=((0, 1, 0),), png=None):
    boxes = ((0.0, 0.0, 4.0, 1.0), (2.0, 1.0, 4.0, 2.0))
    segments = tuple(
        Segment(number, category, 4, box)
        for number, category, box in zip((5, 900), (0, 1), boxes, strict=True)
    )
    return SceneGraph(
        image_id,
        2,
        4,
        f"{image_id}.jpg",
        pan_seg_file_name=png,
        segments=segments,
        relations=as_triplets(relations),
    )


def dataset(*graphs, test=(), root=None):
    return SceneGraphDataset(VOCABULARY, graphs, test_image_ids=test, root=root)


def objects(masks=None, boxes=((0, 0, 4, 1), (2, 1, 4, 2)), scores=None):
    boxes = None if boxes is None else np.array(boxes, dtype=np.float32)
    return PredictedObjects(np.array([0, 1]), scores=scores, boxes=boxes, masks=masks)


def prediction(image_id, found, values=((0.6, 0.3, 0.1), (0.2, 0.1, 0.5))):
    pairs = np.array([[0, 1], [1, 0]])
    return RelationScores(image_id, pairs, np.array(values, np.float32), objects=found)


def masks_of(id_map):
    return MaskRuns.from_id_map(np.array(id_map), 2)


RIGHT = [[0, 0, 0, 0], [-1, -1, 1, 1]]
WRONG = [[0, -1, -1, -1], [-1, -1, 1, 1]]  # a quarter of the first segment


def test_boxes_of_the_annotations_are_compared():
    truth = dataset(graph("1"), graph("2"))
    away = ((0, 0, 4, 1), (0, 1, 2, 2))
    report = evaluate(truth, [prediction("1", objects()), prediction("2", objects(boxes=away))])
    assert report.metrics["R@20"] == 0.5
    assert report.metrics["InstR"] == 0.75
    assert np.isnan(report.metrics["A@20"])
    assert report.support["missing_pairs"] == 1


@pytest.mark.parametrize(("id_map", "recall"), [(RIGHT, 1), (WRONG, 0)])
def test_masks_are_compared_with_the_panoptic_png(tmp_path, id_map, recall):
    write_panoptic_png(tmp_path / "1.png", ID_MAP)
    truth = dataset(graph("1", png="1.png"), root=tmp_path)
    found = objects(masks_of(id_map))
    assert evaluate(truth, [prediction("1", found)]).metrics["R@20"] == recall
    # A protocol of boxes looks at no mask, and needs no PNG.
    by_boxes = evaluate(dataset(graph("1")), [prediction("1", found)], "openpsg")
    assert by_boxes.metrics["R@20"] == 1


@pytest.mark.parametrize(
    ("labels", "box", "message"),
    [
        ([0, 2], [2, 1, 4, 2], r"image 7: expected object classes 0\.\.C-1 in the predictions"),
        ([0, -1], [2, 1, 4, 2], r"image 7: expected object classes 0\.\.C-1 in the predictions"),
        ([0, 1], [2, 1, 1, 2], "image 7: expected finite boxes .* in the predictions"),
        ([0, 1], [2, 1, np.nan, 2], "image 7: expected finite boxes .* in the predictions"),
    ],
)
def test_objects_in_memory_are_checked_as_those_of_files(labels, box, message):
    boxes = np.array([[0, 0, 4, 1], box], np.float32)
    found = PredictedObjects(np.array(labels), boxes=boxes)
    with pytest.raises(InputError, match=message):
        evaluate(dataset(graph("7")), [prediction("7", found)])


def test_overlapping_masks_are_compared(tmp_path):
    write_panoptic_png(tmp_path / "1.png", ID_MAP)
    truth = dataset(graph("1", png="1.png"), root=tmp_path)
    dense = np.array([[[1, 1, 1, 1], [0, 0, 1, 0]], [[0, 0, 0, 0], [0, 0, 1, 1]]], dtype=bool)
    found = objects(MaskRuns.from_masks(dense, 2, 4), boxes=None)
    assert evaluate(truth, [prediction("1", found)]).metrics["R@20"] == 1


PANOPTIC = ("PQ", "SQ", "RQ")


@pytest.mark.parametrize("protocol", ["paper", "openpsg"])
def test_panoptic_quality_where_it_is_asked_for(tmp_path, protocol):
    write_panoptic_png(tmp_path / "x.png", ID_MAP)
    crowd = dataclasses.replace(graph("3", png="x.png").segments[0], is_crowd=True)
    graphs = [graph(str(i), png="x.png") for i in range(4)]
    graphs[3] = dataclasses.replace(graphs[3], segments=(crowd, graphs[3].segments[1]))
    truth = dataset(*graphs, root=tmp_path)
    scores = np.array([0.9, 0.9], np.float32)
    maps = [RIGHT, WRONG, RIGHT]
    found = [prediction(str(i), objects(masks_of(m), scores=scores)) for i, m in enumerate(maps)]
    report = evaluate(truth, found, protocol, metrics=("R", *PANOPTIC), replicates=20)
    person = 2 / (2 + 1 / 2 + 1 / 2)  # once too small, which is a false positive and a miss
    sky = 3 / (3 + 1 / 2)  # image 3 lacks it, and its person is a crowd
    expected = {"PQ": (person + sky) / 2, "PQ_th": person, "PQ_st": sky, "SQ": 1.0}
    for name, value in expected.items():
        assert report.metrics[name] == pytest.approx(value), name
    assert report.per_class["person"]["PQ"] == pytest.approx(person)
    assert set(report.per_class["sky"]) == set(PANOPTIC)
    assert report.to_dict()["per_class"]["sky"]["RQ"] == pytest.approx(sky)
    interval = report.uncertainty.metrics["PQ_th"]
    assert interval.low <= person <= interval.high
    assert ["things", *(f"{v:.3f}" for v in (person, 1, person))] in [
        line.split() for line in str(report).splitlines()
    ]
    plain = evaluate(truth, found, protocol)
    assert plain.metrics["R@20"] == report.metrics["R@20"]
    assert "PQ" not in plain.metrics
    assert "per_class" not in plain.to_dict()
    difference = compare(truth, found, found[:2], protocol, metrics=("PQ",), replicates=20)
    assert difference.metrics["PQ"].difference < 0


def test_panoptic_quality_changes_not_what_is_predcls(tmp_path):
    """Boxes decide under a protocol of boxes, whatever the masks that PQ reads."""
    write_panoptic_png(tmp_path / "x.png", ID_MAP)
    truth = dataset(graph("1", png="x.png"), graph("2", png="x.png"), root=tmp_path)
    away = objects(masks_of(RIGHT), boxes=((0, 0, 4, 2), (2, 1, 4, 2)))
    found = [prediction("1", objects(masks_of(WRONG))), prediction("2", away)]
    report = evaluate(truth, found, "openpsg", metrics=("R", "PQ"))
    assert report.support["own_objects"] == 1
    assert report.metrics["PQ"] == 1


def test_masks_of_another_size_are_refused(tmp_path):
    write_panoptic_png(tmp_path / "x.png", ID_MAP)
    truth = dataset(graph("1", png="x.png"), graph("2", png="x.png"), root=tmp_path)
    for small in ([[0, 1]], [[0, 0], [1, 1]]):
        found = [
            prediction("1", objects(masks_of(RIGHT))),
            prediction("2", objects(masks_of(small))),
        ]
        with pytest.raises(InputError, match=r"^image 2: expected two id maps of one shape"):
            evaluate(truth, found)


def test_panoptic_quality_needs_masks_that_do_not_overlap_and_pngs(tmp_path):
    write_panoptic_png(tmp_path / "1.png", ID_MAP)
    truth = dataset(graph("1", png="1.png"), root=tmp_path)
    masks = np.ones((2, 2, 4), dtype=bool)
    overlapping = [prediction("1", objects(MaskRuns.from_masks(masks, 2, 4)))]
    with pytest.raises(InputError, match=r"image 1: PQ.*masks that overlap"):
        evaluate(truth, overlapping, metrics=("PQ",))
    score = objects(masks_of(RIGHT), scores=np.array([0.5, 1], np.float32))
    with pytest.raises(InputError, match=r"image 1: the predictions hold masks.*for PQ, SQ and RQ"):
        evaluate(dataset(graph("1")), [prediction("1", score)], "openpsg", metrics=("PQ",))


def test_masks_need_a_panoptic_png(tmp_path):
    found = [prediction("1", objects(masks_of(RIGHT)))]
    with pytest.raises(InputError, match=r"image 1: the predictions hold masks, but"):
        evaluate(dataset(graph("1")), found)
    with pytest.raises(InputError, match=r"1\.png: cannot read the panoptic PNG"):
        evaluate(dataset(graph("1", png="1.png"), root=tmp_path), found)


def test_object_scores_and_pair_rankings_decide_the_order():
    truth = dataset(graph("1", relations=((1, 0, 2),)))
    lower = objects(scores=np.array([0.5, 0.5], dtype=np.float32))
    assert evaluate(truth, [prediction("1", lower)], ks=(1,)).metrics["R@1"] == 0
    image = prediction("1", lower)
    ranked = RelationScores(
        "1",
        image.pairs,
        image.scores,
        objects=lower,
        pair_ranking=np.array([0, 1], dtype=np.float32),
    )
    assert evaluate(truth, [ranked], ks=(1,)).metrics["R@1"] == 1


def test_ranked_triplets_are_evaluated_without_scores():
    truth = dataset(graph("1", relations=((0, 1, 0), (0, 1, 1))), graph("2"))
    triplets = np.array([[0, 1, 1], [1, 0, 0], [0, 1, 0]])
    report = evaluate(truth, [RankedTriplets("1", triplets, objects())], "sgbench", ks=(1, 3))
    assert report.metrics["R@1"] == 0.25
    assert report.metrics["R@3"] == 0.5
    assert np.isnan(report.metrics["P-AUC"])
    assert np.isnan(report.metrics["ngR@3"])
    assert "R@3" in str(report) or "@3" in str(report)


def test_batches_change_nothing(monkeypatch, tmp_path):
    write_panoptic_png(tmp_path / "x.png", ID_MAP)
    truth = dataset(*(graph(str(i), png="x.png") for i in range(5)), root=tmp_path)
    maps = [RIGHT, WRONG, RIGHT, RIGHT, WRONG]
    found = [prediction(str(i), objects(masks_of(m))) for i, m in enumerate(maps)]
    whole = evaluate(truth, found).to_dict()
    for name, limit in (("_PAIRS_PER_BATCH", 3), ("_BYTES_PER_BATCH", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(records_module, name, limit)
            assert evaluate(truth, iter(found)).to_dict() == whole
    assert whole["metrics"]["R@20"] == pytest.approx(0.6)


def test_training_annotations_give_zero_shot_and_weighted_recalls():
    test, train = graph("1", relations=((0, 1, 0), (1, 0, 2))), graph("2", relations=((0, 1, 0),))
    data = dataset(test, train, test=("1",))
    scores = prediction("1", None)
    plain = evaluate(data, [scores])
    assert "zR@20" not in plain.metrics
    assert "training" not in plain.support
    report = evaluate(data, [scores], training=data, ks=(1,))
    assert report.metrics["zR@1"] == 0  # the second pair's triplet is zero-shot, and second
    assert report.metrics["wR@1"] == pytest.approx((1 / 2) / (1 / 2 + 1))
    assert report.metrics["wIMR@1"] == 1  # only predicate 0 was seen
    summary = report.support["training"]
    assert (summary["relations"], summary["distinct_triplets"]) == (1, 1)
    assert len(summary["sha256"]) == 64
    other = dataset(graph("3", relations=((1, 0, 2),)))
    second = evaluate(data, [scores], training=other, ks=(1,))
    assert second.metrics["zR@1"] == 1
    assert second.support["training"]["sha256"] != summary["sha256"]


def test_training_annotations_must_fit():
    data = dataset(graph("1"))
    other = SceneGraphDataset(Vocabulary(("person",), ("sky",), ("on",)), (graph("2"),))
    with pytest.raises(InputError, match="same predicates in the training annotations and"):
        evaluate(data, [prediction("1", None)], training=other)
    with pytest.raises(InputError, match="all images of the training annotations are test"):
        evaluate(data, [prediction("1", None)], training=dataset(graph("1"), test=("1",)))


def test_the_table_shows_what_was_computed():
    data = dataset(graph("1"))
    everything = str(evaluate(data, [prediction("1", objects())]))
    for name in ("predicate", "ng-mR", "IMR", "R@inf", "InstR", "PRank"):
        assert name in everything.split()
    recalls = str(evaluate(data, [prediction("1", objects())], metrics=("R", "InstR"), ks=(1, 5)))
    assert "P-AUC" not in recalls
    lines = [line.split() for line in recalls.splitlines()]
    assert ["recall", "@1", "@5"] in lines
    assert ["R", "1.000", "1.000"] in lines
    assert ["InstR", "1.000"] in lines
