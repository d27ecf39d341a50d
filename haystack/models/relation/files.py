"""A relation model as one safetensors file: weights, configuration and vocabulary together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

import haystack
from haystack import files
from haystack.errors import InputError
from haystack.models.checkpoints.state_dicts import differences, shapes
from haystack.models.relation.config import RelationModelConfig
from haystack.models.relation.network import RelationNetwork
from haystack.vocabulary import Vocabulary

# One metadata entry, because safetensors does not promise an order among several, and equal
# models are equal files.
_KEY = "haystack_relation_model"


def save_relation_model(model: RelationNetwork, path: str | Path) -> None:
    """Write a model, atomically; equal models give equal bytes."""
    tensors, stored = {}, set()
    for name, tensor in model.state_dict().items():
        content = tensor.detach().cpu().contiguous()
        # One tensor under two names, as in OpenPSG's tree decoder, is stored under both.
        tensors[name] = content.clone() if content.data_ptr() in stored else content
        stored.add(content.data_ptr())
    header = {
        "config": asdict(model.config),
        "vocabulary": model.vocabulary.to_dict(),
        "haystack_version": haystack.__version__,
    }
    files.write_bytes(path, save(tensors, {_KEY: files.canonical_json(header)}))


def load_relation_model(path: str | Path, device: str | torch.device = "cpu") -> RelationNetwork:
    """Read a model that ``save_relation_model`` wrote, ready for prediction.

    Raises:
        InputError: not such a file, or its tensors are not exactly the configuration's: the
            unexpected, missing or misshapen ones are named.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as stored:
            metadata = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read the relation model: {error}", path=path) from error
    if _KEY not in metadata:
        raise InputError(
            "expected a relation model written by Haystack, got a safetensors file without its "
            f"metadata entry {_KEY!r}",
            path=path,
        )
    try:
        header = json.loads(metadata[_KEY])
        config = _config(header["config"])
        vocabulary = Vocabulary.from_dict(header["vocabulary"])
    except (KeyError, TypeError, ValueError) as error:
        message = error.message if isinstance(error, InputError) else repr(error)
        raise InputError(f"the model's metadata cannot be read: {message}", path=path) from error
    with torch.device("meta"):  # random weights would only be thrown away
        model = RelationNetwork(config, vocabulary)
    expected = model.state_dict()
    check_tensors(expected, tensors, path=path)
    model.load_state_dict(
        {name: tensor.to(expected[name].dtype) for name, tensor in tensors.items()}, assign=True
    )
    return model.to(device).eval()


def check_tensors(
    expected: Mapping[str, Tensor], came: Mapping[str, Tensor], *, path: str | Path | None = None
) -> None:
    """Compare names and shapes of two state dicts.

    Raises:
        InputError: they differ; names every tensor that is missing, unexpected or misshapen.
    """
    complaints = differences(shapes(expected), came)
    if complaints:
        raise InputError(
            f"the tensors are not those of the model's architecture: {'; '.join(complaints)}",
            path=path,
        )


def _config(content: Mapping[str, Any]) -> RelationModelConfig:
    known = {field.name for field in fields(RelationModelConfig)}
    unknown = sorted(set(content) - known)
    if unknown:
        raise InputError(f"unknown settings in the model's configuration: {', '.join(unknown)}")
    return RelationModelConfig(**content)
