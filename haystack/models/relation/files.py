"""A relation model as one safetensors file: tensors, configuration and vocabulary together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

import haystack
from haystack import files
from haystack.errors import InputError
from haystack.models.checkpoints.state_dicts import differences, shapes
from haystack.models.relation.config import RelationModelConfig
from haystack.models.relation.frequency import FrequencyModel
from haystack.models.relation.network import RelationNetwork
from haystack.models.relation.overlap import OVERLAPS, OverlapFilter
from haystack.vocabulary import Vocabulary

# One metadata entry, because safetensors does not promise an order among several, and equal
# models are equal files.
_KEY = "haystack_relation_model"

StoredModel = RelationNetwork | FrequencyModel
"""What a file holds; an ``OverlapFilter`` around it is stored with it."""


def save_relation_model(model: StoredModel | OverlapFilter, path: str | Path) -> None:
    """Write a model, atomically; equal models give equal bytes.

    Raises:
        InputError: the model inside a filter is one of the user's own.
    """
    header: dict[str, Any] = {"haystack_version": haystack.__version__}
    inner: object = model
    if isinstance(model, OverlapFilter):
        header["overlap"] = model.overlap
        inner = model.model
    if isinstance(inner, FrequencyModel):
        header |= {"kind": "frequency", "config": {"epsilon": inner.epsilon}}
        tensors = {"counts": torch.from_numpy(inner.counts)}
    elif isinstance(inner, RelationNetwork):
        header |= {"kind": "network", "config": asdict(inner.config)}
        tensors = _weights(inner)
    else:
        raise InputError(
            f"expected a model of Haystack's to save, got {type(inner).__name__}; a model of one's "
            "own is named by its class, see examples/own_relation_model.py"
        )
    header["vocabulary"] = inner.vocabulary.to_dict()
    files.write_bytes(path, save(tensors, {_KEY: files.canonical_json(header)}))


def load_relation_model(
    path: str | Path, device: str | torch.device = "cpu"
) -> StoredModel | OverlapFilter:
    """Read a model that ``save_relation_model`` wrote, ready for prediction.

    Raises:
        InputError: not such a file, or its tensors are not exactly the configuration's: the
            unexpected, missing or misshapen ones are named.
    """
    header, tensors = _read(path)
    try:
        vocabulary = Vocabulary.from_dict(header["vocabulary"])
        kind = header.get("kind", "network")
        if kind not in _LOADERS:
            raise InputError(f"unknown kind {kind!r}; a newer Haystack may know it")
        overlap = header.get("overlap")
        if overlap not in (None, *OVERLAPS):
            raise InputError(f"unknown overlap {overlap!r}")
        build = _LOADERS[kind](header["config"], vocabulary)
    except (KeyError, TypeError, ValueError) as error:
        message = error.message if isinstance(error, InputError) else repr(error)
        raise InputError(f"the model's metadata cannot be read: {message}", path=path) from error
    model = build(tensors, path, device)
    return model if overlap is None else OverlapFilter(model, overlap)


def load_relation_network(path: str | Path, device: str | torch.device = "cpu") -> RelationNetwork:
    """Read a model that can be trained further.

    Raises:
        InputError: see ``load_relation_model``, or it is the frequency baseline.
    """
    model = load_relation_model(path, device)
    inner = model.model if isinstance(model, OverlapFilter) else model
    if not isinstance(inner, RelationNetwork):
        raise InputError(
            "expected a trained network, got the frequency baseline; count again instead",
            path=path,
        )
    return inner


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Put the weights of a file of training into a model.

    Raises:
        InputError: no safetensors file, or of another architecture.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read the weights: {error}", path=path) from error
    check_tensors(model.state_dict(), tensors, path=path)
    model.load_state_dict(tensors)


def check_tensors(
    expected: Mapping[str, Tensor], came: Mapping[str, Tensor], *, path: str | Path | None = None
) -> None:
    """Compare names and shapes of two state dicts.

    Args:
        expected: of the architecture.
        came: of the file.
        path: of the file, for errors.

    Raises:
        InputError: they differ; names every tensor that is missing, unexpected or misshapen.
    """
    complaints = differences(shapes(expected), came)
    if complaints:
        raise InputError(
            f"the tensors are not those of the model's architecture: {'; '.join(complaints)}",
            path=path,
        )


def _weights(model: RelationNetwork) -> dict[str, Tensor]:
    tensors, stored = {}, set()
    for name, tensor in model.state_dict().items():
        content = tensor.detach().cpu().contiguous()
        # One tensor under two names, as in OpenPSG's tree decoder, is stored under both.
        tensors[name] = content.clone() if content.data_ptr() in stored else content
        stored.add(content.data_ptr())
    return tensors


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
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
    except ValueError as error:
        raise InputError(f"the model's metadata cannot be read: {error}", path=path) from error
    if not isinstance(header, dict):
        raise InputError("the model's metadata cannot be read: it is no object", path=path)
    return header, tensors


_Build = Callable[[dict[str, Tensor], str | Path, str | torch.device], StoredModel]


def _network(content: Mapping[str, Any], vocabulary: Vocabulary) -> _Build:
    known = {field.name for field in fields(RelationModelConfig)}
    unknown = sorted(set(content) - known)
    if unknown:
        raise InputError(f"unknown settings in the model's configuration: {', '.join(unknown)}")
    with torch.device("meta"):  # random weights would only be thrown away
        model = RelationNetwork(RelationModelConfig(**content), vocabulary)

    def build(
        tensors: dict[str, Tensor], path: str | Path, device: str | torch.device
    ) -> RelationNetwork:
        expected = model.state_dict()
        check_tensors(expected, tensors, path=path)
        model.load_state_dict(
            {name: tensor.to(expected[name].dtype) for name, tensor in tensors.items()},
            assign=True,
        )
        return model.to(device).eval()

    return build


def _frequency(content: Mapping[str, Any], vocabulary: Vocabulary) -> _Build:
    epsilon = float(content["epsilon"])
    size = vocabulary.num_objects
    expected = torch.empty((size, size, vocabulary.num_predicates + 1), device="meta")

    def build(
        tensors: dict[str, Tensor], path: str | Path, device: str | torch.device
    ) -> FrequencyModel:
        check_tensors({"counts": expected}, tensors, path=path)
        return FrequencyModel(
            tensors["counts"].numpy().astype(np.int32, copy=False), vocabulary, epsilon=epsilon
        )

    return build


_LOADERS: Mapping[str, Callable[[Mapping[str, Any], Vocabulary], _Build]] = {
    "network": _network,
    "frequency": _frequency,
}
