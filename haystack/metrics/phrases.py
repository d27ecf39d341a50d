"""Phrase detection: a triplet's subject and object are found together, as one region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from haystack.metrics.batch import expand
from haystack.metrics.functional.hits import Links
from haystack.metrics.functional.matching import (
    Matches,
    box_iou,
    phrase_mask_iou,
    union_boxes,
)
from haystack.metrics.functional.tensors import on_host, where_true


@dataclass(frozen=True)
class ImageMasks:
    """Masks of the objects of one image.

    Args:
        truth: bool [G, H, W].
        predicted: bool [P, H, W].
    """

    truth: Tensor
    predicted: Tensor


@dataclass(frozen=True, eq=False)
class Phrases:
    """Decides which predicted pairs stand for which triplets by the unions of their regions.

    Args:
        classes: all pairs of objects of one class.
        boxes: float [G, 4] and [P, 4] of the annotated and predicted objects of the batch; or
        masks: those of each image, None where a side has no object.
        sizes: annotated and predicted objects of each image.
        plus_one: whether a box's last pixel belongs to it.
        threshold: the IoU that is enough.
        inclusive: whether an IoU of exactly the threshold is enough.
    """

    classes: Matches
    boxes: tuple[Tensor, Tensor] | None
    masks: Sequence[ImageMasks | None]
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    plus_one: bool
    threshold: float
    inclusive: bool

    def keep(
        self,
        links: Links,
        triplet_objects: Tensor,
        pair_objects: Tensor,
        counts: tuple[Sequence[int], Sequence[int]],
    ) -> Links:
        """The links whose regions overlap enough; which predicate does not matter.

        Args:
            links: of pairs and triplets whose subjects and objects are of the same classes.
            triplet_objects: int64 [T, 2], numbers of subject and object.
            pair_objects: int64 [R, 2].
            counts: triplets and pairs of each image.
        """
        if not len(links.rows):
            return links
        if self.boxes is None:
            iou = self._mask_iou(links, triplet_objects, pair_objects, counts)
        else:
            aligned = replace(self.classes.pairs, truth=links.triplets, predicted=links.rows)
            truth = union_boxes(self.boxes[0], triplet_objects)
            predicted = union_boxes(self.boxes[1], pair_objects)
            iou = box_iou(truth, predicted, aligned, plus_one=self.plus_one)
        enough = iou >= self.threshold if self.inclusive else iou > self.threshold
        valid = links.valid & enough
        kept = where_true(valid)
        columns = (links.rows, links.triplets, valid)
        return Links(*(column.index_select(0, kept) for column in columns))

    def _mask_iou(
        self,
        links: Links,
        triplet_objects: Tensor,
        pair_objects: Tensor,
        counts: tuple[Sequence[int], Sequence[int]],
    ) -> Tensor:
        """One image after the other, as masks differ in size."""
        device = links.rows.device
        if on_host(links.rows):
            owners = expand(counts[1], device).index_select(0, links.rows)
            sizes = torch.bincount(owners, minlength=len(counts[0])).tolist()
        else:  # all combinations are listed
            sizes = [triplets * pairs for triplets, pairs in zip(*counts, strict=True)]
        parts = zip(links.triplets.split(sizes), links.rows.split(sizes), strict=True)
        firsts = [_before(side) for side in (*self.sizes, *counts)]
        values = []
        for image, (triplets, rows) in enumerate(parts):
            masks = self.masks[image]
            if masks is None or not sizes[image]:
                continue
            truths, predictions, first_triplet, first_row = (side[image] for side in firsts)
            triplet, triplet_at = _distinct(triplets, first_triplet, counts[0][image])
            row, row_at = _distinct(rows, first_row, counts[1][image])
            table = phrase_mask_iou(
                masks.truth,
                masks.predicted,
                triplet_objects.index_select(0, triplet) - truths,
                pair_objects.index_select(0, row) - predictions,
            )
            values.append(table[triplet_at, row_at])
        return torch.cat(values)


def _before(sizes: Sequence[int]) -> list[int]:
    """How many come before each image."""
    sums = [0]
    for size in sizes:
        sums.append(sums[-1] + size)
    return sums


def _distinct(numbers: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """The distinct numbers, and where each stands among them; on a device all of the image."""
    if on_host(numbers):
        distinct, places = torch.unique(numbers, return_inverse=True)
        return distinct, places
    return torch.arange(first, first + count, device=numbers.device), numbers - first
