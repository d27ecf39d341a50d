"""Object decoders of VCTree and MOTIFS: classes one after another, each given the one before.

They take no part where the classes are given. Parameter names are OpenPSG's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims
from haystack.models.relation.heads.objects import best_class
from haystack.models.relation.heads.sequences import Sequences
from haystack.models.relation.heads.tree_lstm import (
    DownwardCell,
    by_level,
    neighbour_rank,
    orthogonal_blocks,
    with_zero_row,
)
from haystack.models.relation.heads.trees import BinaryTrees

Structure = TypeVar("Structure")


class ObjectDecoder(nn.Module, ABC, Generic[Structure]):
    """Classifies objects, each knowing the class of the one before.

    Args:
        dims: sizes.
    """

    def __init__(self, dims: HeadDims) -> None:
        super().__init__()
        # Rows: 0 = start, 1 = background, c + 2 = class c.
        self.obj_embed = nn.Embedding(dims.num_objects + 2, dims.embed_dim)
        self.hidden_dim = dims.hidden_dim
        self.drop_rate = dims.decoder_dropout

    @abstractmethod
    def forward(
        self, inputs: Tensor, structure: Structure, batch: SceneBatch
    ) -> tuple[Tensor, Tensor]:
        """Logits of each object, float [N, C + 1], and its class, int64 [N].

        Args:
            inputs: float [N, D], what is known of each object.
            structure: the order in which the objects are visited.
            batch: images of the objects, and their labels.
        """

    def _embed(self, classes: Tensor) -> Tensor:
        embedded: Tensor = self.obj_embed(classes + 2)
        return embedded

    def _kept(self, batch: SceneBatch, inputs: Tensor) -> Tensor | None:
        """Factors [N, hidden_dim] of the dropout, equal for all objects of an image."""
        if not self.training or not self.drop_rate:
            return None
        kept = inputs.new_ones((len(batch.counts), self.hidden_dim))
        return F.dropout(kept, self.drop_rate)[batch.image_of]


class TreeDecoder(ObjectDecoder[BinaryTrees]):
    """From the roots to the leaves; a node knows its parent's class.

    In training a class drawn from the parent's distribution is passed on, else the likeliest.

    Args:
        input_dim: D.
        dims: sizes.
    """

    def __init__(self, input_dim: int, dims: HeadDims) -> None:
        super().__init__(dims)
        self.out = nn.Linear(dims.hidden_dim, dims.num_objects + 1)
        cell = DownwardCell(input_dim + dims.embed_dim, dims.hidden_dim)
        self.decoderLSTM = cell
        # Checkpoints hold the table and the classifier under these names as well.
        cell.embed_layer, cell.embed_out_layer = self.obj_embed, self.out

    def forward(
        self, inputs: Tensor, structure: BinaryTrees, batch: SceneBatch
    ) -> tuple[Tensor, Tensor]:
        """See ``ObjectDecoder``."""
        cell, width = self.decoderLSTM, inputs.shape[1]
        bias = cell.iofux.bias + cell.iofuh.bias
        gates = F.linear(inputs, cell.iofux.weight[:, :width], bias)
        shortcuts = F.linear(inputs, cell.px.weight[:, :width], cell.px.bias)
        weight = torch.cat([cell.iofuh.weight, cell.iofux.weight[:, width:]], dim=1).T
        shortcut_weight = cell.px.weight[:, width:].T
        above = neighbour_rank(structure.parent, structure)
        kept = self._kept(batch, inputs)
        tables = (gates, shortcuts, above) + (() if kept is None else (kept,))

        start = self.obj_embed.weight[:1]
        hidden = memory = gates.new_zeros((1, self.hidden_dim))
        passed, answers = start, []
        for gate, shortcut, parent, *factors in by_level(structure, *tables):
            told = passed[parent]
            total = torch.addmm(gate, torch.cat([hidden[parent], told], dim=1), weight)
            shortcut = torch.addmm(shortcut, told, shortcut_weight)
            output, state = cell.step(total, shortcut, memory[parent])
            for factor in factors:
                output = output * factor
            answers.append(self.out(output))
            hidden, memory = with_zero_row(output), with_zero_row(state)
            passed = torch.cat([self._embed(self._passed_on(answers[-1])), start])
        logits = torch.cat(answers)[torch.argsort(structure.order)]
        return logits, best_class(logits)

    def _passed_on(self, logits: Tensor) -> Tensor:
        if not self.training:
            return best_class(logits)
        return torch.multinomial(logits[:, 1:].detach().softmax(1), 1).squeeze(1)


class SequenceDecoder(ObjectDecoder[Sequences]):
    """Along a sequence; an object knows the class of the one before.

    In training these are ``batch.labels`` (teacher forcing), else the likeliest.

    Args:
        input_dim: D.
        dims: sizes.
    """

    def __init__(self, input_dim: int, dims: HeadDims) -> None:
        super().__init__(dims)
        hidden_dim = dims.hidden_dim
        self.input_linearity = nn.Linear(input_dim + dims.embed_dim, 6 * hidden_dim)
        self.state_linearity = nn.Linear(hidden_dim, 5 * hidden_dim)
        self.out_obj = nn.Linear(hidden_dim, dims.num_objects + 1)
        orthogonal_blocks(hidden_dim, self.input_linearity, self.state_linearity)
        with torch.no_grad():
            for linear in (self.input_linearity, self.state_linearity):
                linear.bias[hidden_dim : 2 * hidden_dim] = 1.0

    def forward(
        self, inputs: Tensor, structure: Sequences, batch: SceneBatch
    ) -> tuple[Tensor, Tensor]:
        """See ``ObjectDecoder``."""
        of_inputs, of_classes = self.input_linearity.weight.split(
            [inputs.shape[1], self.obj_embed.embedding_dim], dim=1
        )
        gates = F.linear(inputs, of_inputs, self.input_linearity.bias)
        kept = self._kept(batch, inputs)
        tables = [gates, batch.labels] + ([] if kept is None else [kept])
        steps = [table[structure.order].split(structure.step_sizes.tolist()) for table in tables]

        told = self.obj_embed.weight[:1].expand(len(batch.counts), -1)
        hidden = memory = gates.new_zeros((len(batch.counts), self.hidden_dim))
        answers, classes = [], []
        for gate, labels, *factors in zip(*steps, strict=True):
            count = len(gate)
            total = torch.addmm(gate, told[:count], of_classes.T)
            total, shortcut = total.split([5 * self.hidden_dim, self.hidden_dim], dim=1)
            total = total + self.state_linearity(hidden[:count])
            i, forget, _, o, r = total.sigmoid().chunk(5, dim=1)
            update = total[:, 2 * self.hidden_dim : 3 * self.hidden_dim].tanh()
            memory = i * update + forget * memory[:count]
            hidden = torch.lerp(shortcut, o * memory.tanh(), r)
            for factor in factors:
                hidden = hidden * factor
            answers.append(self.out_obj(hidden))
            classes.append(labels if self.training else best_class(answers[-1]))
            told = self._embed(classes[-1])
        return structure.restore(torch.cat(answers)), structure.restore(torch.cat(classes))
