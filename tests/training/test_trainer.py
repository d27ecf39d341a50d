"""Training on small rendered scenes: it learns, repeats itself, and says what it did."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from haystack.errors import HaystackError, InputError
from haystack.models.relation.config import RelationModelConfig
from haystack.models.relation.files import load_relation_model
from haystack.models.relation.network import RelationNetwork
from haystack.models.relation.predict import predict_dataset
from haystack.scene_graph import as_triplets
from haystack.training.config import TrainConfig
from haystack.training.trainer import train
from haystack.vocabulary import Vocabulary


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


def test_it_learns_relations_of_unseen_scenes(dataset, quick):
    untrained = train(replace(quick, steps=1, learning_rate=0.0), dataset).model
    assert recall_at_number_of_relations(untrained, dataset, "test") < 0.5
    result = train(replace(quick, steps=50), dataset)
    assert recall_at_number_of_relations(result.model, dataset, "test") > 0.9
    first, last = result.metrics[0], result.metrics[-1]
    assert last["loss"] < first["loss"] / 2
    assert last["step"] == result.step == 50


def test_the_same_run_gives_the_same_bytes_whatever_the_caller_does(dataset, quick, tmp_path):
    torch.manual_seed(1)
    train(quick, dataset, tmp_path / "a")
    torch.manual_seed(2)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        train(quick, dataset, tmp_path / "b")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(before, torch.get_rng_state())
    for name in ("model.safetensors", "metrics.jsonl", "config.yaml", "summary.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    train(replace(quick, seed=1), dataset, tmp_path / "c")
    paths = [tmp_path / name / "model.safetensors" for name in "ac"]
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_results_can_be_read_back(dataset, quick, tmp_path):
    result = train(quick, dataset, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == result.metrics
    assert [row["step"] for row in rows] == [2, 4, 6]
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["steps"] == 6
    assert config["model"]["roi_dim"] == 24
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["step"] == 6
    assert summary["images"] == [12]
    loaded = load_relation_model(tmp_path / "model.safetensors")
    for ours, theirs in zip(
        predict_dataset(result.model, dataset), predict_dataset(loaded, dataset), strict=True
    ):
        assert np.array_equal(ours.scores, theirs.scores)


def test_progress_hears_every_step(dataset, quick):
    heard = []
    train(quick, dataset, progress=lambda step, steps, losses: heard.append((step, steps)))
    assert heard == [(step, 6) for step in range(1, 7)]


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("in_folder", [False, True])
def test_validation_keeps_the_best_weights_and_stops(dataset, quick, tmp_path, workers, in_folder):
    config = replace(
        quick,
        steps=300,
        validation_fraction=0.25,
        validate_every=2,
        select="loss",
        patience=2,
        schedule="constant",
        learning_rate=0.05,
        workers=workers,
    )
    out = tmp_path if in_folder else None
    result = train(config, dataset, out)
    losses = [row["validation/loss"] for row in result.metrics]
    best = int(np.argmin(losses))
    assert result.step == result.metrics[best]["step"]
    assert len(losses) == best + 1 + config.patience
    assert result.metrics[-1]["step"] < 300
    assert result.summary["stopped_early"]
    assert result.summary["values"]["validation/loss"] == min(losses)
    again = train(replace(config, steps=result.step, patience=0), dataset)
    assert again.step == result.step
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name]), name


def test_validation_measures_the_metrics_of_the_held_out_images(dataset, quick):
    config = replace(quick, steps=40, validation_fraction=0.25, validate_every=40, select="P-AUC")
    values = train(config, dataset).summary["values"]
    assert values["validation/mR@20"] > 0.9
    assert values["validation/P-AUC"] > 0.9
    assert 0 <= values["validation/PDD"] < 0.5


def test_a_value_that_is_undefined_cannot_select(dataset, quick):
    graphs = tuple(
        replace(graph, neg_relations=as_triplets([]), relations=graph.relations[:1])
        for graph in dataset.graphs
    )
    config = replace(quick, validation_fraction=0.25, validate_every=2, select="P-AUC")
    with pytest.raises(InputError, match="P-AUC is undefined on the images held out"):
        train(config, replace(dataset, graphs=graphs))


def test_retraining_starts_from_the_given_model(dataset, quick, tmp_path):
    train(replace(quick, steps=20), dataset, tmp_path)
    init = str(tmp_path / "model.safetensors")
    other = RelationModelConfig(roi_dim=4)  # the start model's architecture goes first
    still = train(replace(quick, init=init, learning_rate=0.0, steps=1, model=other), dataset)
    before = load_relation_model(init).state_dict()
    for name, tensor in still.model.state_dict().items():
        if "running" not in name and "batches" not in name:
            assert torch.equal(tensor, before[name]), name
    fresh = train(quick, dataset).metrics[0]["loss"]
    again = train(replace(quick, init=init), dataset).metrics[0]["loss"]
    assert again < fresh


def test_retraining_refuses_another_vocabulary(dataset, quick, tmp_path):
    train(replace(quick, steps=1), dataset, tmp_path)
    renamed = Vocabulary(("cat", "dog"), ("table-merged",), ("on", "in", "near"))
    other = replace(dataset, vocabulary=renamed)
    config = replace(quick, init=str(tmp_path / "model.safetensors"))
    with pytest.raises(InputError, match="number 2 is 'beside' and 'near'"):
        train(config, other)


def test_images_that_say_nothing_are_left_out(dataset, quick):
    blank = tuple(
        replace(graph, relations=as_triplets([]), neg_relations=as_triplets([]))
        for graph in dataset.graphs
    )
    with pytest.raises(InputError, match="expected images with two segments and an annotation"):
        train(quick, replace(dataset, graphs=blank))
    negatives = (replace(dataset.graphs[0], relations=as_triplets([])), *blank[1:])
    result = train(replace(quick, steps=1), replace(dataset, graphs=negatives))
    assert result.summary["images"] == [1]
    assert result.summary["left_out"] == 11


@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_png_is_named(dataset, quick, workers):
    graphs = (replace(dataset.graphs[0], pan_seg_file_name="gone.png"), *dataset.graphs[1:])
    with pytest.raises(InputError, match=r"gone\.png"):
        train(replace(quick, workers=workers), replace(dataset, graphs=graphs))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["step", "constant"])
def test_optimisers_and_schedules_lower_the_loss(dataset, quick, optimizer, schedule):
    config = replace(
        quick,
        steps=12,
        optimizer=optimizer,
        schedule=schedule,
        milestones=[8, 10],
        learning_rate=0.05 if optimizer == "sgd" else 5e-3,
        flip=False,
    )
    rows = train(config, dataset).metrics
    assert rows[-1]["loss"] < rows[0]["loss"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_to_nearly_the_same(dataset, quick, precision):
    full, half = (
        train(replace(quick, steps=40, precision=chosen), dataset) for chosen in ("fp32", precision)
    )
    first = full.metrics[0], half.metrics[0]
    assert first[0]["loss"] != first[1]["loss"]
    assert first[0]["loss"] == pytest.approx(first[1]["loss"], rel=0.02)
    assert recall_at_number_of_relations(half.model, dataset, "test") > 0.9
    assert {tensor.dtype for tensor in half.model.parameters()} == {torch.float32}


def test_epochs_count_images(dataset, quick):
    result = train(replace(quick, epochs=2.5), dataset)  # 30 images in batches of 4
    assert result.step == 8


def test_a_gradient_that_explodes_is_told(dataset, quick):
    class Exploding(RelationNetwork):
        def forward(self, encoded):
            batch, output = super().forward(encoded)
            return batch, replace(output, logits=output.logits * math.inf)

    torch.manual_seed(0)
    model = Exploding(quick.model, dataset.vocabulary)
    with pytest.raises(HaystackError, match="the gradient became nan at step 1"):
        train(quick, dataset, model=model)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"split": "val"}, "split to be one of train, test, all, got 'val'"),
        ({"optimizer": "adam"}, "optimizer to be one of"),
        ({"steps": 0}, "steps >= 1, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate >= 0, got nan"),
        ({"validation_fraction": 1.0}, "validation_fraction in 0..1, below 1"),
        ({"clip_norm": 0.0}, "positive clip_norm"),
        ({"schedule": "step"}, "needs milestones"),
        ({"precision": "fp64"}, "precision to be one of fp32, bf16, fp16"),
        ({"select": "recall"}, "select to be one of loss, R@20"),
        ({"mix_share": 1.5}, "mix_share between 0 and 1"),
        ({"epochs": 0.0}, "expected positive, finite epochs, got 0.0"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(InputError) as caught:
        TrainConfig(**settings)
    assert words in str(caught.value)
