"""Several processes on the CPU train what one process trains."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

from haystack.errors import InputError
from haystack.training.parallel import Processes, shared_norms
from haystack.training.trainer import train

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and hasattr(os, "fork")),
    reason="needs torch.distributed and os.fork",
)

DRIVER = Path(__file__).with_name("train_in_processes.py")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """``haystack train`` as ``torchrun`` starts it: exit code and output of every process."""
    driver = subprocess.Popen(
        [sys.executable, str(DRIVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    def starting(count, *argv, dies=None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        output = tmp_path_factory.mktemp("output")
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
        request = {
            "count": count,
            "argv": ["train", *map(str, argv), "--json"],
            "shared": shared,
            "output": str(output),
            "dies": dies,
        }
        stop = threading.Timer(400, os.killpg, (driver.pid, signal.SIGKILL))
        stop.start()  # processes that wait for each other would do so for ever
        driver.stdin.write(json.dumps(request) + "\n")
        driver.stdin.flush()
        answer = driver.stdout.readline()
        stop.cancel()
        assert answer, "the processes did not end in time"
        codes = json.loads(answer)
        return [
            (code, *((output / f"{rank}.{name}").read_text() for name in ("out", "err")))
            for rank, code in enumerate(codes)
        ]

    yield starting
    driver.stdin.close()
    driver.wait()


@pytest.fixture(scope="module")
def config(quick, dataset):
    """Batch normalisation, trees, negatives; no dropout, which every process draws for itself."""
    return replace(
        quick,
        annotations=str(dataset.root / "annotation.json"),
        steps=5,
        batch_size=5,
        optimizer="sgd",
        learning_rate=0.02,
        validation_fraction=0.3,
        validate_every=2,
        select="mR@20",
        log_every=1,
        model=replace(quick.model, dropout=0.0),
    )


@pytest.fixture(scope="module")
def alone(config, dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    train(config, dataset, folder)
    return folder


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_losses_gradients_metrics_and_weights_are_those_of_one_process(
    start, config, alone, tmp_path
):
    # Of five images a batch: two, two and one.
    check_that_processes_agree_with_one(start, 3, config, alone, tmp_path)


def test_losses_of_classified_objects_are_those_of_one_process(start, config, dataset, tmp_path):
    """GPSNet, whose classifier draws nothing at random; VCTree's and MOTIFS' decoders do."""
    model = replace(config.model, head="gpsnet", classifies_objects=True)
    config = replace(config, task="sgcls", model=model)
    train(config, dataset, tmp_path / "alone")
    assert rows(tmp_path / "alone")[-1]["object"] > 0
    check_that_processes_agree_with_one(start, 2, config, tmp_path / "alone", tmp_path)


def check_that_processes_agree_with_one(start, count, config, alone, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(asdict(config)))
    answers = start(count, file, "--out", tmp_path / "run")
    assert [code for code, _, _ in answers] == [0] * count, answers
    assert json.loads(answers[0][1])["step"] > 0
    assert [answer[1:] for answer in answers[1:]] == [("", "")] * (count - 1)  # one process speaks
    for ours, theirs in zip(rows(tmp_path / "run"), rows(alone), strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert ours[name] == (None if value is None else pytest.approx(value, rel=2e-4)), name
    ours, theirs = (load_file(f / "model.safetensors") for f in (tmp_path / "run", alone))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_a_killed_run_of_two_processes_resumes_to_the_same_bytes(start, config, tmp_path):
    config = replace(config, checkpoint_every=2, model=replace(config.model, dropout=0.2))
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(asdict(config)))
    assert [code for code, _, _ in start(2, file, "--out", tmp_path / "whole")] == [0, 0]

    # A run of the same settings that stopped after its checkpoint of step 2, and in step 3.
    killed = start(2, file, "--out", tmp_path / "parts", dies=3)
    assert [code for code, _, _ in killed] == [9, 9]
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    answers = start(2, file, "--out", tmp_path / "parts")
    assert json.loads(answers[0][1])["resumed_from"] == 2
    for name in ("model.safetensors", "metrics.jsonl", "summary.json"):
        whole, parts = (tmp_path / folder / name for folder in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes(), name


def test_all_processes_hear_what_is_wrong(start, config, alone, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(asdict(replace(config, seed=7))))
    for code, _, err in start(2, file, "--out", alone):
        assert code == 2
        assert "seed: 0 there, 7 here" in err


def test_a_batch_with_an_image_for_each_process_is_required(config, dataset, monkeypatch):
    monkeypatch.setattr(
        "haystack.training.trainer.joined",
        lambda device: nullcontext((Processes(0, 2), torch.device(device))),
    )
    with pytest.raises(InputError, match="expected at least an image for each of 2 processes"):
        train(replace(config, batch_size=1), dataset)


@pytest.mark.slow
def test_torchrun_starts_it(config, alone, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(asdict(config)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "haystack", "train", str(file), "--out", str(tmp_path / "run")]
    subprocess.run(command, check=True, timeout=180, capture_output=True)
    assert rows(tmp_path / "run")[-1]["loss"] == pytest.approx(rows(alone)[-1]["loss"], rel=1e-4)


@pytest.mark.parametrize("shape", [(7, 3), (6, 3, 4, 5)])
def test_shared_norms_compute_what_pytorch_computes(shape, monkeypatch):
    """With one process's sums, the shared normalisation is PyTorch's own, gradients included."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: None)
    torch.manual_seed(0)
    kind = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    ours, theirs = kind(3, momentum=0.2), kind(3, momentum=0.2)
    inputs = torch.randn(shape) * 3 + 1
    results = []
    for norm in (ours, theirs):
        values = inputs.clone().requires_grad_()
        with shared_norms(norm, Processes(0, 2 if norm is ours else 1)):
            out = norm(values)
            (out * torch.linspace(0, 1, out.numel()).view(shape)).sum().backward()
        assert type(norm) is kind
        results.append((out, values.grad, norm.weight.grad, norm.bias.grad, *norm.buffers()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_parameter_that_nobody_used_keeps_no_gradient(monkeypatch):
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.mul_(2))
    used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(3))
    used.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    Processes(0, 2).sum_gradients([unused, used])
    assert unused.grad is None
    assert used.grad.tolist() == [[2, 4], [6, 8]]
