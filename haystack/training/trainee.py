"""A relation model as training handles it: its optional members resolved, its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import Tensor, nn

from haystack import files
from haystack.errors import InputError
from haystack.models.relation.answers import failures_named, model_name
from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.features.base import EncodedScene
from haystack.models.relation.files import save_relation_model
from haystack.models.relation.heads.base import HeadOutput
from haystack.models.relation.inputs import SceneInput
from haystack.models.relation.network import RelationNetwork
from haystack.models.relation.protocol import TrainableRelationModel


class Trainee:
    """The model in training.

    Args:
        model: what is trained.

    Raises:
        InputError: it lacks a member of ``TrainableRelationModel``, or is no PyTorch module.
    """

    def __init__(self, model: TrainableRelationModel) -> None:
        if not isinstance(model, nn.Module) or not isinstance(model, TrainableRelationModel):
            lacking = [
                name
                for name in ("reads_images", "num_predicates", "predict", "encode")
                if not hasattr(model, name)
            ]
            raise InputError(
                "expected a torch.nn.Module with the members of TrainableRelationModel to train, "
                f"got {type(model).__name__}" + (f" without {', '.join(lacking)}" * bool(lacking))
            )
        self.model = model
        self.module = cast(nn.Module, model)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.module.parameters()).device

    @property
    def fit_sample(self) -> int:
        """How many images ``fit`` wants to see; 0 = none."""
        return int(getattr(self.model, "fit_sample", 0))

    def fit(self, encoded: Sequence[EncodedScene]) -> None:
        """Let the model take statistics of its inputs."""
        cast(Any, self.model).fit(encoded)

    def encode(self, scenes: Sequence[SceneInput]) -> list[EncodedScene]:
        """What the frozen part makes of the scenes; always in full precision."""
        with torch.no_grad(), failures_named(self.model, "encode"):
            return self.model.encode(scenes)

    def compact(self, encoded: EncodedScene) -> EncodedScene:
        """The form in which a cache keeps a scene.

        Raises:
            InputError: it still holds the picture or the id map, because the model has no
                ``compact`` of its own: then there is nothing to cache.
        """
        if hasattr(self.model, "compact"):
            with torch.no_grad():
                encoded = cast(Any, self.model).compact(encoded)
        if encoded.scene.image is not None or encoded.scene.id_map is not None:
            raise InputError(
                f"{type(self.model).__name__} keeps pictures or masks in what it encodes; "
                "give it a compact() that leaves them out, or set cache=none"
            )
        return encoded

    def encoding_settings(self) -> Mapping[str, object]:
        """The plain values on which ``encode`` depends."""
        model: Any = self.model
        return model.encoding_settings() if hasattr(model, "encoding_settings") else {}

    def frozen_state(self) -> Mapping[str, Tensor]:
        """The weights on which ``encode`` depends."""
        model: Any = self.model
        return model.frozen_state() if hasattr(model, "frozen_state") else {}

    def forward(self, encoded: Sequence[EncodedScene]) -> tuple[SceneBatch, HeadOutput]:
        """Logits of all pairs.

        Raises:
            InputError: the model fails, or gives something else.
        """
        moved = [
            replace(view, tensors={name: t.to(self.device) for name, t in view.tensors.items()})
            for view in encoded
        ]
        with failures_named(self.model, "forward"):
            batch, output = self.model(moved)
            found = tuple(output.logits.shape)
        wanted = (len(batch.pairs), self.model.num_predicates + 1)
        if found != wanted:
            raise InputError(
                f"forward() must give logits of shape {list(wanted)}, a row a pair, 'no relation' "
                f"in column 0 and the predicates after it; it gave {list(found)}",
                path=model_name(self.model),
            )
        return batch, output


def save_model(model: object, path: Path) -> None:
    """Write a model's weights: with configuration and vocabulary where it is one of Haystack's."""
    if isinstance(model, RelationNetwork):
        save_relation_model(model, path)
        return
    files.write_bytes(path, save(plain_tensors(cast(nn.Module, model).state_dict())))


def plain_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU that share no memory, as safetensors wants them."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
