from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.errors import InputError
from haystack.metrics import TripletRecall
from haystack.metrics.functional import NEVER, grouped_recall, mean_recall, triplet_ranks
from haystack.metrics.functional.ranking import _count_ahead
from haystack.metrics.functional.recall import UNIT

KS = (1, 2, 3, 5, 8, 13)


def flat(images):
    """Tensors of ``triplet_ranks`` and the triplets themselves, images interleaved."""
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


def shuffled_by_image(scores, pair_images, triplets, seed):
    """The same pairs with images interleaved, the order inside an image kept."""
    generator = torch.Generator().manual_seed(seed)
    images = pair_images[torch.randperm(len(pair_images), generator=generator)]
    order = torch.empty_like(images)
    order[torch.argsort(images, stable=True)] = torch.argsort(pair_images, stable=True)
    new_row = torch.empty_like(order)
    new_row[order] = torch.arange(len(order))
    moved = triplets.clone()
    present = triplets[:, 1] >= 0
    moved[present, 1] = new_row[triplets[present, 1]]
    return scores[order], pair_images[order], moved


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_images=st.integers(1, 4),
    predicates=st.integers(1, 5),
    decimals=st.sampled_from([0, 1, None]),
    limit=st.sampled_from([None, 1, 4, 100]),
)
def test_ranks_equal_the_sorted_candidates(brute, seed, num_images, predicates, decimals, limit):
    images = brute.random_images(seed, num_images, predicates, decimals)
    scores, pair_images, table, triplets = flat(images)
    scores, pair_images, table = shuffled_by_image(scores, pair_images, table, seed)
    number, row, predicate = table.unbind(1)
    ranks = triplet_ranks(scores, pair_images, row, predicate, number, num_images, limit=limit)
    for constrained, found in ((True, ranks.constrained), (False, ranks.unconstrained)):
        order = [brute.candidates(i["pairs"], i["scores"], constrained) for i in images]
        for (image, *triplet), value in zip(triplets, found.tolist(), strict=True):
            expected = NEVER
            if tuple(triplet) in order[image]:
                expected = order[image].index(tuple(triplet))
            if limit is not None and not constrained and expected >= limit:
                assert value >= limit
            else:
                assert value == expected


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 12))
def test_the_fixed_width_of_accelerators_counts_the_same(seed, width):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (9, 3), generator=generator).float()
    order = torch.argsort(scores.amax(1), descending=True, stable=True)
    row = torch.randint(0, 9, (5,), generator=generator)
    reach = torch.randint(0, min(width, 9) + 1, (5,), generator=generator)
    arguments = (scores, order, torch.zeros_like(row), reach, row, scores[row, 1])
    exact = _count_ahead(*arguments, width=None)
    assert torch.equal(exact, _count_ahead(*arguments, width=width))


def test_grouped_recall_is_exact_for_full_hits_and_zero_without_triplets():
    ranks, groups = torch.tensor([0, 1, 2, NEVER]), torch.tensor([0, 0, 0, 3])
    recalls, sizes = grouped_recall(ranks, groups, 4, torch.tensor([1, 3]))
    assert recalls.tolist() == [[round(UNIT / 3), UNIT], [0, 0], [0, 0], [0, 0]]
    assert sizes.tolist() == [3, 0, 0, 1]
    assert mean_recall(recalls.sum(0), (sizes > 0).sum()).tolist() == pytest.approx([1 / 6, 1 / 2])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), predicates=st.integers(1, 5))
def test_class_equal_to_the_definitions(brute, seed, predicates):
    images = brute.random_images(seed, 5, predicates)
    metric = TripletRecall(predicates, ks=KS)
    for part in (images[:2], images[2:]):
        scores, pair_images, table, _ = flat(part)
        metric.update(scores, pair_images, table, num_images=len(part))
    expected = brute.recalls(images, predicates, KS)
    found = metric.compute()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value.item(), expected[name], atol=1e-10, err_msg=name)


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
