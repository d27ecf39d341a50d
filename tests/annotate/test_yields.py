"""Yield curves, and a stop rule whose error rate is tried out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haystack.annotate.yields import (
    StopRule,
    binomial_tail,
    upper_bound,
    yield_curve,
)
from haystack.errors import InputError


def test_a_curve_by_hand():
    curve = yield_curve(np.array([1, 0, 1, 0, 0], dtype=bool), window=2)
    assert curve.judged.tolist() == [1, 2, 3, 4, 5]
    assert curve.needles.tolist() == [1, 1, 2, 2, 2]
    assert curve.per_100 == pytest.approx([100, 50, 200 / 3, 50, 40])
    assert curve.recent == pytest.approx([math.nan, 50, 50, 50, 0], nan_ok=True)


@given(
    st.lists(st.booleans(), max_size=300),
    st.integers(1, 40),
    st.integers(1, 50),
)
def test_a_thinned_curve_is_the_curve_at_fewer_places(outcomes, window, points):
    array = np.array(outcomes, dtype=bool)
    thinned = yield_curve(array, window=window, points=points)
    assert len(thinned.judged) == min(points, len(outcomes))
    assert (np.diff(thinned.judged) > 0).all()
    if outcomes:
        assert thinned.judged[-1] == len(outcomes)
    for judged, needles, recent in zip(
        thinned.judged, thinned.needles, thinned.recent, strict=True
    ):
        assert needles == sum(outcomes[:judged])
        if judged < window:
            assert math.isnan(recent)
        else:
            last = outcomes[judged - window : judged]
            assert recent == pytest.approx(100 * sum(last) / window)


@given(st.integers(0, 60), st.integers(1, 60), st.floats(0.001, 0.999))
def test_tails_and_bounds_are_scipys(hits, trials, probability):
    from scipy.stats import beta, binom

    hits = min(hits, trials)
    assert binomial_tail(hits, trials, probability) == pytest.approx(
        binom.cdf(hits, trials, probability), rel=1e-9, abs=1e-12
    )
    expected = 1.0 if hits == trials else beta.ppf(1 - 0.03, hits + 1, trials - hits)
    assert upper_bound(hits, trials, 0.03) == pytest.approx(expected, rel=1e-9)


def test_a_long_tail_does_not_underflow():
    assert binomial_tail(2900, 10_000, 0.3) == pytest.approx(0.0148, abs=2e-4)


def test_a_dry_queue_is_given_up_after_as_many_answers_as_it_takes():
    rule = StopRule(target=0.01)
    needed = 348
    early = rule.advise(np.zeros(needed - 1, dtype=bool))
    assert (early.stop, early.judged, early.needed) == (False, needed - 1, needed)
    assert math.isnan(early.upper)
    advice = rule.advise(np.zeros(needed, dtype=bool))
    assert (advice.stop, advice.judged, advice.needles) == (True, needed, 0)
    assert 0.0099 < advice.upper < 0.01
    assert rule.advise(np.zeros(5_000, dtype=bool)) == advice


def test_one_needle_in_time_starts_a_new_block():
    outcomes = np.zeros(348 + 300, dtype=bool)
    outcomes[10] = True
    advice = StopRule(target=0.01).advise(outcomes)
    assert (advice.stop, advice.judged, advice.needles) == (False, 300, 0)
    assert advice.needed > 348  # the later, the surer


def test_a_queue_that_runs_dry_is_given_up():
    rng = np.random.default_rng(0)
    rule = StopRule(target=0.02)
    for _ in range(50):
        outcomes = np.concatenate([rng.random(1000) < 0.1, rng.random(3000) < 0.001])
        assert not rule.advise(outcomes[:1000]).stop
        assert rule.advise(outcomes).stop


@pytest.mark.parametrize("target", [0.01, 0.05, 0.3])
def test_a_queue_as_good_as_the_target_is_seldom_given_up(target):
    """400 queues of 6,000 questions, looked at to the end; 5 % may be stopped, chance apart."""
    rng = np.random.default_rng(17)
    rule = StopRule(target=target, risk=0.05)
    stopped = sum(rule.advise(rng.random(6_000) < target).stop for _ in range(400))
    assert stopped <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_the_rule_does_stop_at_about_the_risk_it_takes():
    """It would be no rule if its error rate were nought."""
    rng = np.random.default_rng(5)
    rule = StopRule(target=0.1, risk=0.2)
    assert sum(rule.advise(rng.random(4_000) < 0.1).stop for _ in range(400)) > 20


def test_a_baseline_raises_the_target_and_never_lowers_it():
    rule = StopRule(target=0.01)
    assert rule.at_least(None) is rule
    assert rule.at_least(math.nan) is rule
    assert rule.at_least(0.002) is rule
    assert rule.at_least(0.04) == StopRule(target=0.04)
    assert rule.at_least(1.0).target == 0.99


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"target": 0}, "expected a target between 0 and 1"),
        ({"risk": 1}, "expected a risk between 0 and 1"),
        ({"shortest": 0}, "expected shortest to be 1 or more questions, got 0"),
    ],
)
def test_impossible_rules_are_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        StopRule(**change)


def test_impossible_curves_are_refused():
    with pytest.raises(InputError, match="got 0 and 100"):
        yield_curve(np.zeros(3, dtype=bool), window=0)
