from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.errors import InputError
from haystack.metrics import (
    IndependentRecall,
    InstanceRecall,
    PairRecall,
    PredicateRank,
    TripletRecall,
    WeightedTripletRecall,
    ZeroShotRecall,
)
from haystack.metrics.functional import (
    NEVER,
    diversity_weighted_mean,
    frequency_weighted_recall,
    grouped_hits,
    mean_predicate_rank,
    mean_recall,
    predicate_groups,
    recall_shares,
)
from haystack.metrics.functional.recall import UNIT

KS = (1, 2, 3, 5, 8, 13)


TRAINING = np.array([[0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 1, 1], [1, 0, 2]])


def flat(images):
    """Tensors that ``update`` takes, and the triplets themselves."""
    pair_images = np.concatenate([np.full(len(i["pairs"]), n) for n, i in enumerate(images)])
    scores = np.concatenate([i["scores"] for i in images])
    rows, row = {}, 0
    for number, image in enumerate(images):
        for pair in image["pairs"].tolist():
            rows[(number, *pair)] = row
            row += 1
    triplets = [
        (number, s, o, p)
        for number, image in enumerate(images)
        for s, o, p in np.unique(image["relations"], axis=0).tolist()
    ]
    table = [(n, rows.get((n, s, o), -1), p) for n, s, o, p in triplets]
    return (
        torch.from_numpy(scores),
        torch.from_numpy(pair_images),
        torch.tensor(table, dtype=torch.int64).reshape(-1, 3),
        triplets,
    )


def test_shares_are_exact_for_full_hits_and_zero_without_triplets():
    ranks, groups = torch.tensor([0, 1, 2, NEVER]), torch.tensor([0, 0, 0, 3])
    hits, sizes = grouped_hits(ranks, groups, 4, torch.tensor([1, 3]))
    assert hits.tolist() == [[1, 3], [0, 0], [0, 0], [0, 0]]
    assert sizes.tolist() == [3, 0, 0, 1]
    shares = recall_shares(hits, sizes)
    assert shares.tolist() == [[round(UNIT / 3), UNIT], [0, 0], [0, 0], [0, 0]]
    assert mean_recall(shares.sum(0), (sizes > 0).sum()).tolist() == pytest.approx([1 / 6, 1 / 2])


def test_hits_of_several_orders_and_of_counted_triplets():
    ranks = torch.tensor([[0, 1, 2], [2, 1, 0]])
    counted = torch.tensor([[True, True, True], [True, False, True]])
    groups = torch.tensor([0, 0, 1])
    hits, sizes = grouped_hits(ranks, groups, 2, torch.tensor([1, 2]), counted)
    assert hits.tolist() == [[[1, 2], [0, 0]], [[0, 0], [1, 1]]]
    assert sizes.tolist() == [[2, 1], [1, 1]]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12))
def test_predicate_groups_are_the_distinct_pairs(cells):
    images, predicates = torch.tensor(cells, dtype=torch.int64).reshape(-1, 2).unbind(1)
    groups, held = predicate_groups(images, predicates, 5)
    distinct = sorted(set(cells))
    assert groups.tolist() == [distinct.index(cell) for cell in cells]
    assert held[: len(distinct)].tolist() == [predicate for _, predicate in distinct]


def test_tau_0_weighs_predicates_alike_and_1_by_their_number_of_pairs():
    values, diversity = torch.tensor([0.5, 1.0, torch.nan]), torch.tensor([0, 4, 9])
    assert diversity_weighted_mean(values, diversity, tau=0).item() == pytest.approx(0.75)
    assert diversity_weighted_mean(values, diversity, tau=1).item() == pytest.approx(1.0)
    assert diversity_weighted_mean(values, torch.zeros(3).long()).isnan()
    table = torch.stack([values, values / 2], dim=1)
    assert diversity_weighted_mean(table, diversity).tolist() == pytest.approx([1.0, 0.5])


def test_frequent_triplets_weigh_less():
    hits = UNIT * torch.tensor([[1, 2], [0, 3]])
    value = frequency_weighted_recall(hits, torch.tensor([2, 3]), torch.tensor([0, 9]))
    assert value.tolist() == pytest.approx([1 / 2.3, (2 + 0.3) / 2.3])
    nothing = frequency_weighted_recall(0 * hits, torch.zeros(2).long(), torch.tensor([0, 9]))
    assert nothing.isnan().all()


def test_predicate_ranks_are_averaged_per_image_and_predicate_first():
    ranks, images = torch.tensor([0, 4, 3, -1]), torch.tensor([0, 0, 1, 1])
    total, count = mean_predicate_rank(ranks, images, torch.tensor([1, 1, 1, 0]), 2)
    assert (total / 2**30 / count).item() == (2 + 3) / 2


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), predicates=st.integers(1, 5))
def test_classes_equal_the_definitions(brute, seed, predicates):
    images = brute.random_images(seed, 5, predicates)
    training = TRAINING[TRAINING[:, 2] < predicates]
    metrics = [
        TripletRecall(predicates, ks=KS),
        ZeroShotRecall(predicates, training, ks=KS),
        WeightedTripletRecall(predicates, training, ks=KS),
        IndependentRecall(predicates, ks=KS, training=training),
        IndependentRecall(predicates, ks=KS, training=training, graph_constraint=False),
        PairRecall(predicates, ks=KS),
        PredicateRank(predicates),
    ]
    for part in (images[:2], images[2:]):
        scores, pair_images, table, triplets = flat(part)
        classes = [part[n]["labels"][[s, o]] for n, s, o, _ in triplets]
        classes = torch.from_numpy(np.array(classes, dtype=np.int64).reshape(-1, 2))
        for metric in metrics:
            if isinstance(metric, PairRecall):
                pairs = {triplet[:3]: row for triplet, row in zip(triplets, table, strict=True)}
                rows = torch.stack([*pairs.values()]) if pairs else table
                metric.update(scores, pair_images, rows, num_images=len(part))
            else:
                metric.update(scores, pair_images, table, len(part), classes)
    expected = brute.recalls(images, predicates, KS, [tuple(row) for row in training.tolist()])
    found = {"PRank": metrics.pop().compute()}
    for metric in metrics:
        found |= metric.compute()
    assert set(expected) - set(found) == {f"{kind}@{k}" for kind in ("A", "ng-A") for k in KS}
    for name, value in found.items():
        np.testing.assert_allclose(value.item(), expected[name], atol=1e-9, err_msg=name)


def test_instance_recall_is_a_mean_over_images_that_have_objects():
    metric = InstanceRecall()
    metric.update(torch.tensor([True, False, True]), torch.tensor([0, 0, 2]), num_images=3)
    metric.update(torch.tensor([False]), torch.tensor([0]), num_images=1)
    assert metric.compute().item() == pytest.approx((0.5 + 1 + 0) / 3)
    with pytest.raises(InputError, match="image that is not there"):
        metric.update(torch.tensor([True]), torch.tensor([1]), num_images=1)


def test_classes_are_asked_for_where_training_is_compared_with():
    metric = ZeroShotRecall(3, TRAINING)
    with pytest.raises(InputError, match=r"expected classes \[T, 2\]"):
        metric.update(torch.rand(2, 3), torch.zeros(2).long(), torch.zeros(1, 3).long(), 1)


def test_pairs_must_come_image_after_image():
    with pytest.raises(InputError, match="pair_images must ascend"):
        TripletRecall(3).update(torch.rand(2, 3), torch.tensor([1, 0]), torch.zeros(0, 3).long(), 2)


def test_vectors_are_what_the_means_are_taken_of(brute):
    scores, pair_images, table, _ = flat(brute.random_images(0, 5, 4))
    vectors, means = TripletRecall(4, ks=(5,), average=None), TripletRecall(4, ks=(5,))
    for metric in (vectors, means):
        metric.update(scores, pair_images, table, num_images=5)
    assert vectors.compute()["R@5"].nanmean() == means.compute()["mR@5"]
    assert vectors.compute()["ngR@5"].nanmean() == means.compute()["ng-mR@5"]


@pytest.mark.parametrize("ks", [(), (0,), (5, 5), (1.5,)])
def test_cutoffs_must_be_positive_and_distinct(ks):
    with pytest.raises(InputError, match="cut-off"):
        TripletRecall(3, ks=ks)


@pytest.mark.parametrize("triplet", [(1, 0, 0), (0, 2, 0), (0, -2, 0), (0, 0, 3), (0, 0, -1)])
def test_an_index_that_is_not_there_is_an_error(triplet):
    metric = TripletRecall(3)
    with pytest.raises(InputError, match="not there"):
        metric.update(torch.rand(2, 3), torch.zeros(2).long(), torch.tensor([triplet]), 1)


def test_scores_of_another_width_are_an_error():
    with pytest.raises(InputError, match="expected scores"):
        TripletRecall(3).update(
            torch.rand(2, 4), torch.zeros(2).long(), torch.zeros(0, 3).long(), 1
        )
