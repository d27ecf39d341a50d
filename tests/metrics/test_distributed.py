from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("ddp_worker.py")


def batches(brute):
    made = []
    for seed in range(4):
        preds, targets = [], []
        for record in brute.random_images(seed, 3, 4):
            values = {k: torch.from_numpy(v) for k, v in record.items() if k != "image_id"}
            preds.append({k: values[k] for k in ("pairs", "scores")})
            targets.append({k: values[k] for k in ("labels", "relations", "neg_relations")})
        generator = torch.Generator().manual_seed(seed)
        images = torch.arange(2).repeat_interleave(5)
        rows = torch.randperm(10, generator=generator)[:6]
        predicates = torch.randint(0, 4, (6,), generator=generator)
        made.append(
            {
                "preds": preds,
                "targets": targets,
                "scores": torch.rand(10, 4, generator=generator),
                "labels": torch.randint(-1, 2, (10, 4), generator=generator),
                "images": images,
                "triplets": torch.stack([images[rows], rows, predicates], dim=1),
                "found": torch.rand(10, generator=generator) < 0.5,
            }
        )
    return made


@pytest.fixture(scope="module")
def alone():
    """What one process gives, computed by the worker's own function."""
    spec = importlib.util.spec_from_file_location("ddp_worker", WORKER)
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)

    def run(parts):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compute before update, on purpose
            return worker.compute(parts)

    return run


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch lacks torch.distributed")
def test_two_processes_give_what_one_gives_bit_for_bit(brute, alone, tmp_path):
    data = batches(brute)
    cases = {
        "even": [data[:2], data[2:]],
        "uneven": [data[:1], data[1:]],
        "one idle": [data, []],
        "the other idle": [[], data],
        "both idle": [[], []],
    }
    torch.save(cases, tmp_path / "shards.pt")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(WORKER), str(rank), "2", str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    for rank in range(2):
        results = torch.load(tmp_path / f"result-{rank}.pt", weights_only=True)
        for case, parts in cases.items():
            wanted = alone([batch for part in parts for batch in part])
            assert results[case].keys() == wanted.keys()
            for name, value in wanted.items():
                torch.testing.assert_close(
                    results[case][name],
                    value,
                    rtol=0,
                    atol=0,
                    equal_nan=True,
                    msg=f"{case}, process {rank}: {name}",
                )
