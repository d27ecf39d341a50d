"""The benchmarks run and say what they should; how fast anything is, no test can know."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
_TINY = {
    "images": 6,
    "objects": 4,
    "predicates": 5,
    "relations": 2,
    "detections": 6,
    "sgdet-images": 3,
    "stream-images": 9,
    "haystack-images": 12,
    "haystack-labels": 30,
    "authors-images": 6,
    "kaihuatang-images": 3,
    "mask-images": 2,
    "height": 30,
    "width": 40,
    "segments": 4,
    "repeat": 1,
}


@pytest.fixture(scope="module")
def benchmark(
    run_benchmark: Run, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    scratch = f"--scratch={tmp_path_factory.mktemp('b')}"
    done = run_benchmark("metrics.py", "--json", scratch, sizes=_TINY)
    assert done.returncode == 0, done.stderr
    return done


def test_every_part_measures_ours_without_any_peer(
    benchmark: subprocess.CompletedProcess[str],
) -> None:
    answer = json.loads(benchmark.stdout)
    parts = [row["part"] for row in answer["rows"]]
    assert set(parts) == {"predcls", "haystack", "masks", "sgdet", "training"}
    assert all(row["ours"] > 0 for row in answer["rows"])


def test_a_goal_without_its_peer_is_neither_met_nor_missed(
    benchmark: subprocess.CompletedProcess[str],
) -> None:
    rows = json.loads(benchmark.stdout)["rows"]
    alone = [row for row in rows if row["peer"].endswith("not given")]
    assert len(alone) >= 8
    for row in alone:
        assert (row["theirs"], row["ratio"], row["met"]) == (None, None, None)


def test_the_machine_is_named_and_the_table_goes_to_stderr(
    benchmark: subprocess.CompletedProcess[str],
) -> None:
    machine = json.loads(benchmark.stdout)["machine"]
    assert machine["cpu"]
    assert machine["threads"] == 1
    assert f"Machine: cpu {machine['cpu']}, cores {machine['cores']}" in benchmark.stderr
    assert "| part" in benchmark.stderr


def test_memory_of_a_stream_is_that_of_its_own_process(
    benchmark: subprocess.CompletedProcess[str],
) -> None:
    rows = json.loads(benchmark.stdout)["rows"]
    memory = next(row for row in rows if row["unit"] == "MiB")
    assert 50 < memory["ours"] < 4096


def test_parity_without_a_peer_compares_nothing_and_fails(run_benchmark: Run) -> None:
    done = run_benchmark("parity.py", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {}
    assert "kt: its peer is not given" in done.stderr


_WRONG_SCRIPT = """
def calc_scores(results, annotations):
    row = {"auc": 0.5, "dd": 0.5, "do": 0.5}
    return {name: row for name in annotations["predicate_classes"]}
"""


def test_parity_fails_where_a_peer_says_something_else(run_benchmark: Run, tmp_path: Path) -> None:
    script = tmp_path / "calc_metrics.py"
    script.write_text(_WRONG_SCRIPT)
    done = run_benchmark(
        "parity.py", "--authors-script", str(script), "--images=12", "--seeds=1", "--json"
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["haystack-v1"]["12 predicates"]["PDD"] > 0.01
    assert "DIFFERS" in done.stderr


@pytest.mark.slow
def test_the_study_of_negatives_compares_every_arm_with_positives_alone(run_benchmark: Run) -> None:
    done = run_benchmark(
        "negatives.py",
        "--json",
        "--ways=split",
        "--seeds=2",
        "--replicates=20",
        "--settings",
        "steps=2",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["metric"] for row in rows} == {"P-AUC", "PDD", "PDO", "mR@50"}
    alone = [row for row in rows if row["arm"] == "positives"]
    assert [row["difference"] for row in alone] == [0] * 4
    others = [row for row in rows if row["arm"] != "positives" and row["metric"] == "P-AUC"]
    assert len(others) == 2
    assert all(0 < row["value"] < 1 and row["low"] <= row["high"] for row in others)
