"""Heads and their features against numbers that the original OpenPSG code produced."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.features.base import EncodedScene
from haystack.models.relation.features.visual import VisualFeatures
from haystack.models.relation.heads import build_head
from haystack.models.relation.heads.base import HeadDims, HeadOutput
from haystack.models.relation.heads.vctree import tree_loss
from haystack.scene_graph import SceneGraph, Segment
from haystack.training.config import LossConfig
from haystack.training.losses import RelationTargets, relation_sums

DATA = Path(__file__).parents[3] / "data" / "openpsg"
ORIGINALS = {"vctree": "VCTree", "motifs": "Motif", "gpsnet": "GPS", "imp": "IMP"}
PARTS = ("bbox_roi_extractor.", "relation_roi_extractor.")
DIMS = HeadDims(133, 56, roi_dim=12, embed_dim=6, hidden_dim=8, pooling_dim=20)


@pytest.fixture(scope="module", params=ORIGINALS)
def head_name(request):
    return request.param


@pytest.fixture(scope="module")
def oracle(head_name):
    with np.load(DATA / f"openpsg_tiny_{ORIGINALS[head_name]}Head.npz") as stored:
        return {name: torch.from_numpy(np.asarray(stored[name])) for name in stored.files}


class NoTrunk(torch.nn.Module):
    """The oracle has the feature maps themselves."""

    channels, strides = 8, (4, 8, 16, 32)


def load(head_name, oracle, *, quirks=True):
    """Features and head; every weight of the original has its place."""
    weights = {name[3:]: value for name, value in oracle.items() if name.startswith("w::")}
    features = VisualFeatures(NoTrunk(), DIMS.roi_dim, openpsg_quirks=quirks)
    head = build_head(head_name, DIMS)
    features.load_state_dict({k: v for k, v in weights.items() if k.startswith(PARTS)})
    head.load_state_dict({k: v for k, v in weights.items() if not k.startswith(PARTS)})
    return features.eval(), head.eval()


@pytest.fixture(scope="module")
def network(head_name, oracle):
    return load(head_name, oracle)


def make_batch(oracle, images):
    offsets = np.cumsum([0] + [len(oracle[f"img{i}::boxes"]) for i in images]).tolist()
    return SceneBatch(
        labels=torch.cat([oracle[f"img{i}::labels0"] for i in images]),
        boxes=torch.cat([oracle[f"img{i}::boxes"] for i in images]),
        sizes=oracle["img_shape"].float().repeat(len(images), 1),
        counts=tuple(len(oracle[f"img{i}::boxes"]) for i in images),
        pairs=torch.cat(
            [oracle[f"img{i}::pairs"] + offset for i, offset in zip(images, offsets, strict=False)]
        ),
        pair_counts=tuple(len(oracle[f"img{i}::pairs"]) for i in images),
    )


def run(oracle, network, batch, images) -> HeadOutput:
    features, head = network
    views = [
        EncodedScene(None, {f"p{level + 2}": oracle[f"feat{level}"][image] for level in range(4)})
        for image in images
    ]
    with torch.no_grad():
        return head(batch, *features(batch, views))


@pytest.mark.parametrize("images", [[0], [1], [2], [0, 1, 2], [2, 0]])
def test_logits_are_the_originals(oracle, network, images):
    output = run(oracle, network, make_batch(oracle, images), images)
    expected = torch.cat([oracle[f"img{i}::logits"] for i in images])
    scale = max(1.0, expected.abs().max().item())
    assert (output.logits - expected).abs().max().item() < 1e-6 * scale
    assert output.object_logits is None


def test_a_correct_rectangle_is_noticed_as_another_input(head_name, oracle):
    """It differs from the one that the original's checkpoints were trained with."""
    batch = make_batch(oracle, [0])
    output = run(oracle, load(head_name, oracle, quirks=False), batch, [0])
    assert (output.logits - oracle["img0::logits"]).abs().max().item() > 1e-3


@pytest.mark.parametrize("image", [0, 1, 2])
def test_ranking_is_the_originals(oracle, network, image):
    """Scores by rank; where they tie within rounding, the pairs are compared as a set."""
    batch = make_batch(oracle, [image])
    scores, labels = run(oracle, network, batch, [image]).logits.softmax(1)[:, 1:].max(1)
    order = scores.argsort(descending=True, stable=True)
    expected = oracle[f"img{image}::sorted_scores"]
    torch.testing.assert_close(scores[order], expected, rtol=0, atol=1e-6)

    ours = torch.cat([batch.pairs, labels[:, None] + 1], dim=1)[order].tolist()
    theirs = torch.cat(
        [oracle[f"img{image}::sorted_pairs"], oracle[f"img{image}::sorted_labels1"][:, None]], dim=1
    ).tolist()
    breaks = ((expected[:-1] - expected[1:]) > 1e-6).nonzero().squeeze(1) + 1
    edges = [0, *breaks.tolist(), len(theirs)]
    for first, last in pairwise(edges):
        assert sorted(ours[first:last]) == sorted(theirs[first:last])


def test_losses_are_the_originals(head_name, oracle, network):
    """All annotated pairs, one of an object with itself included, and pairs free both ways.

    Some pairs of image 1 are missing: GPSNet's attention gives them the logit 0.
    """
    images = [0, 1]
    batch = make_batch(oracle, images)
    rows, labels, related = [], [], torch.zeros(2, 7, 7, dtype=torch.bool)
    first = 0
    for image in images:
        relations = oracle[f"img{image}::gt_rels1"]
        count = len(oracle[f"img{image}::boxes"])
        for subject, target, predicate in relations.tolist():
            rows.append((subject + first, target + first))
            labels.append(predicate)
            related[image, subject, target] = related[image, target, subject] = True
        for subject, target in oracle[f"img{image}::pairs"].tolist():
            if not related[image, subject, target]:
                rows.append((subject + first, target + first))
                labels.append(0)
        first += count
    assert len(rows) == int(oracle["train::num_samples"])
    batch = SceneBatch(
        batch.labels, batch.boxes, batch.sizes, batch.counts, torch.tensor(rows), (len(rows), 0)
    )
    output = run(oracle, network, batch, images)

    relation = F.cross_entropy(output.logits, torch.tensor(labels))
    assert relation.item() == pytest.approx(oracle["loss::loss_relation"].item(), abs=1e-5)
    if head_name != "vctree":
        assert output.tree_logits is None
        return
    tree = tree_loss(output.tree_logits, related, batch.present)
    assert tree.item() == pytest.approx(oracle["loss::loss_vctree_binary"].item(), abs=1e-5)


def test_our_loss_with_weights_of_one_is_the_originals_rule(oracle, network):
    """Image 0 without its self relation: mean over positives and pairs free both ways."""
    batch = make_batch(oracle, [0])
    output = run(oracle, network, batch, [0])
    relations = oracle["img0::gt_rels1"].numpy().copy()
    relations = relations[relations[:, 0] != relations[:, 1]]
    relations[:, 2] -= 1
    segments = tuple(Segment(i + 1, 0, 1, (0, 0, 1, 1)) for i in range(7))
    graph = SceneGraph("0", 93, 121, "0.jpg", segments=segments, relations=relations)
    ours = relation_sums(
        output.logits,
        [RelationTargets.from_graph(graph, 56)],
        LossConfig(
            background="neither_direction", background_weight=1.0, background_ratio=float("inf")
        ),
    ).means()
    annotated = {(s, o): p for s, o, p in relations.tolist()}
    labels, rows = [], []
    for row, (s, o) in enumerate(batch.pairs.tolist()):
        if (s, o) in annotated or (o, s) not in annotated:
            rows.append(row)
            labels.append(annotated.get((s, o), -1) + 1)
    expected = F.cross_entropy(output.logits[rows], torch.tensor(labels))
    assert ours["relation"].item() == pytest.approx(expected.item(), abs=1e-6)
    assert ours["negative"].item() == 0
