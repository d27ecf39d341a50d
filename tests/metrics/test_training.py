from __future__ import annotations

import numpy as np
import pytest
import torch

from haystack.errors import InputError
from haystack.metrics import METRICS, SceneGraphMetrics
from haystack.metrics.kinds import PANOPTIC_METRICS, choose_metrics
from haystack.metrics.training import TrainingTriplets
from haystack.scene_graph import SceneGraph, Segment, as_triplets
from haystack.statistics import TripletStatistics

ROWS = [[0, 5, 2], [0, 5, 2], [1, 5, 0], [1, 5, 2]]


def test_rows_and_statistics_of_annotations_say_the_same():
    segments = tuple(Segment(i + 1, c, 1, (0.0, 0.0, 1.0, 1.0)) for i, c in enumerate((0, 5, 1)))
    relations = ([(0, 1, 2)], [(0, 1, 2), (2, 1, 0), (2, 1, 2)])
    graphs = [
        SceneGraph(str(i), 1, 1, "x.jpg", segments=segments, relations=as_triplets(rows))
        for i, rows in enumerate(relations)
    ]
    counted = TrainingTriplets.of(TripletStatistics.from_graphs(graphs, 6, 3))
    for training in (counted, TrainingTriplets.of(ROWS)):
        assert training.keys.tolist() == TrainingTriplets(ROWS).keys.tolist()
        assert training.frequencies.tolist() == [0, 1, 2]
        assert training.diversity(3).tolist() == [1, 0, 2]
        found = training.find(torch.tensor([[0, 5, 2], [1, 5, 0], [5, 0, 2], [0, 5, 1]]))
        assert training.frequencies[found].tolist() == [2, 1, 0, 0]


def test_without_training_everything_is_unseen():
    training = TrainingTriplets(np.empty((0, 3), dtype=np.int64))
    assert training.find(torch.tensor([[0, 5, 2]])).tolist() == [0]
    assert training.diversity(2).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("rows", "counts", "message"),
    [
        ([[0, 1]], None, r"expected integer rows .*got \[1, 2\]"),
        ([[0.0, 1.0, 2.0]], None, "expected integer rows"),
        ([[0, -1, 2]], None, "from 0 to 2097151, got -1"),
        ([[0, 1, 2]], [0], "count of at least 1"),
        ([[0, 1, 2]], [1, 1], "count of at least 1"),
    ],
)
def test_what_does_not_fit_is_an_error(rows, counts, message):
    with pytest.raises(InputError, match=message):
        TrainingTriplets(rows, counts)


def test_predicates_beyond_the_metrics_are_an_error():
    with pytest.raises(InputError, match="hold the predicate 2, but there are 2"):
        SceneGraphMetrics(2, training=ROWS)


def target(relations):
    labels = torch.tensor([0, 5, 1])
    return {"labels": labels, "relations": torch.tensor(relations)}


def prediction():
    scores = torch.tensor([[0.1, 0.0, 0.9], [0.2, 0.6, 0.3]])
    return {"pairs": torch.tensor([[0, 1], [2, 1]]), "scores": scores}


def test_zero_shot_may_be_a_table_instead():
    # A table lists what is zero-shot; training would say the opposite here.
    options = {"ks": (1, 2), "metrics": ("zR", "ng-zR")}
    by_table = SceneGraphMetrics(3, zero_shot=[[0, 5, 2]], **options)
    by_training = SceneGraphMetrics(3, training=[[0, 5, 2]], **options)
    for metric in (by_table, by_training):
        metric.update([prediction()], [target([[0, 1, 2], [2, 1, 0]])])
    assert by_table.compute()["zR@1"].item() == 1
    assert by_training.compute()["zR@2"].item() == 0
    none = SceneGraphMetrics(3, zero_shot=[[4, 4, 1]], **options)
    none.update([prediction()], [target([[0, 1, 2]])])
    assert none.compute()["zR@1"].isnan()


def test_metrics_are_chosen_by_name():
    graph_metrics = choose_metrics(None, training=True)
    assert graph_metrics == tuple(name for name in METRICS if name not in PANOPTIC_METRICS)
    without = choose_metrics(None, training=False)
    assert set(graph_metrics) - set(without) == {"zR", "ng-zR", "wR", "wIMR", "ng-wIMR"}
    only_unseen = choose_metrics(None, training=False, zero_shot=True)
    assert set(only_unseen) - set(without) == {"zR", "ng-zR"}
    assert choose_metrics(["R", "P-AUC"], training=False) == ("P-AUC", "R")
    for names, message in ((["R", "Rr"], "got Rr"), ([], "got none")):
        with pytest.raises(InputError, match=message):
            choose_metrics(names, training=True)
    with pytest.raises(InputError, match="wIMR compares with what training showed"):
        choose_metrics(["wIMR"], training=False, zero_shot=True)


def test_a_choice_of_metrics_changes_no_value():
    everything = SceneGraphMetrics(3, ks=(1, 2), training=ROWS)
    everything.update([prediction()], [target([[0, 1, 2], [2, 1, 0]])])
    whole = everything.compute()
    for name in choose_metrics(None, training=True):
        metric = SceneGraphMetrics(3, ks=(1, 2), training=ROWS, metrics=[name])
        metric.update([prediction()], [target([[0, 1, 2], [2, 1, 0]])])
        found = metric.compute()
        assert found
        for key, value in found.items():
            torch.testing.assert_close(value, whole[key], rtol=0, atol=0, equal_nan=True)
