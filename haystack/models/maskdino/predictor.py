"""Panoptic segments of pictures of any size, in batches of those that are padded alike."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

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
    resize,
    to_batch,
)
from haystack.models.pictures import padded_size

logger = logging.getLogger(__name__)

_PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
        batch_size: pictures at a time, at most. Halved for good when the GPU's memory ends.
        compiled: use ``torch.compile``; every padded size is compiled anew, which takes minutes
            and pays where few sizes return often.
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
        batch_size: int = 1,
        compiled: bool = False,
        short_side: int = SHORT_SIDE,
        long_side: int = LONG_SIDE,
    ) -> None:
        if precision not in _PRECISIONS:
            raise InputError(
                f"precision expects one of {', '.join(_PRECISIONS)}, got {precision!r}"
            )
        for name, value in (
            ("batch_size", batch_size),
            ("short_side", short_side),
            ("long_side", long_side),
        ):
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        self.batch_size = batch_size
        self._device = torch.device(device)
        self._dtype = _PRECISIONS[precision]
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
        """Segments of each picture, in their order.

        Args:
            pictures: RGB, of any sizes.
            output_sizes: height and width of each map; by default those of the picture.

        Raises:
            InputError: a picture so thin that it has fewer tokens than the network has queries.
        """
        sizes = [fitted_size(one.height, one.width, *self._sides) for one in pictures]
        wanted = output_sizes or [(one.height, one.width) for one in pictures]
        buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
        for place, size in enumerate(sizes):
            buckets[padded_size(*size)].append(place)
        results: dict[int, PanopticResult] = {}
        for padded, places in buckets.items():
            while places:
                batch, rest = places[: self.batch_size], places[self.batch_size :]
                small = [resize(pictures[place], sizes[place]) for place in batch]
                output = self._found(small)
                if output is None:
                    continue  # again, with fewer
                for image, place in enumerate(batch):
                    results[place] = segment_picture(
                        output,
                        image,
                        padded=padded,
                        size=sizes[place],
                        output_size=wanted[place],
                        things=self._things,
                        settings=self._settings,
                    )
                places = rest
        return [results[place] for place in range(len(pictures))]

    def _found(self, pictures: Sequence[Tensor]) -> MaskDINOOutput | None:
        """The network's output, or None if it ran out of memory and the batch was halved."""
        try:
            with self._autocast():
                batch = to_batch(pictures, self._device)
                return self._network(batch.contiguous(memory_format=torch.channels_last))
        except torch.OutOfMemoryError:
            if len(pictures) == 1:
                raise
        self.batch_size = len(pictures) // 2
        # The failed attempt's tensors are gone now that its exception is.
        torch.cuda.empty_cache()
        logger.warning("out of GPU memory; going on with batches of %d", self.batch_size)
        return None

    def _autocast(self) -> AbstractContextManager[object]:
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)
