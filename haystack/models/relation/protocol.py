"""What a relation model must offer to take part in scoring, prediction and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from haystack.models.relation.inputs import RelationLogits, SceneInput


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
