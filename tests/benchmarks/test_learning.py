"""Every head learns known relations of drawn scenes, which classes alone do not tell."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rendered_scenes import PREDICATES, config_for, render

from haystack import evaluate
from haystack.io.panoptic_png import read_panoptic_png
from haystack.models.relation.predict import predict_dataset
from haystack.training.frequency import FrequencyConfig, count_model
from haystack.training.trainer import train


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return render(tmp_path_factory.mktemp("scenes"), train=200, test=60, seed=0)


def mean_recall(scenes, predictions):
    return evaluate(scenes, predictions, ks=(20,), metrics=["mR"]).metrics["mR@20"]


@pytest.mark.parametrize(
    ("head", "steps"), [("vctree", 200), ("motifs", 200), ("gpsnet", 250), ("imp", 700)]
)
def test_a_head_learns_relations_that_are_known(scenes, head, steps):
    model = train(config_for(head, steps=steps), scenes).model
    learned = mean_recall(scenes, predict_dataset(model, scenes))
    assert learned > 0.95


@pytest.mark.parametrize("overlap", ["none", "boxes"])
def test_the_classes_alone_tell_next_to_nothing(scenes, overlap):
    model = count_model(FrequencyConfig(overlap=overlap), scenes)
    assert mean_recall(scenes, predict_dataset(model, scenes)) < 0.2


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


@pytest.mark.slow
def test_the_benchmark_says_for_every_model_how_it_came_out(run_benchmark):
    few = ("--heads", "gpsnet", "--seeds=2", "--train=6", "--test=6", "--steps=2")
    done = run_benchmark("learning.py", "--json", *few, "--replicates=30", "--settings", "steps=2")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    drawn = {row["model"]: row for row in rows if row["part"] == "rendered"}
    assert drawn.keys() == {"frequency", "frequency, overlapping boxes", "gpsnet"}
    assert drawn["gpsnet"]["met"] is False
    mini = [row for row in rows if row["part"] == "psg-mini"]
    assert len(mini) == 9
    for row in mini:
        assert row["worst"] <= row["value"] <= row["best"]
        assert row["interval"][0] < row["interval"][1]
    trained = [row for row in mini if row["model"] == "gpsnet"]
    harder = [row for row in mini if row["model"] == "frequency, overlapping boxes"]
    for row, base in zip(trained, harder, strict=True):
        assert row["difference"] == pytest.approx(row["value"] - base["value"])
