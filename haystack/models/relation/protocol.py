"""What a relation model must offer to be scored with, graded, and trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from haystack.models.relation.inputs import PairLogits, RelationLogits, SceneInput

if TYPE_CHECKING:
    from haystack.models.relation.batch import SceneBatch
    from haystack.models.relation.features.base import EncodedScene
    from haystack.models.relation.heads.base import HeadOutput


@runtime_checkable
class RelationModel(Protocol):
    """Anything that scores the predicates of an image's ordered pairs.

    A model of one's own needs these three members and nothing else; it need not be a PyTorch
    module.
    """

    @property
    def reads_images(self) -> bool:
        """Whether scenes must bring their picture; decoding it is skipped otherwise."""
        ...

    @property
    def num_predicates(self) -> int:
        """P, the number of predicates; "no relation" is not one."""
        ...

    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        """Logits for all ordered pairs of every scene, in the order of ``scenes``.

        A scene with fewer than two objects has no pairs, and gets an answer with no rows.
        """
        ...


@runtime_checkable
class DeviceRelationModel(RelationModel, Protocol):
    """A ``RelationModel`` whose logits can stay on the device; used where it is one."""

    def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
        """As ``predict``, without a copy to the host, for scenes whose classes are certain."""
        ...


@runtime_checkable
class TrainableRelationModel(RelationModel, Protocol):
    """A ``RelationModel`` that Haystack can train: also a ``torch.nn.Module``, in two parts.

    ``encode`` is the part that training leaves alone, so that its results can be cached; calling
    the model is the rest. Where everything is trained, ``encode`` only wraps the scenes.

    More members are used where a model has them; ``FeatureSource`` documents them:

    - ``compact(encoded) -> EncodedScene``, the form in which a cache keeps a scene;
    - ``fit_sample`` and ``fit(encoded)``, statistics that are taken before the first step;
    - ``frozen_state()`` and ``encoding_settings()``, the weights and plain values on which
      ``encode`` depends; a cache on disk is keyed by them.
    """

    def encode(self, scenes: Sequence[SceneInput]) -> list[EncodedScene]:
        """What does not depend on trained weights; scenes have at least two objects each."""
        ...

    def __call__(self, encoded: Sequence[EncodedScene]) -> tuple[SceneBatch, HeadOutput]:
        """Logits of all ordered pairs of the scenes, concatenated: ``nn.Module.forward``."""
        ...
