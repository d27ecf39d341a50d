"""Which images a step draws, and at which rate it learns from them."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.training.config import TrainConfig
from haystack.training.optimisation import rate
from haystack.training.order import Order
from haystack.training.parallel import Processes


def order(sizes=(7,), shares=(Fraction(1),), batch_size=3, seed=0, flip=True):
    return Order(sizes, shares, batch_size=batch_size, seed=seed, flip=flip)


def images(made, steps):
    return [draw.image for step in range(1, steps + 1) for draw in made.batch(step)]


def test_every_pass_shows_every_image_once_in_another_order():
    drawn = images(order(), 14)
    passes = [drawn[start : start + 7] for start in range(0, 42, 7)]
    assert all(sorted(one) == list(range(7)) for one in passes)
    assert len({tuple(one) for one in passes}) > 1


def test_a_batch_depends_on_the_step_alone():
    made = order()
    forward = [made.batch(step) for step in range(1, 30)]
    again = order()
    assert [again.batch(step) for step in reversed(range(1, 30))] == forward[::-1]
    assert order(seed=1).batch(5) != forward[4]


def test_flips_are_balanced_and_can_be_switched_off():
    flips = Counter(draw.flipped for step in range(1, 201) for draw in order().batch(step))
    assert 240 < flips[True] < 360
    assert not any(draw.flipped for draw in order(flip=False).batch(1))


def test_a_batch_is_no_larger_than_the_data():
    assert len(order(sizes=(2,), batch_size=8).batch(1)) == 2


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 9), st.fractions(Fraction(1, 20), Fraction(19, 20)))
def test_groups_are_mixed_in_their_shares_to_one_image(first, second, share):
    made = order((first, second), (1 - share, share), batch_size=min(5, first + second))
    seen = 0
    for step in range(1, 60):
        seen += sum(draw.image >= first for draw in made.batch(step))
        assert abs(seen - share * step * made.batch_size) < 1
    counts = Counter(images(made, 200))
    for group in (range(first), range(first, first + second)):
        numbers = [counts[image] for image in group]
        assert max(numbers) - min(numbers) <= 1


def test_by_number_a_pass_shows_both_groups_once():
    made = order((5, 3), (Fraction(5, 8), Fraction(3, 8)), batch_size=4)
    assert sorted(images(made, 2)) == list(range(8))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_processes_share_a_batch_without_overlap(count):
    batch = order(sizes=(20,), batch_size=7).batch(3)
    shares = [Processes(rank, count).share(batch) for rank in range(count)]
    assert sorted(draw for share in shares for draw in share) == sorted(batch)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_epochs_become_steps():
    assert order(sizes=(46,), batch_size=16).steps(12) == 35  # 552 images
    assert order(sizes=(32,), batch_size=8).steps(1) == 4
    assert order().steps(0.5) == 2


def test_learning_rates_warm_up_and_fall():
    config = TrainConfig(warmup_steps=10, warmup_start=0.1, schedule="step", milestones=[50, 80])
    rates = [rate(step, config, 100, (50, 80)) for step in (0, 5, 10, 49, 50, 80)]
    assert rates == pytest.approx([0.1, 0.55, 1.0, 1.0, 0.1, 0.01])
    cosine = TrainConfig(warmup_steps=0)
    assert [rate(s, cosine, 100) for s in (0, 50, 100)] == pytest.approx([1, 0.5, 0], abs=1e-9)


def test_the_papers_recipe():
    """Linear warm-up over 500 steps from a third, then a tenth after epochs 7 and 10 of 12."""
    config = TrainConfig(
        epochs=12,
        warmup_steps=500,
        warmup_start=1 / 3,
        schedule="step",
        milestones=[7, 10],
        learning_rate=0.03,
    )
    per_epoch = 46_563 / 16
    milestones = [epoch * per_epoch for epoch in config.milestones]

    def at(step):
        return config.learning_rate * rate(step, config, 34_923, milestones)

    for step in (0, 1, 250, 499):  # mmcv: lr (1 - (1 - step / 500) (1 - 1/3))
        assert at(step) == pytest.approx(0.03 * (1 - (1 - step / 500) * (2 / 3)))
    assert at(500) == at(int(7 * per_epoch)) == 0.03
    assert at(int(7 * per_epoch) + 1) == pytest.approx(0.003)
    assert at(int(10 * per_epoch) + 1) == pytest.approx(0.0003)
