"""Object and union features from a detector's feature pyramid (OpenPSG's RoI features)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from haystack.models.relation.batch import SceneBatch

_ROI_SIZE = 7
_MAP_SIZE = 27
_FINEST_SCALE = 56.0


class _ConvNorm(nn.Module):
    """Convolution, ReLU, then batch normalisation, in this order."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, maps: Tensor) -> Tensor:
        normalised: Tensor = self.bn(self.conv(maps).relu())
        return normalised


class VisualSpatialExtractor(nn.Module):
    """RoIAlign over the pyramid, then two linear layers with ReLU.

    Args:
        channels: of the pyramid's maps; even.
        roi_dim: width of a feature.
        with_spatial: whether rows are pairs, to which a map of the two boxes is added.
        openpsg_quirks: draw the object's rectangle from the wrong coordinates (columns from x1 to
            y1, rows from x2 to y2), as OpenPSG did when its checkpoints were trained.
        strides: pixels per cell of each pyramid level, finest first.
    """

    def __init__(
        self,
        *,
        channels: int = 256,
        roi_dim: int = 1024,
        with_spatial: bool = False,
        openpsg_quirks: bool = False,
        strides: Sequence[int] = (4, 8, 16, 32),
    ) -> None:
        super().__init__()
        self.strides = tuple(strides)
        self.openpsg_quirks = openpsg_quirks
        linears = nn.Linear(channels * _ROI_SIZE**2, roi_dim), nn.Linear(roi_dim, roi_dim)
        for linear in linears:
            nn.init.kaiming_uniform_(linear.weight, a=1)
            nn.init.zeros_(linear.bias)
        self.visual_bbox_head = nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU())
        if with_spatial:
            self.spatial_conv = nn.Sequential(
                _ConvNorm(2, channels // 2, 7, 2),
                nn.MaxPool2d(3, 2, 1),
                _ConvNorm(channels // 2, channels, 3, 1),
            )

    def objects(self, pyramid: Sequence[Tensor], batch: SceneBatch) -> Tensor:
        """Features of the objects, float [N, roi_dim]; ``pyramid`` float [B, channels, h, w]."""
        return self._head(self._align(pyramid, batch.boxes, batch.image_of))

    def unions(self, pyramid: Sequence[Tensor], batch: SceneBatch) -> Tensor:
        """Features of the pairs' union boxes and box maps, float [R, roi_dim]."""
        subject, target = batch.pairs.unbind(1)
        first, second = batch.boxes[subject], batch.boxes[target]
        low = torch.minimum(first[:, :2], second[:, :2])
        high = torch.maximum(first[:, 2:], second[:, 2:])
        union = torch.cat([low, high], dim=1)
        image = batch.image_of[subject]
        maps = box_maps(first, second, batch.sizes[image], openpsg_quirks=self.openpsg_quirks)
        return self._head(self._align(pyramid, union, image) + self.spatial_conv(maps))

    def _head(self, regions: Tensor) -> Tensor:
        features: Tensor = self.visual_bbox_head(regions.flatten(1))
        return features

    def _align(self, pyramid: Sequence[Tensor], boxes: Tensor, image: Tensor) -> Tensor:
        levels = pyramid_levels(boxes, len(self.strides))
        rows = torch.cat([image[:, None].to(boxes), boxes], dim=1)
        aligned = boxes.new_zeros((len(boxes), pyramid[0].shape[1], _ROI_SIZE, _ROI_SIZE))
        for level, stride in enumerate(self.strides):
            chosen = torch.nonzero(levels == level).squeeze(1)
            regions = roi_align(
                pyramid[level], rows[chosen], _ROI_SIZE, 1.0 / stride, 2, aligned=True
            )
            aligned = aligned.index_copy(0, chosen, regions)
        return aligned


def pyramid_levels(boxes: Tensor, count: int) -> Tensor:
    """Pyramid level of each box: floor(log2(sqrt((w + 1)(h + 1)) / 56)), within 0..count - 1."""
    scale = (boxes[:, 2:] - boxes[:, :2] + 1).prod(1).sqrt()
    return torch.log2(scale / _FINEST_SCALE + 1e-6).floor().clamp(0, count - 1).long()


def box_maps(subjects: Tensor, targets: Tensor, sizes: Tensor, *, openpsg_quirks: bool) -> Tensor:
    """The two boxes of each pair as filled rectangles on a 27 x 27 grid over the image.

    Args:
        subjects: float [R, 4], x1, y1, x2, y2 in pixels.
        targets: float [R, 4], the same.
        sizes: float [R, 2], height and width of each pair's image.
        openpsg_quirks: see ``VisualSpatialExtractor``.

    Returns:
        float [R, 2, 27, 27], ones from the cell of the floor to that of the ceiling, inclusive.
    """
    # The factor is rounded to float32 before the product: a full-width box lies exactly on a
    # cell's border, and another order of operations puts it into another cell.
    factor = _MAP_SIZE / sizes.flip(1)
    cells = torch.arange(_MAP_SIZE, device=subjects.device)

    def span(low: Tensor, high: Tensor) -> Tensor:
        return (cells >= low.floor()[:, None]) & (cells <= high.ceil()[:, None])

    def rectangle(columns: tuple[Tensor, Tensor], rows: tuple[Tensor, Tensor]) -> Tensor:
        return span(*rows)[:, :, None] & span(*columns)[:, None, :]

    x1, y1, x2, y2 = (subjects * factor.repeat(1, 2)).unbind(1)
    head = rectangle((x1, x2), (y1, y2))
    x1, y1, x2, y2 = (targets * factor.repeat(1, 2)).unbind(1)
    tail = rectangle((x1, y1), (x2, y2)) if openpsg_quirks else rectangle((x1, x2), (y1, y2))
    return torch.stack([head, tail], dim=1).to(subjects.dtype)
