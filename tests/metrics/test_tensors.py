from __future__ import annotations

import numpy as np
import pytest
import torch

from haystack.metrics.functional.tensors import look_over


@pytest.mark.parametrize("low", [0.0, -0.0, -1.0])
@pytest.mark.parametrize("width", [1, 3, 56])
def test_the_best_of_each_row_is_found_whatever_the_sign(low, width):
    generator = np.random.default_rng(width)
    scores = torch.from_numpy(generator.uniform(-1, 1, (50, width)).astype(np.float32))
    scores = scores.clamp(min=low)
    best, finite = look_over(scores)
    assert torch.equal(best, scores.amax(1))
    assert finite


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("low", [0.0, -1.0])
def test_no_value_that_is_not_finite_is_overlooked(value, low):
    for column in range(4):
        scores = torch.rand(5, 4) + low
        scores[2, column] = value
        assert not look_over(scores)[1]


def test_a_sum_that_overflows_leaves_the_answer_open():
    scores = torch.full((4, 2), -torch.finfo(torch.float32).max)
    best, finite = look_over(scores)
    assert torch.equal(best, scores[:, 0])
    assert not finite
