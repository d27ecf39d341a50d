"""Encoded images as the square of 8-bit pixels that an encoder looks at."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from haystack.errors import HaystackError, InputError
from haystack.io.images import decode_image
from haystack.pipeline.memory import is_out_of_memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preprocessing:
    """What becomes of a picture before a model sees it.

    Args:
        geometry: resizes and crops; takes and gives an RGB picture, or a uint8 tensor [3, H, W].
        edge: pixels of the shorter edge that ``geometry`` resizes to.
        mean, std: of the channels, float32 [3], in units of full white.
    """

    geometry: Callable[[Any], Any]
    edge: int
    mean: Tensor
    std: Tensor

    @classmethod
    def of_timm(cls, settings: dict[str, Any]) -> Preprocessing:
        """Preprocessing as timm defines it for evaluation, taken apart.

        Args:
            settings: ``input_size``, ``mean``, ``std``, ``crop_pct``, ``interpolation`` and what
                else timm resolves for a model.
        """
        from timm.data.transforms_factory import create_transform
        from torchvision.transforms import Compose

        steps = create_transform(**settings, is_training=False).transforms
        *geometry, _, normalise = steps  # resize, crop; to a tensor; mean and deviation
        size = geometry[0].size
        edge = size if isinstance(size, int) else max(size)
        return cls(Compose(geometry), edge, normalise.mean, normalise.std)

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 [B, 3, S, S] -> float32, on the device of ``pixels``."""
        mean, std = (x.to(pixels.device).view(3, 1, 1) for x in (self.mean, self.std))
        return pixels.float().div_(255).sub_(mean).div_(std)


class Decoder(Protocol):
    """Decodes in two steps: what a thread can do for one image, and what is done for a batch."""

    def read(self, image_key: str, content: bytes) -> Tensor:
        """The first step; uint8.

        Raises:
            InputError: the image is broken.
        """
        ...

    def finish(self, batch: Sequence[Tensor]) -> list[Tensor | InputError]:
        """The second step: uint8 [3, S, S] each, on any one device, or why there is none."""
        ...


@dataclass(frozen=True)
class PillowDecoder:
    """Decodes on the CPU, all of it in the first step.

    Args:
        preprocessing: of the model.
        draft: let JPEGs be decoded at a half, a quarter or an eighth of their size where that is
            still no smaller than what they are resized to.
    """

    preprocessing: Preprocessing
    draft: bool = False

    def read(self, image_key: str, content: bytes) -> Tensor:
        """uint8 [3, S, S]."""
        edge = self.preprocessing.edge if self.draft else None
        picture = self.preprocessing.geometry(decode_image(content, image_key, draft_edge=edge))
        return torch.from_numpy(np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1)))

    def finish(self, batch: Sequence[Tensor]) -> list[Tensor | InputError]:
        """Nothing is left to do."""
        return list(batch)


class NvjpegDecoder:
    """Decodes JPEGs on a CUDA device, and on the CPU what the device does not take.

    That is every image that is no plain grey or YCbCr JPEG, that breaks off (of which nvJPEG would
    make a picture without a word), or that nvJPEG refuses.

    Args:
        preprocessing: of the model.
        device: where to decode.

    Raises:
        HaystackError: this torchvision cannot decode on this device.
    """

    def __init__(self, preprocessing: Preprocessing, device: torch.device) -> None:
        self._pillow = PillowDecoder(preprocessing)
        self._preprocessing = preprocessing
        self._device = device
        self._said: set[str] = set()
        stream = io.BytesIO()
        Image.new("RGB", (16, 16)).save(stream, format="JPEG")
        try:
            self._decode([_as_tensor(stream.getvalue())])
        except (RuntimeError, ImportError) as error:
            raise HaystackError(
                f"torchvision cannot decode JPEGs on '{device}' ({str(error).splitlines()[0]}); "
                "use embed.decode=pillow, or a torchvision with CUDA"
            ) from error

    def read(self, image_key: str, content: bytes) -> Tensor:
        """The encoded bytes, uint8 [n]; decoded pixels where the device does not take them."""
        reason = _unfit_for_nvjpeg(content)
        if not reason:
            return _as_tensor(content)
        self._say_once(image_key, reason)
        return self._pillow.read(image_key, content)

    def finish(self, batch: Sequence[Tensor]) -> list[Tensor | InputError]:
        """All JPEGs of the batch at once; one by one where that fails."""
        encoded = [item for item in batch if item.ndim == 1]
        decoded = iter(self._decode_each(encoded) if encoded else ())
        return [next(decoded) if item.ndim == 1 else item.to(self._device) for item in batch]

    def _decode_each(self, encoded: list[Tensor]) -> list[Tensor | InputError]:
        try:
            return [self._preprocessing.geometry(pixels) for pixels in self._decode(encoded)]
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            if len(encoded) > 1:
                return [result for one in encoded for result in self._decode_each([one])]
            self._say_once("an image", f"nvJPEG refuses it ({str(error).splitlines()[0]})")
            try:
                pixels = self._pillow.read("image", encoded[0].numpy().tobytes())
            except InputError as broken:
                return [broken]
            return [pixels.to(self._device)]

    def _decode(self, encoded: list[Tensor]) -> list[Tensor]:
        from torchvision.io import ImageReadMode, decode_jpeg

        return decode_jpeg(encoded, mode=ImageReadMode.RGB, device=self._device)

    def _say_once(self, image_key: str, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            logger.info(
                "%s is decoded on the CPU, as is every image like it: %s", image_key, reason
            )


def _unfit_for_nvjpeg(content: bytes) -> str:
    """Why the device should not decode it, or ""."""
    try:
        with Image.open(io.BytesIO(content)) as picture:
            if picture.format != "JPEG":
                return f"it is {picture.format}, no JPEG"
            if picture.mode not in ("RGB", "L"):
                return f"its colours are {picture.mode}"
    except Exception:  # Pillow raises many kinds; it says which when it decodes
        return "its header is broken"
    if not content.rstrip(b"\0").endswith(b"\xff\xd9"):
        return "its end mark is missing, or something follows it"
    return ""


def _as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
