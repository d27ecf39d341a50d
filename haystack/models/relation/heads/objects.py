"""What the heads share about single objects: their classes, given or guessed, and their places."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.errors import InputError
from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims
from haystack.models.relation.heads.encodings import encode_boxes

_Module = TypeVar("_Module", bound=nn.Module)


def class_table(dims: HeadDims) -> nn.Embedding:
    """Class embeddings [C + 1, embed_dim]; row 0 is the background."""
    return nn.Embedding(dims.num_objects + 1, dims.embed_dim)


def embed_classes(table: nn.Embedding, batch: SceneBatch) -> Tensor:
    """Class embedding of each object, float [N, embed_dim]; see ``SceneBatch.of_class``."""
    return batch.of_class(table.weight[1:])


def best_class(logits: Tensor) -> Tensor:
    """The most probable class, int64 [N]; column 0 of the logits, the background, is none."""
    return logits[:, 1:].argmax(1)


def position_encoder(dims: HeadDims) -> nn.Sequential:
    """From the nine numbers of a box to float [N, side_dim]."""
    return nn.Sequential(
        nn.Linear(9, 32),
        nn.BatchNorm1d(32, momentum=dims.norm_momentum),
        nn.Linear(32, dims.side_dim),
        nn.ReLU(),
    )


def box_codes(batch: SceneBatch) -> Tensor:
    """``encode_boxes`` of every object: float [N, 9]."""
    return encode_boxes(batch.boxes, batch.sizes[batch.image_of])


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]``, with a gradient that is deterministic on every device."""
    return F.embedding(index, table)


def sum_by(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Rows of equal index summed, float [size, D]; adds in the same order on every device.

    Args:
        index: int64 [R], below ``size``.
        values: float [R, D].
        size: rows of the answer.
    """
    if not len(index):
        return values.new_zeros((size, values.shape[1]))
    order = torch.argsort(index, stable=True)
    first = torch.searchsorted(index[order], torch.arange(size, device=index.device))
    return F.embedding_bag(order, values, first, mode="sum")


def required(classifier: _Module | None) -> _Module:
    """The part that classifies objects.

    Raises:
        InputError: the head was built without it.
    """
    if classifier is None:
        raise InputError(
            "this model cannot classify objects, and their classes are only guessed; "
            "give certain classes, or use a model with classifies_objects=true"
        )
    return classifier


def uniform_linear(*modules: nn.Module) -> None:
    """Start the linear layers in these modules uniformly by their input width, without bias."""
    for module in modules:
        for linear in module.modules():
            if isinstance(linear, nn.Linear):
                nn.init.kaiming_uniform_(linear.weight, a=1)
                nn.init.zeros_(linear.bias)
