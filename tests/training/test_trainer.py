"""Training on small rendered scenes: it learns, repeats itself, and never leaves half a result."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from haystack.errors import InputError
from haystack.io.panoptic_png import segment_geometry, write_panoptic_png
from haystack.models.relation.config import RelationModelConfig
from haystack.models.relation.files import load_relation_model
from haystack.models.relation.predict import predict_dataset
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.training.config import TrainConfig
from haystack.training.trainer import rate, train
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("cat", "dog"), ("table-merged",), ("on", "in", "beside"))
ON, IN, BESIDE = range(3)
SMALL = RelationModelConfig(roi_dim=24, hidden_dim=16, pooling_dim=32, side_dim=8, dropout=0.1)
QUICK = TrainConfig(
    steps=6, batch_size=4, log_every=2, learning_rate=5e-3, warmup_steps=2, model=SMALL
)


def render(folder, number, rng):
    """A large block; one block stands on it, one lies inside it, one stands beside that on it."""
    ids = np.zeros((60, 80), np.int32)
    left = int(rng.integers(5, 15))
    ids[30:58, left : left + 55] = 1
    x = left + int(rng.integers(2, 10))
    ids[18:30, x : x + 12] = 2
    y, inside = int(rng.integers(36, 44)), left + int(rng.integers(10, 40))
    ids[y : y + 9, inside : inside + 9] = 3
    ids[20:30, x + 12 : x + 22] = 4
    labels = {1: 2, 2: int(rng.integers(0, 2)), 3: int(rng.integers(0, 2)), 4: 0}
    order = rng.permutation([1, 2, 3, 4]).tolist()
    found = segment_geometry(ids)
    boxes = dict(zip(found.ids.tolist(), found.boxes.tolist(), strict=True))
    place = {number: index for index, number in enumerate(order)}
    relations = [(2, 1, ON), (4, 1, ON), (3, 1, IN), (2, 4, BESIDE), (4, 2, BESIDE)]
    write_panoptic_png(folder / f"{number}.png", ids)
    return SceneGraph(
        image_id=str(number),
        height=60,
        width=80,
        file_name=f"{number}.jpg",
        pan_seg_file_name=f"{number}.png",
        segments=tuple(Segment(i, labels[i], 1, tuple(boxes[i])) for i in order),
        relations=as_triplets([(place[s], place[o], p) for s, o, p in relations]),
        neg_relations=as_triplets([(place[3], place[1], ON), (place[1], place[2], -1)]),
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rendered")
    rng = np.random.default_rng(0)
    graphs = tuple(render(folder, number, rng) for number in range(20))
    return SceneGraphDataset(VOCABULARY, graphs, tuple(str(n) for n in range(12, 20)), folder)


def recall_at_number_of_relations(model, dataset, split):
    hits = total = 0
    graphs = dataset.by_id()
    for answer in predict_dataset(model, dataset, split):
        relations = {tuple(r) for r in graphs[answer.image_id].relations.tolist()}
        best = answer.scores.argmax(1)
        first = np.argsort(-answer.scores.max(1), kind="stable")[: len(relations)]
        found = {(*answer.pairs[row].tolist(), int(best[row])) for row in first}
        hits += len(found & relations)
        total += len(relations)
    return hits / total


def test_it_learns_relations_of_unseen_scenes(dataset):
    untrained = train(replace(QUICK, steps=1, learning_rate=0.0), dataset).model
    assert recall_at_number_of_relations(untrained, dataset, "test") < 0.5
    result = train(replace(QUICK, steps=50), dataset)
    assert recall_at_number_of_relations(result.model, dataset, "test") > 0.9
    first, last = result.metrics[0], result.metrics[-1]
    assert last["loss"] < first["loss"] / 2
    assert last["step"] == result.step == 50


def test_the_same_run_gives_the_same_bytes_whatever_the_caller_does(dataset, tmp_path):
    torch.manual_seed(1)
    train(QUICK, dataset, tmp_path / "a")
    torch.manual_seed(2)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        train(QUICK, dataset, tmp_path / "b")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(before, torch.get_rng_state())
    for name in ("model.safetensors", "metrics.jsonl", "config.yaml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    train(replace(QUICK, seed=1), dataset, tmp_path / "c")
    paths = [tmp_path / name / "model.safetensors" for name in "ac"]
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_results_can_be_read_back(dataset, tmp_path):
    result = train(QUICK, dataset, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == result.metrics
    assert [row["step"] for row in rows] == [2, 4, 6]
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["steps"] == 6
    assert config["model"]["roi_dim"] == 24
    loaded = load_relation_model(tmp_path / "model.safetensors")
    for ours, theirs in zip(
        predict_dataset(result.model, dataset), predict_dataset(loaded, dataset), strict=True
    ):
        assert np.array_equal(ours.scores, theirs.scores)


def test_a_run_that_dies_leaves_the_folder_as_it_was(dataset, tmp_path):
    train(QUICK, dataset, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def die(step, steps, losses):
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(replace(QUICK, seed=5), dataset, tmp_path, progress=die)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_progress_hears_every_step(dataset):
    heard = []
    train(QUICK, dataset, progress=lambda step, steps, losses: heard.append((step, steps)))
    assert heard == [(step, 6) for step in range(1, 7)]


def test_validation_keeps_the_best_weights_and_stops(dataset):
    config = replace(
        QUICK,
        steps=300,
        validation_fraction=0.25,
        patience=2,
        schedule="constant",
        learning_rate=0.05,
    )
    result = train(config, dataset)
    losses = [row["validation_loss"] for row in result.metrics]
    best = int(np.argmin(losses))
    assert result.step == result.metrics[best]["step"]
    assert len(losses) == best + 1 + config.patience
    assert result.metrics[-1]["step"] < 300


def test_retraining_starts_from_the_given_model(dataset, tmp_path):
    train(replace(QUICK, steps=20), dataset, tmp_path)
    init = str(tmp_path / "model.safetensors")
    other = RelationModelConfig(roi_dim=4)  # the start model's architecture goes first
    still = train(replace(QUICK, init=init, learning_rate=0.0, steps=1, model=other), dataset)
    before = load_relation_model(init).state_dict()
    for name, tensor in still.model.state_dict().items():
        if "running" not in name and "batches" not in name:
            assert torch.equal(tensor, before[name]), name
    fresh = train(QUICK, dataset).metrics[0]["loss"]
    again = train(replace(QUICK, init=init), dataset).metrics[0]["loss"]
    assert again < fresh


def test_retraining_refuses_another_vocabulary(dataset, tmp_path):
    train(replace(QUICK, steps=1), dataset, tmp_path)
    renamed = Vocabulary(("cat", "dog"), ("table-merged",), ("on", "in", "near"))
    other = replace(dataset, vocabulary=renamed)
    config = replace(QUICK, init=str(tmp_path / "model.safetensors"))
    with pytest.raises(InputError, match="other predicate_classes"):
        train(config, other)


def test_images_that_say_nothing_are_left_out(dataset):
    blank = tuple(
        replace(graph, relations=as_triplets([]), neg_relations=as_triplets([]))
        for graph in dataset.graphs
    )
    with pytest.raises(InputError, match="expected images with two segments and an annotation"):
        train(QUICK, replace(dataset, graphs=blank))
    negatives = (replace(dataset.graphs[0], relations=as_triplets([])), *blank[1:])
    assert train(replace(QUICK, steps=1), replace(dataset, graphs=negatives)).step == 1


def test_a_missing_png_is_named(dataset):
    graphs = (replace(dataset.graphs[0], pan_seg_file_name="gone.png"), *dataset.graphs[1:])
    with pytest.raises(InputError, match=r"gone\.png"):
        train(QUICK, replace(dataset, graphs=graphs))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["step", "constant"])
def test_optimisers_and_schedules_lower_the_loss(dataset, optimizer, schedule):
    config = replace(
        QUICK,
        steps=12,
        optimizer=optimizer,
        schedule=schedule,
        learning_rate=0.05 if optimizer == "sgd" else 5e-3,
        flip=False,
    )
    rows = train(config, dataset).metrics
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_learning_rates_warm_up_and_fall():
    config = TrainConfig(steps=100, warmup_steps=9, schedule="step", milestones=[0.5, 0.8])
    rates = [rate(step, config) for step in (0, 4, 9, 49, 50, 80)]
    assert rates == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.1, 0.01])
    cosine = TrainConfig(steps=100, warmup_steps=0)
    assert [rate(step, cosine) for step in (0, 50, 100)] == pytest.approx([1, 0.5, 0], abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"split": "val"}, "split to be one of train, test, all, got 'val'"),
        ({"optimizer": "adam"}, "optimizer to be one of"),
        ({"steps": 0}, "steps >= 1, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate >= 0, got nan"),
        ({"validation_fraction": 1.0}, "validation_fraction below 1"),
        ({"clip_norm": 0.0}, "positive clip_norm"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(InputError) as caught:
        TrainConfig(**settings)
    assert words in str(caught.value)
