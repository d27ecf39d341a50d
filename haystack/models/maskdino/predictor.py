"""Panoptic segments of pictures, in batches of those that are padded alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor

from haystack.errors import InputError
from haystack.models.maskdino.network import MaskDINO, MaskDINOOutput
from haystack.models.maskdino.panoptic import PanopticResult, PanopticSettings, segment_picture
from haystack.models.maskdino.preprocessing import (
    LONG_SIDE,
    SHORT_SIDE,
    fitted_size,
    padded_size_of,
    to_batch,
)
from haystack.models.pictures import resize
from haystack.models.precision import autocast, check_precision


class MaskDINOPredictor:
    """A MaskDINO with all that is around it: from pictures to maps of segments.

    Pictures go through the network together only if they are padded to the same size. Upstream
    pads a batch to its largest picture, and padding is seen by the network, so that there a
    picture's segments depend on its neighbours.

    Args:
        network: with its weights.
        things: classes below this are things; 80 for COCO.
        settings: when a query becomes a segment.
        device: where to work; the network is moved there.
        precision: of the backbone: ``float32``, ``bfloat16`` or ``float16``.
        compiled: use ``torch.compile``; every size of a batch is compiled anew, which takes
            minutes and pays where few sizes return often. PyTorch compiles eight of them
            (``torch._dynamo.config.recompile_limit``) and runs the others as they are.
        short_side: to which a picture's shorter side is scaled, in pixels.
        long_side: which its longer side does not exceed.

    Raises:
        InputError: an unknown precision, or a number below 1.
    """

    def __init__(
        self,
        network: MaskDINO,
        *,
        things: int = 80,
        settings: PanopticSettings | None = None,
        device: torch.device | str = "cpu",
        precision: str = "float32",
        compiled: bool = False,
        short_side: int = SHORT_SIDE,
        long_side: int = LONG_SIDE,
    ) -> None:
        check_precision(precision)
        for name, value in (("short_side", short_side), ("long_side", long_side)):
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        self._device = torch.device(device)
        self._precision = precision
        # Blocks of channels instead of planes: convolutions are faster, on the CPU as well.
        network = network.eval().to(self._device)
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._network: Callable[[Tensor], MaskDINOOutput] = (
            torch.compile(network, dynamic=False) if compiled else network
        )
        self._things = things
        self._settings = settings or PanopticSettings()
        self._sides = (short_side, long_side)

    @torch.inference_mode()
    def predict(
        self,
        pictures: Sequence[Image.Image],
        output_sizes: Sequence[tuple[int, int]] | None = None,
    ) -> list[PanopticResult]:
        """Segments of each picture, in their order, from one batch.

        Args:
            pictures: RGB, of any sizes with one ``padded_size_of``.
            output_sizes: height and width of each map; by default those of the picture.

        Raises:
            InputError: pictures that are not padded alike, or one so thin that it has fewer tokens
                than the network has queries.
        """
        alike = {padded_size_of(one, *self._sides) for one in pictures}
        if not alike:
            return []
        if len(alike) > 1:
            raise InputError(
                f"expected pictures that are padded alike, got {sorted(alike)}; the network sees "
                "the padding, and a picture's segments would depend on its neighbours"
            )
        sizes = [fitted_size(one.height, one.width, *self._sides) for one in pictures]
        small = [resize(one, size) for one, size in zip(pictures, sizes, strict=True)]
        with autocast(self._device, self._precision):
            batch = to_batch(small, self._device)
            output = self._network(batch.contiguous(memory_format=torch.channels_last))
        wanted = output_sizes or [(one.height, one.width) for one in pictures]
        return [
            segment_picture(
                output,
                image,
                padded=(batch.shape[2], batch.shape[3]),
                size=sizes[image],
                output_size=wanted[image],
                things=self._things,
                settings=self._settings,
            )
            for image in range(len(pictures))
        ]
