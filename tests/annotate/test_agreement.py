"""Agreement by hand, by brute force, and as other packages compute it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haystack.annotate.agreement import (
    bootstrap_interval,
    cohen_kappa,
    count_ratings,
    equally_rated,
    fleiss_kappa,
    krippendorff_alpha,
    merge_negatives,
    observed_agreement,
)
from haystack.errors import InputError
from haystack.proportion import Proportion

# Fleiss (1971), table 1 in its later form: 14 raters, 10 subjects, 5 classes; kappa 0.210.
FLEISS = np.array(
    [
        [0, 0, 0, 0, 14],
        [0, 2, 6, 4, 2],
        [0, 0, 3, 5, 6],
        [0, 3, 9, 2, 0],
        [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0],
        [2, 5, 3, 2, 2],
        [6, 5, 2, 1, 0],
        [0, 2, 2, 3, 7],
    ]
)

# Krippendorff (2011), section C: four observers, twelve units, values missing; alpha 0.743.
KRIPPENDORFF = "123321412... 1233224125.3 .3332342251. 12332441251."


def table(text):
    """Ratings [items, annotators] of words such as "01.2", one an item; a dot is missing."""
    return np.array([[-1 if sign == "." else int(sign) for sign in row] for row in text.split()])


# Drawn once at random. The figures are those of krippendorff 0.9.0 and statsmodels 0.15.0.
SPARSE = (
    "1.11. .2... .0.01 0.110 1.111 20.02 ..000 ..222 11111 1.011 101.1 11111 111.1 0.111 ..1.. "
    "111.1 .2.0. 1111. 111.0 ...2. .11.0 .1.00 1111. ..00. 0.000 .11.. 11211 22221 .1.11 12.0."
)
FULL = (
    "1111 2222 1010 0111 1111 2020 0000 2222 1111 1001 1011 1111 1111 0111 0111 "
    "1111 2220 1111 1111 2222 1111 0100 1111 0000 0100 1111 1121 2222 1111 1200"
)


def test_krippendorff_and_fleiss_as_published():
    ratings = table(KRIPPENDORFF).T
    alpha = krippendorff_alpha(count_ratings(ratings, 6))
    assert alpha == pytest.approx(0.743421052631579, abs=1e-12)
    assert fleiss_kappa(FLEISS) == pytest.approx(0.20993070442195522, abs=1e-12)


def test_the_same_as_other_packages():
    sparse = count_ratings(table(SPARSE), 3)
    assert krippendorff_alpha(sparse) == pytest.approx(0.4546957671957672, abs=1e-12)
    assert krippendorff_alpha(merge_negatives(sparse)) == pytest.approx(
        0.3628003003003003, abs=1e-12
    )
    assert fleiss_kappa(count_ratings(table(FULL), 3)) == pytest.approx(
        0.6020383402086872, abs=1e-12
    )


def test_cohen_by_hand():
    # Cohen (1960) in its textbook form: 50 proposals, both yes 20, both no 15.
    kappa = cohen_kappa([[20, 5], [10, 15]])
    assert kappa == pytest.approx((0.7 - 0.5) / (1 - 0.5))
    assert cohen_kappa([[10, 0], [0, 10]]) == 1
    assert cohen_kappa([[0, 10], [10, 0]]) == -1
    assert cohen_kappa([[25, 25], [25, 25]]) == 0


def test_two_annotators_by_hand():
    # Four items: yes-yes, yes-no, no-no, no-no. Three of four pairs agree, 3 of 8 ratings are yes.
    counts = count_ratings([[0, 0], [0, 1], [1, 1], [1, 1]], 2)
    assert observed_agreement(counts) == 0.75
    chance = (3 / 8) ** 2 + (5 / 8) ** 2
    assert fleiss_kappa(counts) == pytest.approx((0.75 - chance) / (1 - chance))
    # alpha draws chance pairs without replacement: 2 · 3 · 5 / (8 · 7) differ.
    assert krippendorff_alpha(counts) == pytest.approx(1 - 0.25 / (30 / 56))


pair = st.tuples(st.integers(-1, 2), st.integers(-1, 2))


@given(st.lists(pair, max_size=40))
def test_cohen_is_scikit_learns(ratings):
    from sklearn.metrics import cohen_kappa_score

    both = [(a, b) for a, b in ratings if a >= 0 and b >= 0]
    confusion = np.zeros((3, 3), dtype=np.int64)
    for a, b in both:
        confusion[a, b] += 1
    ours = cohen_kappa(confusion)
    if len({cls for row in both for cls in row}) < 2:
        assert math.isnan(ours)
    else:
        assert ours == pytest.approx(cohen_kappa_score(*zip(*both, strict=True)), abs=1e-12)


ratings_tables = st.integers(1, 5).flatmap(
    lambda raters: st.lists(
        st.lists(st.integers(-1, 2), min_size=raters, max_size=raters), min_size=1, max_size=25
    )
)


@given(ratings_tables)
def test_alpha_and_raw_agreement_are_those_of_all_pairs(ratings):
    """Both from their meaning: pairs within items against pairs of all ratings."""
    items = [[value for value in row if value >= 0] for row in ratings]
    items = [item for item in items if len(item) > 1]
    counts = count_ratings(ratings, 3)
    pooled = [value for item in items for value in item]
    within = [(a, b) for item in items for a, b in itertools.permutations(item, 2)]
    if not items:
        assert math.isnan(observed_agreement(counts))
        assert math.isnan(krippendorff_alpha(counts))
        return
    agreed = sum(a == b for a, b in within) / len(within)
    assert observed_agreement(counts) == pytest.approx(agreed, abs=1e-12)
    across = list(itertools.permutations(pooled, 2))
    expected = sum(a != b for a, b in across) / len(across)
    observed = sum(
        sum(a != b for a, b in itertools.permutations(item, 2)) / (len(item) - 1) for item in items
    ) / len(pooled)
    if expected == 0:
        assert math.isnan(krippendorff_alpha(counts))
    else:
        assert krippendorff_alpha(counts) == pytest.approx(1 - observed / expected, abs=1e-12)


full_tables = st.integers(2, 5).flatmap(
    lambda raters: st.lists(
        st.lists(st.integers(0, 2), min_size=raters, max_size=raters), min_size=1, max_size=25
    )
)


@given(full_tables)
def test_fleiss_is_the_mean_over_items(ratings):
    per_item = [
        sum(a == b for a, b in itertools.permutations(row, 2)) / (len(row) * (len(row) - 1))
        for row in ratings
    ]
    pooled = [value for row in ratings for value in row]
    chance = sum((pooled.count(c) / len(pooled)) ** 2 for c in range(3))
    kappa = fleiss_kappa(count_ratings(ratings, 3))
    if len(set(pooled)) == 1:
        assert math.isnan(kappa)
    else:
        assert kappa == pytest.approx((np.mean(per_item) - chance) / (1 - chance), abs=1e-9)


@given(ratings_tables)
def test_weights_stand_for_repeated_rows(ratings):
    counts = count_ratings(ratings, 3)
    rows, weights = np.unique(counts, axis=0, return_counts=True)
    for measure in (observed_agreement, krippendorff_alpha):
        assert measure(rows, weights) == pytest.approx(measure(counts), nan_ok=True, abs=1e-12)
    chosen, again = equally_rated(counts), equally_rated(rows, weights)
    assert fleiss_kappa(rows[again], weights[again]) == pytest.approx(
        fleiss_kappa(counts[chosen]), nan_ok=True, abs=1e-12
    )


def test_leading_axes_of_weights_are_kept():
    draws = np.array([[1, 2, 0, 5, 1, 1, 0, 0, 3, 1], [1] * 10], dtype=float)
    for measure in (observed_agreement, krippendorff_alpha, fleiss_kappa):
        assert measure(FLEISS, draws).tolist() == [
            pytest.approx(float(measure(FLEISS, row))) for row in draws
        ]


def test_fleiss_uses_the_items_with_the_most_frequent_number_of_ratings():
    ratings = [[0, 0, -1], [0, 1, -1], [0, 0, 0], [1, -1, -1], [1, -1, -1], [1, -1, -1]]
    counts = count_ratings(ratings, 2)
    with pytest.raises(InputError, match=r"every item, got 1 to 3; choose items with equally"):
        fleiss_kappa(counts)
    assert equally_rated(counts).tolist() == [True, True, False, False, False, False]
    assert equally_rated(counts[2:]).tolist() == [True, False, False, False]
    # As many items with two ratings as with three: those that more people looked at.
    assert equally_rated(counts[1:3]).tolist() == [False, True]
    assert not equally_rated(counts[3:]).any()


@pytest.mark.parametrize("measure", [observed_agreement, krippendorff_alpha, fleiss_kappa])
@pytest.mark.parametrize("ratings", [np.empty((0, 3)), [[0, -1]], [[-1, -1]]])
def test_nothing_to_compare_is_not_a_number(measure, ratings):
    assert math.isnan(measure(count_ratings(ratings, 2)))


def test_one_class_alone_is_not_a_number():
    counts = count_ratings([[1, 1, 1]] * 9, 2)
    assert math.isnan(krippendorff_alpha(counts))
    assert math.isnan(fleiss_kappa(counts))
    assert math.isnan(cohen_kappa([[9, 0], [0, 0]]))
    assert observed_agreement(counts) == 1


def test_no_relation_is_also_a_way_of_saying_no():
    counts = count_ratings([[0, 1, 2], [1, 2, 2]], 3)
    assert merge_negatives(counts).tolist() == [[1, 2], [0, 3]]


def test_bad_tables_are_refused():
    with pytest.raises(InputError, match=r"classes -1 \(none\) to 1, got 0 to 2"):
        count_ratings([[0, 2]], 2)
    with pytest.raises(InputError, match=r"shape \[items, annotators\], got \(2,\)"):
        count_ratings([0, 1], 2)
    with pytest.raises(InputError, match=r"one weight an item, got \(3,\) weights for 10 items"):
        fleiss_kappa(FLEISS, [1, 1, 1])


def test_wilson_is_the_interval_of_the_score_test():
    for hits, trials in ((0, 10), (1, 3), (90, 100), (10, 10), (500, 100_000)):
        found = Proportion(hits, trials)
        low, high = found.interval()
        assert 0 <= low <= found.value <= high <= 1
        z = 1.959963984540054
        for p in {low, high} - {0.0, 1.0}:
            assert (found.value - p) ** 2 == pytest.approx(z * z * p * (1 - p) / trials, rel=1e-9)
    # Newcombe (1998), table I: 81 of 263.
    assert Proportion(81, 263).interval() == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert all(math.isnan(end) for end in (Proportion(0, 0).value, *Proportion(0, 0).interval()))


def test_the_bootstrap_covers_the_value_of_the_population():
    """200 campaigns of 150 items each: the 90 % interval holds the truth nine times in ten."""
    rng = np.random.default_rng(3)
    truth = rng.random((100_000, 1)) < 0.3
    ratings = np.where(rng.random((100_000, 3)) < 0.85, truth, ~truth).astype(int)
    population, frequency = np.unique(count_ratings(ratings, 2), axis=0, return_counts=True)
    alpha = krippendorff_alpha(population, frequency)
    covered = 0
    for trial in range(200):
        items = rng.multinomial(150, frequency / frequency.sum())
        low, high = bootstrap_interval(
            krippendorff_alpha, population, items, confidence=0.9, replicates=300, seed=trial
        )
        covered += low <= alpha <= high
    assert 168 <= covered <= 192


def test_the_bootstrap_says_nothing_of_a_measure_that_most_draws_leave_undefined():
    counts = np.array([[2, 0], [0, 2]])
    assert all(map(math.isnan, bootstrap_interval(krippendorff_alpha, counts, [1, 0])))
    assert all(map(math.isnan, bootstrap_interval(krippendorff_alpha, counts, [30, 1])))
    assert bootstrap_interval(krippendorff_alpha, counts, [30, 9]) == (1, 1)
