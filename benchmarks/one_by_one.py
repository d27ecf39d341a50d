"""VCTree's head with one tree at a time and one node at a time: the yardstick of models.py.

It shares its weights with the batched head and computes the same numbers the way that the papers
describe them and the field's code bases run them: for every image Prim's algorithm on the scores of
attached and free objects, a tree of Python objects, and a recursion over its nodes; then the two
halves of every pair concatenated and put through the layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadOutput
from haystack.models.relation.heads.encodings import encode_boxes, encode_overlaps
from haystack.models.relation.heads.tree_lstm import (
    BidirectionalTreeLSTM,
    DownwardCell,
    UpwardCell,
)
from haystack.models.relation.heads.vctree import VCTreeContext, VCTreeHead


@dataclass(eq=False)
class Node:
    """An object of an image, before and after the tree is made binary."""

    index: int
    children: list[Node] = field(default_factory=list)
    left: Node | None = None
    right: Node | None = None


def one_by_one(head: VCTreeHead, batch: SceneBatch, objects: Tensor, unions: Tensor) -> HeadOutput:
    """What ``head(batch, objects, unions)`` computes; the tree scores come padded as there."""
    contexts, scores = one_by_one_context(head.context_layer, batch, objects)
    represented = F.relu(head.post_emb(contexts)).view(len(contexts), 2, -1)
    rows, first = [], 0
    pairs = batch.pairs.split(batch.pair_counts)
    for image, count in zip(pairs, batch.counts, strict=True):
        own, local = represented[first : first + count], image - first
        rows.append(torch.cat([own[local[:, 0], 0], own[local[:, 1], 1]], dim=1))
        first += count
    pair = head.post_cat(torch.cat(rows)) * head.up_dim(unions)
    return HeadOutput(head.rel_compress(head.dropout(pair)), scores)


def one_by_one_context(
    layer: VCTreeContext, batch: SceneBatch, objects: Tensor
) -> tuple[Tensor, Tensor]:
    """Features and tree scores of what ``layer(batch, objects)`` computes."""
    labels = batch.labels + 1
    embedded = layer.obj_embed1(labels)
    boxes = encode_boxes(batch.boxes, batch.sizes[batch.image_of])
    scores = _scores(layer, batch, objects.detach(), embedded.detach(), boxes)
    with torch.no_grad():
        trees = [binary(maximum_spanning_tree(table.sigmoid())) for table in scores]
    inputs = torch.cat([objects, embedded, layer.pos_embed(boxes)], dim=1)
    context = _along_trees(layer.obj_ctx_rnn, trees, inputs, batch.counts)
    inputs = torch.cat([layer.obj_embed2(labels), objects, context], dim=1)
    edges = _along_trees(layer.edge_ctx_rnn, trees, inputs, batch.counts)
    size = max(batch.counts)
    padded = [F.pad(table, (0, size - len(table)) * 2) for table in scores]
    return edges, torch.stack(padded)


def maximum_spanning_tree(scores: Tensor) -> Node:
    """Prim's algorithm on scores [n, n]; row = parent, column = child. Returns the root."""
    root = int(scores.mean(1).argmax())
    nodes = {index: Node(index) for index in range(len(scores))}
    attached, free = [root], [index for index in range(len(scores)) if index != root]
    while free:
        candidates = scores[torch.tensor(attached)][:, torch.tensor(free)]
        parent, child = divmod(int(candidates.argmax()), len(free))
        nodes[attached[parent]].children.append(nodes[free[child]])
        attached.append(free.pop(child))
    return nodes[root]


def binary(node: Node) -> Node:
    """Left child = the first child, right child = the next sibling; in place."""
    previous = None
    for child in node.children:
        binary(child)
        if previous is None:
            node.left = child
        else:
            previous.right = child
        previous = child
    return node


def _scores(
    layer: VCTreeContext, batch: SceneBatch, objects: Tensor, embedded: Tensor, boxes: Tensor
) -> list[Tensor]:
    """Tree scores of each image, before the sigmoid, [n, n] each."""
    overlaps = []
    for own, size in zip(batch.boxes.split(batch.counts), batch.sizes, strict=True):
        everywhere = torch.ones(1, len(own), dtype=torch.bool, device=own.device)
        overlaps.append(encode_overlaps(own[None], everywhere, size[None])[0])
    side = [
        layer.obj_reduce(objects),
        layer.emb_reduce(embedded),
        layer.box_embed(boxes),
        layer.overlap_embed(torch.cat(overlaps)),
    ]
    hidden = F.relu(layer.score_pre(torch.cat(side, dim=1)))
    subjects = F.relu(layer.score_sub(hidden)).split(batch.counts)
    targets = F.relu(layer.score_obj(hidden)).split(batch.counts)
    tables = []
    for subject, target in zip(subjects, targets, strict=True):
        count = len(subject)
        columns = subject[None].expand(count, -1, -1)
        rows = target[:, None].expand(-1, count, -1)
        both = torch.cat([columns * rows, columns, rows], dim=2)
        tables.append(layer.vision_prior(both).squeeze(2))
    return tables


def _along_trees(
    lstm: BidirectionalTreeLSTM, trees: list[Node], inputs: Tensor, counts: tuple[int, ...]
) -> Tensor:
    layer: nn.Module = lstm.multi_layer_lstm[0]
    up, down = layer.treeLSTM_foreward["treeLSTM"], layer.treeLSTM_backward["treeLSTM"]
    outputs = []
    for tree, rows in zip(trees, inputs.split(counts), strict=True):
        upward: dict[int, Tensor] = {}
        downward: dict[int, Tensor] = {}
        _climb(up, tree, rows, upward)
        none = rows.new_zeros(1, down.hidden_dim)
        _descend(down, tree, rows, none, none, downward)
        for found in (upward, downward):
            outputs.append(torch.cat([found[index] for index in range(len(rows))]))
    halves = [torch.cat(outputs[half::2]) for half in (0, 1)]
    return torch.cat(halves, dim=1)


def _climb(
    cell: UpwardCell, node: Node | None, inputs: Tensor, outputs: dict[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """Output and memory of a node, after those of its children."""
    if node is None:
        none = inputs.new_zeros(1, cell.hidden_dim)
        return none, none
    left, left_memory = _climb(cell, node.left, inputs, outputs)
    right, right_memory = _climb(cell, node.right, inputs, outputs)
    own = inputs[node.index : node.index + 1]
    gates = cell.ioffux(own) + cell.ioffuh_left(left) + cell.ioffuh_right(right)
    i, o, forget_left, forget_right, u, r = gates.chunk(6, dim=1)
    memory = i.sigmoid() * u.tanh()
    memory = memory + forget_left.sigmoid() * left_memory + forget_right.sigmoid() * right_memory
    r = r.sigmoid()
    output = r * (o.sigmoid() * memory.tanh()) + (1 - r) * cell.px(own)
    outputs[node.index] = output
    return output, memory


def _descend(
    cell: DownwardCell,
    node: Node | None,
    inputs: Tensor,
    above: Tensor,
    memory_above: Tensor,
    outputs: dict[int, Tensor],
) -> None:
    """Outputs of a node and of everything below it."""
    if node is None:
        return
    own = inputs[node.index : node.index + 1]
    gates = cell.iofux(own) + cell.iofuh(above)
    i, o, forget, u, r = gates.chunk(5, dim=1)
    memory = i.sigmoid() * u.tanh() + forget.sigmoid() * memory_above
    r = r.sigmoid()
    output = r * (o.sigmoid() * memory.tanh()) + (1 - r) * cell.px(own)
    outputs[node.index] = output
    _descend(cell, node.left, inputs, output, memory, outputs)
    _descend(cell, node.right, inputs, output, memory, outputs)
