"""Features that read no picture: class names, boxes and masks. They train on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.features.base import EncodedScene, FeatureSource
from haystack.models.relation.features.description import (
    OBJECT_WIDTH,
    PAIR_WIDTH,
    describe_scene,
)
from haystack.models.relation.features.word_vectors import name_vectors
from haystack.models.relation.inputs import SceneInput


class GeometryFeatures(FeatureSource):
    """Learned object and pair features from class names and mask geometry.

    Args:
        object_classes: C names; their word vectors are kept fixed.
        roi_dim: width of the features.
        dropout: in training.
    """

    reads_images: ClassVar[bool] = False
    fit_sample: ClassVar[int] = 500

    def __init__(self, object_classes: Sequence[str], roi_dim: int, dropout: float) -> None:
        super().__init__()
        self.vectors: Tensor
        self.register_buffer("vectors", torch.from_numpy(name_vectors(object_classes)))
        for name, width in (("object", OBJECT_WIDTH), ("pair", PAIR_WIDTH)):
            self.register_buffer(f"{name}_mean", torch.zeros(width))
            self.register_buffer(f"{name}_scale", torch.ones(width))
        width = self.vectors.shape[1]
        self.object_head = _two_layers(OBJECT_WIDTH + width, roi_dim, dropout)
        self.pair_head = _two_layers(PAIR_WIDTH + 2 * width, roi_dim, dropout)

    def encode(self, scenes: Sequence[SceneInput]) -> list[EncodedScene]:
        """``objects`` float [N, OBJECT_WIDTH] and ``pairs`` float [N (N - 1), PAIR_WIDTH]."""
        encoded = []
        for scene in scenes:
            with torch.no_grad():
                objects, pairs = describe_scene(scene, self.vectors.device)
            bare = replace(scene, id_map=None, image=None)
            encoded.append(EncodedScene(bare, {"objects": objects, "pairs": pairs}))
        return encoded

    def fit(self, encoded: Sequence[EncodedScene]) -> None:
        """Take the mean and the spread that standardise the descriptions from these scenes."""
        for name in ("object", "pair"):
            rows = torch.cat([view.tensors[f"{name}s"] for view in encoded])
            getattr(self, f"{name}_mean").copy_(rows.mean(0))
            getattr(self, f"{name}_scale").copy_(1 / rows.std(0).clamp(min=1e-3))

    def forward(self, batch: SceneBatch, encoded: Sequence[EncodedScene]) -> tuple[Tensor, Tensor]:
        """See ``FeatureSource``; ``batch.pairs`` are all ordered pairs."""
        objects, pairs = (
            self._standardise(name, torch.cat([view.tensors[f"{name}s"] for view in encoded]))
            for name in ("object", "pair")
        )
        vectors = batch.of_class(self.vectors)
        subject, target = batch.pairs.unbind(1)
        return (
            self.object_head(torch.cat([vectors, objects], dim=1)),
            self.pair_head(torch.cat([vectors[subject], vectors[target], pairs], dim=1)),
        )

    def _standardise(self, name: str, rows: Tensor) -> Tensor:
        mean, scale = getattr(self, f"{name}_mean"), getattr(self, f"{name}_scale")
        return ((rows - mean) * scale).clamp(-4, 4)


def _two_layers(inputs: int, outputs: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, outputs),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(outputs, outputs),
        nn.ReLU(),
    )
