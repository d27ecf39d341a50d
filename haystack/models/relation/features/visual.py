"""Object and union features from a detector's feature pyramid (OpenPSG's RoI features)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from haystack.models.pictures import padded_size
from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.features.base import EncodedScene, FeatureSource
from haystack.models.relation.features.preprocessing import fit_scene, prepare_image
from haystack.models.relation.features.regions import (
    REGION_SIZE,
    CachedRegions,
    PyramidRegions,
    Regions,
    pair_rows,
)
from haystack.models.relation.features.trunk import Trunk
from haystack.models.relation.inputs import SceneInput

_MAP_SIZE = 27
_IMAGES_AT_ONCE = 4
_PAIRS_AT_ONCE = 256
_LEVELS = ("p2", "p3", "p4", "p5")
_REGIONS = "regions"


class VisualFeatures(FeatureSource):
    """What a detector's trunk sees in the boxes of objects and around pairs.

    Boxes stand for the objects, as in OpenPSG: masks are not read. In inference at most
    ``_PAIRS_AT_ONCE`` pairs have a region and a map of their boxes at a time, and the two
    directions of a pair share the region. A photograph of 640 x 480, resized to 1088 x 800, then
    needs 0.41 GB beside the weights while a ResNet-50 reads it, and leaves 74 MB of maps; features
    and a VCTree head of OpenPSG's widths need 0.07 GB more than these for 30 objects, and 0.23 GB
    for 200 (39,800 pairs, whose regions alone would take 2 GB). Measured on a CPU.

    Args:
        trunk: frozen; filled by ``haystack.models.checkpoints.trunk`` or with the model.
        roi_dim: width of the features.
        openpsg_quirks: see ``box_maps``.
        long_side: pictures are resized until they just fit both sides, in pixels.
        short_side: the same.
    """

    reads_images: ClassVar[bool] = True
    scenes_at_once: ClassVar[int] = _IMAGES_AT_ONCE

    compact_dtype: torch.dtype = torch.float32
    """Of a cache's regions; float16 halves it, and rounds them to 3 digits."""

    def __init__(
        self,
        trunk: Trunk,
        roi_dim: int,
        *,
        openpsg_quirks: bool,
        long_side: int = 1333,
        short_side: int = 800,
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.openpsg_quirks = openpsg_quirks
        self.sides = (long_side, short_side)
        # OpenPSG's names.
        self.bbox_roi_extractor = RegionEncoder(trunk.channels, roi_dim)
        self.relation_roi_extractor = PairRegionEncoder(trunk.channels, roi_dim)

    def encode(self, scenes: Sequence[SceneInput]) -> list[EncodedScene]:
        """``p2`` to ``p5``, float [channels, h, w] of the padded picture; see ``Trunk``.

        On an accelerator pictures of one padded size go through the trunk together, up to
        ``_IMAGES_AT_ONCE``. The scenes come back in the frame of the resized pictures.
        """
        fitted = [fit_scene(scene, *self.sides) for scene in scenes]
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for place, scene in enumerate(fitted):
            groups[padded_size(scene.height, scene.width)].append(place)
        at_once = _images_at_once(next(self.parameters()).device)
        encoded: dict[int, EncodedScene] = {}
        for places in groups.values():
            for start in range(0, len(places), at_once):
                chunk = places[start : start + at_once]
                pyramid = self.trunk(self._pictures([(scenes[i], fitted[i]) for i in chunk]))
                for row, place in enumerate(chunk):
                    maps = {name: level[row] for name, level in zip(_LEVELS, pyramid, strict=True)}
                    encoded[place] = EncodedScene(fitted[place], maps)
        return [encoded[place] for place in range(len(scenes))]

    def compact(self, encoded: EncodedScene) -> EncodedScene:
        """``regions``, [N (N + 1) / 2, channels, 7, 7], in the order of ``pair_rows``.

        Of the objects (pairs of one with itself) and of all pairs; 50 kB a row in float32.
        """
        if _REGIONS in encoded.tensors:
            return encoded
        count = len(encoded.scene)
        batch = SceneBatch.from_scenes([encoded.scene], encoded.tensors[_LEVELS[0]].device)
        cut = self._regions(batch, [encoded])
        first, second = torch.triu_indices(count, count, device=batch.boxes.device)
        rows = pair_rows(first, second, count)
        table = batch.boxes.new_empty(
            (len(rows), self.trunk.channels, REGION_SIZE, REGION_SIZE), dtype=self.compact_dtype
        )
        for some in rows.split(_PAIRS_AT_ONCE):
            table[some] = cut(first[some], second[some]).to(self.compact_dtype)
        return EncodedScene(encoded.scene, {_REGIONS: table})

    def encoding_settings(self) -> dict[str, object]:
        """The size of the resized pictures, and the type of a cache's regions."""
        return {"sides": self.sides, "compact_dtype": str(self.compact_dtype)}

    def forward(self, batch: SceneBatch, encoded: Sequence[EncodedScene]) -> tuple[Tensor, Tensor]:
        """See ``FeatureSource``; ``batch.pairs`` may be any pairs inside the images."""
        regions = self._regions(batch, encoded)
        objects = torch.arange(len(batch.labels), device=batch.labels.device)
        features = self.bbox_roi_extractor(regions(objects, objects))
        unions = features.new_empty((len(batch.pairs), features.shape[1]))
        return features, self._fill_unions(unions, batch, regions)

    def _fill_unions(self, unions: Tensor, batch: SceneBatch, regions: Regions) -> Tensor:
        subject, target = batch.pairs.unbind(1)
        count = len(batch.labels)
        key = torch.minimum(subject, target) * count + torch.maximum(subject, target)
        order = key.argsort(stable=True)  # both directions of a pair side by side
        # Statistics of a batch normalisation are those of the whole batch.
        whole = self.training or torch.is_grad_enabled()
        for rows in order.split(max(len(order), 1) if whole else _PAIRS_AT_ONCE):
            once, place = key[rows].unique_consecutive(return_inverse=True)
            maps = box_maps(
                batch.boxes[subject[rows]],
                batch.boxes[target[rows]],
                batch.sizes[batch.image_of[subject[rows]]],
                openpsg_quirks=self.openpsg_quirks,
            )
            around = regions(once // count, once % count)[place]
            unions[rows] = self.relation_roi_extractor(around, maps)
        return unions

    def _regions(self, batch: SceneBatch, encoded: Sequence[EncodedScene]) -> Regions:
        if all(_REGIONS in view.tensors for view in encoded):
            return CachedRegions(batch, [view.tensors[_REGIONS] for view in encoded])
        pyramids = [[view.tensors[name] for name in _LEVELS] for view in encoded]
        return PyramidRegions(batch, pyramids, self.trunk.strides)

    def _pictures(self, scenes: Sequence[tuple[SceneInput, SceneInput]]) -> Tensor:
        device = next(self.parameters()).device
        pictures = []
        for scene, fitted in scenes:
            assert scene.image is not None  # see RelationNetwork.encode
            pictures.append(prepare_image(scene.image, fitted.height, fitted.width, device))
        return torch.stack(pictures)


def _images_at_once(device: torch.device) -> int:
    """A CPU is a tenth slower with several, and alone a picture's bits depend on no other."""
    return 1 if device.type == "cpu" else _IMAGES_AT_ONCE


class RegionEncoder(nn.Module):
    """Two linear layers with ReLU over a region.

    Args:
        channels: of the regions.
        roi_dim: width of a feature.
    """

    def __init__(self, channels: int, roi_dim: int) -> None:
        super().__init__()
        linears = nn.Linear(channels * REGION_SIZE**2, roi_dim), nn.Linear(roi_dim, roi_dim)
        for linear in linears:
            nn.init.kaiming_uniform_(linear.weight, a=1)
            nn.init.zeros_(linear.bias)
        self.visual_bbox_head = nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU())

    def forward(self, regions: Tensor) -> Tensor:
        """[K, channels, 7, 7] -> [K, roi_dim]."""
        features: Tensor = self.visual_bbox_head(regions.flatten(1))
        return features


class PairRegionEncoder(RegionEncoder):
    """The same over a pair's region, to which a map of its two boxes is added.

    Args:
        channels: of the regions; even.
        roi_dim: width of a feature.
    """

    def __init__(self, channels: int, roi_dim: int) -> None:
        super().__init__(channels, roi_dim)
        self.spatial_conv = nn.Sequential(
            _ConvNorm(2, channels // 2, 7, 2),
            nn.MaxPool2d(3, 2, 1),
            _ConvNorm(channels // 2, channels, 3, 1),
        )

    def forward(self, regions: Tensor, maps: Tensor) -> Tensor:  # type: ignore[override]
        """[K, channels, 7, 7] and ``box_maps`` [K, 2, 27, 27] -> [K, roi_dim]."""
        return super().forward(regions + self.spatial_conv(maps))


class _ConvNorm(nn.Module):
    """Convolution, ReLU, then batch normalisation, in this order."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, maps: Tensor) -> Tensor:
        normalised: Tensor = self.bn(self.conv(maps).relu_())
        return normalised


def box_maps(subjects: Tensor, targets: Tensor, sizes: Tensor, *, openpsg_quirks: bool) -> Tensor:
    """The two boxes of each pair as filled rectangles on a 27 x 27 grid over the image.

    Args:
        subjects: float [R, 4], x1, y1, x2, y2 in pixels.
        targets: float [R, 4], the same.
        sizes: float [R, 2], height and width of each pair's image.
        openpsg_quirks: draw the object's rectangle from the wrong coordinates (columns from x1 to
            y1, rows from x2 to y2), as OpenPSG did when its checkpoints were trained.

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
