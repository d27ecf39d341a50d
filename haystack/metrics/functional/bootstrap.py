"""The bootstrap over images: replicates of sums and of P-AUC, and intervals from replicates.

An image is what was sampled: its pairs share a photograph, its objects and an annotator, and are
no independent samples. A replicate therefore draws whole images with replacement (Efron and
Tibshirani, An Introduction to the Bootstrap, 1993). How often it drew each is its weights; a
metric made of sums is read off weighted sums, so nothing is drawn twice and no metric is run anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from haystack.metrics.functional.auroc import tied_runs
from haystack.metrics.functional.tensors import ratio

_ELEMENTS = 2**22
"""Of a temporary table; replicates are taken in parts that keep to it."""


def draw_images(num_images: int, replicates: int, generator: torch.Generator) -> Tensor:
    """Weights of images: each replicate draws as many images as there are, with replacement.

    Args:
        num_images: I.
        replicates: B.
        generator: on the CPU, so that all devices see the same draws.

    Returns:
        int64 [B, I], how often each replicate drew each image; rows sum to I.

    Example:
        >>> draw_images(4, 2, torch.Generator().manual_seed(0)).sum(1)
        tensor([4, 4])
    """
    if num_images == 0:
        return torch.zeros(replicates, 0, dtype=torch.int64)
    drawn = torch.randint(num_images, (replicates, num_images), generator=generator)
    weights = torch.zeros(replicates, num_images, dtype=torch.int64)
    return weights.scatter_add_(1, drawn, torch.ones_like(drawn))


class ImageSums:
    """A table of whole numbers that is a sum over images, kept apart by image.

    Args:
        cells: int64 [N], cell of each entry in the flattened table.
        images: int64 [N], the image that adds it, 0..I-1.
        values: int64 [N].
        shape: of the table.
        num_images: I.

    Example:
        >>> cells, images = torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])
        >>> sums = ImageSums(cells, images, torch.tensor([5, 1, 2]), (2,), 2)
        >>> sums.weighted(torch.tensor([[1, 1], [0, 2]])).tolist()
        [[5, 3], [0, 4]]
        >>> sums.images().tolist()
        [1, 2]
    """

    def __init__(
        self,
        cells: Tensor,
        images: Tensor,
        values: Tensor,
        shape: tuple[int, ...],
        num_images: int,
    ) -> None:
        self.shape = shape
        size = torch.Size(shape).numel()
        some = values != 0
        cells, images, values = cells[some], images[some], values[some]
        # Sums of whole numbers below 2^53 are exact in float64, whatever the order.
        self._table = torch.sparse_coo_tensor(
            torch.stack([cells, images]), values.double(), (size, num_images), check_invariants=True
        ).coalesce()

    def weighted(self, weights: Tensor) -> Tensor:
        """The table of each replicate, int64 [B, *shape], for ``weights`` int64 [B, I]."""
        sums = torch.sparse.mm(self._table, weights.T.double())
        return sums.T.round().to(torch.int64).reshape(len(weights), *self.shape)

    def images(self) -> Tensor:
        """How many images add something to each cell, int64 [*shape]."""
        counts = torch.zeros(len(self._table), dtype=torch.int64, device=self._table.device)
        cells = self._table.indices()[0]
        return counts.index_add_(0, cells, torch.ones_like(cells)).view(self.shape)


class WeightedAUROC:
    """P-AUC of samples whose images are weighted, as :func:`predicate_auroc_of_samples` has it.

    The samples are sorted once. A weight w is w samples, so that ties are counted exactly.

    Args:
        scores: float [A], -inf is allowed.
        labels: int [A], 1 or -1.
        predicates: int64 [A], 0..P-1.
        images: int64 [A], 0..I-1.
        num_predicates: P.

    Example:
        >>> scores, labels = torch.tensor([0.1, 0.4, 0.8]), torch.tensor([-1, 1, -1])
        >>> one = torch.zeros(3, dtype=torch.int64)
        >>> auroc = WeightedAUROC(scores, labels, one, torch.tensor([0, 0, 1]), 1)
        >>> auroc(torch.tensor([[1, 1], [2, 1], [1, 0]])).flatten().tolist()
        [0.5, 0.6666666666666666, 1.0]
    """

    def __init__(
        self,
        scores: Tensor,
        labels: Tensor,
        predicates: Tensor,
        images: Tensor,
        num_predicates: int,
    ) -> None:
        order = torch.argsort(scores, stable=True)
        order = order[torch.argsort(predicates[order], stable=True)]
        first, last = tied_runs(scores[order], predicates[order])
        positive = labels[order] > 0
        before = torch.zeros(len(order) + 1, dtype=torch.int64, device=scores.device)
        before[1:] = torch.cumsum(~positive, dim=0)
        borders = torch.arange(num_predicates + 1, device=scores.device)
        borders = torch.searchsorted(predicates[order], borders)
        self._positive_images = images[order][positive]
        self._negative_images = images[order][~positive]
        # Negatives before each positive's run, up to its end, and before its predicate.
        self._below = before[first[positive]]
        self._up_to = before[last[positive]]
        self._negative_borders = before[borders]
        self._positive_borders = borders - self._negative_borders
        self._earlier = self._negative_borders[predicates[order][positive]]

    def __call__(self, weights: Tensor) -> Tensor:
        """P-AUC float64 [B, P] for ``weights`` int64 [B, I], NaN where undefined."""
        size = max(len(self._negative_images), len(self._positive_images), 1)
        parts = weights.split(max(_ELEMENTS // size, 1))
        return torch.cat([self._of_part(part) for part in parts])

    def _of_part(self, weights: Tensor) -> Tensor:
        negatives = _cumulated(weights.index_select(1, self._negative_images))
        own = weights.index_select(1, self._positive_images)
        doubled = negatives.index_select(1, self._below) + negatives.index_select(1, self._up_to)
        doubled -= 2 * negatives.index_select(1, self._earlier)
        wins = _cumulated(own * doubled)[:, self._positive_borders].diff(dim=1)
        counts = _cumulated(own)[:, self._positive_borders].diff(dim=1)
        return ratio(wins, 2 * counts * negatives[:, self._negative_borders].diff(dim=1))


def _cumulated(values: Tensor) -> Tensor:
    """Sums of the first 0, 1, ... columns of ``values`` [B, A], [B, A + 1]."""
    return torch.nn.functional.pad(values.cumsum(1), (1, 0))


@dataclass(frozen=True)
class Bounds:
    """Intervals, one for each of M values.

    Args:
        low, high: float64 [M], NaN where all defined replicates agree, or fewer than two are
            defined: that no resample differs says nothing of other images.
        replicates: int64 [M], the replicates in which the value is defined.
    """

    low: Tensor
    high: Tensor
    replicates: Tensor


def percentile_interval(replicates: Tensor, confidence: float = 0.95) -> Bounds:
    """The interval between two percentiles of the replicates in which a value is defined.

    Args:
        replicates: float64 [B, M], NaN = undefined.
        confidence: the share of replicates inside, below 1.

    Example:
        >>> found = percentile_interval(torch.linspace(0, 1, 101)[:, None].double(), 0.9)
        >>> round(found.low.item(), 3), round(found.high.item(), 3)
        (0.05, 0.95)
    """
    tail = torch.full((2, replicates.shape[1]), (1 - confidence) / 2, dtype=torch.float64)
    tail[1] = 1 - tail[1]
    return _between(replicates, tail.to(replicates.device))


def accelerated_interval(
    values: Tensor, replicates: Tensor, jackknife: Tensor, confidence: float = 0.95
) -> Bounds:
    r"""BC_a: percentiles that are corrected for bias and skewness (Efron, 1987).

    With :math:`z_0` the normal quantile of the share of replicates below the value, and
    :math:`a = \sum d_i^3 / (6 (\sum d_i^2)^{3/2})` over the deviations d of the jackknife, the
    percentile of :math:`z_\alpha` becomes that of
    :math:`z_0 + (z_0 + z_\alpha) / (1 - a (z_0 + z_\alpha))`.

    Where the value lies outside of its own percentile interval, the resamples are displaced as a
    whole (PDO of few labels is: images that are drawn twice crowd its top ranks), and the
    correction would shrink to their edge. There the percentile interval is moved so that its
    median is the value.

    Args:
        values: float64 [M], of all images.
        replicates: float64 [B, M].
        jackknife: float64 [J, M], values with one of J groups of images left out in turn.
        confidence: the share that the interval is to cover, below 1.

    Example:
        >>> replicates = torch.linspace(0, 1, 101)[:, None].double()
        >>> jackknife = torch.tensor([[0.4], [0.5], [0.6]]).double()
        >>> found = accelerated_interval(torch.tensor([0.5]).double(), replicates, jackknife, 0.9)
        >>> round(found.low.item(), 3), round(found.high.item(), 3)
        (0.05, 0.95)
    """
    defined = ~replicates.isnan()
    below = ((replicates < values) + 0.5 * (replicates == values)).where(defined, 0).sum(0)
    count = defined.sum(0).clamp(min=1)
    # Half a replicate from the ends, so that the quantile is finite.
    bias = torch.special.ndtri((below / count).clamp(0.5 / count, 1 - 0.5 / count))
    deviations = (torch.nanmean(jackknife, dim=0) - jackknife).nan_to_num()
    spread = deviations.square().sum(0).pow(1.5)
    skew = deviations.pow(3).sum(0) / (6 * spread.where(spread > 0, 1))
    tails = torch.tensor([[(1 - confidence) / 2], [(1 + confidence) / 2]], dtype=torch.float64)
    shifted = bias + torch.special.ndtri(tails.to(replicates.device))
    levels = torch.special.ndtr(bias + shifted / (1 - skew * shifted))
    corrected = _between(replicates, levels.where(~values.isnan(), torch.nan))
    plain = percentile_interval(replicates, confidence)
    move = values - percentile_interval(replicates, 0.0).low
    displaced = (values < plain.low) | (values > plain.high)
    return Bounds(
        torch.where(displaced, plain.low + move, corrected.low),
        torch.where(displaced, plain.high + move, corrected.high),
        corrected.replicates,
    )


def _between(replicates: Tensor, levels: Tensor) -> Bounds:
    """Quantiles at ``levels`` [2, M] of the defined entries, linear between replicates."""
    ordered = replicates.sort(dim=0).values  # NaN last
    count = (~replicates.isnan()).sum(0)
    position = levels.nan_to_num() * (count - 1).clamp(min=0)
    floor = position.floor().to(torch.int64)
    ceiling = torch.minimum(floor + 1, (count - 1).clamp(min=0))
    low, high = ordered.gather(0, floor), ordered.gather(0, ceiling)
    found = torch.lerp(low, high, position - floor)
    top = ordered.gather(0, (count - 1).clamp(min=0)[None])[0]
    found = found.where((ordered[0] < top) & ~levels.isnan(), torch.nan)
    return Bounds(found[0], found[1], count)


@dataclass(frozen=True)
class PairedTests:
    """Whether differences are more than what another sample of images would show.

    Args:
        low, high: float64 [M], the interval of each difference; NaN where too few replicates are
            defined to exclude anything.
        p_values: float64 [M], two-sided, each for itself; at most 1 - confidence exactly where the
            interval leaves 0 out.
        adjusted: float64 [M], p-values of the whole family; NaN outside of it.
        replicates: int64 [M], the replicates in which the difference is defined.
    """

    low: Tensor
    high: Tensor
    p_values: Tensor
    adjusted: Tensor
    replicates: Tensor


def paired_tests(
    differences: Tensor, replicates: Tensor, family: Tensor, confidence: float = 0.95
) -> PairedTests:
    r"""Intervals and p-values of differences between two models on the same images.

    Both models are read off the same draws. The deviations :math:`|d^*_b - d|` of the replicates
    stand for those of d from the truth: the interval is d plus or minus their quantile (symmetric
    percentile interval: Hall, 1988), the p-value the share of replicates that deviate by at least
    :math:`|d|`, the value itself counted in.

    Among many predicates some differ by chance. ``adjusted`` controls the probability of even one
    false claim, by the step-down max-T procedure (Westfall and Young, 1993, algorithm 4.1): Holm's
    procedure, with the joint distribution of the replicates, scaled by their standard deviations,
    in the place of Bonferroni's bound. Predicates share images, and Bonferroni's bound would ask
    for many more replicates than intervals need.

    Args:
        differences: float64 [M], NaN = undefined.
        replicates: float64 [B, M].
        family: bool [M], the differences that are tested together; the others are not adjusted.
        confidence: below 1.

    Example:
        >>> noise = torch.linspace(-1, 1, 99).double()
        >>> differences = torch.tensor([0.1, 3.0]).double()
        >>> tests = paired_tests(
        ...     differences, differences + noise[:, None], torch.tensor([True, True])
        ... )
        >>> (tests.adjusted < 0.05).tolist(), (tests.low > 0).tolist()
        ([False, True], [False, True])
    """
    defined = ~replicates.isnan()
    count = defined.sum(0)
    deviations = (replicates - differences).abs()
    reached = (deviations >= differences.abs()).sum(0)  # a comparison with NaN is false
    valid = (count > 1) & ~differences.isnan()
    p_values = ((reached + 1) / (count + 1).double()).where(valid, torch.nan)
    bound = _exceeded(deviations, 1 - confidence).where(valid, torch.nan)
    return PairedTests(
        differences - bound,
        differences + bound,
        p_values,
        _step_down(differences, deviations, family & valid),
        count,
    )


def _exceeded(deviations: Tensor, level: float) -> Tensor:
    """The least deviation [M] that a share of no more than ``level`` reaches, as p-values count."""
    ordered = deviations.nan_to_num(nan=-1.0).sort(dim=0, descending=True).values
    count = (~deviations.isnan()).sum(0)
    # A p-value is at most `level` if at most this many replicates deviate as much.
    allowed = (level * (count + 1) + 1e-9).floor().to(torch.int64) - 1
    place = allowed.clamp(min=0, max=max(len(ordered) - 1, 0))
    found = ordered.gather(0, place[None])[0]
    return found.where(allowed >= 0, torch.nan)


def _step_down(differences: Tensor, deviations: Tensor, family: Tensor) -> Tensor:
    """Adjusted p-values [M]."""
    adjusted = torch.full_like(differences, torch.nan)
    members = family.nonzero()[:, 0]
    if len(members) == 0:
        return adjusted
    part = deviations[:, members]
    scale = (part.square().nansum(0) / (~part.isnan()).sum(0)).sqrt()
    scale = scale.where(scale > 0, torch.inf)  # the same in all replicates: nothing to tell
    statistic = differences[members].abs() / scale
    order = statistic.argsort(descending=True, stable=True)
    part = (part / scale)[:, order]
    # The largest of a predicate and all those behind it, in the replicates that define it.
    largest = part.nan_to_num(nan=0.0).flip(1).cummax(1).values.flip(1)
    reached = ((largest >= statistic[order]) & ~part.isnan()).sum(0)
    steps = ((reached + 1) / ((~part.isnan()).sum(0) + 1).double()).cummax(0).values
    adjusted[members[order]] = steps
    return adjusted
