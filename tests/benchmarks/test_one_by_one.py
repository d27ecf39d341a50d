"""The yardstick of the head's benchmark computes what the batched head computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_by_one import binary, maximum_spanning_tree, one_by_one

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads import build_head
from haystack.models.relation.heads.base import HeadDims
from haystack.models.relation.inputs import all_pairs

DIMS = HeadDims(
    num_objects=9,
    num_predicates=4,
    roi_dim=24,
    embed_dim=6,
    hidden_dim=16,
    pooling_dim=32,
    side_dim=8,
    classifies_objects=False,
)


def batch_of(counts, seed):
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 60, (sum(counts), 2))
    boxes = np.concatenate([corners, corners + rng.uniform(5, 40, corners.shape)], axis=1)
    first = np.cumsum(counts) - counts
    pairs = [all_pairs(count) + start for count, start in zip(counts, first, strict=True)]
    return SceneBatch(
        labels=torch.from_numpy(rng.integers(0, DIMS.num_objects, sum(counts))),
        boxes=torch.from_numpy(boxes).float(),
        sizes=torch.full((len(counts), 2), 100.0),
        counts=tuple(counts),
        pairs=torch.from_numpy(np.concatenate(pairs)),
        pair_counts=tuple(map(len, pairs)),
    )


@pytest.mark.parametrize("seed", range(3))
def test_one_tree_at_a_time_gives_the_batch_and_its_gradients(seed):
    torch.manual_seed(seed)
    batch = batch_of([1, 7, 2, 12, 1, 5], seed)
    head = build_head("vctree", DIMS).double().eval()
    batch = SceneBatch(**{**vars(batch), "boxes": batch.boxes.double()})
    objects = torch.randn(len(batch.labels), DIMS.roi_dim, dtype=torch.float64)
    unions = torch.randn(len(batch.pairs), DIMS.roi_dim, dtype=torch.float64)
    found = []
    for run in (head, lambda *given: one_by_one(head, *given)):
        head.zero_grad()
        output = run(batch, objects, unions)
        inside = output.tree_logits[batch.present[:, :, None] & batch.present[:, None]]
        (output.logits.sin().sum() + inside.sin().sum()).backward()
        gradients = {name: value.grad for name, value in head.named_parameters()}
        found.append({"logits": output.logits, "trees": inside, **gradients})
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-9, atol=1e-9, msg=name)


def test_a_small_tree_by_hand():
    # Row 1 has the largest mean. 1 takes 2 (0.9), 2 takes 0 (0.8), then 1 takes 3 (0.7).
    scores = torch.tensor(
        [[0.1, 0.1, 0.1, 0.1], [0.6, 0.5, 0.9, 0.7], [0.8, 0.1, 0.1, 0.2], [0.1, 0.1, 0.1, 0.1]]
    )
    root = binary(maximum_spanning_tree(scores))
    assert (root.index, root.left.index, root.left.right.index) == (1, 2, 3)
    assert root.left.left.index == 0
    assert root.right is None
