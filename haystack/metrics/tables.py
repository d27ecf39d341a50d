"""The true triplets of a batch with their ranks, and the hits of its images.

This is what is computed once and read by every recall. The hits of single images and predicates
are here before they are summed: a bootstrap over images resamples these tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from haystack.metrics.functional.recall import (
    UNIT,
    grouped_hits,
    predicate_groups,
    recall_shares,
)
from haystack.metrics.kinds import Order, Subset

_CUT_UNIT = 2**24
"""The number of hits that stands for a recall of 1 where the triplets asked for depend on K."""


class Column(NamedTuple):
    """What is counted; several recalls can be read off one column.

    Args:
        order: of the candidates.
        subset: the triplets that count.
        pooled: hits of all images over triplets of all images, instead of a mean of shares.
    """

    order: Order
    subset: Subset
    pooled: bool


@dataclass(frozen=True)
class TripletTable:
    """True triplets of whole images, T rows.

    Args:
        images: int64 [T], ascending, 0..num_images-1.
        predicates: int64 [T].
        num_images: images of the batch, those without triplets included.
        ranks: order -> int64 [T], 0-based rank of the first hit, ``NEVER`` for none; of every order
            that a recall asks for, unless it is uncomputed.
        subsets: choice of triplets -> bool [T].
        in_image_means: bool [T], whether the protocol lets the image into means over images.
        in_predicate_means: bool [T], the same for means over predicates.
        frequency_index: int64 [T], number of the triplet's frequency in training; or None.
        uncomputed: orders that the protocol, or the kind of input, does not define: no triplet
            counts under them.
    """

    images: Tensor
    predicates: Tensor
    num_images: int
    ranks: Mapping[Order, Tensor]
    subsets: Mapping[Subset, Tensor]
    in_image_means: Tensor
    in_predicate_means: Tensor
    frequency_index: Tensor | None = None
    uncomputed: Collection[Order] = ()

    def stacked(self, columns: Sequence[Column], entering: Tensor) -> tuple[Tensor, Tensor]:
        """Ranks int64 [Q, T], and which of the triplets of entering images count, bool [Q, T]."""
        nothing = torch.zeros_like(self.images)
        ranks = torch.stack([self.ranks.get(column.order, nothing) for column in columns])
        counted = [
            torch.zeros_like(entering)
            if column.order in self.uncomputed
            else entering & self.subsets[column.subset]
            for column in columns
        ]
        return ranks, torch.stack(counted)


@dataclass(frozen=True)
class Cells:
    """Hits of G groups, an image, or an image and a predicate, each.

    Args:
        hits: int64 [G, Q, K].
        sizes: int64 [G, Q], triplets that count, 0 for a group that is not there.
        images: int64 [G], the image of each group.
        predicates: int64 [G], its predicate; 0 where groups are images.
    """

    hits: Tensor
    sizes: Tensor
    images: Tensor
    predicates: Tensor

    def numerators(self, columns: Sequence[Column]) -> Tensor:
        """What to sum over groups, int64 [G, Q, K], in units of ``1 / UNIT``."""
        shares = recall_shares(self.hits, self.sizes)
        if not any(column.pooled for column in columns):
            return shares
        return torch.where(_pooled(columns, shares.device)[:, None], self.hits * UNIT, shares)

    def denominators(self, columns: Sequence[Column]) -> Tensor:
        """How much each group counts, int64 [G, Q]."""
        present = (self.sizes > 0).to(torch.int64)
        if not any(column.pooled for column in columns):
            return present
        return torch.where(_pooled(columns, present.device), self.sizes, present)


def image_cells(
    table: TripletTable, columns: Sequence[Column], ks: Tensor, *, cut_pairs: bool = False
) -> Cells:
    """Hits of each image; with ``cut_pairs`` PR@K asks for its first K triplets' pairs only."""
    ranks, counted = table.stacked(columns, table.in_image_means)
    hits, sizes = grouped_hits(ranks, table.images, table.num_images, ks, counted)
    if cut_pairs:
        for number, column in enumerate(columns):
            if column.order == "pair":
                hits[:, number], sizes[:, number] = _cut_pairs(table, counted[number], ks)
    every = torch.arange(table.num_images, device=ks.device)
    return Cells(hits, sizes, every, torch.zeros_like(every))


def predicate_cells(
    table: TripletTable, columns: Sequence[Column], ks: Tensor, num_predicates: int
) -> Cells:
    """Hits of each predicate of each image."""
    ranks, counted = table.stacked(columns, table.in_predicate_means)
    groups, predicates = predicate_groups(table.images, table.predicates, num_predicates)
    hits, sizes = grouped_hits(ranks, groups, len(groups), ks, counted)
    images = torch.zeros_like(groups).scatter_(0, groups, table.images)
    return Cells(hits, sizes, images, predicates)


def _cut_pairs(table: TripletTable, counted: Tensor, ks: Tensor) -> tuple[Tensor, Tensor]:
    """Hits [G, K] among the first K triplets of an image, and the triplets [G].

    How many are asked for depends on K, so that ``_CUT_UNIT`` times the share takes the place of
    the hits.
    """
    begins = torch.searchsorted(table.images, table.images)
    place = torch.arange(len(begins), device=begins.device) - begins
    first = (place < ks[:, None]) & counted
    ranks = table.ranks["pair"].expand(len(ks), -1)
    hits, sizes = grouped_hits(ranks, table.images, table.num_images, ks, first)
    hits = hits.diagonal(dim1=1, dim2=2) * _CUT_UNIT
    hits = torch.div(hits, sizes.clamp(min=1), rounding_mode="floor")
    return hits, (sizes[:, 0] > 0) * _CUT_UNIT


def _pooled(columns: Sequence[Column], device: torch.device) -> Tensor:
    return torch.tensor([column.pooled for column in columns]).to(device, non_blocking=True)
