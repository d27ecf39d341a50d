"""VCTree's relation head as OpenPSG trains it (Tang et al., 2019; Yang et al., 2022).

Parameter names and shapes are those of an OpenPSG checkpoint under ``relation_head.``, without
``context_layer.decoder_rnn.*``: that part re-classifies objects, and does not take part where
their classes are given (PredCls).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims, HeadOutput, RelationHead
from haystack.models.relation.heads.encodings import encode_boxes, encode_overlaps
from haystack.models.relation.heads.tree_lstm import BidirectionalTreeLSTM
from haystack.models.relation.heads.trees import build_trees


class VCTreeContext(nn.Module):
    """Object features in the context of their image, passed along a learned tree."""

    def __init__(self, dims: HeadDims) -> None:
        super().__init__()
        roi_dim, embed_dim, hidden_dim = dims.roi_dim, dims.embed_dim, dims.hidden_dim
        num_objects, side_dim, norm_momentum = dims.num_objects, dims.side_dim, dims.norm_momentum
        self.obj_embed1 = nn.Embedding(num_objects + 1, embed_dim)
        self.obj_embed2 = nn.Embedding(num_objects + 1, embed_dim)
        self.pos_embed = nn.Sequential(
            nn.Linear(9, 32), nn.BatchNorm1d(32, momentum=norm_momentum), nn.Linear(32, side_dim)
        )
        self.overlap_embed = nn.Sequential(
            nn.Linear(6, side_dim), nn.BatchNorm1d(side_dim, momentum=norm_momentum)
        )
        self.box_embed = nn.Sequential(
            nn.Linear(9, side_dim), nn.BatchNorm1d(side_dim, momentum=norm_momentum)
        )
        self.obj_reduce = nn.Linear(roi_dim, side_dim)
        self.emb_reduce = nn.Linear(embed_dim, side_dim)
        self.score_pre = nn.Linear(4 * side_dim, hidden_dim)
        self.score_sub = nn.Linear(hidden_dim, hidden_dim)
        self.score_obj = nn.Linear(hidden_dim, hidden_dim)
        self.vision_prior = nn.Linear(3 * hidden_dim, 1)
        self.obj_ctx_rnn = BidirectionalTreeLSTM(roi_dim + embed_dim + side_dim, hidden_dim)
        self.edge_ctx_rnn = BidirectionalTreeLSTM(embed_dim + roi_dim + hidden_dim, hidden_dim)

    def forward(self, batch: SceneBatch, objects: Tensor) -> tuple[Tensor, Tensor]:
        """Context of every object.

        Args:
            batch: labels, boxes and sizes of the images.
            objects: float [N, roi_dim].

        Returns:
            float [N, hidden_dim], and the pair scores before the sigmoid, float [B, n, n].
        """
        labels = batch.labels + 1  # row 0 of the embeddings is the background
        embedded = self.obj_embed1(labels)
        boxes = encode_boxes(batch.boxes, batch.sizes[batch.image_of])
        position = F.relu(self.pos_embed(boxes))

        tree_logits = self._pair_scores(batch, objects.detach(), embedded.detach(), boxes)
        with torch.no_grad():
            trees = build_trees(tree_logits.sigmoid(), batch.present)
        context = self.obj_ctx_rnn(torch.cat([objects, embedded, position], dim=1), trees)
        inputs = torch.cat([self.obj_embed2(labels), objects, context], dim=1)
        return self.edge_ctx_rnn(inputs, trees), tree_logits

    def _pair_scores(
        self, batch: SceneBatch, objects: Tensor, embedded: Tensor, boxes: Tensor
    ) -> Tensor:
        overlaps = encode_overlaps(batch.pad(batch.boxes), batch.present, batch.sizes)
        side = [
            self.obj_reduce(objects),
            self.emb_reduce(embedded),
            F.relu(self.box_embed(boxes)),
            F.relu(self.overlap_embed(overlaps[batch.present])),
        ]
        hidden = F.relu(self.score_pre(torch.cat(side, dim=1)))
        subject = batch.pad(F.relu(self.score_sub(hidden)))
        target = batch.pad(F.relu(self.score_obj(hidden)))
        # vision_prior([s_j * t_i, s_j, t_i]) without a table of all concatenated pairs.
        both, of_subject, of_object = self.vision_prior.weight.view(3, -1).unbind(0)
        scores = (target * both) @ subject.transpose(1, 2)
        scores = scores + (subject @ of_subject)[:, None, :] + (target @ of_object)[:, :, None]
        return scores + self.vision_prior.bias


class VCTreeHead(RelationHead):
    """Predicate logits of object pairs, from tree context and union features.

    Args:
        dims: sizes.
    """

    def __init__(self, dims: HeadDims) -> None:
        super().__init__()
        hidden_dim, pooling_dim = dims.hidden_dim, dims.pooling_dim
        self.context_layer = VCTreeContext(dims)
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
        context, tree_logits = self.context_layer(batch, objects)
        # First half: the object as a subject; second half: the same object as an object.
        as_subject, as_object = F.relu(self.post_emb(context)).chunk(2, dim=1)
        subject, target = batch.pairs.unbind(1)
        pair = self.post_cat(torch.cat([as_subject[subject], as_object[target]], dim=1))
        pair = self.dropout(pair * self.up_dim(unions))
        return HeadOutput(self.rel_compress(pair), tree_logits)

    def class_embeddings(self) -> Sequence[nn.Embedding]:
        """Of the object context and of the edge context."""
        return self.context_layer.obj_embed1, self.context_layer.obj_embed2


def tree_loss(tree_logits: Tensor, related: Tensor, present: Tensor) -> Tensor:
    """Binary cross entropy of the tree scores against "some relation, in either direction".

    Args:
        tree_logits: float [B, n, n], padded, before the sigmoid.
        related: bool [B, n, n], symmetric, whether a relation is annotated between i and j.
        present: bool [B, n], which places hold an object.

    Returns:
        Scalar: mean over the n_b x n_b entries of an image (its diagonal included), then mean
        over images.
    """
    loss = F.binary_cross_entropy_with_logits(tree_logits, related.float(), reduction="none")
    inside = present[:, :, None] & present[:, None, :]
    per_image = (loss * inside).sum((1, 2)) / inside.sum((1, 2))
    return per_image.mean()
