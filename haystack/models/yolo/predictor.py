"""Instances in pictures of any size, one map of them without overlaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.ops import batched_nms

from haystack.errors import InputError
from haystack.models.maskdino.panoptic import PanopticResult, PanopticSegment
from haystack.models.pictures import padded_size, resize
from haystack.models.precision import autocast, check_precision
from haystack.models.yolo.network import YOLO, YOLOOutput

LONG_SIDE = 640
_GREY = 114 / 255  # what these networks were trained to see around a picture
_INSIDE = 0.5
_MOST = 60  # instances a picture
_FEWEST = 64  # pixels that an instance must have


@dataclass(frozen=True)
class InstanceSettings:
    """When a candidate becomes a segment.

    Args:
        score_threshold: a candidate counts if its best class has a probability above this.
        overlap_threshold: an instance is dropped if no more than this share of its mask is left by
            surer ones, which take their pixels first.
        nms_threshold: of two boxes of a class that overlap by more (IoU), the surer one stays.
    """

    score_threshold: float = 0.35
    overlap_threshold: float = 0.5
    nms_threshold: float = 0.6


def input_size(picture: Image.Image) -> tuple[int, int]:
    """Height and width at which a picture is looked at: its longer side has 640 pixels."""
    scale = LONG_SIDE / max(picture.size)
    return max(round(picture.height * scale), 1), max(round(picture.width * scale), 1)


class YOLOPredictor:
    """A network with all that is around it: from pictures to maps of instances.

    Args:
        network: with its weights.
        settings: when a candidate becomes a segment.
        device: where to work; the network is moved there.
        precision: ``float32``, ``bfloat16`` or ``float16``.
        compiled: use ``torch.compile``; every size of a batch is compiled anew.

    Raises:
        InputError: an unknown precision.
    """

    def __init__(
        self,
        network: YOLO,
        *,
        settings: InstanceSettings | None = None,
        device: torch.device | str = "cpu",
        precision: str = "float32",
        compiled: bool = False,
    ) -> None:
        check_precision(precision)
        self._device, self._precision = torch.device(device), precision
        self._settings = settings or InstanceSettings()
        network = network.eval().to(self._device)
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._network: Callable[[Tensor], YOLOOutput] = (
            torch.compile(network, dynamic=False) if compiled else network
        )

    @torch.inference_mode()
    def predict(self, pictures: Sequence[Image.Image]) -> list[PanopticResult]:
        """Instances in each picture, in their order, from one batch; ids by falling score.

        Args:
            pictures: RGB, with one ``padded_size`` of their ``input_size``.

        Raises:
            InputError: pictures that are not padded alike.
        """
        sizes = [input_size(picture) for picture in pictures]
        padded = {padded_size(*size) for size in sizes}
        if not padded:
            return []
        if len(padded) > 1:
            raise InputError(f"expected pictures that are padded alike, got {sorted(padded)}")
        small = [resize(one, size) for one, size in zip(pictures, sizes, strict=True)]
        with autocast(self._device, self._precision):
            output = self._network(_batch(small, padded.pop(), self._device))
        return [
            _instances(
                YOLOOutput(*(part[place].float() for part in output)),
                size,
                picture.size,
                self._settings,
            )
            for place, (size, picture) in enumerate(zip(sizes, pictures, strict=True))
        ]


def _batch(pictures: Sequence[Tensor], padded: tuple[int, int], device: torch.device) -> Tensor:
    height, width = padded
    levels = [
        F.pad(
            picture.to(device).float() / 255,
            (0, width - picture.shape[2], 0, height - picture.shape[1]),
            value=_GREY,
        )
        for picture in pictures
    ]
    return torch.stack(levels).contiguous(memory_format=torch.channels_last)


def _instances(
    found: YOLOOutput, size: tuple[int, int], picture: tuple[int, int], settings: InstanceSettings
) -> PanopticResult:
    """Instances of one picture.

    Args:
        found: the output without its first dimension.
        size: height and width of the picture in the input.
        picture: width and height of the picture itself.
        settings: the thresholds.
    """
    width, height = picture
    scores, classes = found.scores.max(-1)
    sure = (scores > settings.score_threshold).nonzero()[:, 0]
    boxes, scores, classes = found.boxes[sure], scores[sure], classes[sure]
    best = batched_nms(boxes, scores, classes, settings.nms_threshold)[:_MOST]
    masks = (found.coefficients[sure[best]] @ found.prototypes.flatten(1)).sigmoid()
    masks = masks.view(-1, *found.prototypes.shape[1:])
    # Of the input with its padding, in pixels of the picture.
    extent = (4 * masks.shape[2] * width / size[1], 4 * masks.shape[1] * height / size[0])
    shares = boxes.new_tensor([width / size[1], height / size[0]] * 2)
    corners = (boxes[best] * shares).clamp(min=0)
    corners = torch.minimum(corners, corners.new_tensor([width, height] * 2))
    ids = torch.zeros((height, width), dtype=torch.int32, device=boxes.device)
    segments: list[PanopticSegment] = []
    for mask, corner, category, score in zip(
        masks, corners.tolist(), classes[best].tolist(), scores[best].tolist(), strict=True
    ):
        left, top, right, bottom = (round(value) for value in corner)
        if left >= right or top >= bottom:
            continue
        inside = _enlarged(mask, (left, top, right, bottom), extent) > _INSIDE
        region = ids[top:bottom, left:right]
        free = inside & (region == 0)
        whole, remaining = int(inside.sum()), int(free.sum())
        if remaining > _FEWEST and remaining > settings.overlap_threshold * whole:
            segments.append(PanopticSegment(len(segments) + 1, category, True, score))
            region[free] = len(segments)
    return PanopticResult(np.ascontiguousarray(ids.cpu().numpy()), tuple(segments))


def _enlarged(mask: Tensor, box: tuple[int, int, int, int], extent: tuple[float, float]) -> Tensor:
    """The part of a mask in a box, bilinear: a pixel of the picture each.

    Args:
        mask: float [h, w], of the padded input.
        box: x1, y1, x2, y2 in whole pixels of the picture.
        extent: width and height of the padded input, in pixels of the picture.
    """
    left, top, right, bottom = box
    columns = (torch.arange(left, right, device=mask.device) + 0.5) * (2 / extent[0]) - 1
    rows = (torch.arange(top, bottom, device=mask.device) + 0.5) * (2 / extent[1]) - 1
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)
    seen = F.grid_sample(mask[None, None], grid[None], padding_mode="border", align_corners=False)
    return seen[0, 0]
