from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from haystack.metrics import PredicateAUROC, PredicateDisplacement, SceneGraphMetrics

WORKER = Path(__file__).with_name("ddp_worker.py")


def batches(brute):
    made = []
    for seed in range(4):
        preds, targets = [], []
        for record in brute.random_images(seed, 3, 4):
            tensors = {k: torch.from_numpy(v) for k, v in record.items() if k != "image_id"}
            preds.append({k: tensors[k] for k in ("pairs", "scores")})
            targets.append({k: tensors[k] for k in ("labels", "relations", "neg_relations")})
        generator = torch.Generator().manual_seed(seed)
        scores = torch.rand(10, 4, generator=generator)
        labels = torch.randint(-1, 2, (10, 4), generator=generator)
        made.append((preds, targets, scores, labels))
    return made


def alone(parts):
    graphs = SceneGraphMetrics(4, ks=(1, 3), per_predicate=True)
    auroc, displacement = PredicateAUROC(4, average=None), PredicateDisplacement(4)
    for preds, targets, scores, labels in parts:
        graphs.update(preds, targets)
        auroc.update(scores, labels)
        displacement.update(scores, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compute before update, on purpose
        return [graphs.compute(), {"auroc": auroc.compute()}, displacement.compute()]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch lacks torch.distributed")
def test_two_processes_give_what_one_gives_bit_for_bit(brute, tmp_path):
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
            expected = alone([batch for part in parts for batch in part])
            for found, wanted in zip(results[case], expected, strict=True):
                assert found.keys() == wanted.keys()
                for name in wanted:
                    torch.testing.assert_close(
                        found[name],
                        wanted[name],
                        rtol=0,
                        atol=0,
                        equal_nan=True,
                        msg=f"{case}, process {rank}: {name}",
                    )
