"""IMP's relation head as OpenPSG trains it (Xu et al., 2017; Yang et al., 2022).

Parameter names and shapes are those of an OpenPSG checkpoint under ``relation_head.``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims, HeadOutput, RelationHead
from haystack.models.relation.heads.objects import required, rows_of, sum_by, uniform_linear

_ROUNDS = 2


def _gate(hidden_dim: int) -> nn.Sequential:
    """Of an object's and a pair's state; in a sequence because that is how checkpoints name it."""
    return nn.Sequential(nn.Linear(2 * hidden_dim, 1))


class IMPContext(nn.Module):
    """Objects and pairs tell each other their states, in rounds; classes and boxes are not read."""

    def __init__(self, dims: HeadDims) -> None:
        super().__init__()
        roi_dim, hidden_dim = dims.roi_dim, dims.hidden_dim
        self.rel_fc = nn.Linear(hidden_dim, dims.num_predicates + 1)
        self.obj_fc = (
            nn.Linear(hidden_dim, dims.num_objects + 1) if dims.classifies_objects else None
        )
        self.obj_unary = nn.Linear(roi_dim, hidden_dim)
        self.edge_unary = nn.Linear(roi_dim, hidden_dim)
        self.edge_gru = nn.GRUCell(hidden_dim, hidden_dim)
        self.node_gru = nn.GRUCell(hidden_dim, hidden_dim)
        self.sub_vert_w_fc = _gate(hidden_dim)
        self.obj_vert_w_fc = _gate(hidden_dim)
        self.out_edge_w_fc = _gate(hidden_dim)
        self.in_edge_w_fc = _gate(hidden_dim)
        self.dropout = nn.Dropout(dims.dropout)
        uniform_linear(self)

    def forward(
        self, batch: SceneBatch, objects: Tensor, unions: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Predicate logits, float [R, P + 1], and object logits where objects are classified.

        Args:
            batch: pairs.
            objects: float [N, roi_dim].
            unions: float [R, roi_dim].
        """
        subject, target = batch.pairs.unbind(1)
        node = self.node_gru(self.obj_unary(objects))
        edge = self.edge_gru(F.relu(self.edge_unary(unions)))
        for step in range(_ROUNDS):
            to_edge, to_node = self._gates(node, edge, subject, target).sigmoid().chunk(2, dim=1)
            heard = to_edge[:, :1] * rows_of(node, subject) + to_edge[:, 1:] * rows_of(node, target)
            told, edge = edge, self.edge_gru(heard, edge)
            if step == _ROUNDS - 1 and batch.class_scores is None:
                break  # nobody asks for the objects' last state
            # Of the pairs' states before this round.
            heard = sum_by(subject, to_node[:, :1] * told, len(node))
            heard = heard + sum_by(target, to_node[:, 1:] * told, len(node))
            node = self.node_gru(heard, node)
        logits = self.rel_fc(self.dropout(edge))
        return logits, None if batch.class_scores is None else required(self.obj_fc)(node)

    def _gates(self, node: Tensor, edge: Tensor, subject: Tensor, target: Tensor) -> Tensor:
        """Logits [R, 4]: subject to pair, object to pair, pair to subject, pair to object.

        Each is a linear function of an object's and a pair's state; without a row of both for
        every pair.
        """
        gates = (self.sub_vert_w_fc, self.obj_vert_w_fc, self.out_edge_w_fc, self.in_edge_w_fc)
        weights, biases = zip(*(gate.parameters() for gate in gates), strict=True)
        weight, bias = torch.cat(weights), torch.cat(biases)
        of_node, of_edge = weight.chunk(2, dim=1)
        by_node = node @ of_node.T
        ends = torch.stack([subject, target, subject, target], dim=1)
        return torch.addmm(bias, edge, of_edge.T) + by_node.gather(0, ends)


class IMPHead(RelationHead):
    """Message passing between objects and pairs; the pairs' last states are classified.

    Args:
        dims: sizes.
    """

    def __init__(self, dims: HeadDims) -> None:
        super().__init__()
        self.context_layer = IMPContext(dims)

    def forward(self, batch: SceneBatch, objects: Tensor, unions: Tensor) -> HeadOutput:
        """See ``RelationHead``."""
        logits, object_logits = self.context_layer(batch, objects, unions)
        return HeadOutput(logits, object_logits=object_logits)

    def class_embeddings(self) -> Sequence[nn.Embedding]:
        """None: classes are not read."""
        return ()
