"""A relation model of one's own in every part of Haystack, by a short class.

``NearIsRelated`` learns nothing: it says "beside" to objects whose boxes are near each other. It
shows all that Haystack asks of a model, PyTorch or not: two attributes and one method.

    python examples/own_relation_model.py          # predicts psg-mini's test images and grades it

The same class works wherever a model's file does, by its name:

    haystack predict psg-mini --model examples/own_relation_model.py:NearIsRelated --out graphs
    haystack score WORKSPACE score.model=examples/own_relation_model.py:NearIsRelated
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
