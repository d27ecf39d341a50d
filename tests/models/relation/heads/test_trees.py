"""Batched trees and tree LSTMs against one image, one node at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from haystack.models.relation.heads.tree_lstm import (
    BidirectionalTreeLSTM,
    DownwardCell,
    UpwardCell,
)
from haystack.models.relation.heads.trees import build_trees


def tree_of_one_image(scores):
    """Prim with explicit lists: left child, right sibling and binary parent of each object."""
    count = len(scores)
    means = [sum(row) for row in scores]
    root = means.index(max(means))
    attached, free = [root], [i for i in range(count) if i != root]
    children = {i: [] for i in range(count)}
    while free:
        best = max(scores[a][f] for a in attached for f in free)
        parent, child = next((a, f) for a in attached for f in free if scores[a][f] == best)
        children[parent].append(child)
        attached.append(child)
        free.remove(child)
    left, right, parents = [-1] * count, [-1] * count, [-1] * count
    for parent, group in children.items():
        if group:
            left[parent] = group[0]
            parents[group[0]] = parent
        for elder, younger in pairwise(group):
            right[elder] = younger
            parents[younger] = elder
    return root, left, right, parents


def padded(matrices):
    size = max(len(matrix) for matrix in matrices)
    scores = torch.full((len(matrices), size, size), 7.0)  # empty places must not be read
    present = torch.zeros(len(matrices), size, dtype=torch.bool)
    for image, matrix in enumerate(matrices):
        scores[image, : len(matrix), : len(matrix)] = matrix
        present[image, : len(matrix)] = True
    return scores, present


def check_against_one_by_one(matrices):
    trees = build_trees(*padded(matrices))
    first = 0
    for matrix in matrices:
        count = len(matrix)
        root, *expected = tree_of_one_image(matrix.tolist())
        for name, table in zip(("left", "right", "parent"), expected, strict=True):
            rows = getattr(trees, name)[first : first + count]
            assert [row - first if row >= 0 else -1 for row in rows.tolist()] == table, name
        assert trees.depth[first + root] == 0
        first += count
    nodes = torch.arange(first)
    has_parent = trees.parent >= 0
    assert (trees.depth[nodes[has_parent]] == trees.depth[trees.parent[has_parent]] + 1).all()
    levels = trees.order.split(trees.level_sizes)
    assert sorted(torch.cat(levels).tolist()) == nodes.tolist()
    for depth, level in enumerate(levels):
        assert (trees.depth[level] == depth).all()
        assert trees.rank[level].tolist() == list(range(len(level)))


@pytest.mark.parametrize("seed", range(5))
def test_batched_trees_equal_single_ones(seed):
    generator = torch.Generator().manual_seed(seed)
    counts = [*torch.randint(1, 61, (6,), generator=generator).tolist(), 1, 60, 2]
    check_against_one_by_one([torch.rand(n, n, generator=generator) for n in counts])


def test_a_tree_of_two_hundred_objects_beside_small_ones():
    generator = torch.Generator().manual_seed(0)
    check_against_one_by_one([torch.rand(n, n, generator=generator) for n in (3, 200, 1)])


@pytest.mark.parametrize("seed", range(5))
def test_ties_go_to_the_earliest_parent_then_the_lowest_object(seed):
    """Few distinct values, exact in binary: nearly every choice is a tie."""
    generator = torch.Generator().manual_seed(seed)
    counts = (9, 1, 14, 5)
    check_against_one_by_one([torch.randint(0, 3, (n, n), generator=generator) / 4 for n in counts])


def test_all_scores_equal_gives_a_star_around_the_first_object():
    trees = build_trees(torch.full((1, 4, 4), 0.5), torch.ones(1, 4, dtype=torch.bool))
    assert trees.left.tolist() == [1, -1, -1, -1]
    assert trees.right.tolist() == [-1, 2, 3, -1]


def lstm_of_one_image(lstm, inputs, root, left, right, parents):
    """Both directions, node by node."""
    layer = lstm.multi_layer_lstm[0]
    up, down = layer.treeLSTM_foreward["treeLSTM"], layer.treeLSTM_backward["treeLSTM"]
    zero = torch.zeros(up.hidden_dim, dtype=inputs.dtype)
    upward, downward = {-1: (zero, zero)}, {-1: (zero, zero)}

    def visit_up(node):
        for child in (left[node], right[node]):
            if child not in upward:
                visit_up(child)
        (h_left, c_left), (h_right, c_right) = upward[left[node]], upward[right[node]]
        gates = up.ioffux(inputs[node]) + up.ioffuh_left(h_left) + up.ioffuh_right(h_right)
        i, o, f_left, f_right, u, r = gates.chunk(6)
        c = i.sigmoid() * u.tanh() + f_left.sigmoid() * c_left + f_right.sigmoid() * c_right
        h = o.sigmoid() * c.tanh()
        upward[node] = (r.sigmoid() * h + (1 - r.sigmoid()) * up.px(inputs[node]), c)

    def visit_down(node):
        h_parent, c_parent = downward[parents[node]]
        i, o, f, u, r = (down.iofux(inputs[node]) + down.iofuh(h_parent)).chunk(5)
        c = i.sigmoid() * u.tanh() + f.sigmoid() * c_parent
        h = o.sigmoid() * c.tanh()
        downward[node] = (r.sigmoid() * h + (1 - r.sigmoid()) * down.px(inputs[node]), c)
        for child in (left[node], right[node]):
            if child >= 0:
                visit_down(child)

    visit_up(root)
    visit_down(root)
    return torch.stack([torch.cat([upward[n][0], downward[n][0]]) for n in range(len(inputs))])


@pytest.mark.parametrize("seed", range(3))
def test_batched_lstm_equals_node_by_node_in_values_and_gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    counts = [*torch.randint(1, 61, (3,), generator=generator).tolist(), 7, 1, 12, 2]
    check_lstm_against_one_by_one([torch.rand(n, n, generator=generator) for n in counts], seed)


def test_lstm_with_ties_equals_node_by_node():
    generator = torch.Generator().manual_seed(0)
    counts = (9, 1, 14)
    matrices = [torch.randint(0, 3, (n, n), generator=generator) / 4 for n in counts]
    check_lstm_against_one_by_one(matrices, 0)


def test_lstm_over_two_hundred_objects_equals_node_by_node():
    generator = torch.Generator().manual_seed(0)
    check_lstm_against_one_by_one([torch.rand(n, n, generator=generator) for n in (200, 3)], 0)


def check_lstm_against_one_by_one(matrices, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    lstm = BidirectionalTreeLSTM(5, 6).double()
    total = sum(len(matrix) for matrix in matrices)
    inputs = torch.randn(total, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(total, 6, generator=generator, dtype=torch.float64)

    batched = lstm(inputs, build_trees(*padded(matrices)))
    gradient = torch.autograd.grad((batched * weight).sum(), [inputs, *lstm.parameters()])
    single, first = [], 0
    for matrix in matrices:
        rows = inputs[first : first + len(matrix)]
        single.append(lstm_of_one_image(lstm, rows, *tree_of_one_image(matrix.tolist())))
        first += len(matrix)
    expected = torch.cat(single)
    torch.testing.assert_close(batched, expected, rtol=0, atol=1e-12)
    by_hand = torch.autograd.grad((expected * weight).sum(), [inputs, *lstm.parameters()])
    for ours, theirs in zip(gradient, by_hand, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", [UpwardCell, DownwardCell])
def test_gradients_of_each_direction_agree_with_finite_differences(kind):
    """With respect to the inputs and to every weight."""
    torch.manual_seed(0)
    cell = kind(3, 2).double()
    trees = build_trees(*padded([torch.rand(5, 5), torch.rand(1, 1), torch.rand(2, 2)]))
    inputs = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    names, weights = zip(*cell.named_parameters(), strict=True)

    def run(inputs, *values):
        return torch.func.functional_call(
            cell, dict(zip(names, values, strict=True)), (inputs, trees)
        )

    assert torch.autograd.gradcheck(run, (inputs, *weights))
