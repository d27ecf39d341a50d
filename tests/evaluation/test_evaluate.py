from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import haystack
from haystack.errors import InputError
from haystack.evaluation import evaluate, open_predictions
from haystack.io.haystack_npy import read_haystack_npy, write_haystack_npy
from haystack.io.prediction_parquet import write_prediction_parquet
from haystack.io.psg import read_psg
from haystack.metrics import RECALLS
from haystack.scene_graph import (
    PredictedObjects,
    RankedTriplets,
    RelationScores,
    SceneGraph,
    SceneGraphDataset,
    Segment,
    as_triplets,
)
from haystack.vocabulary import Vocabulary

ORACLES = Path(__file__).parents[1] / "data" / "haystack"
VOCABULARY = Vocabulary(("person",), ("sky",), ("on", "beside", "eating"))
METRICS = ("P-AUC", "PDD", "PDO")


def graph(image_id, relations=((0, 1, 0),), negatives=((1, 0, 2),)):
    segments = tuple(Segment(i + 1, 0, 4, (0.0, 0.0, 2.0, 2.0)) for i in range(2))
    return SceneGraph(
        image_id,
        4,
        4,
        f"{image_id}.jpg",
        segments=segments,
        relations=as_triplets(relations),
        neg_relations=as_triplets(negatives),
    )


def dataset(*graphs, test=()):
    return SceneGraphDataset(VOCABULARY, graphs, test_image_ids=test)


def scores(image_id, pairs=((0, 1), (1, 0)), values=((0.6, 0.3, 0.1), (0.2, 0.1, 0.5))):
    return RelationScores(image_id, np.array(pairs), np.array(values, dtype=np.float32))


def oracle(name):
    expected = json.loads((ORACLES / f"{name}.expected.json").read_text())
    return ORACLES / f"{name}.annotation.json", ORACLES / f"{name}.scores.npy", expected


@pytest.mark.parametrize("name", ["random", "ties"])
def test_protocol_paper_equals_the_oracles(name):
    annotations, predictions, expected = oracle(name)
    content = evaluate(annotations, predictions).to_dict()
    rows = list(content["per_predicate"].values())
    for metric in METRICS:
        values = [row[metric] for row in rows]
        for found, wanted in zip(values, expected["paper"][metric], strict=True):
            assert found == (None if wanted is None else pytest.approx(wanted, abs=1e-9))
        assert content["metrics"][metric] == pytest.approx(expected["mean"][metric], abs=1e-9)
        defined = sum(value is not None for value in values)
        assert content["support"]["predicates"][metric] == defined


def test_protocol_haystack_v1_equals_the_authors_script():
    annotations, predictions, expected = oracle("random")
    report = evaluate(annotations, predictions, "haystack-v1")
    content = report.to_dict()
    reference = expected["reference"]
    for predicate, row in content["per_predicate"].items():
        wanted = reference.get(predicate)
        for metric, key in zip(METRICS, ("auc", "dd", "do"), strict=True):
            value = None if wanted is None else pytest.approx(wanted[key], abs=1e-12)
            assert row[metric] == value
    for metric, key in zip(METRICS, ("auc", "dd", "do"), strict=True):
        mean = np.mean([values[key] for values in reference.values()])
        assert report.metrics[metric] == pytest.approx(mean, abs=1e-12)
        assert report.support["predicates"][metric] == len(reference)


def test_the_report_has_the_shape_that_others_rely_on(tmp_path):
    annotations, predictions, _ = oracle("random")
    report = haystack.evaluate(annotations, predictions, ks=(50, 20))
    assert isinstance(report, haystack.Report)
    content = report.to_dict()
    assert list(content)[:1] == ["protocol"]
    assert content["protocol"] == "paper"
    assert content["images"] == 90
    recalls = {
        recall.at(k) for recall in RECALLS.values() if not recall.needs_training for k in (20, 50)
    }
    assert {"R@20", "mR@50", "ngR@20", "ng-mR@50", "IMR@20", "R@inf"} <= recalls
    assert set(content["metrics"]) == {*METRICS, *recalls, "InstR", "PRank"}
    assert content["support"]["positives"] == 115
    assert content["support"]["negatives"] == 285
    row = content["per_predicate"]["p4"]
    assert {"P-AUC", "PDD", "PDO", "R@50", "positives", "negatives"} <= set(row)
    assert isinstance(row["positives"], int)
    assert content["per_predicate"]["p55"]["P-AUC"] is None
    report.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == content
    assert "NaN" not in json.dumps(content)


def test_the_table_shows_labelled_predicates_the_means_and_what_is_missing():
    found = str(evaluate(dataset(graph("1"), graph("2")), [scores("1"), scores("9")]))
    assert "Protocol paper, split all: 2 images, 2 positive and 2 negative labels" in found
    assert "1 annotated images have no prediction; 2 annotated pairs have none" in found
    assert "1 predicted images are not of the split 'all': not graded" in found
    lines = [line.split() for line in found.splitlines()]
    assert ["predicate", "P-AUC", "PDD", "PDO", "R@50", "+", "-"] in lines
    assert ["on", "-", "0.500", "0.000", "0.500", "2", "0"] in lines
    assert not any(line[:1] == ["beside"] for line in lines)


def test_the_table_says_why_values_are_missing():
    data = dataset(graph("1"), graph("2"))
    both = [scores("1"), scores("2")]
    objects = PredictedObjects(
        np.zeros(2, int), boxes=np.array([[0, 0, 2, 2], [2, 2, 4, 4]], float)
    )
    lists = [RankedTriplets(i, np.array([[0, 1, 0]]), objects) for i in ("1", "2")]
    every = [*METRICS, "PQ"]
    positive = dataset(graph("1", negatives=()), graph("2", negatives=()))
    judged = dataset(*(graph(i, negatives=((1, 0, 0),)) for i in ("1", "2")))

    assert "P-AUC asks for explicit negatives" in str(evaluate(positive, both, metrics=["P-AUC"]))
    assert "asks for explicit negatives" not in str(evaluate(judged, both, metrics=["P-AUC"]))
    ranked = str(evaluate(judged, lists, protocol="sgbench", metrics=["P-AUC", "PDD"]))
    assert "P-AUC, PDD: no value, since the predictions rank triplets" in ranked
    assert "fewer than 4 positives" in str(evaluate(data, both, protocol="haystack-v1"))
    assert "PQ: no value, since no prediction has a segmentation" in str(
        evaluate(data, both, metrics=every)
    )
    assert "no value" not in str(evaluate(judged, both, metrics=METRICS))
    assert "-: all resamples agree" in str(evaluate(judged, both, replicates=30))


def notes(**choices):
    """The footnotes of a report on data that hold one of the predicates."""
    report = evaluate(dataset(graph("1"), graph("2")), [scores("1"), scores("2")], **choices)
    starts = ("Means are", "Under this", "Lower is", "+ and -")
    return [line for line in str(report).splitlines() if line.startswith(starts)]


def test_footnotes_speak_of_what_is_shown():
    labels = "+ and -: positive and negative labels. A pair labelled 'no relation' is a negative "
    labels += "for every predicate."
    assert notes(metrics=["P-AUC", "R"]) == [labels]  # P-AUC has no value here
    assert notes(metrics=["PDD"])[1:] == ["Lower is better for PDD.", labels]
    assert notes(metrics=["PDO", "P-AUC"])[1] == "Lower is better for PDO, higher for the others."
    assert notes(metrics=["R"]) == []
    assert notes(metrics=["PRank"]) == ["Lower is better for PRank."]
    count = len(dataset(graph("1")).vocabulary.predicate_classes)
    assert count > 1
    assert notes(metrics=["mR"])[0].endswith("have a value (mR@50 1).")
    divided, why, *_ = notes(metrics=["mR"], protocol="openpsg")
    assert divided.endswith(f"have a value (mR@50 {count}).")
    assert why == (
        f"Under this protocol, where 1 of {count} predicates occur, mR divides by all of them: an "
        "absent one counts as 0."
    )
    (undefined,) = notes(metrics=["mR"], protocol="sgbench")[:-1]
    assert undefined.endswith("mR is undefined: it asks for all of them.")
    counted = notes(metrics=["PDD", "mR"], protocol="single-mpo")[0]
    assert counted == "Means are over the predicates that have a value (PDD 1)."
    assert notes(metrics=["P-AUC"], protocol="haystack-v1")[-1] == labels.partition(" A pair")[0]


def test_files_and_memory_give_the_same(tmp_path):
    annotations, predictions, _ = oracle("ties")
    data, images = read_psg(annotations), list(read_haystack_npy(predictions))
    write_prediction_parquet(images, tmp_path / "p.parquet", data.vocabulary.predicate_classes)
    backwards = [
        RelationScores(i.image_id, i.pairs, i.scores.astype(np.float64)) for i in reversed(images)
    ]
    write_haystack_npy(backwards, tmp_path / "backwards.npy")
    expected = evaluate(annotations, predictions).to_dict()
    for source in (images, iter(backwards), tmp_path / "p.parquet", tmp_path / "backwards.npy"):
        assert evaluate(data, source).to_dict() == expected


def test_the_column_of_no_relation_is_left_out_of_the_ranks(tmp_path):
    annotations, predictions, _ = oracle("random")
    images = [
        dataclasses.replace(image, no_relation=np.full(len(image.pairs), 2, np.float32))
        for image in read_haystack_npy(predictions)
    ]
    expected = evaluate(annotations, predictions).to_dict()
    for where in ("last", "first"):
        write_haystack_npy(images, tmp_path / "p.npy", no_relation=where)
        found = evaluate(annotations, tmp_path / "p.npy", no_relation=where)
        assert found.to_dict() == expected
        # With that column last, the authors' script cuts it and agrees with their paper.
        v1 = evaluate(annotations, tmp_path / "p.npy", "haystack-v1", no_relation=where)
        paper = expected["per_predicate"]
        for name, row in v1.to_dict()["per_predicate"].items():
            assert row["PDD"] == (paper[name]["PDD"] if row["positives"] > 3 else None)


def test_a_parquet_file_of_logits_is_softmaxed(tmp_path):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(2, 4)).astype(np.float32)
    image = RelationScores("1", np.array([[0, 1], [1, 0]]), logits[:, :3], logits[:, 3])
    path = tmp_path / "p.parquet"
    write_prediction_parquet([image], path, VOCABULARY.predicate_classes, score_kind="logit")
    found = evaluate(dataset(graph("1")), path).to_dict()
    assert found == evaluate(dataset(graph("1")), [image], from_logits=True).to_dict()
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    probabilities = dataclasses.replace(image, scores=softmax[:, :3], no_relation=None)
    assert found == evaluate(dataset(graph("1")), [probabilities]).to_dict()


def test_the_default_split_is_the_listed_test_images_else_all():
    graphs, predictions = (graph("1"), graph("2")), [scores("1"), scores("2")]
    both = evaluate(dataset(*graphs), predictions)
    assert (both.split, both.images) == ("all", 2)
    listed = evaluate(dataset(*graphs, test=("2", "5")), predictions)
    assert (listed.split, listed.images, listed.support["ignored_images"]) == ("test", 1, 1)
    train = evaluate(dataset(*graphs, test=("2",)), predictions, split="train")
    assert (train.split, train.images) == ("train", 1)
    with pytest.raises(InputError, match="split 'test' has no image"):
        evaluate(dataset(*graphs, test=("5",)), predictions)
    with pytest.raises(InputError, match="'train', 'test' or 'all'"):
        evaluate(dataset(*graphs), predictions, split="val")


def test_missing_images_and_pairs_are_counted_and_worst():
    truth = dataset(graph("1"), graph("2"), graph("3", relations=(), negatives=()))
    report = evaluate(truth, [scores("1", pairs=((1, 0),), values=((0.2, 0.1, 0.5),))])
    assert report.support["missing_images"] == 1
    assert report.support["missing_pairs"] == 3
    assert report.metrics["R@100"] == 0
    assert report.per_predicate["on"]["PDD"] == 1
    assert report.images == 3
    assert report.support["images_with_relations"] == 2


def test_integer_ids_match_text():
    report = evaluate(dataset(graph("7")), [dataclasses.replace(scores("7"), image_id=7)])
    assert report.support["missing_images"] == 0


def test_contradictions_are_two_samples_for_the_authors_script_only(tmp_path):
    content = json.loads((ORACLES / "ties.annotation.json").read_text())
    record = next(r for r in content["data"] if r["relations"])
    record["neg_relations"].append(record["relations"][0])
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    predictions = ORACLES / "ties.scores.npy"
    with pytest.raises(InputError, match=f"image {record['image_id']}"):
        evaluate(path, predictions)
    report = evaluate(path, predictions, "haystack-v1")
    assert report.support["negatives"] == 140


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ([scores("1"), scores("1")], "image 1: the image is predicted twice"),
        ([scores("2"), scores("1", pairs=((0, 1), (0, 1)))], "image 1: a pair is given twice"),
        ([scores("2"), scores("1", pairs=((0, 1), (0, 2)))], "image 1: a pair refers to an object"),
        ([scores("1", values=((0.1, np.nan, 0.2),) * 2)], "image 1: expected finite scores"),
        ([scores("1", values=((0.1, 0.2),) * 2)], "image 1: expected floating-point scores"),
        ([scores("8"), scores("9")], "share no image.*ids there: 8, 9; ids here: 1, 2"),
        ([], "share no image.*ids there: none"),
    ],
)
def test_predictions_that_do_not_fit_are_an_error(predictions, message):
    with pytest.raises(InputError, match=message):
        evaluate(dataset(graph("1"), graph("2")), predictions)


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ([graph("1"), graph("1")], "1: the image is annotated twice"),
        ([graph("1", negatives=((0, 1, 0),))], "image 1: the triple .* labelled both"),
        ([graph("1", negatives=((0, 1, -1),))], "image 1: the triple .* labelled both"),
        ([graph("1", relations=((0, 2, 0),))], r"image 1: the index of the object .*\[0, 2, 0\]"),
        ([graph("1", relations=((0, 1, 3),))], r"image 1: the index of the predicate"),
    ],
)
def test_annotations_that_do_not_fit_are_an_error(graphs, message):
    with pytest.raises(InputError, match=message):
        evaluate(dataset(*graphs), [scores("1")])


def test_errors_name_the_file(tmp_path):
    annotations, predictions, _ = oracle("ties")
    table = np.load(predictions)
    for column, value, message in ((5, np.nan, "row 7"), (1, 50, "image 1000"), (0, 0.5, "row 7")):
        changed = table.copy()
        changed[7, column] = value
        np.save(tmp_path / "p.npy", changed)
        with pytest.raises(InputError, match=rf"p\.npy, {message}: "):
            evaluate(annotations, tmp_path / "p.npy")
    np.save(tmp_path / "p.npy", np.concatenate([table, table[3:4]]))
    with pytest.raises(InputError, match=r"p\.npy: the pair .* given twice, in rows 3 and 1826"):
        evaluate(annotations, tmp_path / "p.npy")
    table[:, 0] += 1
    np.save(tmp_path / "p.npy", table)
    with pytest.raises(InputError, match=r"p\.npy: the predictions share no image"):
        evaluate(annotations, tmp_path / "p.npy")


def test_files_without_a_reader_are_an_error(tmp_path):
    (tmp_path / "p.txt").write_bytes(b"")
    with pytest.raises(InputError, match=r"suffix '\.txt'.*readable: \.npy, \.parquet"):
        open_predictions(tmp_path / "p.txt", VOCABULARY)
    with pytest.raises(InputError, match="no such prediction file"):
        open_predictions(str(tmp_path / "p.npy"), VOCABULARY)


def test_parquet_of_other_predicates_is_an_error(tmp_path):
    write_prediction_parquet([scores("1")], tmp_path / "p.parquet", ("on", "eating", "beside"))
    with pytest.raises(InputError, match="number 1 is 'eating' there and 'beside' here"):
        evaluate(dataset(graph("1")), tmp_path / "p.parquet")


def test_unknown_protocols_are_an_error():
    with pytest.raises(InputError, match="known protocols: paper, haystack-v1"):
        evaluate(dataset(graph("1")), [scores("1")], "openpsg2")


@pytest.mark.parametrize("device", ["banana", "", "meta", "cuda:99", "cpu:x"])
def test_a_device_that_cannot_be_used_is_refused(device):
    with pytest.raises(InputError, match=r"the device '.*' cannot be used \(.*\); choose another"):
        evaluate(dataset(graph("1")), [scores("1")], device=device)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ks": (2**62,)}, "integers from 1 to"),
        ({"ks": (10**20,)}, "integers from 1 to"),
        ({"ks": ()}, "integers from 1 to"),
        ({"ks": ("20", 50)}, "integers from 1 to"),
        ({"ks": 20}, "integers from 1 to"),
        ({"replicates": 20, "seed": -1}, "expected a seed"),
        ({"replicates": 20, "seed": 10**23}, "expected a seed"),
        ({"replicates": 20, "confidence": float("nan")}, "confidence between"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        evaluate(dataset(graph("1")), [scores("1")], **options)


def test_the_largest_cut_off_counts_no_triplet_that_is_never_hit():
    report = evaluate(dataset(graph("1")), [scores("1", ((1, 0),), ((1, 0, 0),))], ks=(2**62 - 1,))
    assert report.metrics[f"R@{2**62 - 1}"] == 0


@pytest.mark.parametrize("predictions", [None, 7, [{"pairs": [[0, 1]]}], [1]])
def test_what_is_no_prediction_is_refused(predictions):
    with pytest.raises(InputError, match=r"expected (a file of )?predictions"):
        evaluate(dataset(graph("1")), predictions)


def test_a_report_is_not_written_over_a_folder_or_below_a_file(tmp_path):
    report = evaluate(dataset(graph("1")), [scores("1")])
    with pytest.raises(InputError, match="there is a folder"):
        report.save(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make this folder"):
        report.save(tmp_path / "file" / "report.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
