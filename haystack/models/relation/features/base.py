"""What every source of features offers to the network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.inputs import SceneInput


@dataclass(frozen=True)
class EncodedScene:
    """A scene and what the frozen part of a feature source made of it.

    It does not depend on trained weights, so that it can be computed once and cached.

    Args:
        scene: the objects, without id map and picture; boxes and size in the frame that the
            network works in (that of the resized picture where there is one).
        tensors: by name; what they are is the feature source's business.
    """

    scene: SceneInput
    tensors: Mapping[str, Tensor]


class FeatureSource(nn.Module, ABC):
    """Object and pair features: a frozen description, then trained layers."""

    reads_images: ClassVar[bool]
    """Whether ``encode`` needs the picture, ``SceneInput.image``."""

    scenes_at_once: ClassVar[int] = 16
    """How many scenes prediction encodes and scores together; bounds its memory."""

    fit_sample: ClassVar[int] = 0
    """How many training images ``fit`` wants to see at most; with 0 it is not called."""

    @abstractmethod
    def encode(self, scenes: Sequence[SceneInput]) -> list[EncodedScene]:
        """Describe scenes, each with at least one object; no gradient flows into it.

        Raises:
            InputError: a scene lacks what the source reads.
        """

    def compact(self, encoded: EncodedScene) -> EncodedScene:
        """The form with which a cache is filled: all that ``forward`` needs, and no more."""
        return encoded

    def fit(self, encoded: Sequence[EncodedScene]) -> None:  # optional
        """Take from training images what the trained layers need to know of their inputs."""

    def encoding_settings(self) -> dict[str, object]:
        """Plain values besides weights on which ``encode`` and ``compact`` depend: sizes, types."""
        return {}

    def frozen_state(self) -> dict[str, Tensor]:
        """The tensors on which ``encode`` and ``compact`` depend; a cache on disk is keyed by them.

        By default those of the modules that have weights, but none that is trained.
        """
        frozen = {}
        for name, module in self.named_modules():
            trained = [parameter.requires_grad for parameter in module.parameters()]
            if trained and not any(trained):
                frozen.update(module.state_dict(prefix=f"{name}."))
        return frozen

    @abstractmethod
    def forward(self, batch: SceneBatch, encoded: Sequence[EncodedScene]) -> tuple[Tensor, Tensor]:
        """Features of objects, float [N, roi_dim], and of pairs, float [R, roi_dim].

        Args:
            batch: of the scenes in ``encoded``, in their order.
            encoded: as ``encode`` or ``compact`` gave them.
        """
