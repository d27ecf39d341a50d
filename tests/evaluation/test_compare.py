"""Intervals of a report, and two models compared."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pytest
import torch

from haystack.errors import InputError
from haystack.evaluation import Comparison, compare, evaluate
from haystack.metrics.functional.bootstrap import draw_images
from haystack.scene_graph import RelationScores, SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.vocabulary import Vocabulary

PREDICATES = ("on", "beside", "eating", "rare")
VOCABULARY = Vocabulary(("person",), ("sky",), PREDICATES)
PAIRS = np.array([(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)])


def graph(number, rng):
    relations, refusals = [], []
    for row, (subject, target) in enumerate(PAIRS.tolist()):
        predicate = int(rng.integers(0, 3)) if number >= 4 or row else 3
        holds = number % 2 if predicate == 3 else rng.random() < 0.5
        (relations if holds else refusals).append((subject, target, predicate))
    segments = tuple(Segment(i + 1, 0, 4, (0.0, 0.0, 2.0, 2.0)) for i in range(3))
    return SceneGraph(
        str(number),
        4,
        4,
        f"{number}.jpg",
        segments=segments,
        relations=as_triplets(relations),
        neg_relations=as_triplets(refusals),
    )


def dataset(count=40, seed=0):
    rng = np.random.default_rng(seed)
    return SceneGraphDataset(VOCABULARY, tuple(graph(number, rng) for number in range(count)))


def model(data, seed, skill):
    """Scores of noise, and of the truth as far as ``skill`` says, one number a predicate."""
    rng = np.random.default_rng(seed)
    images = []
    for image in data.graphs:
        scores = rng.normal(size=(len(PAIRS), len(PREDICATES)))
        row_of = {tuple(pair): row for row, pair in enumerate(PAIRS.tolist())}
        for rows, sign in ((image.relations, 1), (image.neg_relations, -1)):
            for subject, target, predicate in rows.tolist():
                scores[row_of[subject, target], predicate] += sign * skill[predicate]
        images.append(RelationScores(image.image_id, PAIRS, scores.astype(np.float32)))
    return images


def test_a_report_has_an_interval_for_every_value(tmp_path):
    data = dataset()
    predictions = model(data, 1, (1, 1, 0, 0))
    plain = evaluate(data, predictions)
    report = evaluate(data, predictions, replicates=200, confidence=0.9, seed=3)
    assert plain.uncertainty is None
    assert "uncertainty" not in plain.to_dict()
    content = report.to_dict()
    assert {key: content[key] for key in plain.to_dict()} == plain.to_dict()

    found = content["uncertainty"]
    settings = [found[key] for key in ("confidence", "method", "replicates", "seed")]
    assert settings == [0.9, "bca", 200, 3]
    assert list(found["metrics"]) == list(content["metrics"])
    for predicate, row in found["per_predicate"].items():
        counts = {"positives", "negatives"}
        assert set(row) == set(content["per_predicate"][predicate]) - counts
    low, high = (found["metrics"]["P-AUC"][key] for key in ("low", "high"))
    assert low < content["metrics"]["P-AUC"] < high
    again = evaluate(data, predictions, replicates=200, confidence=0.9, seed=3)
    assert again.to_dict() == content
    report.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == content

    lines = [line.split() for line in str(report).splitlines()]
    cell = f"{low:.3f} .. {high:.3f}".split()

    assert any(line[0] == "mean" and line[-3:] == cell for line in lines if line)
    assert any(line[:1] == ["P-AUC"] and line[-3:] == cell for line in lines)
    assert "90% intervals, from 200 resamples of the images" in str(report)
    assert "interval" not in str(plain)


def test_the_better_model_is_found_where_it_is_better():
    data = dataset(60)
    worse, better = model(data, 1, (1, 1, 0.2, 0)), model(data, 1, (1, 1, 2.5, 3))
    found = compare(data, worse, better, replicates=400)
    assert isinstance(found, Comparison)
    verdicts = found.predicates("P-AUC")
    assert verdicts["b"] == ("eating",)
    assert verdicts["not told apart"] == ("on", "beside")
    assert verdicts["too few images"] == ("rare",)
    eating = found.per_predicate["eating"]["P-AUC"]
    assert eating.difference == pytest.approx(eating.b - eating.a)
    assert 0 < eating.low < eating.difference < eating.high
    assert eating.p_value <= eating.adjusted_p <= 0.05
    assert found.per_predicate["rare"]["P-AUC"].images < 4
    assert math.isnan(found.per_predicate["rare"]["P-AUC"].adjusted_p)
    assert found.metrics["P-AUC"].verdict == "b"
    assert found.metrics["P-AUC"].images == 60
    # Of PDD less is better.
    assert found.metrics["PDD"].difference < 0
    assert found.metrics["PDD"].verdict == "b"


@pytest.mark.parametrize("count", [1, 3, 9])
def test_no_difference_is_called_real_on_a_handful_of_images(count):
    """Resamples of one image are all that image, so that any difference would be certain."""
    data = dataset(count)
    worse, better = model(data, 1, (0, 0, 0, 0)), model(data, 1, (9, 9, 9, 9))
    found = compare(data, worse, better, replicates=100)
    assert found.metrics["PDD"].difference < 0
    values = [found.metrics, *found.per_predicate.values()]
    verdicts = {value.verdict for row in values for value in row.values()}
    assert "too few images" in verdicts <= {"too few images", "undefined"}
    assert f"{count} images are too few to say which model is better; at least 10" in str(found)
    judged = compare(dataset(40), *(model(dataset(40), 1, (s,) * 4) for s in (0, 9)), replicates=50)
    assert judged.metrics["PDD"].verdict == "b"
    assert "too few to say which" not in str(judged)


def test_a_comparison_without_any_value_says_so():
    bare = tuple(
        dataclasses.replace(image, relations=as_triplets([]), neg_relations=as_triplets([]))
        for image in dataset(12).graphs
    )
    data = SceneGraphDataset(VOCABULARY, bare)
    found = compare(data, model(data, 1, (1,) * 4), model(data, 2, (1,) * 4), replicates=20)
    assert {value.verdict for value in found.metrics.values()} == {"undefined"}
    assert "No value is defined for both models." in str(found)
    assert "better  " not in str(found)
    assert "adjusted p" not in str(found)


def test_swapping_the_models_swaps_the_verdicts():
    data = dataset(60)
    one, two = model(data, 1, (1, 1, 0.2, 0)), model(data, 1, (1, 1, 2.5, 3))
    straight, swapped = (
        compare(data, one, two, replicates=100),
        compare(data, two, one, replicates=100),
    )
    other = {"a": "b", "b": "a"}
    for name, value in straight.metrics.items():
        mirrored = swapped.metrics[name]
        assert mirrored.verdict == other.get(value.verdict, value.verdict)
        if value.verdict != "undefined":
            assert mirrored.difference == -value.difference
            assert mirrored.low == pytest.approx(-value.high, abs=1e-12)
            assert mirrored.p_value == value.p_value


def test_a_model_does_not_differ_from_itself_even_in_another_order():
    data = dataset(30)
    predictions = model(data, 2, (1, 1, 1, 1))
    found = compare(data, predictions, predictions[::-1], replicates=50)
    for value in found.metrics.values():
        if value.verdict != "undefined":
            assert (value.difference, value.low, value.high, value.p_value) == (0, 0, 0, 1)
            assert value.verdict == "not told apart"


def test_differences_equal_those_of_two_reports_on_the_drawn_images():
    data = dataset(12)
    models = [model(data, seed, (1, 1, 1, 1)) for seed in (1, 2)]
    found = compare(data, *models, replicates=20, seed=7, confidence=0.5).metrics["mR@20"]
    reports = [evaluate(data, predictions) for predictions in models]
    assert (found.a, found.b) == tuple(report.metrics["mR@20"] for report in reports)

    ids = sorted(image.image_id for image in data.graphs)
    weights = draw_images(12, 20, torch.Generator().manual_seed(7))
    deviations = []
    for row in weights.tolist():
        drawn = [i for i, weight in zip(ids, row, strict=True) for _ in range(weight)]
        scores = []
        for predictions in models:
            graphs, images = data.by_id(), {image.image_id: image for image in predictions}
            copies = [(_renamed(graphs[i], n), _renamed(images[i], n)) for n, i in enumerate(drawn)]
            again = SceneGraphDataset(VOCABULARY, tuple(g for g, _ in copies))
            report = evaluate(again, [image for _, image in copies])
            scores.append(report.metrics["mR@20"])
        deviations.append(abs(scores[1] - scores[0] - found.difference))
    reached = sum(deviation >= abs(found.difference) - 1e-12 for deviation in deviations)
    assert found.p_value == pytest.approx((reached + 1) / 21)
    # The half of the replicates with the largest deviations, as p-values count: 9 of 20 reach it.
    bound = sorted(deviations, reverse=True)[9]
    assert found.high - found.difference == pytest.approx(bound)


def _renamed(record, number):
    return dataclasses.replace(record, image_id=f"copy {number}")


def test_the_text_says_who_is_better_at_what(tmp_path):
    data = dataset(60)
    worse, better = model(data, 1, (1, 1, 0.2, 0)), model(data, 1, (1, 1, 2.5, 3))
    found = compare(data, worse, better[:-1], replicates=200)
    text = str(found)
    assert "60 images, 200 paired resamples of them, 95% intervals" in text
    assert "\nA: A\nB: B (6 annotated pairs have no prediction)" in text
    ways = (
        "P-AUC (higher is better), 3 of 4 predicates judged, those with positive and with negative"
    )
    assert f"{ways} labels in at least 10 images:" in text
    assert re.search(
        r"  B is better for eating, by 0\.\d+ \[0\.\d+, 0\.\d+\], adjusted p = 0", text
    )
    # Of PDD less is better: the difference is negative, and the gain is told as a gain.
    assert "PDD (lower is better), 3 of 4 predicates judged" in text
    gain = abs(found.metrics["PDD"].difference)
    assert re.search(rf"^PDD .* -{gain:.3f} .* B by {gain:.3f}$", text, re.MULTILINE)
    assert "Lower is better for PDD, PDO and PRank, higher for the others." in text
    assert re.search(r"Means are over the predicates that have a value \(P-AUC \d, PDD \d,", text)
    assert "by the step-down max-T procedure" in text
    only = str(compare(data, worse, better, replicates=20, metrics=["R"]))
    assert "Lower is better" not in only
    assert "Means are over" not in only
    assert "  not told apart: 2 of 3" in text
    assert "  too few images to say: 1 of 4" in text
    assert "Predicates with too few images to say:\n  under P-AUC, PDD, PDO, R@50: rare\n" in text
    assert text.count("rare") == 1
    assert (
        "R@50 (higher is better), 3 of 4 predicates judged, those with positive labels in at least"
        in text
    )
    positive = SceneGraphDataset(VOCABULARY, data.graphs[5:6])
    lone = str(compare(positive, worse, better, replicates=20, min_images=2))
    assert "P-AUC (higher is better), 0 of 4 predicates judged" in lone
    assert "  undefined for a model: " in lone
    assert "adjusted p" not in lone  # nothing was judged
    same = str(compare(data, worse, worse, replicates=50))
    assert "the models differ for no predicate beyond what chance gives" in same

    content = found.to_dict()
    assert content["names"] == ["A", "B"]
    assert content["support"]["b"]["missing_images"] == 1
    assert content["per_predicate"]["eating"]["P-AUC"]["verdict"] == "b"
    found.save(tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text()) == content
    assert "NaN" not in json.dumps(content)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"replicates": 5}, "at least 20 replicates"),
        ({"confidence": 95}, "between 0 and 1, got 95"),
        ({"device": "mps"}, "float64, which the device 'mps' lacks"),
        ({"min_images": 1}, "min_images of at least 2"),
        ({"protocol": "none"}, "known protocols"),
    ],
)
def test_bad_choices_are_errors(choices, message):
    data = dataset(3)
    predictions = model(data, 1, (1, 1, 1, 1))
    with pytest.raises(InputError, match=message):
        compare(data, predictions, predictions, **choices)
    if "min_images" not in choices:
        choices = {"replicates": 20, **choices}
        with pytest.raises(InputError, match=message):
            evaluate(data, predictions, **choices)
