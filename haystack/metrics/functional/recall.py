"""Recalls from ranks.

Shares of single images are kept as integers, in units of 2^-38. Sums of them are exact and do not
depend on the order of addition, so that a result is the same bit for bit however the images are
split into batches or processes, on any device. One share is off by at most 2^-39, and the sums
hold 33 million images.

Three groupings make every recall of the field out of ranks: the image (R), the image and the
predicate (mR), or none (A, wR). Each is a table of groups before it is summed, which is what a
bootstrap over images resamples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from haystack.metrics.functional.ranking import NEVER
from haystack.metrics.functional.tensors import count_by, inverse_order, ratio, result_dtype

UNIT = 2**38
"""The integer that stands for a share of 1."""
RANK_UNIT = 2**30
"""The integer that stands for a mean rank of 1."""


def grouped_hits(
    ranks: Tensor, groups: Tensor, num_groups: int, ks: Tensor, counted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """How many of each group's triplets the first K candidates hit.

    A group is an image (R@K), or an image and a predicate (mR@K).

    Args:
        ranks: int64 [T] or [Q, T], 0-based ranks of ground-truth triplets under Q orders.
        groups: int64 [T], group of each triplet.
        num_groups: G.
        ks: int64 [K], the cut-offs, on the device of ``ranks``.
        counted: bool, as ``ranks``; triplets that are not counted are left out. Default: all.

    Returns:
        int64 [G, K] or [G, Q, K] hits; and int64 [G] or [G, Q] the triplets that count.

    Example:
        >>> ranks, groups = torch.tensor([0, 7, 3]), torch.tensor([0, 0, 2])
        >>> hits, sizes = grouped_hits(ranks, groups, 3, torch.tensor([1, 5]))
        >>> hits.tolist(), sizes.tolist()
        ([[1, 1], [0, 0], [0, 1]], [2, 0, 1])
    """
    if counted is None:
        counted = torch.ones_like(ranks, dtype=torch.bool)
    flags = torch.cat([(ranks[..., None] < ks) & counted[..., None], counted[..., None]], dim=-1)
    flags = flags.movedim(-2, 0).to(torch.int64)
    table = torch.zeros(num_groups, *flags.shape[1:], dtype=torch.int64, device=ranks.device)
    table.index_add_(0, groups, flags)
    return table[..., :-1], table[..., -1]


def recall_shares(hits: Tensor, sizes: Tensor) -> Tensor:
    """Hits [..., K] over triplets [...], in units of ``1 / UNIT``; 0 without triplets.

    Whole numbers, so that sums of shares over images do not depend on their order.

    Args:
        hits: int64 [..., K], as of :func:`grouped_hits`.
        sizes: int64 [...], at least the hits.

    Returns:
        int64 [..., K], rounded to the nearest unit.

    Example:
        >>> (recall_shares(torch.tensor([[1, 2]]), torch.tensor([2])) / UNIT).tolist()
        [[0.5, 1.0]]
    """
    divisor = sizes.clamp(min=1)[..., None]
    half = torch.div(divisor, 2, rounding_mode="floor")
    return torch.div(hits * UNIT + half, divisor, rounding_mode="floor")


def predicate_groups(
    images: Tensor, predicates: Tensor, num_predicates: int
) -> tuple[Tensor, Tensor]:
    """Number the pairs of an image and a predicate that occur among T triplets.

    Args:
        images: int64 [T].
        predicates: int64 [T].
        num_predicates: P.

    Returns:
        int64 [T], the group of each triplet, 0..T-1; and int64 [T], the predicate of each group
        (0 for the numbers that are not used: their number is known to the device only).

    Example:
        >>> images, predicates = torch.tensor([0, 0, 0]), torch.tensor([3, 1, 3])
        >>> predicate_groups(images, predicates, 5)
        (tensor([1, 0, 1]), tensor([1, 3, 0]))
    """
    keys, order = torch.sort(images * num_predicates + predicates, stable=True)
    new = torch.zeros_like(keys)
    new[1:] = keys[1:] != keys[:-1]
    number = torch.cumsum(new, 0)
    held = torch.zeros_like(keys).scatter_(0, number, keys % max(num_predicates, 1))
    return number[inverse_order(order)], held


def mean_recall(recalls: Tensor, count: Tensor) -> Tensor:
    """Mean of ``count`` shares whose sum, in units of ``1 / UNIT``, is ``recalls``.

    Args:
        recalls: int64, any shape.
        count: int64, broadcastable to it.

    Returns:
        float64 (float32 on MPS), NaN where ``count`` is 0.

    Example:
        >>> mean_recall(torch.tensor([UNIT // 2, 0]), torch.tensor([1, 0]))
        tensor([0.5000,    nan], dtype=torch.float64)
    """
    return ratio(recalls, count) / UNIT


def instance_recall(found: Tensor, images: Tensor, num_images: int) -> Tensor:
    """InstR: the share of an image's annotated objects that are found, averaged over images.

    Source: SGBench 1.0. Images without objects are left out.

    Args:
        found: bool [N], for each annotated object, for instance whether
            :func:`~haystack.metrics.functional.match_objects` matched it.
        images: int64 [N], 0..num_images-1.
        num_images: I.

    Returns:
        float64 [] (float32 on MPS), NaN without objects.

    Example:
        >>> found, images = torch.tensor([True, False, True]), torch.tensor([0, 0, 2])
        >>> instance_recall(found, images, 3)
        tensor(0.7500, dtype=torch.float64)
    """
    return mean_recall(*instance_recall_rows(found, images, num_images).sum(0))


def instance_recall_rows(
    found: Tensor, images: Tensor, num_images: int, entering: Tensor | None = None
) -> Tensor:
    """What :func:`instance_recall` is the mean of, image by image.

    Args:
        found: bool [N].
        images: int64 [N].
        num_images: I.
        entering: bool [I], which images count; default all.

    Returns:
        int64 [I, 2]: the share of found objects in units of ``1 / UNIT``, and 1 where the image
        counts and has objects, else 0.

    Example:
        >>> rows = instance_recall_rows(torch.tensor([True, False]), torch.tensor([0, 0]), 2)
        >>> (rows[:, 0] / UNIT).tolist(), rows[:, 1].tolist()
        ([0.5, 0.0], [1, 0])
    """
    one = found.new_ones(1, dtype=torch.int64)
    counted = None if entering is None else entering[images]
    hits, sizes = grouped_hits(_rank_of(found), images, num_images, one, counted)
    return torch.cat([recall_shares(hits, sizes), (sizes > 0)[:, None]], dim=1)


def reachable_ranks(found: Tensor, triplet_objects: Tensor) -> Tensor:
    """``R@inf``, ``mR@inf``: ranks of true triplets if what is found were ranked perfectly.

    A triplet counts as hit, however many candidates may come first, as soon as its subject and its
    object are found (SGBench 1.0): the most that any ranking of the model's pairs could reach.

    Args:
        found: bool [N], for each annotated object.
        triplet_objects: int64 [T, 2], numbers of subject and object among them.

    Returns:
        int64 [T]: 0 where both are found, else ``NEVER``; by :func:`grouped_hits` with any K they
        become recalls.

    Example:
        >>> found, triplets = torch.tensor([True, True, False]), torch.tensor([[0, 1], [0, 2]])
        >>> ranks = reachable_ranks(found, triplets)
        >>> hits, sizes = grouped_hits(ranks, torch.tensor([0, 0]), 1, torch.tensor([1]))
        >>> mean_recall(recall_shares(hits, sizes).sum(), (sizes > 0).sum())
        tensor(0.5000, dtype=torch.float64)
    """
    return _rank_of(found[triplet_objects].all(1))


def _rank_of(hit: Tensor) -> Tensor:
    """The rank of what is hit at once or never."""
    return torch.where(hit, 0, NEVER)


def diversity_weighted_mean(values: Tensor, diversity: Tensor, tau: float = 0.5) -> Tensor:
    r"""wIMR: the mean over predicates weighted by compositional diversity.

    :math:`\sum_c w_c IMR_c` with :math:`w_c = n_c^\tau / \sum_k n_k^\tau` and :math:`n_c` the
    number of distinct (subject class, object class) pairs of predicate c in training (Rethinking
    the Evaluation of Unbiased Scene Graph Generation, equation 1). A predicate whose value is
    undefined is left out of both sums; one that training lacks weighs 0, unless tau is 0.

    Args:
        values: float [P] or [P, K], NaN = undefined.
        diversity: int64 [P], n_c.
        tau: 0 weighs all predicates alike.

    Returns:
        float, [] or [K]; NaN where nothing has weight.

    Example:
        >>> values = torch.tensor([0.5, 1.0, float("nan")], dtype=torch.float64)
        >>> diversity_weighted_mean(values, torch.tensor([16, 4, 9]))
        tensor(0.6667, dtype=torch.float64)
    """
    weights = diversity.to(result_dtype(diversity.device)).pow(tau)
    weights = weights.view(-1, *[1] * (values.ndim - 1)).where(~values.isnan(), 0)
    return (weights * values.nan_to_num()).sum(0) / weights.sum(0)


def frequency_weighted_recall(hits: Tensor, sizes: Tensor, frequencies: Tensor) -> Tensor:
    r"""wR: the recall in which a triplet weighs less the more often training showed it.

    :math:`\sum_t w_t [r_t < K]` over all triplets t of the test set, with :math:`w_t \propto
    1 / (n_t + 1)` that sum to 1 and :math:`n_t` how often training holds t's (subject class,
    predicate, object class) (Knyazev et al., Graph Density-Aware Losses for Novel Compositions in
    Scene Graph Generation, 2020: weighted triplet recall). Triplets of one n_t are summed first.

    Args:
        hits: int64 [F, K], hits among the triplets of each frequency, in units of ``1 / UNIT``.
        sizes: int64 [F], triplets of each frequency.
        frequencies: int64 [F], the distinct values of n_t.

    Returns:
        float64 [K] (float32 on MPS), NaN without triplets.

    Example:
        >>> hits, sizes = torch.tensor([[UNIT], [0]]), torch.tensor([1, 1])
        >>> frequency_weighted_recall(hits, sizes, torch.tensor([0, 1]))
        tensor([0.6667], dtype=torch.float64)
    """
    dtype = result_dtype(hits.device)
    weights = 1 / (frequencies.to(dtype) + 1)
    total = (weights * sizes.to(dtype)).sum()
    return (weights[:, None] * hits.to(dtype)).sum(0) / UNIT / total


def mean_predicate_rank(
    ranks: Tensor, images: Tensor, predicates: Tensor, num_predicates: int
) -> Tensor:
    """PRank: the mean position of a true predicate among the predicates of its pair.

    First the mean of each image and predicate, then of all those (SGBench 1.0). Triplets that no
    candidate hits are left out.

    Args:
        ranks: int64 [T], 0-based rank of the triplet's predicate inside its pair, -1 = left out.
        images: int64 [T].
        predicates: int64 [T].
        num_predicates: P.

    Returns:
        int64 [2]: the sum of the means in units of ``1 / RANK_UNIT``, and their number.

    Example:
        >>> ranks, images = torch.tensor([3, 4, 0]), torch.tensor([0, 0, 0])
        >>> total, count = mean_predicate_rank(ranks, images, torch.tensor([1, 1, 2]), 3)
        >>> total.item() / RANK_UNIT / count.item()
        1.75
    """
    return predicate_rank_rows(ranks, images, predicates, num_predicates)[0].sum(0)


def predicate_rank_rows(
    ranks: Tensor, images: Tensor, predicates: Tensor, num_predicates: int
) -> tuple[Tensor, Tensor]:
    """What :func:`mean_predicate_rank` sums: int64 [G, 2], and int64 [G], the image of each row.

    Example:
        >>> one = torch.tensor([1])
        >>> rows, images = predicate_rank_rows(torch.tensor([3]), one, one, 2)
        >>> (rows / RANK_UNIT).tolist()[0][0], images.tolist()
        (3.0, [1])
    """
    groups, _ = predicate_groups(images, predicates, num_predicates)
    counted = (ranks >= 0).to(torch.int64)
    sizes = count_by(groups, counted, len(ranks))
    sums = count_by(groups, ranks * counted, len(ranks))
    means = torch.div(sums * RANK_UNIT, sizes.clamp(min=1), rounding_mode="floor")
    owners = torch.zeros_like(groups).scatter_(0, groups, images)
    return torch.stack([means, (sizes > 0).to(torch.int64)], dim=1), owners
