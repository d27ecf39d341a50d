"""What all metrics promise to torchmetrics' users."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torchmetrics import ClasswiseWrapper, Metric, MetricTracker

import haystack.metrics
from haystack.errors import InputError
from haystack.metrics import (
    IndependentRecall,
    InstanceRecall,
    PairRecall,
    PanopticQuality,
    PredicateAUROC,
    PredicateDisplacement,
    PredicateRank,
    SceneGraphMetrics,
    TripletRecall,
    WeightedTripletRecall,
    ZeroShotRecall,
)

TRAINING = [[0, 1, 0]]
SCORES = torch.tensor([[0.5, 0.3, 0.1], [0.2, 0.6, 0.1], [0.1, 0.2, 0.4]])
LABELS = torch.tensor([[1, -1, 0], [-1, 1, 0], [1, 0, 0]])
FLAT = (SCORES, torch.tensor([0, 0, 1]), torch.tensor([[0, 0, 0], [0, 1, 1], [1, 2, 0]]), 2)
CLASSES = torch.tensor([[0, 1], [1, 0], [0, 0]])
FOUND = (torch.tensor([True, False]), torch.tensor([0, 0]), 1)
GRAPHS = (
    [{"pairs": torch.tensor([[0, 1], [1, 0]]), "scores": SCORES[:2]}],
    [{"labels": torch.tensor([0, 1]), "relations": torch.tensor([[0, 1, 0]])}],
)
SEGMENTS = [{"id_map": torch.tensor([[0, 1]]), "ids": torch.arange(2), "labels": torch.arange(2)}]


def made():
    """Each class with each of its averages, after an update; and whether higher is better."""
    yield PredicateAUROC, {}, (SCORES, LABELS), True
    yield PredicateAUROC, {"average": None}, (SCORES, LABELS), True
    yield PredicateAUROC, {"mode": "streaming", "bits": 8}, (SCORES, LABELS), True
    yield PredicateDisplacement, {}, (SCORES, LABELS), False
    yield PredicateDisplacement, {"average": None}, (SCORES, LABELS), False
    for kind in (TripletRecall, IndependentRecall):
        yield kind, {}, FLAT, True
        yield kind, {"average": None}, FLAT, True
    yield PairRecall, {}, FLAT, True
    yield PredicateRank, {}, FLAT, False
    for kind in (ZeroShotRecall, WeightedTripletRecall):
        yield kind, {"training": TRAINING}, (*FLAT, CLASSES), True
    yield SceneGraphMetrics, {}, GRAPHS, None  # of PDD, PDO and PRank lower is better


def ready(kind, options, inputs):
    metric = kind(3, **options)
    metric.update(*inputs)
    return metric


CASES = [pytest.param(*case, id=f"{case[0].__name__} {case[1]}") for case in made()]


def test_every_class_is_among_the_cases():
    classes = {
        value
        for name in haystack.metrics.__all__
        if inspect.isclass(value := getattr(haystack.metrics, name)) and issubclass(value, Metric)
    }
    assert classes == {case[0] for case in made()} | {InstanceRecall, PanopticQuality}


@pytest.mark.parametrize(("kind", "options", "inputs", "higher"), CASES)
def test_every_class_says_what_is_better_and_can_be_drawn(kind, options, inputs, higher):
    assert kind.higher_is_better is higher
    assert (kind.full_state_update, kind.is_differentiable) == (False, False)
    pytest.importorskip("matplotlib", reason="plots need matplotlib").use("agg")
    plots = pytest.importorskip("matplotlib.pyplot")
    metric = ready(kind, options, inputs)
    figure, axes = metric.plot()
    assert figure is not None
    assert axes.lines or axes.collections or axes.patches
    metric.plot([metric.compute()] * 2)
    plots.close("all")


@pytest.mark.parametrize(
    "kind", [PredicateAUROC, PredicateDisplacement, TripletRecall, IndependentRecall]
)
@pytest.mark.parametrize("average", ["micro", "none", ""])
def test_unknown_averages_are_errors(kind, average):
    with pytest.raises(InputError, match=f"average='macro' or None .*, got '{average}'"):
        kind(3, average=average)
    with pytest.raises(InputError, match="average='macro' or None"):
        PanopticQuality(3, average=average)


@pytest.mark.parametrize(
    ("kind", "inputs"), [case[:3:2] for case in made() if case[1] == {"average": None}]
)
def test_macro_is_the_mean_of_what_none_gives(kind, inputs):
    macro, vector = (ready(kind, o, inputs).compute() for o in ({}, {"average": None}))
    if kind is PredicateAUROC:
        macro, vector = {"P-AUC": macro}, {"P-AUC": vector}
    for name, values in vector.items():
        assert values.shape == (3,)
        mean = {"R": "mR", "ngR": "ng-mR"}.get(name.partition("@")[0])
        name = name if mean is None else f"{mean}@{name.partition('@')[2]}"
        assert macro[name].item() == pytest.approx(values.nanmean().item())


def test_wrappers_of_torchmetrics_work():
    labels = ["over", "in front of", "beside"]
    wrapped = ClasswiseWrapper(PredicateAUROC(3, average=None), labels=labels)
    wrapped.update(SCORES, LABELS)
    values = wrapped.compute()
    assert values["predicateauroc_in front of"].item() == 1
    assert math.isnan(values["predicateauroc_beside"].item())
    tracker = MetricTracker(PredicateAUROC(3))
    for scores in (-SCORES, SCORES):
        tracker.increment()
        tracker.update(scores, LABELS)
    best, step = tracker.best_metric(return_step=True)
    assert (best, step) == (0.75, 1)
