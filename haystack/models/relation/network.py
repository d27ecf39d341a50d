"""The relation network: a source of features and a head, put together by a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from haystack.errors import InputError
from haystack.io.panoptic_png import segment_positions
from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.config import RelationModelConfig
from haystack.models.relation.features.base import EncodedScene, FeatureSource
from haystack.models.relation.features.geometry import GeometryFeatures
from haystack.models.relation.features.word_vectors import WIDTH, name_vectors
from haystack.models.relation.heads import build_head
from haystack.models.relation.heads.base import HeadDims, HeadOutput, likeliest_classes
from haystack.models.relation.inputs import (
    PairLogits,
    RelationLogits,
    SceneInput,
    all_pairs,
)
from haystack.scene_graph import MaskRuns, PredictedObjects
from haystack.vocabulary import Vocabulary


class RelationNetwork(nn.Module):
    """A relation head on a source of features; a ``TrainableRelationModel``.

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
        self.features = _feature_source(config, vocabulary)
        self.head = build_head(
            config.head,
            HeadDims(
                num_objects=vocabulary.num_objects,
                num_predicates=vocabulary.num_predicates,
                roi_dim=config.roi_dim,
                embed_dim=config.embed_dim,
                hidden_dim=config.hidden_dim,
                pooling_dim=config.pooling_dim,
                side_dim=config.side_dim,
                dropout=config.dropout,
                norm_momentum=config.norm_momentum,
                classifies_objects=config.classifies_objects,
            ),
        )
        if config.embeddings == "word_vectors":
            _fix_embeddings(self.head.class_embeddings(), vocabulary.object_classes)

    @property
    def num_predicates(self) -> int:
        """P, the number of predicates."""
        return self.vocabulary.num_predicates

    @property
    def reads_images(self) -> bool:
        """Whether scenes must bring their picture."""
        return self.features.reads_images

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.parameters()).device

    def encode(self, scenes: Sequence[SceneInput]) -> list[EncodedScene]:
        """Describe scenes with at least one object each; see ``FeatureSource.encode``.

        Raises:
            InputError: an object class is not one of the vocabulary's, or a picture is missing.
        """
        for scene in scenes:
            if len(scene) and int(scene.labels.max()) >= self.vocabulary.num_objects:
                raise InputError(
                    f"expected object classes below {self.vocabulary.num_objects}, "
                    f"got {int(scene.labels.max())}",
                    record=scene.image_id,
                )
            scores = scene.class_scores
            if scores is not None and scores.shape[1] != self.vocabulary.num_objects:
                raise InputError(
                    f"expected class_scores of {self.vocabulary.num_objects} classes, "
                    f"got {scores.shape[1]}",
                    record=scene.image_id,
                )
            if self.reads_images and scene.image is None:
                raise InputError(
                    "this model reads the picture, and the scene came without one",
                    record=scene.image_id,
                )
        return self.features.encode(scenes)

    def compact(self, encoded: EncodedScene) -> EncodedScene:
        """See ``FeatureSource.compact``."""
        return self.features.compact(encoded)

    @property
    def fit_sample(self) -> int:
        """See ``FeatureSource.fit_sample``."""
        return self.features.fit_sample

    def fit(self, encoded: Sequence[EncodedScene]) -> None:
        """See ``FeatureSource.fit``."""
        self.features.fit(encoded)

    def encoding_settings(self) -> dict[str, object]:
        """See ``FeatureSource.encoding_settings``."""
        return self.features.encoding_settings()

    def frozen_state(self) -> dict[str, Tensor]:
        """See ``FeatureSource.frozen_state``."""
        return self.features.frozen_state()

    def forward(self, encoded: Sequence[EncodedScene]) -> tuple[SceneBatch, HeadOutput]:
        """Score all pairs of encoded scenes, each with at least one object."""
        batch = SceneBatch.from_scenes([view.scene for view in encoded], self.device)
        return batch, self.head(batch, *self.features(batch, encoded))

    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        """Logits for all ordered pairs of every scene; see ``RelationModel``.

        Where a scene's classes are only guessed, its objects are classified as well.

        Raises:
            InputError: see ``encode``, ``SceneBatch.from_scenes`` and ``RelationHead.forward``.
        """
        answers = [self._no_pairs(scene) for scene in scenes]
        places = [
            place
            for place, scene in enumerate(scenes)
            if len(scene) > (1 if scene.class_scores is None else 0)
        ]
        with self._inference():
            for chunk in self._chunks(places):
                asked = [scenes[place] for place in chunk]
                batch, output = self(self.encode(asked))
                rows = output.logits.float().cpu().numpy()
                split = np.split(rows, np.cumsum(batch.pair_counts)[:-1])
                objects = _classified(output, asked)
                for place, logits, found in zip(chunk, split, objects, strict=True):
                    answers[place] = RelationLogits(
                        image_id=scenes[place].image_id,
                        pairs=all_pairs(len(scenes[place])),
                        logits=np.ascontiguousarray(logits[:, 1:]),
                        no_relation=np.ascontiguousarray(logits[:, 0]),
                        objects=found,
                    )
        return answers

    def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
        """See ``DeviceRelationModel``.

        Raises:
            InputError: see ``predict``.
        """
        places = [place for place, scene in enumerate(scenes) if len(scene) > 1]
        rows = [torch.empty((0, self.num_predicates + 1), device=self.device)]
        with self._inference():
            for chunk in self._chunks(places):
                _, output = self(self.encode([scenes[place] for place in chunk]))
                rows.append(output.logits.float())
        logits = torch.cat(rows)
        return PairLogits(logits[:, 1:], logits[:, 0])

    def _chunks(self, places: Sequence[int]) -> Iterator[Sequence[int]]:
        size = self.features.scenes_at_once
        return (places[start : start + size] for start in range(0, len(places), size))

    @contextmanager
    def _inference(self) -> Iterator[None]:
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.train(was_training)

    def _no_pairs(self, scene: SceneInput) -> RelationLogits:
        logits = np.empty((0, self.num_predicates), dtype=np.float32)
        none = np.empty(0, dtype=np.float32)
        guessed = scene.class_scores is not None
        objects = None
        if guessed:
            objects = PredictedObjects(scene.labels[:0], none, scene.boxes[:0], _masks(scene))
        return RelationLogits(scene.image_id, all_pairs(0), logits, none, objects)


def _classified(output: HeadOutput, scenes: Sequence[SceneInput]) -> list[PredictedObjects | None]:
    """Likeliest class of each object and its probability, the background among the others."""
    if output.object_logits is None:
        return [None] * len(scenes)
    scores, labels = likeliest_classes(output.object_logits)
    ends = np.cumsum([len(scene) for scene in scenes])[:-1]
    rows = (np.split(column.cpu().numpy(), ends) for column in (labels, scores))
    return [
        PredictedObjects(found, sure, scene.boxes, _masks(scene))
        for found, sure, scene in zip(*rows, scenes, strict=True)
    ]


def _masks(scene: SceneInput) -> MaskRuns | None:
    if scene.id_map is None:
        return None
    return MaskRuns.from_id_map(segment_positions(scene.id_map, scene.segment_ids), len(scene))


def _feature_source(config: RelationModelConfig, vocabulary: Vocabulary) -> FeatureSource:
    if config.features == "geometry":
        return GeometryFeatures(vocabulary.object_classes, config.roi_dim, config.dropout)
    from haystack.models.relation.features.trunk import Trunk
    from haystack.models.relation.features.visual import VisualFeatures

    return VisualFeatures(
        Trunk(config.trunk),
        config.roi_dim,
        openpsg_quirks=config.openpsg_quirks,
        long_side=config.long_side,
        short_side=config.short_side,
    )


def _fix_embeddings(tables: Sequence[nn.Embedding], object_classes: Sequence[str]) -> None:
    vectors = torch.from_numpy(name_vectors(object_classes))
    for table in tables:
        if table.embedding_dim != WIDTH:
            raise InputError(
                f"expected embed_dim={WIDTH}, the width of the bundled word vectors, "
                f"got {table.embedding_dim}; or set embeddings=learned"
            )
        with torch.no_grad():
            table.weight[0] = 0
            table.weight[1:] = vectors
        table.weight.requires_grad_(False)
