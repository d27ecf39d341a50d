"""Relation models of one's own in every part of Haystack, by a short class each.

``NearIsRelated`` learns nothing: it says "beside" to objects whose boxes are near each other. It
shows all that Haystack asks of a model, PyTorch or not: two attributes and one method.
``ClassPairs`` is a module that Haystack can also train: one method more, and ``forward``.

    python examples/own_relation_model.py    # predicts psg-mini's test images and grades the result

The classes work wherever a model's file does, by their names; after ``@`` stands the folder with
trained weights:

    haystack predict psg-mini --model examples/own_relation_model.py:NearIsRelated --out graphs
    haystack score WORKSPACE score.model=examples/own_relation_model.py:NearIsRelated
    haystack train train/vctree_psg_mini --model examples/own_relation_model.py:ClassPairs --out run
    haystack predict psg-mini --model examples/own_relation_model.py:ClassPairs@run --out graphs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.features.base import EncodedScene
from haystack.models.relation.heads.base import HeadOutput
from haystack.models.relation.inputs import RelationLogits, SceneInput, all_pairs
from haystack.vocabulary import Vocabulary


class NearIsRelated:
    """The nearer two objects are, the more likely one is beside the other."""

    reads_images = False
    """Whether ``scene.image`` is needed; decoding it is skipped otherwise."""
    version = 1
    """Optional: raise it when the answers change without this file, as with new weights."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.num_predicates = vocabulary.num_predicates
        self.beside = vocabulary.predicate_index("beside")

    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        """Logits of all ordered pairs of every scene."""
        return [self.answer(scene) for scene in scenes]

    def answer(self, scene: SceneInput) -> RelationLogits:
        """Logits of one scene's pairs: of each predicate, and of "no relation"."""
        pairs = all_pairs(len(scene))
        subject, target = scene.boxes[pairs].transpose(1, 0, 2)
        gap = np.maximum(subject[:, :2], target[:, :2]) - np.minimum(subject[:, 2:], target[:, 2:])
        distance = np.hypot(*gap.clip(0).T) / np.hypot(scene.height, scene.width)
        logits = np.full((len(pairs), self.num_predicates), -5, dtype=np.float32)
        logits[:, self.beside] = 2 - 20 * distance
        return RelationLogits(scene.image_id, pairs, logits, np.zeros(len(pairs), np.float32))


class ClassPairs(nn.Module):
    """Predicates from the classes of subject and object: one learned vector for each class."""

    reads_images = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.num_predicates = vocabulary.num_predicates
        self.subject = nn.Embedding(vocabulary.num_objects, self.num_predicates + 1)
        self.target = nn.Embedding(vocabulary.num_objects, self.num_predicates + 1)

    def encode(self, scenes: Sequence[SceneInput]) -> list[EncodedScene]:
        """The frozen part, which may be cached: here nothing but the scene without its masks."""
        return [EncodedScene(replace(scene, id_map=None), {}) for scene in scenes]

    def forward(self, encoded: Sequence[EncodedScene]) -> tuple[SceneBatch, HeadOutput]:
        """The trained part: logits of all pairs of all scenes, "no relation" in column 0."""
        device = self.subject.weight.device
        batch = SceneBatch.from_scenes([view.scene for view in encoded], device)
        subject, target = batch.labels[batch.pairs].unbind(1)
        return batch, HeadOutput(self.subject(subject) + self.target(target))

    @torch.inference_mode()
    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        """Logits of all ordered pairs of every scene."""
        answers = []
        for scene in scenes:
            rows = np.empty((0, self.num_predicates + 1), dtype=np.float32)
            if len(scene) > 1:
                rows = self(self.encode([scene]))[1].logits.float().cpu().numpy()
            pairs = all_pairs(len(scene))
            answers.append(RelationLogits(scene.image_id, pairs, rows[:, 1:], rows[:, 0]))
        return answers


def main() -> None:
    """Predict, then grade."""
    import haystack
    from haystack.io import read_psg
    from haystack.models.relation.predict import predict_dataset

    dataset = read_psg("psg-mini")
    model = NearIsRelated(dataset.vocabulary)
    report = haystack.evaluate(dataset, predict_dataset(model, dataset, "test"))
    print(f"P-AUC of 'beside': {report.to_dict()['per_predicate']['beside']['P-AUC']:.3f}")


if __name__ == "__main__":
    main()
