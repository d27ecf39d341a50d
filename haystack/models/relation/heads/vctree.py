"""VCTree's relation head as OpenPSG trains it (Tang et al., 2019; Yang et al., 2022).

Parameter names and shapes are those of an OpenPSG checkpoint under ``relation_head.``.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims
from haystack.models.relation.heads.context import ContextHead, ContextLayer
from haystack.models.relation.heads.decoders import TreeDecoder
from haystack.models.relation.heads.encodings import encode_overlaps
from haystack.models.relation.heads.tree_lstm import BidirectionalTreeLSTM
from haystack.models.relation.heads.trees import BinaryTrees, build_trees


class VCTreeContext(ContextLayer[BinaryTrees]):
    """Object features in the context of their image, passed along a learned tree."""

    def __init__(self, dims: HeadDims) -> None:
        super().__init__(dims)
        roi_dim, embed_dim, hidden_dim = dims.roi_dim, dims.embed_dim, dims.hidden_dim
        side_dim, norm_momentum = dims.side_dim, dims.norm_momentum
        self.overlap_embed = nn.Sequential(
            nn.Linear(6, side_dim), nn.BatchNorm1d(side_dim, momentum=norm_momentum), nn.ReLU()
        )
        self.box_embed = nn.Sequential(
            nn.Linear(9, side_dim), nn.BatchNorm1d(side_dim, momentum=norm_momentum), nn.ReLU()
        )
        self.obj_reduce = nn.Linear(roi_dim, side_dim)
        self.emb_reduce = nn.Linear(embed_dim, side_dim)
        self.score_pre = nn.Linear(4 * side_dim, hidden_dim)
        self.score_sub = nn.Linear(hidden_dim, hidden_dim)
        self.score_obj = nn.Linear(hidden_dim, hidden_dim)
        self.vision_prior = nn.Linear(3 * hidden_dim, 1)
        self.obj_ctx_rnn = BidirectionalTreeLSTM(roi_dim + embed_dim + side_dim, hidden_dim)
        self.decoder_rnn = (
            TreeDecoder(roi_dim + embed_dim + side_dim + hidden_dim, dims)
            if dims.classifies_objects
            else None
        )
        self.edge_ctx_rnn = BidirectionalTreeLSTM(embed_dim + roi_dim + hidden_dim, hidden_dim)

    def arrange(
        self, batch: SceneBatch, objects: Tensor, embedded: Tensor, boxes: Tensor
    ) -> tuple[BinaryTrees, Tensor]:
        """The trees, and the pair scores before the sigmoid, float [B, n, n]."""
        logits = self._pair_scores(batch, objects.detach(), embedded.detach(), boxes)
        with torch.no_grad():
            return build_trees(logits.sigmoid(), batch.present), logits

    def object_context(self, inputs: Tensor, structure: BinaryTrees) -> Tensor:
        """See ``ContextLayer``."""
        context: Tensor = self.obj_ctx_rnn(inputs, structure)
        return context

    def edge_context(self, inputs: Tensor, structure: BinaryTrees) -> Tensor:
        """See ``ContextLayer``."""
        context: Tensor = self.edge_ctx_rnn(inputs, structure)
        return context

    def _pair_scores(
        self, batch: SceneBatch, objects: Tensor, embedded: Tensor, boxes: Tensor
    ) -> Tensor:
        overlaps = encode_overlaps(batch.pad(batch.boxes), batch.present, batch.sizes)
        side = [
            self.obj_reduce(objects),
            self.emb_reduce(embedded),
            self.box_embed(boxes),
            self.overlap_embed(overlaps[batch.present]),
        ]
        hidden = F.relu(self.score_pre(torch.cat(side, dim=1)))
        subject = batch.pad(F.relu(self.score_sub(hidden)))
        target = batch.pad(F.relu(self.score_obj(hidden)))
        # vision_prior([s_j * t_i, s_j, t_i]) without a table of all concatenated pairs.
        both, of_subject, of_object = self.vision_prior.weight.view(3, -1).unbind(0)
        scores = (target * both) @ subject.transpose(1, 2)
        scores = scores + (subject @ of_subject)[:, None, :] + (target @ of_object)[:, :, None]
        return scores + self.vision_prior.bias


class VCTreeHead(ContextHead):
    """Tree context, then ``ContextHead``'s classifier of pairs.

    Args:
        dims: sizes.
    """

    rectifies: ClassVar[bool] = True

    def __init__(self, dims: HeadDims) -> None:
        super().__init__(dims, VCTreeContext(dims))


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
