"""How far annotators agree: with each other, with themselves, and with answers that are known.

Answers to one question are the *ratings* of one *item*, verdicts are *classes*. A skip and a
faulty mask say nothing of the predicate and are no ratings. Whether "no relation" is a class of
its own or a way of saying "incorrect" is the caller's choice: :data:`THREE_CLASSES` keeps them
apart, :func:`merge_negatives` makes two classes of three.

No measure of agreement needs to know who said what about which item, only how often the same was
said. All take **counts**: one row an item, or one row for all items about which the same was said,
with their number as its weight. So they cost the same for a hundred answers and for a million,
and a bootstrap over items is a draw of weights.

What cannot be computed is NaN: no item with two ratings, or all ratings in one class. In the
latter case everybody agreed, and chance would have agreed as well; 0 and 1 are both wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from haystack.annotate.records import Verdict
from haystack.errors import InputError

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

THREE_CLASSES: tuple[Verdict, ...] = ("correct", "incorrect", "no_relation")
"""The verdicts that are ratings, in the order of the columns of counts."""


def merge_negatives(counts: Counts) -> Counts:
    """Two classes of three: "no relation" also says that the predicate does not hold.

    Args:
        counts: int64 [..., 3], columns as :data:`THREE_CLASSES`.

    Returns:
        int64 [..., 2]: correct, and either of the others.
    """
    return np.stack([counts[..., 0], counts[..., 1] + counts[..., 2]], axis=-1)


def count_ratings(ratings: npt.ArrayLike, classes: int) -> Counts:
    """Counts of a table of ratings.

    Args:
        ratings: integers [N, A], the class that annotator a gave to item i, -1 where none.
        classes: number of classes.

    Returns:
        int64 [N, classes]: how many annotators gave each class to each item.

    Raises:
        InputError: not a table, or a class out of range.
    """
    table = np.asarray(ratings, dtype=np.int64)
    if table.ndim != 2:
        raise InputError(f"expected ratings of shape [items, annotators], got {table.shape}")
    if table.size and not (table.min() >= -1 and table.max() < classes):
        raise InputError(
            f"expected classes -1 (none) to {classes - 1}, got {table.min()} to {table.max()}"
        )
    return (table[:, :, None] == np.arange(classes)).sum(axis=1, dtype=np.int64)


def cohen_kappa(table: npt.ArrayLike) -> Floats:
    """Cohen's kappa of two annotators: agreement beyond what their own habits give by chance.

    With p_o the share of items on which they agree, and p_e = Σ_c p_1(c) p_2(c) the share on which
    two people would agree who choose classes blindly, each as often as these two do::

        kappa = (p_o - p_e) / (1 - p_e)

    J. Cohen, *A coefficient of agreement for nominal scales*, Educational and Psychological
    Measurement 20 (1960), 37-46.

    Args:
        table: counts [..., K, K]: items that the first put into the row's class and the second
            into the column's. Items that only one of them rated are not in it.

    Returns:
        float64 [...], at most 1. NaN without items, and where both used one and the same class.
    """
    counts = np.asarray(table, dtype=np.float64)
    total = counts.sum(axis=(-2, -1))
    agreed = np.trace(counts, axis1=-2, axis2=-1)
    by_chance = (counts.sum(axis=-1) * counts.sum(axis=-2)).sum(axis=-1)
    # Multiplied out by total², so that integers decide exactly what is undefined.
    return _ratio(agreed * total - by_chance, total * total - by_chance)


def fleiss_kappa(counts: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Floats:
    """Fleiss' kappa of many annotators who all rated every item, not always the same people.

    With n ratings an item, n_ic of them in class c, and p_c the share of class c in all ratings::

        kappa = (P - P_e) / (1 - P_e)
        P     = mean over items of Σ_c n_ic (n_ic - 1) / (n (n - 1))
        P_e   = Σ_c p_c²

    J. L. Fleiss, *Measuring nominal scale agreement among many raters*, Psychological Bulletin 76
    (1971), 378-382. The definition needs equally many ratings for all items. Items with other
    numbers are therefore no part of it: :func:`equally_rated` chooses those that are, and
    :func:`krippendorff_alpha` uses all.

    Args:
        counts: [N, K], how often each class was given to each item.
        weights: [..., N], how many items each row stands for; None for one.

    Returns:
        float64 [...], at most 1. NaN without items, with fewer than two ratings an item, and where
        all ratings are in one class.

    Raises:
        InputError: items with different numbers of ratings.
    """
    rows, items = _weighted(counts, weights)
    raters = rows.sum(axis=1)
    if len(raters) and (raters != raters[0]).any():
        raise InputError(
            "Fleiss' kappa needs equally many ratings for every item, got "
            f"{raters.min():.0f} to {raters.max():.0f}; choose items with equally_rated(counts)"
        )
    each = float(raters[0]) if len(raters) else 0.0
    if each < 2:
        return np.full(items.shape[:-1], np.nan)
    agreed = items @ (rows * (rows - 1)).sum(axis=1) / (each - 1)
    per_class = items @ rows
    total = per_class.sum(axis=-1)
    by_chance = (per_class**2).sum(axis=-1)
    return _ratio(agreed * total - by_chance, total * total - by_chance)


def equally_rated(counts: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> npt.NDArray:
    """Which rows :func:`fleiss_kappa` can use.

    Args:
        counts: [N, K].
        weights: [N], how many items each row stands for; None for one.

    Returns:
        bool [N]: rows with the number of ratings, two or more, that most items have; the larger
        one where two numbers are equally frequent.
    """
    rows, items = _weighted(counts, weights)
    raters = rows.sum(axis=1).astype(np.int64)
    frequency = np.bincount(raters, items, minlength=3)
    frequency[:2] = 0
    best = len(frequency) - 1 - int(np.argmax(frequency[::-1]))
    chosen: npt.NDArray = (raters == best) & (raters >= 2)
    return chosen


def krippendorff_alpha(counts: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Floats:
    """Krippendorff's alpha for nominal classes: any number of annotators, ratings may be missing.

    With m_i ratings of item i, n_ic of them in class c, n_c all ratings in class c and n all
    ratings, in items with at least two::

        alpha = 1 - D_o / D_e
        D_o   = 1/n Σ_i Σ_c n_ic (m_i - n_ic) / (m_i - 1)
        D_e   = 1/n Σ_c n_c (n - n_c) / (n - 1)

    K. Krippendorff, *Computing Krippendorff's alpha-reliability* (2011), section C; *Content
    Analysis* (2004), chapter 11. An item with a single rating cannot agree or disagree, and is
    left out.

    Args:
        counts: [N, K], how often each class was given to each item.
        weights: [..., N], how many items each row stands for; None for one.

    Returns:
        float64 [...], at most 1. NaN where no item has two ratings, and where all ratings are in
        one class.
    """
    rows, items = _paired(*_weighted(counts, weights))
    raters = rows.sum(axis=1, keepdims=True)
    observed = items @ (rows * (raters - rows) / (raters - 1)).sum(axis=1)
    per_class = items @ rows
    total = per_class.sum(axis=-1)
    expected = total * total - (per_class**2).sum(axis=-1)
    return 1 - _ratio(observed * (total - 1), expected)


def observed_agreement(counts: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Floats:
    """Share of pairs of ratings of the same item that are equal; chance is not taken off.

    Args:
        counts: [N, K], how often each class was given to each item.
        weights: [..., N], how many items each row stands for; None for one.

    Returns:
        float64 [...], 0 to 1. NaN where no item has two ratings.
    """
    rows, items = _weighted(counts, weights)
    raters = rows.sum(axis=1)
    return _ratio(items @ (rows * (rows - 1)).sum(axis=1), items @ (raters * (raters - 1)))


def bootstrap_interval(
    measure: Callable[[Counts, Floats], Floats],
    counts: npt.ArrayLike,
    weights: npt.ArrayLike,
    *,
    confidence: float = 0.95,
    replicates: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of a measure, by drawing items with replacement.

    B. Efron, R. J. Tibshirani, *An Introduction to the Bootstrap* (1993), chapter 13. Annotators
    are taken as given: it says how far other questions would move the value, not other people.

    Args:
        measure: called with ``counts`` and weights [replicates, N].
        counts: [N, K], rows that stand for items.
        weights: [N], how many items each row stands for.
        confidence: probability that the interval is to cover.
        replicates: draws.
        seed: of the draws.

    Returns:
        Lower and upper end; both NaN where fewer than two items have a weight, or where a twentieth
        of the draws leave the measure undefined: the others would flatter it.
    """
    rows = np.asarray(counts, dtype=np.int64)
    items = np.asarray(weights, dtype=np.float64)
    total = int(items.sum())
    if total < 2:
        return math.nan, math.nan
    draws = np.random.default_rng(seed).multinomial(total, items / items.sum(), size=replicates)
    values = measure(rows, draws.astype(np.float64))
    defined = values[~np.isnan(values)]
    if len(defined) < 0.95 * replicates:
        return math.nan, math.nan
    low, high = np.quantile(defined, ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(high)


def _weighted(counts: npt.ArrayLike, weights: npt.ArrayLike | None) -> tuple[Floats, Floats]:
    rows = np.asarray(counts, dtype=np.float64)
    if rows.ndim != 2:
        raise InputError(f"expected counts of shape [items, classes], got {rows.shape}")
    items = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
    if items.shape[-1:] != rows.shape[:1]:
        raise InputError(
            f"expected one weight an item, got {items.shape[-1:]} weights for {len(rows)} items"
        )
    return rows, items


def _paired(rows: Floats, items: Floats) -> tuple[Floats, Floats]:
    """Items with at least two ratings."""
    several = rows.sum(axis=1) >= 2
    return rows[several], items[..., several]


def _ratio(over: Floats, under: Floats) -> Floats:
    """``over / under``, NaN where ``under`` is 0."""
    top, bottom = np.asarray(over, dtype=np.float64), np.asarray(under, dtype=np.float64)
    result = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=result, where=bottom > 0)
    return result
