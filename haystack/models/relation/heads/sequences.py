"""The objects of each image of a batch as sequences, all advanced together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from haystack.models.relation.batch import SceneBatch


@dataclass(frozen=True)
class Sequences:
    """Sequences of several lengths, step by step, the longest first in every step.

    Args:
        order: int64 [N], the objects: the first of every sequence, then the second of every one
            that has a second, and so on.
        step_sizes: int64 [steps], on the CPU: sequences that have such a step.
    """

    order: Tensor
    step_sizes: Tensor

    def pack(self, values: Tensor) -> PackedSequence:
        """[N, D] in the order of the objects, as the recurrent layers of PyTorch take it."""
        return PackedSequence(values[self.order], self.step_sizes)

    def restore(self, values: Tensor) -> Tensor:
        """[N, D] step by step, back in the order of the objects."""
        return values[torch.argsort(self.order)]


def from_right_to_left(batch: SceneBatch) -> Sequences:
    """Each image's objects by the x of their box's centre, descending; ties stay in order."""
    device = batch.boxes.device
    centre = batch.boxes[:, 0] + batch.boxes[:, 2]
    by_centre = torch.argsort(centre, descending=True, stable=True)
    by_image = by_centre[torch.argsort(batch.image_of[by_centre], stable=True)]

    images = sorted(range(len(batch.counts)), key=lambda image: -batch.counts[image])
    place = torch.tensor(images).argsort().to(device)
    # Object k of the image that is the p-th longest stands at p in step k.
    step = batch.slots % max(batch.counts)
    key = step * len(images) + place[batch.image_of]
    lengths = torch.tensor(batch.counts)
    step_sizes = (lengths[:, None] > torch.arange(max(batch.counts))).sum(0)
    return Sequences(by_image[torch.argsort(key)], step_sizes)
