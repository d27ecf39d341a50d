"""VCTree over mask geometry: a relation model that trains on a CPU and reads no picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from haystack.errors import InputError
from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.geometry import OBJECT_WIDTH, PAIR_WIDTH, describe_scene
from haystack.models.relation.inputs import RelationLogits, SceneInput, all_pairs
from haystack.models.relation.vctree import HeadOutput, VCTreeHead
from haystack.models.relation.word_vectors import WIDTH, name_vectors
from haystack.vocabulary import Vocabulary

_PREDICT_BATCH = 16


@dataclass
class RelationModelConfig:
    """Architecture of a relation model; stored with its weights.

    Args:
        head: relation head; ``vctree``.
        features: where object and pair features come from; ``geometry`` = class names, boxes and
            masks, no picture.
        roi_dim: width of object and pair features.
        hidden_dim: width of the tree context; even.
        pooling_dim: width of a pair's representation.
        side_dim: width of the tree score's four inputs.
        dropout: on features and on a pair's representation, in training.
        norm_momentum: of the batch normalisations.
    """

    head: str = "vctree"
    features: str = "geometry"
    roi_dim: int = 64
    hidden_dim: int = 64
    pooling_dim: int = 128
    side_dim: int = 32
    dropout: float = 0.3
    norm_momentum: float = 0.05

    def __post_init__(self) -> None:
        for name, known in (("head", "vctree"), ("features", "geometry")):
            if getattr(self, name) != known:
                raise InputError(f"expected {name}={known!r}, got {getattr(self, name)!r}")
        for name in ("roi_dim", "hidden_dim", "pooling_dim", "side_dim"):
            if getattr(self, name) < 1:
                raise InputError(f"expected a positive {name}, got {getattr(self, name)}")
        if self.hidden_dim % 2:
            raise InputError(f"expected an even hidden_dim, got {self.hidden_dim}")


@dataclass(frozen=True)
class EncodedScene:
    """A scene with its descriptions; independent of the weights, so that they can be cached.

    Args:
        scene: the objects, without the id map.
        objects: float [N, OBJECT_WIDTH].
        pairs: float [N (N - 1), PAIR_WIDTH].
    """

    scene: SceneInput
    objects: Tensor
    pairs: Tensor


class GeometryFeatures(nn.Module):
    """Learned object and pair features from class names and mask geometry.

    Args:
        vectors: float [C, WIDTH], word vectors of the object classes; kept fixed.
        roi_dim: width of the features.
        dropout: in training.
    """

    def __init__(self, vectors: Tensor, roi_dim: int, dropout: float) -> None:
        super().__init__()
        self.vectors: Tensor
        self.register_buffer("vectors", vectors)
        for name, width in (("object", OBJECT_WIDTH), ("pair", PAIR_WIDTH)):
            self.register_buffer(f"{name}_mean", torch.zeros(width))
            self.register_buffer(f"{name}_scale", torch.ones(width))
        width = vectors.shape[1]
        self.object_head = _two_layers(OBJECT_WIDTH + width, roi_dim, dropout)
        self.pair_head = _two_layers(PAIR_WIDTH + 2 * width, roi_dim, dropout)

    def fit(self, objects: Tensor, pairs: Tensor) -> None:
        """Take the mean and the spread that standardise the descriptions from these rows."""
        for name, rows in (("object", objects), ("pair", pairs)):
            getattr(self, f"{name}_mean").copy_(rows.mean(0))
            getattr(self, f"{name}_scale").copy_(1 / rows.std(0).clamp(min=1e-3))

    def forward(self, batch: SceneBatch, objects: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Features of objects, float [N, roi_dim], and of pairs, float [R, roi_dim]."""
        vectors = self.vectors[batch.labels]
        objects = self._standardise("object", objects)
        pairs = self._standardise("pair", pairs)
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


class VCTreeModel(nn.Module):
    """VCTree's head on geometry features; a ``RelationModel``.

    Args:
        config: architecture.
        vocabulary: object classes and predicates.

    Raises:
        InputError: the configuration is not a known one.
    """

    def __init__(self, config: RelationModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        vectors = torch.from_numpy(name_vectors(vocabulary.object_classes))
        self.features = GeometryFeatures(vectors, config.roi_dim, config.dropout)
        self.head = VCTreeHead(
            num_objects=vocabulary.num_objects,
            num_predicates=vocabulary.num_predicates,
            roi_dim=config.roi_dim,
            embed_dim=WIDTH,
            hidden_dim=config.hidden_dim,
            pooling_dim=config.pooling_dim,
            side_dim=config.side_dim,
            dropout=config.dropout,
            norm_momentum=config.norm_momentum,
        )
        for embedding in (self.head.context_layer.obj_embed1, self.head.context_layer.obj_embed2):
            with torch.no_grad():
                embedding.weight[0] = 0
                embedding.weight[1:] = vectors
            embedding.weight.requires_grad_(False)

    @property
    def num_predicates(self) -> int:
        """P, the number of predicates."""
        return self.vocabulary.num_predicates

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.features.vectors.device

    def encode(self, scene: SceneInput) -> EncodedScene:
        """Describe a scene with at least one object; the id map is not kept."""
        if len(scene) and int(scene.labels.max()) >= self.vocabulary.num_objects:
            raise InputError(
                f"expected object classes below {self.vocabulary.num_objects}, "
                f"got {int(scene.labels.max())}",
                record=scene.image_id,
            )
        with torch.no_grad():
            objects, pairs = describe_scene(scene, self.device)
        return EncodedScene(replace(scene, id_map=None), objects, pairs)

    def forward(self, scenes: Sequence[EncodedScene]) -> tuple[SceneBatch, HeadOutput]:
        """Score all pairs of encoded scenes, each with at least one object."""
        batch = SceneBatch.from_scenes([encoded.scene for encoded in scenes], self.device)
        objects = torch.cat([encoded.objects for encoded in scenes])
        pairs = torch.cat([encoded.pairs for encoded in scenes])
        return batch, self.head(batch, *self.features(batch, objects, pairs))

    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        """Logits for all ordered pairs of every scene; see ``RelationModel``."""
        answers = [self._no_pairs(scene) for scene in scenes]
        places = [place for place, scene in enumerate(scenes) if len(scene) > 1]
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                for start in range(0, len(places), _PREDICT_BATCH):
                    chunk = places[start : start + _PREDICT_BATCH]
                    batch, output = self([self.encode(scenes[place]) for place in chunk])
                    rows = output.logits.cpu().numpy()
                    ends = np.cumsum(batch.pair_counts)[:-1]
                    for place, logits in zip(chunk, np.split(rows, ends), strict=True):
                        answers[place] = RelationLogits(
                            image_id=scenes[place].image_id,
                            pairs=all_pairs(len(scenes[place])),
                            logits=np.ascontiguousarray(logits[:, 1:]),
                            no_relation=np.ascontiguousarray(logits[:, 0]),
                        )
        finally:
            self.train(was_training)
        return answers

    def _no_pairs(self, scene: SceneInput) -> RelationLogits:
        logits = np.empty((0, self.num_predicates), dtype=np.float32)
        return RelationLogits(scene.image_id, all_pairs(0), logits, np.empty(0, dtype=np.float32))
