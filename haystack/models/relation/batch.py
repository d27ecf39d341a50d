"""Several images as one set of tensors: objects and pairs concatenated, padded where needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from haystack.errors import InputError
from haystack.models.relation.inputs import SceneInput, all_pairs


@dataclass(frozen=True)
class SceneBatch:
    """The objects of B images, concatenated, and the pairs to score.

    Args:
        labels: int64 [N], object classes.
        boxes: float32 [N, 4], x1, y1, x2, y2 in pixels.
        sizes: float32 [B, 2], height and width in pixels.
        counts: objects of each image; each at least 1.
        pairs: int64 [R, 2], rows of the concatenated objects, image after image.
        pair_counts: pairs of each image.
        class_scores: float [N, C], the probability of each class where classes are only guessed
            (SGCls, SGDet): the head then classifies the objects itself, and ``labels`` are the
            likeliest guesses. None where ``labels`` are certain (PredCls).
    """

    labels: Tensor
    boxes: Tensor
    sizes: Tensor
    counts: tuple[int, ...]
    pairs: Tensor
    pair_counts: tuple[int, ...]
    class_scores: Tensor | None = None

    @classmethod
    def from_scenes(cls, scenes: Sequence[SceneInput], device: torch.device) -> SceneBatch:
        """All ordered pairs of every scene; a scene must have an object.

        Raises:
            InputError: classes of some scenes are certain, and of others guessed.
        """
        guesses = [scene.class_scores for scene in scenes]
        known = [scores for scores in guesses if scores is not None]
        if known and len(known) != len(guesses):
            raise InputError(
                "expected scenes whose classes are all certain or all guessed, got both in a batch",
                record=scenes[0].image_id,
            )
        pairs, offset = [], 0
        for scene in scenes:
            pairs.append(torch.from_numpy(all_pairs(len(scene)) + offset))
            offset += len(scene)
        return cls(
            labels=torch.cat([torch.from_numpy(scene.labels) for scene in scenes]).to(device),
            boxes=torch.cat([torch.from_numpy(scene.boxes) for scene in scenes]).to(device),
            sizes=torch.tensor(
                [(scene.height, scene.width) for scene in scenes], dtype=torch.float32
            ).to(device),
            counts=tuple(len(scene) for scene in scenes),
            pairs=torch.cat(pairs).to(device),
            pair_counts=tuple(len(rows) for rows in pairs),
            class_scores=torch.from_numpy(np.concatenate(known)).to(device) if known else None,
        )

    @cached_property
    def image_of(self) -> Tensor:
        """int64 [N], the image of each object."""
        counts = torch.tensor(self.counts, device=self.labels.device)
        images = torch.arange(len(self.counts), device=self.labels.device)
        return images.repeat_interleave(counts, output_size=sum(self.counts))

    @cached_property
    def slots(self) -> Tensor:
        """int64 [N], where each object lies in a flattened padded table [B * n]."""
        counts = torch.tensor(self.counts, device=self.labels.device)
        first = counts.cumsum(0) - counts
        position = torch.arange(len(self.labels), device=self.labels.device) - first[self.image_of]
        return self.image_of * max(self.counts) + position

    @cached_property
    def present(self) -> Tensor:
        """Which places of a padded table hold an object: bool [B, n]."""
        counts = torch.tensor(self.counts, device=self.labels.device)
        return torch.arange(max(self.counts), device=counts.device) < counts[:, None]

    def of_class(self, table: Tensor) -> Tensor:
        """Row of each object's class, the expected one where it is guessed: [C, D] -> [N, D]."""
        if self.class_scores is None:
            return F.embedding(self.labels, table)
        return self.class_scores.to(table.dtype) @ table

    def pad(self, values: Tensor) -> Tensor:
        """[N, ...] -> [B, n, ...] with zeros in empty places, n the largest count."""
        shape = (len(self.counts), max(self.counts), *values.shape[1:])
        table = values.new_zeros((shape[0] * shape[1], *shape[2:]))
        return table.index_copy(0, self.slots, values).view(shape)
