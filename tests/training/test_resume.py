"""A run that is killed anywhere and started again ends with the bytes of an undisturbed one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import yaml
from processes import folder_content as content

from haystack.errors import InputError
from haystack.training.trainer import train

DRIVER = Path(__file__).with_name("kill_training.py")


@pytest.fixture(scope="module")
def config(quick):
    """All that has state: momentum, warm-up, dropout, flips, early stop, best weights."""
    return replace(
        quick,
        steps=12,
        schedule="constant",
        learning_rate=0.05,
        validation_fraction=0.25,
        validate_every=2,
        select="loss",
        patience=3,
        log_every=1,
        checkpoint_every=3,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_killed_at_every_point(dataset, config, tmp_path):
    settings = tmp_path / "config.yaml"
    settings.write_text(yaml.safe_dump(asdict(replace(config, steps=8))))
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(dataset.root / "annotation.json"), settings, tmp_path],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {"model.safetensors", "metrics.jsonl", "checkpoints/last.safetensors"} < set(
        report["files"]
    )
    assert report["half_written"] == []
    assert report["differing"] == []
    assert report["points"] > 25


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_stopped_after_every_step(dataset, config, tmp_path, optimizer, precision):
    config = replace(config, optimizer=optimizer, precision=precision, checkpoint_every=2)
    config = replace(config, learning_rate=0.01, workers=2)
    train(config, dataset, tmp_path / "whole")

    def progress(step, steps, losses):
        started.append(step)
        if len(started) > 3:
            raise KeyboardInterrupt

    resumed = []
    for _ in range(20):
        started = []
        try:
            result = train(config, dataset, tmp_path / "parts", progress=progress)
        except KeyboardInterrupt:
            resumed.append(started[0])
        else:
            break
    assert len(resumed) > 2
    assert resumed == sorted(resumed)
    assert result.resumed_from > 0
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


def test_a_finished_run_says_so_and_is_left_alone(dataset, config, tmp_path):
    first = train(config, dataset, tmp_path)
    before = content(tmp_path)
    again = train(config, dataset, tmp_path, progress=lambda *_: pytest.fail("no step is due"))
    assert again.was_finished
    assert not first.was_finished
    assert again.step == first.step
    assert again.metrics == first.metrics
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, first.model.state_dict()[name])
    assert content(tmp_path) == before


def test_other_settings_in_the_same_folder_are_refused(dataset, config, tmp_path):
    train(config, dataset, tmp_path)
    before = content(tmp_path)
    changed = replace(config, learning_rate=0.01, loss=replace(config.loss, tree_weight=0.5))
    with pytest.raises(InputError) as caught:
        train(changed, dataset, tmp_path)
    assert "learning_rate: 0.05 there, 0.01 here" in str(caught.value)
    assert "loss.tree_weight: 1.0 there, 0.5 here" in str(caught.value)
    assert content(tmp_path) == before
    neutral = replace(config, workers=1, cache="none", checkpoint_every=1)
    assert train(neutral, dataset, tmp_path).was_finished


def test_other_annotations_or_another_start_model_are_refused(dataset, config, quick, tmp_path):
    train(config, dataset, tmp_path / "run")
    graphs = (replace(dataset.graphs[0], relations=dataset.graphs[0].relations[:1]),)
    with pytest.raises(InputError, match="the annotations or the start model changed"):
        train(config, replace(dataset, graphs=graphs + dataset.graphs[1:]), tmp_path / "run")
    start = tmp_path / "start"
    train(quick, dataset, start)
    init = start / "model.safetensors"
    config = replace(config, init=str(init))
    train(config, dataset, tmp_path / "again")
    shutil.copy(tmp_path / "run" / "model.safetensors", init)
    with pytest.raises(InputError, match="the annotations or the start model changed"):
        train(config, dataset, tmp_path / "again")


def test_a_start_model_may_lie_elsewhere_when_its_run_goes_on(dataset, config, quick, tmp_path):
    train(quick, dataset, tmp_path / "start")
    started = replace(config, init=str(tmp_path / "start" / "model.safetensors"))
    train(started, dataset, tmp_path / "run")
    (tmp_path / "start").rename(tmp_path / "moved")
    moved = replace(config, init=f"{tmp_path}/./moved")
    assert train(moved, dataset, tmp_path / "run").was_finished
    with pytest.raises(InputError, match=r"init: .*there, None here"):
        train(config, dataset, tmp_path / "run")


def test_a_run_from_before_there_were_tasks_goes_on(dataset, config, tmp_path):
    """Settings that a stored configuration does not know have the values that changed nothing."""

    def stop(step, steps, losses):
        if step == 5:
            raise KeyboardInterrupt

    train(config, dataset, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, dataset, tmp_path / "run", progress=stop)
    file = tmp_path / "run" / "config.yaml"
    settings = yaml.safe_load(file.read_text())
    for name in ("task", "detections", "match_iou"):
        del settings[name]
    del settings["loss"]["object_weight"]
    file.write_text(yaml.safe_dump(settings, sort_keys=False))
    assert train(config, dataset, tmp_path / "run").resumed_from > 0
    whole, resumed = content(tmp_path / "whole"), content(tmp_path / "run")
    assert {**resumed, "config.yaml": whole["config.yaml"]} == whole


def test_a_folder_with_a_model_but_no_run_is_left_alone(dataset, config, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(InputError, match="not the configuration of a run"):
        train(config, dataset, tmp_path)
    assert content(tmp_path) == {"model.safetensors": b"precious"}


def test_a_damaged_checkpoint_or_journal_is_told(dataset, config, tmp_path):
    def stop(step, steps, losses):
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, dataset, tmp_path, progress=stop)
    metrics = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(metrics[:10])
    with pytest.raises(InputError, match=r"metrics\.jsonl: expected at least"):
        train(config, dataset, tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(metrics)
    last = tmp_path / "checkpoints" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"last\.safetensors: cannot read the checkpoint"):
        train(config, dataset, tmp_path)
