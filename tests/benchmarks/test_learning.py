"""Every head learns known relations of drawn scenes, which classes alone do not tell."""

from __future__ import annotations

import numpy as np
import pytest
from rendered_scenes import PREDICATES, config_for, render

from haystack import evaluate
from haystack.io.panoptic_png import read_panoptic_png
from haystack.models.relation.predict import predict_dataset
from haystack.scene_graph import RelationScores
from haystack.training.trainer import train


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return render(tmp_path_factory.mktemp("scenes"), train=200, test=60, seed=0)


def mean_recall(scenes, predictions):
    return evaluate(scenes, predictions, ks=(20,), metrics=["mR"]).metrics["mR@20"]


def frequencies(scenes):
    """Share of each predicate among all pairs of two classes in the training images."""
    classes = scenes.vocabulary.num_objects
    held = np.zeros((classes, classes, scenes.vocabulary.num_predicates))
    pairs = np.zeros((classes, classes))
    for graph in scenes.split("train"):
        labels = graph.labels
        subject, target, predicate = graph.relations.T
        np.add.at(held, (labels[subject], labels[target], predicate), 1)
        first, second = np.nonzero(~np.eye(len(labels), dtype=bool))
        np.add.at(pairs, (labels[first], labels[second]), 1)
    shares = held / pairs[:, :, None]
    for graph in scenes.split("test"):
        rows = np.argwhere(~np.eye(len(graph.labels), dtype=bool))
        scores = shares[graph.labels[rows[:, 0]], graph.labels[rows[:, 1]]]
        yield RelationScores(graph.image_id, rows, scores.astype(np.float32))


@pytest.mark.parametrize(
    ("head", "steps"), [("vctree", 200), ("motifs", 200), ("gpsnet", 250), ("imp", 700)]
)
def test_a_head_learns_what_the_classes_alone_do_not_tell(scenes, head, steps):
    model = train(config_for(head, steps=steps), scenes).model
    learned = mean_recall(scenes, predict_dataset(model, scenes))
    assert learned > 0.95
    assert mean_recall(scenes, frequencies(scenes)) < 0.1


def test_frequencies_fall_as_a_long_tail(scenes):
    relations = np.concatenate([graph.relations for graph in scenes.graphs])
    counts = np.bincount(relations[:, 2], minlength=len(PREDICATES))
    assert counts.argmax() == 0
    assert counts[0] > 20 * counts[-1]
    assert counts.min() >= 10


def test_a_pair_has_one_relation_at_most(scenes):
    for graph in scenes.graphs:
        pairs = graph.relations[:, :2].tolist()
        assert len({tuple(pair) for pair in pairs}) == len(pairs)


def masks_of(scenes, graph):
    ids = read_panoptic_png(scenes.path_of(graph.pan_seg_file_name))
    return [ids == segment.id for segment in graph.segments]


def in_contact(first, second):
    padded = np.pad(first, 1)
    near = padded[2:, 1:-1] | padded[:-2, 1:-1] | padded[1:-1, 2:] | padded[1:-1, :-2]
    return bool((near & second).any())


def outline(mask):
    """With everything between the first and the last pixel of each row."""
    started = np.maximum.accumulate(mask, axis=1)
    return started & np.maximum.accumulate(mask[:, ::-1], axis=1)[:, ::-1]


def holds(name, subject, target):
    """Whether the masks show what the predicate claims, by another rule than the drawing's."""
    (sy, sx), (ty, tx) = np.nonzero(subject), np.nonzero(target)
    touch, smaller = in_contact(subject, target), len(sy) < len(ty)
    within = not (subject & ~outline(target)).any()
    around = not (target & ~outline(subject)).any()
    apart = not touch and not within and not around
    meets = touch and not within and not around
    return {
        "left of": apart and sx.mean() < tx.mean(),
        "above": apart and sy.mean() < ty.mean(),
        "touching": meets,
        "on": meets and smaller and sy.mean() < ty.mean(),
        "hanging from": meets and smaller and sy.mean() > ty.mean(),
        "inside": touch and within,
        "encircling": not touch and around,
        "in front of": meets and smaller,
    }[name]


def test_masks_show_what_the_relations_claim(scenes):
    for graph in scenes.split("test"):
        masks = masks_of(scenes, graph)
        related = {frozenset(pair) for pair in graph.relations[:, :2].tolist()}
        for subject, target, predicate in graph.relations.tolist():
            assert holds(PREDICATES[predicate], masks[subject], masks[target]), graph.image_id
        for i in range(len(masks)):
            for j in range(i):
                assert frozenset((i, j)) in related or not in_contact(masks[i], masks[j])


def test_equal_seeds_draw_equal_scenes_and_pictures(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    drawn = [render(folder, train=2, test=1, seed=3, pictures=True) for folder in folders]
    for one, other in zip(*(dataset.graphs for dataset in drawn), strict=True):
        np.testing.assert_array_equal(one.relations, other.relations)
        assert one.segments == other.segments
        for name in (one.file_name, one.pan_seg_file_name):
            assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert drawn[0].test_image_ids == ("2",)
