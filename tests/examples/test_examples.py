"""The examples run as their docstrings say, and what they print is right."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*command):
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def epochs_of(output):
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"epoch"')]
    assert [line["epoch"] for line in lines] == list(range(len(lines)))
    assert len(lines) > 1
    first, last = lines[0]["P-AUC"], lines[-1]["P-AUC"]
    assert 0.4 < first < last
    assert 0.85 < last < 1
    return lines


def test_evaluate_in_training_loop():
    output = run("examples/evaluate_in_training_loop.py", "--device", "cpu")
    last = epochs_of(output)[-1]
    predicates = re.findall(r"predicate \d: P-AUC (\S+) \(\d+ positives\)", output)
    assert len(predicates) == 5
    mean = sum(map(float, predicates)) / 5
    assert last["P-AUC"] == pytest.approx(mean, abs=1e-3)


def test_the_bundled_model_in_a_training_loop():
    epochs_of(run("examples/train_loop_psg_mini.py", "--device", "cpu", "--epochs", "4"))


@pytest.mark.skipif(
    importlib.util.find_spec("torch.distributed.run") is None,
    reason="PyTorch lacks torch.distributed",
)
def test_two_processes_grade_every_image_once():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    output = run(*launcher, "examples/train_loop_ddp.py")
    assert {line["images"] for line in epochs_of(output)} == {61}


@pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="Lightning is not installed"
)
def test_lightning_logs_the_metric_object_and_the_dict():
    output = run("-W", "ignore", "examples/lightning_module.py")
    last = epochs_of(output)[-1]
    logged = json.loads(output.splitlines()[-1])["logged"]
    for name in ("P-AUC", "PDD", "PDO", "mR@5"):
        assert logged[f"val/{name}"] == pytest.approx(last[name], abs=1e-3)
    assert logged["val/P-AUC-streaming"] == pytest.approx(last["P-AUC"], abs=0.01)


def test_the_lightning_example_says_what_is_missing(tmp_path):
    (tmp_path / "lightning.py").write_text("raise ModuleNotFoundError('no lightning')")
    folders = [str(tmp_path), str(EXAMPLES)]
    code = f"import sys; sys.path[:0] = {folders!r}; import lightning_module"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install lightning" in done.stderr


def test_ones_own_relation_model_runs_by_itself_and_by_its_name(tmp_path):
    value = re.fullmatch(r"P-AUC of 'beside': (\S+)\n", run("examples/own_relation_model.py"))
    table = str(tmp_path / "p.parquet")
    run(
        *("-m", "haystack", "predict", "psg-mini", "--split", "test", "--out", table),
        *("--model", "examples/own_relation_model.py:NearIsRelated"),
    )
    graded = run(
        "-m", "haystack", "evaluate", "--annotations", "psg-mini", "--predictions", table, "--json"
    )
    beside = json.loads(graded)["per_predicate"]["beside"]["P-AUC"]
    assert float(value[1]) == pytest.approx(beside, abs=1e-3)
    assert beside > 0.9


def test_ones_own_module_is_trained_graded_and_scores_a_campaign(tmp_path):
    own = "examples/own_relation_model.py:ClassPairs"
    output = run(
        *("-m", "haystack", "train", "train/vctree_psg_mini", "--json", "--model", own),
        *("--out", str(tmp_path / "run"), "steps=60", "learning_rate=0.1"),
    )
    losses = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert losses[-1]["loss"] < 0.7 * losses[0]["loss"]
    assert json.loads(output)["step"] == 60
    table = str(tmp_path / "p.parquet")
    run(
        *("-m", "haystack", "predict", "psg-mini", "--split", "test", "--out", table),
        *("--model", f"{own}@{tmp_path / 'run'}"),
    )
    graded = run(
        "-m", "haystack", "evaluate", "--annotations", "psg-mini", "--predictions", table, "--json"
    )
    assert json.loads(graded)["metrics"]["R@20"] > 0.02


@pytest.mark.parametrize(
    "name",
    [
        "evaluate_in_training_loop",
        "train_loop_psg_mini",
        "train_loop_ddp",
        "lightning_module",
        "own_relation_model",
    ],
)
def test_docstrings_hold_the_command(name):
    assert f"examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text().split('"""')[1]
