from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import haystack.metrics
from haystack.metrics.base import HaystackMetric
from haystack.metrics.predicates import pack_samples

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


@pytest.fixture(scope="module")
def gathered(brute, tmp_path_factory):
    """By case, the batches of two processes and what each of them computed."""
    if not torch.distributed.is_available():
        pytest.skip("PyTorch lacks torch.distributed")
    data, folder = batches(brute), tmp_path_factory.mktemp("gathered")
    cases = {
        "even": [data[:2], data[2:]],
        "uneven": [data[:1], data[1:]],
        "one idle": [data, []],
        "the other idle": [[], data],
        "both idle": [[], []],
    }
    torch.save(cases, folder / "shards.pt")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(WORKER), str(rank), "2", str(folder)],
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
    results = [torch.load(folder / f"result-{r}.pt", weights_only=True) for r in range(2)]
    return {case: (parts, [found[case] for found in results]) for case, parts in cases.items()}


def assert_same(found, wanted, where):
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True, msg=where)


def test_two_processes_give_what_one_gives_bit_for_bit(gathered, alone):
    for case, (parts, results) in gathered.items():
        wanted = alone([batch for part in parts for batch in part])
        for rank, found in enumerate(results):
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                assert_same(found[name], value, f"{case}, process {rank}: {name}")


LISTS = {"PredicateAUROC": "P-AUC ", "SceneGraphMetrics": "graphs P-AUC"}
"""Metrics with a list state, and what the worker calls the value that is made from it."""


@pytest.mark.parametrize("case", ["one idle", "the other idle", "both idle"])
@pytest.mark.parametrize("name", LISTS.values(), ids=LISTS)
def test_a_list_state_survives_an_idle_process(gathered, alone, name, case):
    """torchmetrics gathers an empty float vector in place of a list that has nothing."""
    parts, results = gathered[case]
    wanted = alone([batch for part in parts for batch in part])[name]
    assert bool(wanted.isnan().all()) == (case == "both idle")
    for rank, found in enumerate(results):
        assert_same(found[name], wanted, f"process {rank}")


def needed(parameter):
    return parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD


def test_every_metric_with_a_list_state_is_tried_with_an_idle_process():
    """And the state is what an empty float vector can be joined with: a float32 vector."""
    classes = {
        name: value
        for name in haystack.metrics.__all__
        if isinstance(value := getattr(haystack.metrics, name), type)
        and issubclass(value, HaystackMetric)
    }
    assert {"InstanceRecall", "PanopticQuality", "TripletRecall"} < classes.keys()
    given = {"num_predicates": 3, "num_things": 2, "num_stuff": 1, "training": [[0, 0, 0]]}
    listed = set()
    for name, kind in classes.items():
        parameters = inspect.signature(kind).parameters.values()
        metric = kind(**{p.name: given[p.name] for p in parameters if needed(p)})
        states = [state for state, empty in metric._defaults.items() if isinstance(empty, list)]
        listed |= {name} if states else set()
        assert set(states) <= {"samples"}
    assert listed == LISTS.keys()
    packed = pack_samples(torch.rand(2, dtype=torch.float64), torch.ones(2), torch.arange(2))
    assert (packed.dtype, packed.ndim) == (torch.float32, 1)
