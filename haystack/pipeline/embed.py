"""One feature vector an image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from haystack.errors import HaystackError, InputError
from haystack.io.images import decode_image
from haystack.pipeline.tables import Features

if TYPE_CHECKING:
    from PIL.Image import Image


class ImageEncoder(Protocol):
    """What the stage asks of an encoder."""

    @property
    def dimension(self) -> int:
        """D, the length of a feature vector."""
        ...

    def encode(self, pictures: Sequence[Image]) -> Tensor:
        """Features of RGB pictures of any size: float32 [B, D], on the CPU."""
        ...


def embed_images(
    images: Iterable[tuple[str, bytes]],
    encoder: ImageEncoder,
    *,
    batch_size: int,
    dtype: str,
    set_aside: Callable[[str, str], None],
) -> Features:
    """Encode a shard's images, in their order.

    Args:
        images: image key and encoded bytes.
        encoder: pictures -> features.
        batch_size: images a forward pass.
        dtype: ``float32`` or ``float16``, how features are returned.
        set_aside: called with image key and reason for every image that cannot be decoded.

    Returns:
        The features of all images that could be decoded.

    Raises:
        HaystackError: the encoder gave a value that is not finite in ``dtype``.
    """
    keys: list[str] = []
    parts: list[Tensor] = []
    batch: list[Image] = []

    def encode() -> None:
        if batch:
            parts.append(encoder.encode(batch))
            batch.clear()

    for key, content in images:
        try:
            picture = decode_image(content, key)
        except InputError as error:
            set_aside(key, error.message)
            continue
        keys.append(key)
        batch.append(picture)
        if len(batch) == batch_size:
            encode()
    encode()
    stacked = torch.cat([torch.empty((0, encoder.dimension)), *parts]).numpy()
    with np.errstate(over="ignore"):  # what overflows is reported below
        features = stacked.astype(dtype)
    broken = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(broken):
        raise HaystackError(
            f"the encoder gave features that are not finite in {dtype}, first for the image "
            f"{keys[broken[0]]}; check the weights, or use embed.dtype=float32"
        )
    return Features(tuple(keys), features)
