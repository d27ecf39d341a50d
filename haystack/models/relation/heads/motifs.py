"""MOTIFS' relation head as OpenPSG trains it (Zellers et al., 2018; Yang et al., 2022).

Parameter names and shapes are those of an OpenPSG checkpoint under ``relation_head.``.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims
from haystack.models.relation.heads.context import ContextHead, ContextLayer
from haystack.models.relation.heads.decoders import SequenceDecoder
from haystack.models.relation.heads.objects import uniform_linear
from haystack.models.relation.heads.sequences import Sequences, from_right_to_left


class MotifsContext(ContextLayer[Sequences]):
    """Object features in the context of their image, passed along a sequence, both ways."""

    def __init__(self, dims: HeadDims) -> None:
        super().__init__(dims)
        hidden_dim = dims.hidden_dim
        known = dims.roi_dim + dims.embed_dim + dims.side_dim
        self.obj_ctx_rnn = nn.LSTM(known, hidden_dim, bidirectional=True)
        self.decoder_rnn = (
            SequenceDecoder(known + hidden_dim, dims) if dims.classifies_objects else None
        )
        self.edge_ctx_rnn = nn.LSTM(
            dims.embed_dim + dims.roi_dim + hidden_dim, hidden_dim, bidirectional=True
        )
        self.lin_obj_h = nn.Linear(2 * hidden_dim, hidden_dim)
        self.lin_edge_h = nn.Linear(2 * hidden_dim, hidden_dim)
        uniform_linear(self.pos_embed, self.lin_obj_h, self.lin_edge_h)

    def arrange(
        self, batch: SceneBatch, objects: Tensor, embedded: Tensor, boxes: Tensor
    ) -> tuple[Sequences, None]:
        """Objects from right to left; nothing about it is learned."""
        return from_right_to_left(batch), None

    def object_context(self, inputs: Tensor, structure: Sequences) -> Tensor:
        """See ``ContextLayer``."""
        heard, _ = self.obj_ctx_rnn(structure.pack(inputs))
        return structure.restore(self.lin_obj_h(heard.data))

    def edge_context(self, inputs: Tensor, structure: Sequences) -> Tensor:
        """See ``ContextLayer``."""
        heard, _ = self.edge_ctx_rnn(structure.pack(inputs))
        return structure.restore(self.lin_edge_h(heard.data))


class MotifsHead(ContextHead):
    """Sequence context, then ``ContextHead``'s classifier of pairs.

    Args:
        dims: sizes.
    """

    rectifies: ClassVar[bool] = False

    def __init__(self, dims: HeadDims) -> None:
        super().__init__(dims, MotifsContext(dims))
