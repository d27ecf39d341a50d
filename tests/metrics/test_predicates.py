from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MetricCollection

from haystack.errors import InputError
from haystack.metrics import PredicateAUROC, PredicateDisplacement
from haystack.metrics.functional import (
    predicate_auroc,
    predicate_discrimination_disadvantage,
    predicate_dominance_overestimation,
    predicate_ranks,
    ranks_of,
)

FUNCTIONS = {
    "P-AUC": predicate_auroc,
    "PDD": predicate_discrimination_disadvantage,
    "PDO": predicate_dominance_overestimation,
}


def sample(seed, pairs, predicates, decimals=None, dtype=np.float32):
    generator = np.random.default_rng(seed)
    scores = generator.random((pairs, predicates)).astype(dtype)
    scores = scores if decimals is None else scores.round(decimals)
    labels = generator.choice([-1, 0, 1], size=scores.shape, p=[0.4, 0.3, 0.3])
    return scores, labels


def compute(scores, labels):
    tensors = torch.from_numpy(scores), torch.from_numpy(labels)
    return {name: function(*tensors).numpy() for name, function in FUNCTIONS.items()}


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    pairs=st.integers(0, 12),
    predicates=st.integers(1, 6),
    decimals=st.sampled_from([0, 1, None]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_equal_to_the_definitions(brute, seed, pairs, predicates, decimals, dtype):
    scores, labels = sample(seed, pairs, predicates, decimals, dtype)
    expected = brute.predicate_metrics(scores, labels)
    for name, value in compute(scores, labels).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-12, err_msg=name)


@pytest.mark.parametrize("decimals", [1, None])
def test_auroc_equal_to_scikit_learn(decimals):
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is an extra oracle")
    scores, labels = sample(1, 400, 7, decimals)
    expected = [
        metrics.roc_auc_score(labels[labels[:, p] != 0, p] > 0, scores[labels[:, p] != 0, p])
        for p in range(7)
    ]
    np.testing.assert_allclose(compute(scores, labels)["P-AUC"], expected, atol=1e-12)


@pytest.mark.parametrize("transform", [torch.log, torch.exp, lambda x: 3 * x - 7, lambda x: x**3])
def test_auroc_depends_on_the_order_of_scores_only(transform):
    scores, labels = (torch.from_numpy(x) for x in sample(2, 200, 5, 2, np.float64))
    before = predicate_auroc(scores, labels)
    assert torch.equal(before, predicate_auroc(transform(scores), labels))


def test_pdd_and_pdo_do_not_depend_on_the_softmax():
    logits, labels = (torch.from_numpy(x) for x in sample(3, 200, 5, 2, np.float64))
    for function in (predicate_discrimination_disadvantage, predicate_dominance_overestimation):
        assert torch.equal(function(logits, labels), function(logits.softmax(1), labels))


def test_all_are_the_same_for_any_order_of_pairs():
    scores, labels = (torch.from_numpy(x) for x in sample(4, 100, 5, 1))
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    for function in FUNCTIONS.values():
        assert torch.equal(function(scores, labels), function(scores[order], labels[order]))


def test_permuting_predicates_permutes_the_values():
    scores, labels = (torch.from_numpy(x) for x in sample(5, 100, 6))  # no ties
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for function in FUNCTIONS.values():
        assert torch.equal(
            function(scores, labels)[order], function(scores[:, order], labels[:, order])
        )


def test_undefined_is_nan():
    scores = torch.tensor([[0.3, 0.2, 0.1], [0.1, 0.2, 0.3]])
    labels = torch.tensor([[1, -1, 0], [1, -1, 0]])
    assert predicate_auroc(scores, labels).isnan().all()
    assert predicate_discrimination_disadvantage(scores, labels).isnan().tolist() == [
        False,
        True,
        True,
    ]
    assert predicate_dominance_overestimation(scores, labels).isnan().tolist() == [
        False,
        False,
        True,
    ]


def test_one_predicate_has_no_displacement():
    scores, labels = torch.tensor([[0.2], [0.4]]), torch.tensor([[-1], [1]])
    assert predicate_auroc(scores, labels).tolist() == [1.0]
    assert predicate_discrimination_disadvantage(scores, labels).isnan().all()
    assert predicate_dominance_overestimation(scores, labels).isnan().all()


def test_properties_that_the_documentation_states():
    always_first = torch.tensor([[0.9, 0.1, 0.2]]).repeat(4, 1)
    labels = torch.tensor([[1, 0, 0], [-1, 0, 0], [-1, -1, 0], [-1, -1, 0]])
    pdo = predicate_dominance_overestimation(always_first, labels)
    assert pdo[0].item() == pytest.approx(3 / 4)  # the share of negatives
    assert pdo[1].item() == 0  # never leaves the last rank


def test_ranks_break_ties_by_the_lower_predicate():
    scores = torch.tensor([[0.5, 0.5, 0.7, 0.5], [0.0, -0.0, 0.0, -0.0]])
    assert predicate_ranks(scores).tolist() == [[1, 2, 0, 3], [0, 1, 2, 3]]
    for predicate in range(4):
        column = torch.full((2,), predicate)
        assert torch.equal(ranks_of(scores, column), predicate_ranks(scores)[:, predicate])


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        (torch.zeros(3, 2), torch.zeros(2, 2, dtype=torch.int64)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.int64)),
    ],
)
def test_shapes_that_do_not_fit_are_errors(scores, labels):
    for function in FUNCTIONS.values():
        with pytest.raises(InputError, match="expected"):
            function(scores, labels)


def test_classes_accumulate_to_what_the_functions_give():
    scores, labels = (torch.from_numpy(x) for x in sample(6, 60, 5, 1))
    auroc, displacement = PredicateAUROC(5, average=None), PredicateDisplacement(5, average=None)
    for part in torch.arange(60).split(7):
        auroc.update(scores[part], labels[part])
        displacement.update(scores[part], labels[part])
    assert torch.equal(auroc.compute(), predicate_auroc(scores, labels))
    values = displacement.compute()
    assert torch.equal(values["PDD"], predicate_discrimination_disadvantage(scores, labels))
    assert torch.equal(values["PDO"], predicate_dominance_overestimation(scores, labels))


def test_macro_means_leave_undefined_predicates_out():
    scores = torch.tensor([[0.9, 0.2], [0.4, 0.7]])
    labels = torch.tensor([[1, 0], [-1, 1]])
    auroc, displacement = PredicateAUROC(2), PredicateDisplacement(2)
    for metric in (auroc, displacement):
        metric.update(scores, labels)
    assert auroc.compute().item() == 1.0
    assert displacement.compute()["PDD"].item() == 0.0


@pytest.mark.parametrize("metric", [PredicateAUROC(2), PredicateDisplacement(2)])
def test_nothing_seen_is_nan(metric):
    metric.reset()
    with pytest.warns(UserWarning, match="before the ``update``"):
        value = metric.compute()
    values = value.values() if isinstance(value, dict) else [value]
    assert all(v.isnan() for v in values)


@pytest.mark.parametrize("metric", [PredicateAUROC(2), PredicateDisplacement(2)])
def test_a_nan_score_is_an_error_where_it_matters(metric):
    scores = torch.tensor([[0.1, float("nan")], [0.2, 0.3]])
    metric.update(scores, torch.tensor([[0, 0], [1, -1]]))
    with pytest.raises(InputError, match="finite"):
        metric.update(scores, torch.tensor([[0, 1], [1, -1]]))


def test_a_collection_does_not_merge_metrics_of_other_sizes():
    three, four = PredicateAUROC(3), PredicateAUROC(4)
    for metric in (three, four):  # empty lists are equal, but the choices are not
        scores = torch.rand(2, metric.num_predicates)
        metric.update(scores, torch.zeros_like(scores, dtype=torch.int64))
    assert MetricCollection._equal_metric_states(three, three)
    assert not MetricCollection._equal_metric_states(three, four)


@pytest.mark.parametrize("kind", [PredicateAUROC, PredicateDisplacement])
@pytest.mark.parametrize("width", [2, 4])
def test_scores_of_another_width_are_an_error(kind, width):
    with pytest.raises(InputError, match=rf"expected scores \[pairs, 3\], got \[1, {width}\]"):
        kind(3).update(torch.rand(1, width), torch.ones(1, width, dtype=torch.int64))


@pytest.mark.parametrize("kind", [PredicateAUROC, PredicateDisplacement])
@pytest.mark.parametrize("label", [2, -2])
def test_other_labels_are_an_error(kind, label):
    with pytest.raises(InputError, match="expected the labels 1, -1 and 0"):
        kind(1).update(torch.rand(1, 1), torch.tensor([[label]]))
