"""The ordered pairs of several images as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class PairBatch:
    """N objects of B images and their R ordered pairs, in the order of ``all_pairs``, on a device.

    Args:
        pair_counts: pairs of each image.
        image: int64 [N], which image of the batch an object belongs to.
        position: int64 [N], its position in the image.
        label: int64 [N], its class.
        subject, object: int64 [R], rows of the objects.
    """

    pair_counts: tuple[int, ...]
    image: Tensor
    position: Tensor
    label: Tensor
    subject: Tensor
    object: Tensor

    @classmethod
    def of(
        cls, labels: Sequence[npt.NDArray[np.int64]], device: torch.device | str = "cpu"
    ) -> PairBatch:
        """All pairs of images with these object classes."""
        sizes = np.array([len(each) for each in labels], dtype=np.int64)
        image = np.repeat(np.arange(len(sizes)), sizes)
        first = (np.cumsum(sizes) - sizes)[image]
        others = sizes[image] - 1
        position = np.arange(len(image)) - first
        shift = first - (np.cumsum(others) - others)
        columns = [image, position, np.concatenate(labels), others, shift]
        on_device = torch.from_numpy(np.stack(columns)).to(device)
        total = int(others.sum())
        subject = torch.arange(len(image), device=device).repeat_interleave(
            on_device[3], output_size=total
        )
        target = torch.arange(total, device=device) + on_device[4][subject]
        target += target >= subject
        counts = tuple((sizes * (sizes - 1)).tolist())
        return cls(counts, on_device[0], on_device[1], on_device[2], subject, target)

    def __len__(self) -> int:
        return len(self.subject)
