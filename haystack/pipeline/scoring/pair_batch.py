"""The ordered pairs of several images as tensors, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class PairChunk:
    """R consecutive pairs of a batch.

    Args:
        start: the first one's number among the batch's pairs.
        subject, object: int64 [R], rows of the batch's objects.
    """

    start: int
    subject: Tensor
    object: Tensor

    def __len__(self) -> int:
        return len(self.subject)

    def of(self, pairs: Tensor) -> Tensor:
        """The rows of a tensor [pairs of the batch, ...] that are this chunk's, as a view."""
        return pairs[self.start : self.start + len(self)]


class PairBatch:
    """N objects of B images and their ordered pairs, in the order of ``all_pairs``, on a device.

    Args:
        labels: int64, object classes of each image.
        device: where to put them.

    Attributes:
        image: int64 [N], which image of the batch an object belongs to.
        position: int64 [N], its position in the image.
        label: int64 [N], its class.
    """

    def __init__(
        self, labels: Sequence[npt.NDArray[np.int64]], device: torch.device | str = "cpu"
    ) -> None:
        sizes = np.array([len(each) for each in labels], dtype=np.int64)
        image = np.repeat(np.arange(len(sizes)), sizes)
        first = (np.cumsum(sizes) - sizes)[image]
        # Pairs whose subject is object i have the numbers begin[i] to end[i].
        self._end = np.cumsum(sizes[image] - 1)
        self._begin = self._end - (sizes[image] - 1)
        position = np.arange(len(image)) - first
        columns = [image, position, np.concatenate(labels), first - self._begin]
        on_device = torch.from_numpy(np.stack(columns)).to(device)
        self.image, self.position, self.label, self._shift = on_device

    def __len__(self) -> int:
        return int(self._end[-1]) if len(self._end) else 0

    def chunks(self, size: int) -> Iterator[PairChunk]:
        """All pairs, at most ``size`` at a time."""
        device = self.image.device
        for start in range(0, len(self), size):
            end = min(start + size, len(self))
            low = np.searchsorted(self._end, start, side="right")
            high = np.searchsorted(self._begin, end, side="left")
            rows = slice(low, high)
            counts = np.minimum(self._end[rows], end) - np.maximum(self._begin[rows], start)
            owners = torch.from_numpy(np.stack([np.arange(low, high), counts])).to(device)
            subject = owners[0].repeat_interleave(owners[1], output_size=end - start)
            target = torch.arange(start, end, device=device).add_(self._shift[subject])
            target += target >= subject
            yield PairChunk(start, subject, target)
