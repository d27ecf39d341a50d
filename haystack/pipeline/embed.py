"""One feature vector an image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from haystack.errors import HaystackError, InputError
from haystack.io.images import Content
from haystack.pipeline.encoders.prefetch import prefetch
from haystack.pipeline.tables import Features


class ImageEncoder(Protocol):
    """What the stage asks of an encoder."""

    @property
    def dimension(self) -> int:
        """D, the length of a feature vector."""
        ...

    def read(self, image_key: str, content: bytes) -> Tensor:
        """Decode one image, in any thread: uint8, as ``encode`` wants it.

        Raises:
            InputError: the image is broken.
        """
        ...

    def encode(self, batch: Sequence[Tensor]) -> list[Tensor | InputError]:
        """Features of images that were read, float32 [D] on the CPU, or why there are none."""
        ...


def embed_images(
    images: Iterable[tuple[str, Content]],
    encoder: ImageEncoder,
    *,
    batch_size: int,
    dtype: str,
    set_aside: Callable[[str, str], None],
    threads: int = 0,
) -> Features:
    """Encode a shard's images, in their order.

    While a batch is encoded, threads decode the next one. Batches hold the same images whatever
    the threads do, so that features depend on no race.

    Args:
        images: image key and encoded bytes, or why there are none.
        encoder: bytes -> features.
        batch_size: images a forward pass.
        dtype: ``float32`` or ``float16``, how features are returned.
        set_aside: called with image key and reason for every image that cannot be decoded.
        threads: that decode; 0 = decode and encode in turn.

    Returns:
        The features of all images that could be decoded.

    Raises:
        HaystackError: the encoder gave a value that is not finite in ``dtype``.
    """

    def read(image: tuple[str, Content]) -> tuple[str, Tensor | InputError]:
        key, content = image
        if isinstance(content, InputError):
            return key, content
        try:
            return key, encoder.read(key, content)
        except InputError as error:
            return key, error

    keys: list[str] = []
    rows: list[Tensor] = []
    batch: list[tuple[str, Tensor]] = []

    def encode() -> None:
        for (key, _), row in zip(batch, encoder.encode([item for _, item in batch]), strict=True):
            if isinstance(row, InputError):
                set_aside(key, row.message)
            else:
                keys.append(key)
                rows.append(row)
        batch.clear()

    ahead = batch_size + threads  # the next batch, and what the threads are about
    for key, item in prefetch(read, images, threads=threads, ahead=ahead):
        if isinstance(item, InputError):
            set_aside(key, item.message)
            continue
        batch.append((key, item))
        if len(batch) == batch_size:
            encode()
    if batch:
        encode()
    return Features(tuple(keys), _stored(rows, encoder.dimension, dtype, keys))


def _stored(rows: list[Tensor], dimension: int, dtype: str, keys: list[str]) -> np.ndarray:
    stacked = torch.stack(rows).numpy() if rows else np.empty((0, dimension), dtype=np.float32)
    with np.errstate(over="ignore"):  # what overflows is reported below
        features = stacked.astype(dtype)
    broken = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(broken):
        raise HaystackError(
            f"the encoder gave features that are not finite in {dtype}, first for the image "
            f"{keys[broken[0]]}; check the weights, or use embed.dtype=float32 and "
            "embed.precision=float32"
        )
    return features
