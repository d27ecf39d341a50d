"""Bidirectional tree LSTM (Tang et al., 2019, 3.3), one step per depth for a whole batch.

Parameter names are OpenPSG's, its spelling "foreward" included, so that its files load as is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.models.relation.heads.trees import BinaryTrees


class UpwardCell(nn.Module):
    """Leaves to roots: a node hears its left and its right child."""

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.px = nn.Linear(input_dim, hidden_dim)
        self.ioffux = nn.Linear(input_dim, 6 * hidden_dim)
        self.ioffuh_left = nn.Linear(hidden_dim, 6 * hidden_dim)
        self.ioffuh_right = nn.Linear(hidden_dim, 6 * hidden_dim)
        orthogonal_blocks(hidden_dim, self.px, self.ioffux, self.ioffuh_left, self.ioffuh_right)
        with torch.no_grad():
            # The two halves add up to a forget bias of 1, so that memory survives at the start.
            for linear in (self.ioffuh_left, self.ioffuh_right):
                linear.bias[2 * hidden_dim : 4 * hidden_dim] = 0.5

    def forward(self, inputs: Tensor, trees: BinaryTrees) -> Tensor:
        """[N, input_dim] -> [N, hidden_dim]."""
        bias = self.ioffux.bias + self.ioffuh_left.bias + self.ioffuh_right.bias
        gates = F.linear(inputs, self.ioffux.weight, bias)
        weight = torch.cat([self.ioffuh_left.weight, self.ioffuh_right.weight], dim=1).T
        children = neighbour_rank(torch.stack([trees.left, trees.right], dim=1), trees)
        outputs: list[Tensor] = []
        hidden = memory = gates.new_zeros((1, self.hidden_dim))
        for gate, shortcut, both in reversed(by_level(trees, gates, self.px(inputs), children)):
            total = torch.addmm(gate, hidden[both].flatten(1), weight)
            i, o, forget_left, forget_right, _, r = total.sigmoid().chunk(6, dim=1)
            left, right = memory[both].unbind(1)
            update = total[:, 4 * self.hidden_dim : 5 * self.hidden_dim].tanh()
            state = i * update + forget_left * left + forget_right * right
            output = torch.lerp(shortcut, o * state.tanh(), r)
            outputs.append(output)
            hidden, memory = with_zero_row(output), with_zero_row(state)
        return torch.cat(outputs[::-1])[torch.argsort(trees.order)]


class DownwardCell(nn.Module):
    """Roots to leaves: a node hears its parent in the binary tree."""

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.px = nn.Linear(input_dim, hidden_dim)
        self.iofux = nn.Linear(input_dim, 5 * hidden_dim)
        self.iofuh = nn.Linear(hidden_dim, 5 * hidden_dim)
        orthogonal_blocks(hidden_dim, self.px, self.iofux, self.iofuh)
        with torch.no_grad():
            self.iofuh.bias[2 * hidden_dim : 3 * hidden_dim] = 1.0

    def forward(self, inputs: Tensor, trees: BinaryTrees) -> Tensor:
        """[N, input_dim] -> [N, hidden_dim]."""
        gates = F.linear(inputs, self.iofux.weight, self.iofux.bias + self.iofuh.bias)
        weight = self.iofuh.weight.T
        above = neighbour_rank(trees.parent, trees)
        outputs: list[Tensor] = []
        hidden = memory = gates.new_zeros((1, self.hidden_dim))
        for gate, shortcut, parent in by_level(trees, gates, self.px(inputs), above):
            total = torch.addmm(gate, hidden[parent], weight)
            output, state = self.step(total, shortcut, memory[parent])
            outputs.append(output)
            hidden, memory = with_zero_row(output), with_zero_row(state)
        return torch.cat(outputs)[torch.argsort(trees.order)]

    def step(self, gates: Tensor, shortcut: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and memories of K nodes, float [K, hidden_dim] each.

        Args:
            gates: float [K, 5 * hidden_dim], before the sigmoid: i, o, f, u, r.
            shortcut: float [K, hidden_dim], the highway past the cell.
            memory: float [K, hidden_dim], of their parents.
        """
        i, o, forget, _, r = gates.sigmoid().chunk(5, dim=1)
        update = gates[:, 3 * self.hidden_dim : 4 * self.hidden_dim].tanh()
        state = i * update + forget * memory
        return torch.lerp(shortcut, o * state.tanh(), r), state


class TreeLSTMLayer(nn.Module):
    """Both directions, half of the output width each, concatenated: up, then down."""

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        half = output_dim // 2
        self.treeLSTM_foreward = nn.ModuleDict({"treeLSTM": UpwardCell(input_dim, half)})
        self.treeLSTM_backward = nn.ModuleDict({"treeLSTM": DownwardCell(input_dim, half)})

    def forward(self, inputs: Tensor, trees: BinaryTrees) -> Tensor:
        """[N, input_dim] -> [N, output_dim]."""
        up = self.treeLSTM_foreward["treeLSTM"](inputs, trees)
        down = self.treeLSTM_backward["treeLSTM"](inputs, trees)
        return torch.cat([up, down], dim=1)


class BidirectionalTreeLSTM(nn.Module):
    """One layer, kept in a list because that is how checkpoints name it."""

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.multi_layer_lstm = nn.ModuleList([TreeLSTMLayer(input_dim, output_dim)])

    def forward(self, inputs: Tensor, trees: BinaryTrees) -> Tensor:
        """[N, input_dim] -> [N, output_dim]."""
        output: Tensor = self.multi_layer_lstm[0](inputs, trees)
        return output


def with_zero_row(values: Tensor) -> Tensor:
    """A last row of zeros, for a missing child or parent: float [K, D] -> [K + 1, D]."""
    return F.pad(values, (0, 0, 0, 1))


def neighbour_rank(nodes: Tensor, trees: BinaryTrees) -> Tensor:
    """Row of each node's child or parent within the neighbouring level; -1, the last, if none.

    Args:
        nodes: int64 [N], a child or the parent of each node, -1 = none.
        trees: of the nodes.

    Returns:
        int64 [N].
    """
    return torch.where(nodes < 0, -1, trees.rank[nodes])


def by_level(trees: BinaryTrees, *tables: Tensor) -> list[tuple[Tensor, ...]]:
    """Rows of each table, level by level from the roots.

    Args:
        trees: over N nodes.
        tables: [N, ...] each.

    Returns:
        For each level the rows [K, ...] of every table that belong to its K nodes.
    """
    split = [table[trees.order].split(trees.level_sizes) for table in tables]
    return list(zip(*split, strict=True))


def orthogonal_blocks(width: int, *linears: nn.Linear) -> None:
    """Each gate's block of ``width`` rows of a weight orthogonal by itself, biases zero."""
    for linear in linears:
        nn.init.zeros_(linear.bias)
        for block in linear.weight.data.split(width):
            nn.init.orthogonal_(block)
