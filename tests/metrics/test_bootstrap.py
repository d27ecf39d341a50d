"""The bootstrap over images, against a loop that really draws the images and grades them again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.errors import InputError
from haystack.evaluation.uncertainty import ResampledMetrics, resample, uncertainty_of
from haystack.metrics import SceneGraphMetrics
from haystack.metrics.functional import predicate_auroc_of_samples
from haystack.metrics.functional.bootstrap import (
    ImageSums,
    WeightedAUROC,
    accelerated_interval,
    draw_images,
    paired_tests,
    percentile_interval,
)

PREDICATES = 4
TRAINING = [[0, 0, 0], [0, 0, 0], [0, 1, 1], [1, 0, 2]]
SUPPORT = "support/"


def generator(seed):
    return torch.Generator().manual_seed(seed)


def images(brute, seed, count):
    """Predictions and targets, some images without a prediction."""
    preds, targets = [], []
    rng = np.random.default_rng(seed)
    for record in brute.random_images(seed, count, PREDICATES):
        record["labels"] = rng.integers(0, 2, len(record["labels"]))
        preds.append(
            {k: torch.from_numpy(record[k]) for k in ("pairs", "scores")}
            if rng.random() < 0.9
            else None
        )
        targets.append(
            {
                "image_id": record["image_id"],
                **{k: torch.from_numpy(record[k]) for k in ("labels", "relations")},
                "neg_relations": torch.from_numpy(record["neg_relations"]),
                "boxes": torch.from_numpy(rng.integers(0, 4, (len(record["labels"]), 1)))
                * torch.tensor([0, 0, 1, 1])
                + torch.tensor([0, 0, 9, 9]),
            }
        )
    return preds, targets


def fed(kind, preds, targets, protocol="paper", batch=3):
    metrics = kind(PREDICATES, ks=(1, 3), protocol=protocol, per_predicate=True, training=TRAINING)
    for part in torch.arange(len(preds)).split(batch):
        metrics.update([preds[i] for i in part], [targets[i] for i in part])
    return metrics


def really_resampled(preds, targets, weights, protocol):
    drawn = [i for i, weight in enumerate(weights.tolist()) for _ in range(weight)]
    parts = [preds[i] for i in drawn], [targets[i] for i in drawn]
    return fed(SceneGraphMetrics, *parts, protocol, batch=len(drawn)).compute()


def with_own_objects(preds, targets):
    """The model finds the objects where they are, but not always their class."""
    rng = np.random.default_rng(2)
    found = []
    for pred, target in zip(preds, targets, strict=True):
        labels = target["labels"].where(
            torch.from_numpy(rng.random(len(target["labels"])) < 0.8), 9
        )
        boxes = target["boxes"].double()
        found.append(None if pred is None else {**pred, "labels": labels, "boxes": boxes})
    return found


def as_ranked(preds):
    """Triplets in the order of their scores, without the scores."""
    found = []
    for pred in preds:
        if pred is None:
            found.append(None)
            continue
        best, predicates = pred["scores"].max(1)
        rows = torch.cat([pred["pairs"], predicates[:, None]], dim=1)
        order = best.argsort(descending=True, stable=True)
        objects = {key: pred[key] for key in ("labels", "boxes")}
        found.append({**objects, "triplets": rows[order]})
    return found


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        ("paper", "predcls"),
        ("haystack-v1", "predcls"),
        ("sgbench", "predcls"),
        ("vctree", "predcls"),
        ("paper", "own objects"),
        ("openpsg", "own objects"),
        ("paper", "ranked"),
        ("sgbench", "ranked"),
    ],
)
def test_every_value_of_a_resample_equals_that_of_the_drawn_images(brute, protocol, kind):
    preds, targets = images(brute, 3, 12)
    if kind != "predcls":
        preds = with_own_objects(preds, targets)
    if kind == "ranked":
        preds = as_ranked(preds)
    resampler = fed(ResampledMetrics, preds, targets, protocol).resampler()
    weights = draw_images(12, 8, generator(0))
    found = resampler(weights)
    for row, drawn in enumerate(weights):
        wanted = really_resampled(preds, targets, drawn, protocol)
        names = [name for name in wanted if not name.startswith(SUPPORT)]
        assert set(found) == set(names)
        for name in names:
            equal = torch.equal(found[name][row].nan_to_num(-1), wanted[name].nan_to_num(-1))
            assert equal, f"{name}: {found[name][row]} and {wanted[name]}"


def test_metrics_that_remember_images_give_the_same_values(brute):
    preds, targets = images(brute, 5, 9)
    plain, remembering = (
        fed(kind, preds, targets) for kind in (SceneGraphMetrics, ResampledMetrics)
    )
    for _ in range(2):
        wanted, found = plain.compute(), remembering.compute()
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True)
        remembering.reset()
        assert remembering.image_ids == []
        remembering.update(preds, targets)


def test_draws_depend_on_the_images_alone_not_on_their_order(brute):
    preds, targets = images(brute, 6, 10)
    order = torch.randperm(10, generator=generator(1)).tolist()
    shuffled = [preds[i] for i in order], [targets[i] for i in order]
    straight, other = (
        fed(ResampledMetrics, *data).resampler() for data in ((preds, targets), shuffled)
    )
    together = resample([straight, other], 70, seed=4)
    for name, values in together[0].items():
        torch.testing.assert_close(values, together[1][name], rtol=0, atol=0, equal_nan=True)
    [again] = resample([other], 70, seed=4)
    [differently] = resample([other], 70, seed=5)
    assert torch.equal(again["R@3"], together[0]["R@3"])
    assert not torch.equal(differently["R@3"], again["R@3"])


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), samples=st.integers(0, 30), decimals=st.sampled_from([0, 1, 6]))
def test_weighted_auroc_equals_that_of_repeated_samples(seed, samples, decimals):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.random(samples).round(decimals).astype(np.float32))
    scores[torch.from_numpy(rng.random(samples) < 0.1)] = -torch.inf
    labels = torch.from_numpy(rng.choice([-1, 1], samples))
    predicates = torch.from_numpy(rng.integers(0, 3, samples))
    owners = torch.from_numpy(rng.integers(0, 5, samples))
    weights = torch.from_numpy(rng.integers(0, 3, (4, 5)))
    found = WeightedAUROC(scores, labels, predicates, owners, 3)(weights)
    for row, drawn in enumerate(weights):
        repeated = torch.repeat_interleave(torch.arange(samples), drawn[owners])
        parts = scores[repeated], labels[repeated], predicates[repeated]
        wanted = predicate_auroc_of_samples(*parts, 3)
        torch.testing.assert_close(found[row], wanted, rtol=0, atol=0, equal_nan=True)


def test_replicates_in_parts_are_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    scores, owners = torch.from_numpy(rng.random(50)), torch.from_numpy(rng.integers(0, 9, 50))
    labels, one = torch.from_numpy(rng.choice([-1, 1], 50)), torch.zeros(50, dtype=torch.int64)
    auroc = WeightedAUROC(scores, labels, one, owners, 1)
    weights = draw_images(9, 20, generator(2))
    whole = auroc(weights)
    monkeypatch.setattr("haystack.metrics.functional.bootstrap._ELEMENTS", 100)
    assert torch.equal(auroc(weights), whole)


def test_sums_are_exact_up_to_two_to_the_53():
    cells, owners = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    values = torch.tensor([2**52 - 1, 1, 0])
    sums = ImageSums(cells, owners, values, (2, 1), 2)
    weights = torch.tensor([[1, 1], [1, 0], [2, 1]])
    assert sums.weighted(weights)[:, 0, 0].tolist() == [2**52, 2**52 - 1, 2**53 - 1]
    assert sums.images().tolist() == [[2], [0]]  # a zero adds nothing


def test_draws_are_multinomial():
    weights = draw_images(50, 4000, generator(0))
    assert (weights.sum(1) == 50).all()
    assert weights.double().mean().item() == 1
    assert weights.double().var().item() == pytest.approx(1 - 1 / 50, rel=0.02)
    assert draw_images(0, 3, generator(0)).shape == (3, 0)


def test_percentiles_leave_undefined_replicates_out_and_count_the_others():
    values = torch.arange(201.0).double()
    table = torch.stack([values, values.where(values <= 100, torch.nan)], dim=1)
    table = torch.cat([table, torch.tensor([[torch.nan, 1.0]]).expand(201, 2)], dim=1)
    bounds = percentile_interval(table, 0.9)
    assert bounds.replicates.tolist() == [201, 101, 0, 201]
    wanted = np.nanquantile(table[:, :2].numpy(), [0.05, 0.95], axis=0)
    np.testing.assert_allclose(torch.stack([bounds.low, bounds.high])[:, :2], wanted)
    assert bounds.low[2:].isnan().all()  # nothing is defined; nothing differs
    assert bounds.high[2:].isnan().all()


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_accelerated_intervals_equal_scipys(confidence):
    stats = pytest.importorskip("scipy.stats", reason="SciPy is an extra oracle")
    rng = np.random.default_rng(8)
    sample = rng.exponential(size=25)
    drawn = sample[rng.integers(0, 25, (4000, 25))].mean(1)
    left_out = (sample.sum() - sample) / 24
    bounds = accelerated_interval(
        torch.tensor([sample.mean()]),
        torch.from_numpy(drawn)[:, None],
        torch.from_numpy(left_out)[:, None],
        confidence,
    )
    other = stats.bootstrap(
        (sample,), np.mean, confidence_level=confidence, method="BCa", n_resamples=4000, rng=rng
    ).confidence_interval
    assert bounds.low.item() == pytest.approx(other.low, abs=0.03)
    assert bounds.high.item() == pytest.approx(other.high, abs=0.03)


def test_intervals_hold_the_value_and_are_reproducible(brute):
    preds, targets = images(brute, 11, 40)
    metrics = fed(ResampledMetrics, preds, targets)
    values = metrics.compute()
    names = ("on", "beside", "eating", "riding")
    for method in ("bca", "percentile"):
        found = uncertainty_of(metrics, names, replicates=200, method=method)
        again = uncertainty_of(metrics, names, replicates=200, method=method)
        assert repr(found) == repr(again)  # NaN does not equal itself
        assert set(found.metrics) == {name for name in values if "/" not in name}
        assert list(found.per_predicate) == list(names)
        for name in ("P-AUC", "PDD", "R@3", "mR@3", "ng-mR@1", "InstR"):
            interval = found.metrics[name]
            assert interval.low <= values[name].item() <= interval.high, (method, name)
            assert 0 <= interval.low < interval.high <= 1
            assert interval.replicates == 200
        row = found.per_predicate["eating"]["P-AUC"]
        assert row.low <= values["per_predicate/P-AUC"][2].item() <= row.high
    narrow = uncertainty_of(metrics, names, replicates=200, confidence=0.5).metrics["R@3"]
    wide = uncertainty_of(metrics, names, replicates=200, confidence=0.99).metrics["R@3"]
    assert wide.low < narrow.low < narrow.high < wide.high


def test_a_predicate_that_few_images_hold_has_fewer_replicates():
    target = {"labels": torch.tensor([0, 0]), "relations": torch.tensor([[0, 1, 0]])}
    rare = {"labels": torch.tensor([0, 0]), "relations": torch.tensor([[0, 1, 1]])}
    prediction = {"pairs": torch.tensor([[0, 1]]), "scores": torch.tensor([[0.6, 0.3]])}
    metrics = ResampledMetrics(2, ks=(1,), per_predicate=True)
    targets = [{**(target if i else rare), "image_id": i} for i in range(10)]
    metrics.update([prediction] * 10, targets)
    found = uncertainty_of(metrics, ("on", "riding"), replicates=1000)
    once = found.per_predicate["riding"]["R@1"].replicates
    assert once == pytest.approx(1000 * (1 - 0.9**10), abs=50)
    assert found.per_predicate["on"]["R@1"].replicates == 1000
    assert np.isnan(found.per_predicate["on"]["P-AUC"].low)
    assert metrics.resampler().images_behind()["R@1"].tolist() == [9, 1]
    assert metrics.resampler().images_behind()["P-AUC"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"replicates": 10}, "at least 20 replicates"),
        ({"confidence": 1.0}, "between 0 and 1, got 1.0"),
        ({"method": "basic"}, "method 'bca' or 'percentile', got 'basic'"),
    ],
)
def test_choices_that_make_no_interval_are_errors(choices, message):
    with pytest.raises(InputError, match=message):
        uncertainty_of(ResampledMetrics(1), ("on",), **choices)


def test_p_values_agree_with_intervals():
    rng = np.random.default_rng(0)
    differences = torch.from_numpy(rng.normal(0, 2, 200))
    drawn = differences + torch.from_numpy(rng.normal(size=(99, 200)))
    drawn[rng.random(drawn.shape) < 0.1] = torch.nan
    for level in (0.05, 0.1, 0.5):
        tests = paired_tests(differences, drawn, torch.ones(200, dtype=torch.bool), 1 - level)
        outside = (tests.low > 0) | (tests.high < 0)
        assert torch.equal(outside, tests.p_values <= level + 1e-9)
        assert 10 < outside.sum() < 190
        assert (tests.adjusted >= tests.p_values - 0.02).all()


def test_adjusting_for_one_predicate_changes_nothing_and_leaves_strangers_out():
    rng = np.random.default_rng(1)
    differences = torch.tensor([0.5, 3.0, torch.nan]).double()
    drawn = differences + torch.from_numpy(rng.normal(size=(499, 3)))
    alone = paired_tests(differences, drawn, torch.tensor([False, True, False]))
    assert alone.adjusted[1] == alone.p_values[1]
    assert alone.adjusted.isnan().tolist() == [True, False, True]
    both = paired_tests(differences, drawn, torch.tensor([True, True, True]))
    assert both.adjusted[1] >= alone.adjusted[1]
    assert both.adjusted[2].isnan()
    assert both.p_values.isnan().tolist() == [False, False, True]


def test_models_that_do_not_differ_are_not_told_apart():
    zero = torch.zeros(3).double()
    tests = paired_tests(zero, torch.zeros(99, 3).double(), torch.ones(3, dtype=torch.bool))
    assert tests.p_values.tolist() == [1, 1, 1]
    assert tests.adjusted.tolist() == [1, 1, 1]


def sampled_auroc(seed, positives, negatives):
    """Two labels an image, which share an effect of the image; the true AUC is 0.7365."""
    g = generator(seed)
    count = positives + negatives
    owners = torch.arange(count).repeat_interleave(2)
    labels = torch.where(owners < positives, 1, -1)
    effect = torch.randn(count, generator=g)[owners] / 2
    scores = (labels > 0) + effect + torch.randn(len(owners), generator=g)
    auroc = WeightedAUROC(scores, labels, torch.zeros_like(owners), owners, 1)
    return auroc, count, g


def test_intervals_cover_the_truth_as_often_as_they_say():
    true = torch.special.ndtr(torch.tensor(1 / 2.5**0.5).double()).item()
    covered = {"bca": 0, "percentile": 0}
    trials = 200
    for seed in range(trials):
        auroc, count, g = sampled_auroc(seed, 20, 60)
        drawn = auroc(draw_images(count, 399, g))
        left_out = auroc(1 - torch.eye(count, dtype=torch.int64))
        own = auroc(torch.ones(1, count, dtype=torch.int64))[0]
        bounds = {
            "bca": accelerated_interval(own, drawn, left_out, 0.9),
            "percentile": percentile_interval(drawn, 0.9),
        }
        for name, found in bounds.items():
            covered[name] += int(found.low.item() <= true <= found.high.item())
    for name, count in covered.items():
        assert 0.84 <= count / trials <= 0.96, name  # 0.9, give or take three standard errors


def test_the_family_of_predicates_rarely_has_a_false_claim():
    rng = np.random.default_rng(3)
    claims, single = 0, 0
    for _ in range(200):
        # Nothing differs; 20 predicates of 60 images, which share a part of their deviations.
        deviations = rng.normal(size=(60, 20)) + rng.normal(size=(60, 1))
        weights = rng.multinomial(60, np.full(60, 1 / 60), size=399) / 60
        drawn = torch.from_numpy(weights @ deviations)
        tests = paired_tests(
            torch.from_numpy(deviations.mean(0)), drawn, torch.ones(20, dtype=torch.bool)
        )
        claims += bool((tests.adjusted <= 0.05).any())
        single += bool((tests.p_values <= 0.05).any())
    assert claims / 200 <= 0.11  # 0.05, and what few images and few trials add
    assert single / 200 >= 0.3  # without adjustment


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_replicates(brute):
    preds, targets = images(brute, 3, 12)
    here, there = (
        ResampledMetrics(PREDICATES, ks=(1, 3), per_predicate=True, training=TRAINING).to(device)
        for device in ("cpu", "cuda")
    )
    for metrics in (here, there):
        metrics.update(preds, targets)
    [wanted], [found] = (resample([m.resampler()], 100, seed=0) for m in (here, there))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12, equal_nan=True)


def test_displaced_resamples_still_give_an_interval_around_the_value():
    generator = torch.Generator().manual_seed(0)
    drawn = 2 + torch.rand(1000, 1, generator=generator).double()
    value, left_out = torch.tensor([1.0]).double(), torch.rand(20, 1, generator=generator).double()
    bounds = accelerated_interval(value, drawn, left_out, 0.9)
    assert 0.5 < bounds.low.item() < 0.6
    assert 1.4 < bounds.high.item() < 1.5
