"""What VCTree and MOTIFS share: two rounds of object context, and the classifier of pairs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims, HeadOutput, RelationHead
from haystack.models.relation.heads.decoders import ObjectDecoder, Structure
from haystack.models.relation.heads.objects import (
    box_codes,
    class_table,
    embed_classes,
    position_encoder,
    required,
    rows_of,
)

_PAIRS_AT_ONCE = 1024
"""Pairs represented at a time, pooling_dim numbers each: they stay in the processor's cache."""


@dataclass(frozen=True)
class ObjectContext:
    """Every object in the context of its image.

    Args:
        features: float [N, hidden_dim].
        tree_logits: see ``HeadOutput``.
        object_logits: see ``HeadOutput``.
    """

    features: Tensor
    tree_logits: Tensor | None
    object_logits: Tensor | None


class ContextLayer(nn.Module, ABC, Generic[Structure]):
    """Passes object features along a structure, classifies where needed, and passes them again.

    Args:
        dims: sizes.
    """

    decoder_rnn: ObjectDecoder[Structure] | None

    def __init__(self, dims: HeadDims) -> None:
        super().__init__()
        self.obj_embed1 = class_table(dims)
        self.obj_embed2 = class_table(dims)
        self.pos_embed = position_encoder(dims)

    @abstractmethod
    def arrange(
        self, batch: SceneBatch, objects: Tensor, embedded: Tensor, boxes: Tensor
    ) -> tuple[Structure, Tensor | None]:
        """The structure along which the objects hear each other, and its logits if it is learned.

        Args:
            batch: boxes and sizes of the images.
            objects: float [N, roi_dim].
            embedded: float [N, embed_dim], class embeddings.
            boxes: float [N, 9], see ``encode_boxes``.
        """

    @abstractmethod
    def object_context(self, inputs: Tensor, structure: Structure) -> Tensor:
        """First round: float [N, roi_dim + embed_dim + side_dim] -> [N, hidden_dim]."""

    @abstractmethod
    def edge_context(self, inputs: Tensor, structure: Structure) -> Tensor:
        """Second round: float [N, embed_dim + roi_dim + hidden_dim] -> [N, hidden_dim]."""

    def forward(self, batch: SceneBatch, objects: Tensor) -> ObjectContext:
        """Context of every object.

        Args:
            batch: labels or guesses of them, boxes and sizes of the images.
            objects: float [N, roi_dim].
        """
        embedded = embed_classes(self.obj_embed1, batch)
        boxes = box_codes(batch)
        structure, tree_logits = self.arrange(batch, objects, embedded, boxes)
        inputs = torch.cat([objects, embedded, self.pos_embed(boxes)], dim=1)
        context = self.object_context(inputs, structure)
        labels, object_logits = batch.labels, None
        if batch.class_scores is not None:
            known = torch.cat([inputs, context], dim=1)
            object_logits, labels = required(self.decoder_rnn)(known, structure, batch)
        inputs = torch.cat([self.obj_embed2(labels + 1), objects, context], dim=1)
        return ObjectContext(self.edge_context(inputs, structure), tree_logits, object_logits)


class ContextHead(RelationHead):
    """Predicate logits of object pairs, from object context and union features.

    Args:
        dims: sizes.
        context_layer: of the method.
    """

    rectifies: ClassVar[bool]
    """Whether negative parts of an object's two representations are cut off."""

    def __init__(self, dims: HeadDims, context_layer: ContextLayer[Structure]) -> None:
        super().__init__()
        hidden_dim, pooling_dim = dims.hidden_dim, dims.pooling_dim
        self.context_layer = context_layer
        self.post_emb = nn.Linear(hidden_dim, 2 * hidden_dim)
        self.post_cat = nn.Linear(2 * hidden_dim, pooling_dim)
        self.rel_compress = nn.Linear(pooling_dim, dims.num_predicates + 1)
        self.up_dim = nn.Linear(dims.roi_dim, pooling_dim)
        self.dropout = nn.Dropout(dims.dropout)
        nn.init.normal_(self.post_emb.weight, std=10.0 / math.sqrt(hidden_dim))
        for linear in (self.post_cat, self.rel_compress, self.up_dim):
            nn.init.xavier_normal_(linear.weight)
        for linear in (self.post_emb, self.post_cat, self.rel_compress, self.up_dim):
            nn.init.zeros_(linear.bias)

    def forward(self, batch: SceneBatch, objects: Tensor, unions: Tensor) -> HeadOutput:
        """See ``RelationHead``."""
        context = self.context_layer(batch, objects)
        both = self.post_emb(context.features)
        # First half: the object as a subject; second half: the same object as an object.
        as_subject, as_object = (both.relu() if self.rectifies else both).chunk(2, dim=1)
        # post_cat of two concatenated halves is a sum of two products, each of one object alone:
        # computed for N objects instead of R pairs.
        first, second = self.post_cat.weight.chunk(2, dim=1)
        as_subject = F.linear(as_subject, first, self.post_cat.bias)
        as_object = F.linear(as_object, second)
        # Into one table: small results kept between large passing ones would scatter the heap.
        logits = unions.new_empty((len(unions), self.rel_compress.out_features))
        for start in range(0, len(unions), _PAIRS_AT_ONCE):
            rows = slice(start, start + _PAIRS_AT_ONCE)
            logits[rows] = self._pair_logits(as_subject, as_object, batch.pairs[rows], unions[rows])
        return HeadOutput(logits, context.tree_logits, context.object_logits)

    def _pair_logits(
        self, as_subject: Tensor, as_object: Tensor, pairs: Tensor, unions: Tensor
    ) -> Tensor:
        subject, target = pairs.unbind(1)
        pair = rows_of(as_subject, subject) + rows_of(as_object, target)
        logits: Tensor = self.rel_compress(self.dropout(pair * self.up_dim(unions)))
        return logits

    def class_embeddings(self) -> Sequence[nn.Embedding]:
        """Of the first and of the second round of context."""
        return self.context_layer.obj_embed1, self.context_layer.obj_embed2
