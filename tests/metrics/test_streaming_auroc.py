"""P-AUC from histograms of float32 bit patterns, against the exact one."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.errors import InputError
from haystack.metrics import PredicateAUROC, SceneGraphMetrics
from haystack.metrics.functional import predicate_auroc, predicate_auroc_of_samples
from haystack.metrics.functional.streaming_auroc import (
    auroc_from_histogram,
    score_bins,
    score_histogram,
)

PREDICATES = 3


def samples(seed, count, make):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(make(rng, count).astype(np.float32))
    labels = torch.from_numpy(rng.choice([-1, 1], count, p=[0.7, 0.3]))
    return scores, labels, torch.from_numpy(rng.integers(0, PREDICATES, count))


def binned(scores, labels, predicates, bits):
    histogram = score_histogram(scores, labels, predicates, PREDICATES, bits)
    return auroc_from_histogram(histogram)


def tiny_softmax(rng, count):
    """Scores of rare predicates: a softmax in which another class has nearly everything."""
    logits = rng.normal(size=(count, 57))
    logits[:, 0] += rng.uniform(14, 18, count)
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    return exponents[:, 30] / exponents.sum(1)


def neighbours(rng, count):
    """As many distinct floats as there are samples, next to each other."""
    bits = np.float32(0.1).view(np.int32) + rng.permutation(count).astype(np.int32)
    return bits.view(np.float32)


SCORES = {
    "uniform": lambda rng, count: rng.random(count),
    "tiny softmax": tiny_softmax,
    "denormal": lambda rng, count: rng.integers(0, 50, count) * 1.4e-45,
    "negative logits": lambda rng, count: rng.normal(size=count) * 10,
    "tied": lambda rng, count: rng.integers(0, 4, count) / 4,
    "neighbouring floats": neighbours,
    "missing": lambda rng, count: np.where(rng.random(count) < 0.3, -np.inf, rng.random(count)),
    "both ends": lambda rng, count: rng.choice([1 - 1e-7, 1e-7, 0.0, -0.0, 3e38, -3e38], count),
}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("bits", [1, 8, 12, 14, 18, 32])
def test_the_error_stays_within_the_stated_bound(kind, bits):
    data = samples(0, 400, SCORES[kind])
    exact = predicate_auroc_of_samples(*data, PREDICATES)
    if bits == 32:  # every float has a bin of its own, in a table too large to allocate
        bins = torch.unique(score_bins(data[0], 32), return_inverse=True)[1]
        value = predicate_auroc_of_samples(bins.double(), *data[1:], PREDICATES)
        assert torch.equal(value, exact)
        return
    value, error = binned(*data, bits)
    assert ((value - exact).abs() <= error + 1e-12).all()
    assert (error <= 0.5).all()


@pytest.mark.parametrize(
    ("bits", "most"), [(12, 6e-3), (14, 2e-3), (16, 1e-3)], ids=lambda value: str(value)
)
def test_tiny_scores_are_told_apart_where_even_thresholds_see_one_value(bits, most):
    classification = pytest.importorskip("torchmetrics.classification")
    scores, labels, _ = samples(1, 3000, tiny_softmax)
    scores = torch.where(labels > 0, scores * 4, scores)  # worth finding
    assert scores.max() < 1 / 200
    one = torch.zeros_like(labels)
    exact = predicate_auroc_of_samples(scores, labels, one, 1)[0]
    value, error = auroc_from_histogram(score_histogram(scores, labels, one, 1, bits))
    assert abs(value[0] - exact) < most
    assert error[0] < 3 * most
    even = classification.BinaryAUROC(thresholds=200)(scores, (labels > 0).long())
    assert abs(even - exact) > 0.2
    assert exact > 0.65


def test_the_bound_is_reached_by_the_worst_order_inside_a_bin():
    within = torch.tensor([0.5, 0.5001, 0.5002, 0.5003])
    labels, one = torch.tensor([-1, -1, 1, 1]), torch.zeros(4, dtype=torch.int64)
    value, error = binned(within, labels, one, 12)
    exact = predicate_auroc_of_samples(within, labels, one, PREDICATES)
    assert exact[0] == 1
    assert value[0] == 0.5
    assert error[0] == 0.5


@settings(max_examples=80)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=30),
    bits=st.integers(1, 32),
)
def test_bins_keep_the_order_of_any_floats(values, bits):
    scores = torch.tensor(values, dtype=torch.float32)
    bins = score_bins(scores, bits)
    assert bins.min() >= 0
    assert bins.max() < 2**bits
    ordered = bins[scores.argsort(stable=True)]
    assert (ordered[1:] >= ordered[:-1]).all()
    same = scores[:, None] == scores
    if bits == 32:
        assert torch.equal(bins[:, None] == bins, same)
    assert (bins[:, None] == bins)[same].all()


@pytest.mark.parametrize("bits", [10, 14, 20])
def test_bins_are_relatively_as_wide_as_stated(bits):
    scores = torch.logspace(-30, 0, 20000, dtype=torch.float64).float()
    bins = score_bins(scores, bits)
    lowest = torch.full((2**bits,), torch.inf).scatter_reduce(0, bins, scores, "amin")
    assert (scores / lowest[bins] - 1).max() <= 2.0 ** (9 - bits) * (1 + 1e-6)


def table(seed, pairs=60, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    scores = torch.rand(pairs, PREDICATES, generator=g).pow(6).to(dtype)
    return scores, torch.randint(-1, 2, (pairs, PREDICATES), generator=g)


def metric(**kwargs):
    return PredicateAUROC(PREDICATES, mode="streaming", **kwargs)


def test_batches_add_up_to_the_same_bit_for_bit():
    scores, labels = table(0)
    whole, parts = metric(average=None), metric(average=None)
    whole.update(scores, labels)
    for part in torch.arange(60).split(7):
        parts.update(scores[part], labels[part])
    assert torch.equal(whole.score_histogram, parts.score_histogram)
    assert torch.equal(whole.compute(), parts.compute())
    assert whole.score_histogram.sum() == (labels != 0).sum()


def test_memory_is_constant():
    one = metric(bits=10)
    size = one.score_histogram.nbytes
    for seed in range(5):
        one.update(*table(seed))
    assert one.score_histogram.nbytes == size == 2 * PREDICATES * 2**10 * 8


@pytest.mark.parametrize("average", ["macro", None])
def test_the_class_keeps_its_bound(average):
    scores, labels = table(1, pairs=500)
    exact = PredicateAUROC(PREDICATES, average=average)
    streaming = metric(average=average, bits=12)
    for one in (exact, streaming):
        one.update(scores, labels)
    assert streaming.compute().shape == exact.compute().shape
    bound = streaming.error_bound()
    assert ((streaming.compute() - exact.compute()).abs() <= bound).all()
    assert (bound > 0).all()
    assert (bound < 0.02).all()
    assert (exact.error_bound() == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_of_other_precision(dtype):
    scores, labels = table(2, dtype=dtype)
    one = metric(average=None, bits=20)
    one.update(scores, labels)
    exact = predicate_auroc(scores.float(), labels)
    assert ((one.compute() - exact).abs() <= one.error_bound()).all()
    moved = metric(average=None, bits=20).to(torch.bfloat16)
    moved.update(scores, labels)
    assert moved.score_histogram.dtype == torch.int64
    assert torch.equal(moved.compute(), one.compute())


def test_bfloat16_needs_16_bits_to_be_exact():
    scores, labels = table(3, pairs=300, dtype=torch.bfloat16)
    one = metric(average=None, bits=16)
    one.update(scores, labels)
    assert torch.equal(one.compute(), predicate_auroc(scores.float(), labels))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_not_finite_are_errors(value):
    scores, labels = table(4)
    scores[5, 1] = value
    labels[5, 1] = 1
    one = metric()
    with pytest.raises(InputError, match="finite"):
        one.update(scores, labels)
    assert one.score_histogram.sum() == 0  # nothing half-added
    labels[5, 1] = 0
    one.update(scores, labels)


def test_update_under_inference_mode_and_outside_of_it():
    scores, labels = table(5)
    one, other = metric(), metric()
    with torch.inference_mode():
        one.reset()
        one.update(scores, labels)
    one.update(scores, labels)
    for _ in range(2):
        other.update(scores, labels)
    assert torch.equal(one.compute(), other.compute())


def test_forward_gives_the_batch_and_keeps_the_total():
    batches = [table(seed) for seed in range(3)]
    one, total = metric(), metric()
    for scores, labels in batches:
        alone = metric()
        alone.update(scores, labels)
        total.update(scores, labels)
        assert torch.equal(one(scores, labels), alone.compute())
    assert torch.equal(one.compute(), total.compute())
    assert one.score_histogram.sum() == total.score_histogram.sum()


@pytest.mark.parametrize("bits", [0, 25, 12.0])
def test_bits_that_make_no_table_are_errors(bits):
    with pytest.raises(InputError, match="expected 1 to 24 bits"):
        metric(bits=bits)
    with pytest.raises(InputError, match="expected 1 to 24 bits"):
        SceneGraphMetrics(PREDICATES, auroc_bits=bits)


def test_unknown_modes_are_errors():
    with pytest.raises(InputError, match="'exact' or 'streaming', got 'binned'"):
        PredicateAUROC(2, mode="binned")


def test_the_bundle_streams_too(brute):
    exact = SceneGraphMetrics(4, per_predicate=True)
    streaming = SceneGraphMetrics(4, per_predicate=True, auroc_bits=20)
    for seed in range(3):
        records = brute.random_images(seed, 5, 4)
        preds = [{k: r[k] for k in ("pairs", "scores")} for r in records]
        targets = [{k: r[k] for k in ("labels", "relations", "neg_relations")} for r in records]
        for one in (exact, streaming):
            one.update(preds, targets)
    assert not hasattr(streaming, "samples")
    found, wanted = streaming.compute(), exact.compute()
    for name in wanted:
        # Scores of one decimal are 0.01 apart at least: no bin holds two of them.
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=0, equal_nan=True)


WORKER = """
import sys, torch, torch.distributed as dist
from haystack.metrics import PredicateAUROC
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
parts = torch.load(f"{folder}/parts.pt", weights_only=True)
results = []
for part in parts:
    metric = PredicateAUROC(3, average=None, mode="streaming")
    for scores, labels in part[rank]:
        metric.update(scores, labels)
    # Twice: the states are given back after they were added up.
    results.append([metric.compute(), metric.error_bound(), metric.error_bound()])
torch.save(results, f"{folder}/result-{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch lacks torch.distributed")
def test_two_processes_one_of_them_idle(tmp_path):
    data = [table(seed) for seed in range(3)]
    splits = [[data[:1], data[1:]], [data, []], [[], data]]
    torch.save(splits, tmp_path / "parts.pt")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER, str(rank), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    alone = metric(average=None)
    for scores, labels in data:
        alone.update(scores, labels)
    for rank in range(2):
        for value, bound, again in torch.load(tmp_path / f"result-{rank}.pt", weights_only=True):
            assert torch.equal(value, alone.compute())
            assert torch.equal(bound, alone.error_bound())
            assert torch.equal(again, bound)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_bit_for_bit():
    scores, labels = table(6, pairs=500)
    here, there = metric(average=None), metric(average=None).cuda()
    here.update(scores, labels)
    there.update(scores.cuda(), labels)
    assert torch.equal(there.compute().cpu(), here.compute())
