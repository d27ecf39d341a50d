"""Named benchmarks: definitions, results, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from haystack import environment, files
from haystack.cli.bench import load_benchmark
from haystack.cli.configs import find_config, own_configs
from haystack.errors import InputError
from haystack.evaluation import Report, compare, evaluate, leaderboard, read_result, run_benchmark
from haystack.evaluation.benchmark import compare_results, same_benchmark, seen_by_model
from haystack.io import read_psg
from haystack.io.datasets import BUNDLED
from haystack.io.prediction_parquet import write_prediction_parquet
from haystack.scene_graph import PredictedObjects, RelationScores

MINI = "psg_mini_predcls"


def predicted(path, seed, *, own_objects=False):
    """Random scores for the test images of psg-mini."""
    rng = np.random.default_rng(seed)
    dataset = read_psg("psg-mini")
    images = []
    for graph in dataset.split("test"):
        count = len(graph.segments)
        pairs = np.array([(s, o) for s in range(count) for o in range(count) if s != o])
        objects = None
        if own_objects:
            labels = (graph.labels + 1) % dataset.vocabulary.num_objects
            objects = PredictedObjects(labels, np.full(count, 0.5, np.float32), graph.boxes, None)
        scores = rng.random((len(pairs), 56), dtype=np.float32)
        images.append(RelationScores(graph.image_id, pairs, scores, objects=objects))
    write_prediction_parquet(images, path, dataset.vocabulary.predicate_classes)
    return path


def quick(**changes):
    return dataclasses.replace(load_benchmark(MINI), replicates=50, **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two models' runs, saved."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("one", "two")):
        file = predicted(folder / name / "predictions.parquet", seed)
        run_benchmark(quick(), file, model=name).save(folder / name)
    return folder


def test_every_definition_of_haystack_can_be_read_and_says_where_its_data_come_from():
    names = own_configs("bench")
    assert {"bench/psg_mini_predcls", "bench/haystack_v1_predcls"} <= set(names)
    loaded = [load_benchmark(name) for name in names]
    assert len({benchmark.name for benchmark in loaded}) == len(names)
    for name, benchmark in zip(names, loaded, strict=True):
        assert benchmark.name.replace("-", "_") == name.partition("/")[2]
        assert len(benchmark.source) > 20
        assert benchmark.baseline is None or find_config(benchmark.baseline).is_file()


def test_the_bundled_data_are_those_of_the_definition():
    benchmark = load_benchmark(MINI)
    found = files.sha256_file(BUNDLED["psg-mini"])
    assert benchmark.annotations_sha256 == benchmark.training_sha256 == found


def test_a_result_is_what_evaluate_gives(runs):
    result = read_result(runs / "one")
    expected = evaluate(
        "psg-mini",
        runs / "one" / "predictions.parquet",
        ks=(20, 50, 100),
        metrics=("P-AUC", "PDD", "PDO", "R", "mR", "ngR", "ng-mR", "zR"),
        training="psg-mini",
        replicates=50,
    )
    assert result.report.to_dict() == expected.to_dict()
    content = json.loads((runs / "one" / "result.json").read_text())
    assert content["columns"]["P-AUC"] == expected.metrics["P-AUC"]
    assert content["inputs"]["annotations"]["is_pinned"] is True
    assert content["inputs"]["predictions"]["path"] == "predictions.parquet"
    assert "P-AUC" in str(result)


def test_a_report_survives_being_written_undefined_values_included(runs):
    content = json.loads((runs / "one" / "result.json").read_text())["report"]
    report = Report.from_dict(content)
    assert math.isnan(report.per_predicate["eating"]["P-AUC"])
    assert report.to_dict() == content
    assert str(report) == str(Report.from_dict(report.to_dict()))
    del content["metrics"]
    with pytest.raises(InputError, match="JSON of a report"):
        Report.from_dict(content)


def test_a_folder_can_be_moved_as_a_whole(runs, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(runs / "one", moved)
    assert read_result(moved).input_file("predictions") == moved / "predictions.parquet"


def test_results_compare_as_their_predictions_do(runs):
    one, two = read_result(runs / "one"), read_result(runs / "two")
    found = compare_results(one, two, replicates=60)
    expected = compare(
        "psg-mini",
        runs / "one" / "predictions.parquet",
        runs / "two" / "predictions.parquet",
        replicates=60,
        metrics=one.benchmark.metrics,
        training="psg-mini",
    )
    assert found.names == ("one", "two")
    same = dataclasses.replace(expected, names=found.names)
    assert found.to_dict() == same.to_dict()


def test_the_leaderboard_puts_the_best_first_and_the_undefined_last(runs):
    results = [read_result(runs / name) for name in ("one", "two")]
    values = [result.report.metrics["P-AUC"] for result in results]
    assert leaderboard(results)[0] is results[int(np.argmax(values))]
    report = results[0].report
    broken = dataclasses.replace(
        results[0],
        report=dataclasses.replace(report, metrics={**report.metrics, "P-AUC": math.nan}),
    )
    assert leaderboard([broken, results[1]])[-1] is broken
    lower = [dataclasses.replace(r, benchmark=quick(rank_by="PDD")) for r in results]
    values = [result.report.metrics["PDD"] for result in lower]
    assert leaderboard(lower)[0] is lower[int(np.argmin(values))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "psg-mini-predcls version 1.*psg-mini-predcls version 2"),
        ({"seed": 1}, "defined otherwise"),
    ],
)
def test_results_of_other_definitions_are_not_put_together(runs, change, message):
    one, two = read_result(runs / "one"), read_result(runs / "two")
    other = dataclasses.replace(two, benchmark=dataclasses.replace(two.benchmark, **change))
    with pytest.raises(InputError, match=message):
        same_benchmark([one, other])
    titled = dataclasses.replace(two.benchmark, title="another title", rank_by="PDD")
    same_benchmark([one, dataclasses.replace(two, benchmark=titled)])


def test_results_of_other_inputs_are_not_put_together(runs):
    one, two = read_result(runs / "one"), read_result(runs / "two")
    inputs = {**two.inputs, "annotations": {**two.inputs["annotations"], "sha256": "0"}}
    with pytest.raises(InputError, match="the annotations of one and of two differ"):
        same_benchmark([one, dataclasses.replace(two, inputs=inputs)])


def test_annotations_that_are_not_the_benchmarks_are_refused(runs, tmp_path):
    copy = tmp_path / "annotation.json"
    copy.write_text(BUNDLED["psg-mini"].read_text() + "\n")
    predictions = runs / "one" / "predictions.parquet"
    with pytest.raises(InputError, match="not those of the benchmark: SHA-256"):
        run_benchmark(quick(), predictions, model="m", annotations=copy)
    unpinned = quick(annotations_sha256="", images=20)
    with pytest.raises(InputError, match=r"is of 20 images .*, these annotations have 21"):
        run_benchmark(unpinned, predictions, model="m", annotations=copy)
    fewer = quick(annotations_sha256="", predicates=50)
    with pytest.raises(InputError, match="is of 50 predicates"):
        run_benchmark(fewer, predictions, model="m", annotations=copy)
    with pytest.raises(InputError, match="needs --annotations: annotation_v1"):
        run_benchmark(load_benchmark("haystack_v1_predcls"), predictions, model="m")
    unpinned = quick(annotations_sha256="", images=None)
    result = run_benchmark(unpinned, predictions, model="m", annotations=copy)
    assert result.inputs["annotations"]["is_pinned"] is False
    assert "No checksum is published of the annotations" in str(result)


def test_predictions_of_another_task_are_refused(runs, tmp_path):
    own = predicted(tmp_path / "own.parquet", 0, own_objects=True)
    with pytest.raises(InputError, match="21 of 21 images are predicted with objects of the model"):
        run_benchmark(quick(), own, model="m")
    detection = quick(task="sgdet", protocol="kt", metrics=["R"], columns=["R@50"], rank_by="R@50")
    detection = dataclasses.replace(detection, training=None)
    with pytest.raises(InputError, match="predicted without them; grade those as PredCls"):
        run_benchmark(detection, runs / "one" / "predictions.parquet", model="m")
    result = run_benchmark(detection, own, model="m")
    assert result.report.support["own_objects"] == 21


def test_masks_are_among_the_inputs_where_they_are_compared(tmp_path):
    own = predicted(tmp_path / "own.parquet", 0, own_objects=True)
    detection = quick(task="sgdet", metrics=["R"], columns=["R@50"], rank_by="R@50", training=None)
    pinned = run_benchmark(detection, own, model="m")
    detection = dataclasses.replace(detection, masks_sha256="")
    result = run_benchmark(detection, own, model="m")
    assert (pinned.inputs["masks"]["is_pinned"], result.inputs["masks"]["is_pinned"]) == (1, 0)
    assert len(result.inputs["masks"]["sha256"]) == 64
    copy = tmp_path / "psg"
    shutil.copytree(BUNDLED["psg-mini"].parent, copy)
    again = run_benchmark(detection, own, model="m", annotations=copy / "annotation.json")
    assert again.inputs["masks"]["sha256"] == result.inputs["masks"]["sha256"]
    file = copy / read_psg("psg-mini").split("test")[0].pan_seg_file_name
    Image.open(file).save(file, compress_level=0)
    changed = run_benchmark(detection, own, model="m", annotations=copy / "annotation.json")
    with pytest.raises(InputError, match="the masks of m and of m differ"):
        same_benchmark([result, changed])
    detection = dataclasses.replace(detection, masks_sha256=result.inputs["masks"]["sha256"])
    with pytest.raises(InputError, match="the masks are not those of the benchmark: SHA-256"):
        run_benchmark(detection, own, model="m", annotations=copy / "annotation.json")


def test_results_that_saw_other_pictures_are_not_put_together(runs):
    """A file of predictions does not say what it was made from; it compares with all."""
    seen = seen_by_model(quick(), read_psg("psg-mini"), reads_images=True)
    given, two = read_result(runs / "one"), read_result(runs / "two")
    one = dataclasses.replace(given, inputs={**given.inputs, **seen})
    others = {**two.inputs, "pictures": {**seen["pictures"], "sha256": "0"}}
    same_benchmark([one, two])
    with pytest.raises(InputError, match="the pictures of one and of two differ"):
        same_benchmark([one, dataclasses.replace(two, inputs=others)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected the result of a benchmark"),
        ('{"kind": "haystack benchmark result", "format": 9}', "its format is 9"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, content, message):
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_result(tmp_path)


def test_a_result_edited_by_hand_is_refused(runs, tmp_path):
    content = json.loads((runs / "one" / "result.json").read_text())
    content["benchmark"]["protocol"] = "openpsg"
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="edited by hand"):
        read_result(tmp_path)
    with pytest.raises(InputError, match="expected the folder of a benchmark run"):
        read_result(tmp_path / "nothing")


@pytest.mark.parametrize("lost", ["report", "inputs", "model", "environment", "benchmark"])
def test_a_result_that_lost_a_part_is_refused(runs, tmp_path, lost):
    content = json.loads((runs / "one" / "result.json").read_text())
    del content[lost]
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"is not whole .*run the benchmark again"):
        read_result(tmp_path)


def test_a_result_without_its_own_columns_is_refused(runs, tmp_path):
    content = json.loads((runs / "one" / "result.json").read_text())
    column = content["benchmark"]["columns"][0]
    del content["report"]["metrics"][column]
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"not whole .*{column}"):
        read_result(tmp_path)


def test_predictions_that_changed_since_are_not_compared(runs, tmp_path):
    moved = tmp_path / "one"
    shutil.copytree(runs / "one", moved)
    predicted(moved / "predictions.parquet", 7)
    with pytest.raises(InputError, match="not those that the result was made from"):
        read_result(moved).input_file("predictions")
    (moved / "predictions.parquet").unlink()
    with pytest.raises(InputError, match="not there any more"):
        compare_results(read_result(moved), read_result(runs / "two"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "sgcls"}, "expected a task"),
        ({"split": "val"}, "expected a split"),
        ({"metrics": ["nonsense"]}, "unknown metrics"),
        ({"columns": ["R@7"]}, "the column 'R@7'"),
        ({"rank_by": "R@20"}, "expected rank_by"),
        ({"protocol": "none"}, "protocol"),
    ],
)
def test_a_definition_that_cannot_be_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        quick(**change)


def test_the_environment_says_what_computed_it(monkeypatch):
    monkeypatch.setenv("HAYSTACK_IMAGE_DIGEST", "sha256:abc")
    monkeypatch.setenv("HAYSTACK_COMMIT", "1234")
    found = environment.environment()
    assert {"torch", "haystack", "python", "numpy"} <= found["versions"].keys()
    assert (found["image_digest"], found["commit"], found["gpu"]) == ("sha256:abc", "1234", None)
    json.dumps(found)
    monkeypatch.delenv("HAYSTACK_COMMIT")
    checkout = Path(environment.haystack.__file__).parents[1]
    if (checkout / ".git").exists() and shutil.which("git"):
        assert len(environment.commit().partition("-")[0]) == 40
