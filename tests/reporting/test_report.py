"""A report of two models on psg-mini: what it holds, and what it leaves out."""

import base64
import csv
import dataclasses
import json
import re
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest

from haystack.cli import main
from haystack.cli.bench import load_benchmark
from haystack.errors import InputError
from haystack.evaluation import evaluate, read_result, run_benchmark
from haystack.io import read_psg
from haystack.io.prediction_parquet import write_prediction_parquet
from haystack.reporting import charts
from haystack.reporting.models import table_1
from haystack.reporting.outcomes import annotated_triplets, model_outcomes
from haystack.reporting.render import render_report
from haystack.reporting.runs import read_runs
from haystack.scene_graph import RelationScores

K = 20


def scores_of(seed):
    """Random scores of the test images, all but the last, one pair of each left out."""
    rng = np.random.default_rng(seed)
    for graph in read_psg("psg-mini").split("test")[:-1]:
        count = len(graph.segments)
        pairs = np.array([(s, o) for s in range(count) for o in range(count) if s != o])[:-1]
        scores = rng.random((len(pairs), 56), dtype=np.float32)
        yield RelationScores(graph.image_id, pairs, scores)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report-runs")
    changes = {"replicates": 40, "ks": [K], "columns": ["P-AUC", f"R@{K}"]}
    benchmark = dataclasses.replace(load_benchmark("psg_mini_predcls"), **changes)
    names = read_psg("psg-mini").vocabulary.predicate_classes
    for seed, name in enumerate(("one", "two")):
        file = folder / name / "predictions.parquet"
        write_prediction_parquet(scores_of(seed), file, names)
        run_benchmark(benchmark, file, model=name).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def rendered(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    words = ["report", runs / "one", runs / "two", "--out", out, "--examples", 1, "--json"]
    assert main([str(word) for word in words]) == 0
    return out


def test_the_page_needs_no_other_file(rendered):
    page = (rendered / "report.html").read_text()
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) > 8
    assert all(source.startswith("data:") for source in sources)
    assert not re.search(r'href="(?!#)', page)
    assert "<script" not in page
    for heading in ("Models", "Predicates", "The long tail", "Confusion", "Examples"):
        assert heading in page
    assert "one lacks" in page  # the image that was not predicted


def test_table_1_holds_the_numbers_of_the_reports(runs, rendered):
    report = read_result(runs / "two").report
    with (rendered / "tables" / "table1.csv").open() as stream:
        rows = {row["predicate"]: row for row in csv.DictReader(stream)}
    assert set(rows) - {"mean"} == {
        name for name, v in report.per_predicate.items() if v["positives"] or v["negatives"]
    }
    assert float(rows["on"]["two P-AUC"]) == report.per_predicate["on"]["P-AUC"]
    interval = report.uncertainty.per_predicate["on"]["P-AUC"]
    assert float(rows["on"]["two P-AUC high"]) == interval.high
    assert float(rows["mean"][f"two R@{K}"]) == report.metrics[f"mR@{K}"]
    assert rows["kissing"]["two P-AUC"] == ""  # undefined
    assert int(rows["mean"]["labels +"]) == report.support["positives"]


def test_the_better_model_stands_out_in_its_row(runs):
    table = table_1(read_runs([runs / "one", runs / "two"]))
    row = next(row for row in table.rows if row[0] == "on")
    auc_one, pdd_one = row[1], row[2]
    auc_two, pdd_two = row[5], row[6]
    assert auc_one.best == (auc_one.value > auc_two.value)
    assert auc_one.best != auc_two.best
    assert pdd_one.best == (pdd_one.value < pdd_two.value)  # lower is better


def test_the_best_model_is_shown_first_in_whatever_order_runs_are_given(runs, rendered, tmp_path):
    words = ["report", runs / "two", runs / "one", "--out", tmp_path, "--examples", 1, "--json"]
    assert main([str(word) for word in words]) == 0
    p_auc = {name: read_result(runs / name).report.metrics["P-AUC"] for name in ("one", "two")}
    ordered = sorted(p_auc, key=p_auc.get, reverse=True)
    for out in (rendered, tmp_path):
        page = (out / "report.html").read_text()
        assert re.findall(r"What (one|two) takes for what</summary>", page) == ordered
        assert re.findall(r"(one|two): best images", page) == ordered


def test_recalls_may_come_from_another_benchmark(runs):
    one, two = read_runs([runs / "one", runs / "two"])
    swapped = {"one": two.report, "two": one.report}
    table = table_1([one, two], swapped)
    row = next(row for row in table.rows if row[0] == "on")
    assert row[4].value == two.report.per_predicate["on"][f"R@{K}"]
    assert any("other images" in note for note in table.notes)
    with pytest.raises(InputError, match="no run with recalls is of the model one"):
        table_1([one, two], {"three": two.report})


def test_confusion_and_recall_are_those_of_a_loop(runs):
    found = model_outcomes(read_result(runs / "one"), examples=100)
    dataset = read_psg("psg-mini")
    scores = {image.image_id: image for image in scores_of(0)}
    pairs, lacking = Counter(), Counter()
    for graph in dataset.split("test"):
        image = scores.get(graph.image_id)
        for s, o, p in annotated_triplets(graph).tolist():
            rows = [] if image is None else np.flatnonzero((image.pairs == (s, o)).all(axis=1))
            if len(rows):
                pairs[p, int(image.scores[rows[0]].argmax())] += 1
            else:
                lacking[p] += 1
    expected = np.zeros((56, 56), dtype=int)
    for place, count in pairs.items():
        expected[place] = count
    np.testing.assert_array_equal(found.confusion, expected)
    assert {p: n for p, n in enumerate(found.lacking.tolist()) if n} == dict(lacking)
    images = (*found.best, *found.worst)
    assert len({image.graph.image_id for image in images}) == len(images) == 20
    # The mean of the images' recalls is R@K; the one that was not predicted counts as 0.
    recall = sum(image.recall for image in images) / 21
    assert recall == pytest.approx(read_result(runs / "one").report.metrics[f"R@{K}"])
    recalls = [image.recall for image in found.best if len(image.truths) >= 3]
    assert recalls == sorted(recalls, reverse=True)
    assert found.best[0].recall >= found.worst[0].recall


def test_charts_come_out_equal_and_well_formed(rendered, runs, tmp_path):
    figures = sorted((rendered / "figures").iterdir())
    assert {path.suffix for path in figures} == {".svg", ".pdf"}
    for path in figures:
        content = path.read_bytes()
        if path.suffix == ".svg":
            ElementTree.fromstring(content)
        else:
            assert content.startswith(b"%PDF")
    render_report(read_runs([runs / "one", runs / "two"]), tmp_path, examples=0)
    for path in figures:
        assert (tmp_path / "figures" / path.name).read_bytes() == path.read_bytes()
    page = (rendered / "report.html").read_text()
    embedded = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', page)
    svgs = {path.read_bytes() for path in figures if path.suffix == ".svg"}
    assert {base64.b64decode(text) for text in embedded} == svgs


@pytest.mark.filterwarnings("error")
def test_charts_of_any_names():
    """Dollar signs are no formulas, an underscore hides no model, and a long name leaves room."""
    names = [r"cost $\foo$ net", "_hidden", "a model " * 60, "one\ntwo"]
    predicates = ["on", "$^$ _{", "beside " * 40]
    values = {n: np.linspace(0.1, 0.9, 3) + 0.01 * i for i, n in enumerate(names)}
    three = {name: (value, value, value) for name, value in values.items()}
    counts = np.array([1, 20, 300])
    made = [
        charts.predicate_bars("R@50", predicates, three),
        charts.long_tail("R@50", predicates, counts, values),
        charts.displacement(predicates, values, values),
        charts.reliability("R@50", predicates, values, values),
        *(charts.confusion_matrix(n, predicates, np.eye(3, dtype=np.int64)) for n in names),
    ]
    for chart in made:
        assert len(chart.name.encode()) < 200
        chart.bytes("svg")


def test_every_column_of_a_page_has_a_name(rendered):
    heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', (rendered / "report.html").read_text())
    assert heads
    assert all(heads)


def test_a_legend_names_every_model():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    charts._scatter(axes, np.arange(2.0), {"_one": np.zeros(2), "$two$": np.ones(2)})
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown == ["_one", r"\$two\$"]


def test_models_whose_names_differ_in_signs_alone_keep_their_own_figures(runs, tmp_path):
    read = read_runs([runs / "one", runs / "two"])
    named = [
        dataclasses.replace(run, name=name) for run, name in zip(read, ("A+B", "A-B"), strict=True)
    ]
    rendered = render_report(named, tmp_path, examples=0)
    assert len(set(rendered.files)) == len(rendered.files)
    first, second = (
        (tmp_path / "figures" / f"confusion-a-b{end}.svg").read_bytes() for end in ("", "-2")
    )
    assert first != second
    page = (tmp_path / "report.html").read_text()
    for picture in (first, second):
        assert base64.b64encode(picture).decode() in page


def test_correlation_is_of_what_both_define():
    x = np.array([0.1, 0.5, np.nan, 0.9, 0.3])
    y = np.array([0.2, 0.4, 0.9, np.nan, 0.1])
    known = [0, 1, 4]
    assert charts.correlation(x, y) == pytest.approx(np.corrcoef(x[known], y[known])[0, 1])
    assert np.isnan(charts.correlation(x[:2], y[:2]))
    assert np.isnan(charts.correlation(np.ones(4), np.arange(4.0)))


def test_reports_alone_make_a_report_and_it_says_what_is_missing(tmp_path, capsys):
    for seed in range(2):
        names = ("P-AUC", "R", "mR", "R@inf")
        report = evaluate("psg-mini", scores_of(seed), ks=(K,), metrics=names)
        report.save(tmp_path / f"m{seed}.json")
    words = ["report", tmp_path / "m0.json", tmp_path / "m1.json", "--out", tmp_path / "out"]
    words += ["--training", "psg-mini", "--json", "--data", "psg-mini", "--reference", "psg-mini"]
    assert main([str(word) for word in words]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["models"] == ["m0", "m1"]
    assert any("a report alone names no predictions" in reason for reason in data["left_out"])
    assert (tmp_path / "out" / "figures" / "long-tail-p-auc.svg").is_file()
    for name in ("relative-size", "positives", "positive-share"):
        for kind, begin in (("svg", b"<?xml"), ("pdf", b"%PDF")):
            file = tmp_path / "out" / "figures" / f"psg-mini-{name}.{kind}"
            assert file.read_bytes().startswith(begin)
    assert "Left out" in (tmp_path / "out" / "report.html").read_text()


def test_models_that_were_not_measured_alike_are_refused(tmp_path, runs):
    one = evaluate("psg-mini", scores_of(0), ks=(K,), metrics=("P-AUC",))
    one.save(tmp_path / "one.json")
    evaluate("psg-mini", scores_of(0), "openpsg", ks=(K,), metrics=("R",)).save(tmp_path / "o.json")
    train = evaluate("psg-mini", scores_of(0), ks=(K,), metrics=("P-AUC",), split="all")
    train.save(tmp_path / "all.json")
    with pytest.raises(InputError, match="the protocol differs"):
        read_runs([tmp_path / "one.json", tmp_path / "o.json"])
    with pytest.raises(InputError, match=r"the split differs \(test and all\)"):
        read_runs([tmp_path / "one.json", tmp_path / "all.json"])
    with pytest.raises(InputError, match="given twice"):
        read_runs([tmp_path / "one.json", tmp_path / "one.json"])
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(InputError, match=r"no\.json.*JSON of a report"):
        read_runs([tmp_path / "no.json"])
    with pytest.raises(InputError, match="at least one run"):
        read_runs([])


def test_a_run_without_its_predictions_is_reported_without_examples(runs, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "result.json").write_bytes((runs / "one" / "result.json").read_bytes())
    rendered = render_report(read_runs([moved]), tmp_path / "out", examples=1)
    assert any("not there any more" in reason for reason in rendered.left_out)
    assert (tmp_path / "out" / "tables" / "table1.tex").is_file()
