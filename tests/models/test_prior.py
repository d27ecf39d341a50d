from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.errors import InputError
from haystack.models.debias import LogitPrior, PKOPrior, add_prior
from haystack.statistics import TripletStatistics


def statistics(rows, num_objects=4, num_predicates=3):
    """From rows (subject class, object class, predicate), which may repeat."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    subjects = np.zeros((num_objects, num_predicates), dtype=np.int64)
    objects = np.zeros((num_predicates, num_objects), dtype=np.int64)
    np.add.at(subjects, (table[:, 0], table[:, 2]), 1)
    np.add.at(objects, (table[:, 2], table[:, 1]), 1)
    triplets, counts = np.unique(table, axis=0, return_counts=True)
    return TripletStatistics(subjects, objects, triplets, counts)


def posterior(rows, position, number, num_predicates):
    """p(predicate | class) under a uniform prior, from the definition."""
    shares = []
    for predicate in range(num_predicates):
        mine = [row for row in rows if row[2] == predicate]
        shares.append(sum(row[position] == number for row in mine) / len(mine) if mine else 0.0)
    total = sum(shares)
    return [share / total if total else 1 / num_predicates for share in shares]


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 15))
def test_equal_to_the_definition(seed, size):
    generator = np.random.default_rng(seed)
    rows = [
        tuple(int(x) for x in (*generator.integers(0, 4, 2), generator.integers(0, 3)))
        for _ in range(size)
    ]
    prior = PKOPrior(statistics(rows))
    for subject in range(4):
        for target in range(4):
            expected = [
                math.log(a + 1e-3) + math.log(b + 1e-3)
                for a, b in zip(
                    posterior(rows, 0, subject, 3), posterior(rows, 1, target, 3), strict=True
                )
            ]
            found = prior.bias(torch.tensor([subject]), torch.tensor([target]))[0]
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_the_sign_prefers_what_a_class_was_seen_with():
    # Class 0 is the subject of predicate 0 only, class 1 of predicate 1 only.
    prior = PKOPrior(statistics([(0, 2, 0)] * 9 + [(1, 2, 1)]))
    bias = prior.bias(torch.tensor([0, 1]), torch.tensor([2, 2]))
    assert bias.argmax(1).tolist() == [0, 1]
    assert bias[0, 0] > bias[0, 1]


def test_frequency_of_predicates_does_not_matter():
    rare = PKOPrior(statistics([(0, 2, 0)] * 90 + [(0, 2, 1)]))
    assert torch.allclose(*rare.bias(torch.tensor([0]), torch.tensor([2]))[0, :2])


def test_a_class_that_training_lacks_prefers_nothing():
    bias = PKOPrior(statistics([(0, 2, 0), (1, 2, 1)])).bias(torch.tensor([3]), torch.tensor([3]))
    assert bias[0].unique().numel() == 1


def test_added_to_logits_of_any_float_type():
    prior = PKOPrior(statistics([(0, 2, 0)]))
    assert isinstance(prior, LogitPrior)
    assert prior.placement == "test"
    classes = torch.tensor([0]), torch.tensor([2])
    added = add_prior(torch.zeros(1, 3, dtype=torch.bfloat16), prior, *classes)
    assert added.dtype == torch.bfloat16
    torch.testing.assert_close(added, prior.bias(*classes).bfloat16())
    with pytest.raises(InputError, match=r"logits \[1, 4\], got one for \[1, 3\]"):
        add_prior(torch.zeros(1, 4), prior, *classes)


def test_epsilon_must_be_positive():
    with pytest.raises(InputError, match="epsilon above 0"):
        PKOPrior(statistics([]), epsilon=0)
