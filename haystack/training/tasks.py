"""What a model is told of the objects in training: PredCls, SGCls or SGDet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from haystack.models.relation.features.base import EncodedScene
from haystack.models.relation.inputs import SceneInput, guessed_scene
from haystack.training.losses import RelationTargets


@dataclass(frozen=True)
class Task:
    """See ``TrainConfig.task``.

    Args:
        name: ``predcls``, ``sgcls`` or ``sgdet``.
        num_objects: C, the number of object classes.
    """

    name: str = "predcls"
    num_objects: int = 0

    def scene(self, scene: SceneInput) -> SceneInput:
        """The scene as the model may see it: with certain, with unknown or with detected classes.

        Args:
            scene: the annotated objects, in SGDet the detected ones.
        """
        if self.name == "predcls":
            return scene
        return guessed_scene(scene, self.num_objects, known=self.name == "sgdet")

    def taught(
        self, encoded: Sequence[EncodedScene], targets: Sequence[RelationTargets]
    ) -> list[EncodedScene]:
        """Encoded scenes for a training step; the annotated classes stand in ``labels``.

        MOTIFS' decoder reads them there, as OpenPSG's does: in training an object hears the true
        class of the one before. Nothing else reads them where classes are guesses.

        Args:
            encoded: of each image.
            targets: of each image.
        """
        if self.name == "predcls":
            return list(encoded)
        return [
            replace(view, scene=replace(view.scene, labels=target.labels.numpy()))
            for view, target in zip(encoded, targets, strict=True)
        ]


PREDCLS = Task()
"""Places and classes are given."""
