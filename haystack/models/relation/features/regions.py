"""RoIAlign of boxes around one or two objects, from feature maps or from a cache of regions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import roi_align

from haystack.models.relation.batch import SceneBatch

REGION_SIZE = 7
"""Height and width of a region, in cells."""

_SAMPLES = 2
_FINEST_SCALE = 56.0


class Regions(ABC):
    """Regions of a batch's objects and pairs; a pair's box is the smallest around both boxes.

    An object's own region is that of the pair of it with itself, and the two directions of a pair
    share theirs.
    """

    @abstractmethod
    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Regions of K pairs of objects.

        Args:
            first: int64 [K], rows of the batch's objects.
            second: int64 [K], the same; none below ``first``.

        Returns:
            float [K, channels, REGION_SIZE, REGION_SIZE].
        """


class PyramidRegions(Regions):
    """Cut out of feature maps when they are asked for.

    Args:
        batch: of the scenes.
        pyramids: of each scene its maps, finest first, [channels, h, w] each; the scenes' maps may
            differ in size.
        strides: pixels per cell of each level.
    """

    def __init__(
        self, batch: SceneBatch, pyramids: Sequence[Sequence[Tensor]], strides: Sequence[int]
    ) -> None:
        self._batch, self._pyramids, self._strides = batch, pyramids, strides

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """See ``Regions``."""
        boxes = union_boxes(self._batch.boxes[first], self._batch.boxes[second])
        images = self._batch.image_of[first]
        if len(self._pyramids) == 1:
            return align_boxes(self._pyramids[0], boxes, self._strides)
        finest = self._pyramids[0][0]
        regions = finest.new_empty((len(boxes), len(finest), REGION_SIZE, REGION_SIZE))
        for image in images.unique().tolist():
            chosen = torch.nonzero(images == image).squeeze(1)
            regions[chosen] = align_boxes(self._pyramids[image], boxes[chosen], self._strides)
        return regions


class CachedRegions(Regions):
    """Read from tables that were cut out before.

    Args:
        batch: of the scenes.
        tables: of each scene all that ``pair_rows`` numbers, float16 or float32
            [N (N + 1) / 2, channels, REGION_SIZE, REGION_SIZE]; they may lie on another device.
    """

    def __init__(self, batch: SceneBatch, tables: Sequence[Tensor]) -> None:
        self._batch = batch
        self._table = tables[0] if len(tables) == 1 else torch.cat(list(tables))
        counts = torch.tensor(batch.counts, device=batch.labels.device)
        self._counts = counts
        self._first_object = counts.cumsum(0) - counts
        sizes = counts * (counts + 1) // 2
        self._first_row = sizes.cumsum(0) - sizes

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """See ``Regions``."""
        image = self._batch.image_of[first]
        start = self._first_object[image]
        rows = pair_rows(first - start, second - start, self._counts[image])
        chosen = self._table[(rows + self._first_row[image]).to(self._table.device)]
        return chosen.to(self._batch.boxes.device).to(self._batch.boxes.dtype)


def pair_rows(first: Tensor, second: Tensor, count: Tensor | int) -> Tensor:
    """Number of the pair (first, second), first <= second, among all such pairs, row-major.

    Args:
        first: int64 [K], objects of an image.
        second: int64 [K], the same.
        count: objects in the image.
    """
    return first * (2 * count - first - 1) // 2 + second


def union_boxes(first: Tensor, second: Tensor) -> Tensor:
    """The smallest box around two: float [K, 4], [K, 4] -> [K, 4]."""
    low = torch.minimum(first[:, :2], second[:, :2])
    return torch.cat([low, torch.maximum(first[:, 2:], second[:, 2:])], dim=1)


def pyramid_levels(boxes: Tensor, count: int) -> Tensor:
    """Pyramid level of each box: floor(log2(sqrt((w + 1)(h + 1)) / 56)), within 0..count - 1.

    Args:
        boxes: float [K, 4], x1, y1, x2, y2 in pixels.
        count: levels there are.

    Returns:
        int64 [K], 0 = the finest.
    """
    scale = (boxes[:, 2:] - boxes[:, :2] + 1).prod(1).sqrt()
    return torch.log2(scale / _FINEST_SCALE + 1e-6).floor().clamp(0, count - 1).long()


def align_boxes(pyramid: Sequence[Tensor], boxes: Tensor, strides: Sequence[int]) -> Tensor:
    """RoIAlign of one image's boxes, each from the level of its size.

    Args:
        pyramid: maps of one image, finest first, [channels, h, w] each.
        boxes: float [K, 4], x1, y1, x2, y2 in pixels of the padded image.
        strides: pixels per cell of each level.

    Returns:
        [K, channels, REGION_SIZE, REGION_SIZE], in the maps' dtype.
    """
    levels = pyramid_levels(boxes, len(strides))
    size = (len(boxes), len(pyramid[0]), REGION_SIZE, REGION_SIZE)
    regions = pyramid[0].new_empty(size)
    for level, (maps, stride) in enumerate(zip(pyramid, strides, strict=True)):
        chosen = torch.nonzero(levels == level).squeeze(1)
        regions[chosen] = roi_align(
            maps[None], [boxes[chosen].to(maps)], REGION_SIZE, 1.0 / stride, _SAMPLES, aligned=True
        )
    return regions
