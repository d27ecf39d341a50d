"""Progress, pace and time to go, from manifests and plans."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from tiny_tars import ColourRecipe, write_tars

from haystack.executors import LocalExecutor, read_status
from haystack.executors.base import manifest_path
from haystack.executors.manifest import read_manifests
from haystack.executors.status import pace_of


def simulated(workers: int, seconds: float, until: float, seed: int = 0) -> list[tuple]:
    """Spans of the shards that ``workers`` have finished by ``until``, 10 items each."""
    chosen, spans = random.Random(seed), []
    for _ in range(workers):
        now = 0.0
        while True:
            end = now + seconds * chosen.uniform(0.5, 1.5)
            if end > until:
                break
            spans.append((now, end, 10))
            now = end
    return spans


@pytest.mark.parametrize("workers", [1, 8, 64])
@pytest.mark.parametrize("seconds", [2.0, 60.0, 1800.0])
@pytest.mark.parametrize("rounds", [6, 20])
def test_the_pace_is_that_of_all_workers(workers: int, seconds: float, rounds: int) -> None:
    found = []
    for seed in range(8):
        pace = pace_of(simulated(workers, seconds, rounds * seconds, seed))
        assert pace is not None
        assert pace.items == pytest.approx(10 * pace.shards)
        found.append(pace.shards)
    assert sum(found) / len(found) == pytest.approx(workers / seconds, rel=0.2)


def test_the_first_shards_count_as_being_in_work_together() -> None:
    pace = pace_of([(0.0, 10.0, 5), (0.0, 10.0, 5)])
    assert pace is not None
    assert pace.items == pytest.approx(1.0)


def test_only_the_recent_past_counts() -> None:
    slow = [(k * 100.0, (k + 1) * 100.0, 1) for k in range(50)]
    fast = [(5000.0 + k * 10, 5010.0 + k * 10, 1) for k in range(200)]
    pace = pace_of(slow + fast)
    assert pace is not None
    assert pace.shards == pytest.approx(0.1)


def test_no_pace_without_shards_that_took_time() -> None:
    assert pace_of([]) is None
    assert pace_of([(5.0, 5.0, 3)]) is None


def half_done(root: Path, shards: int = 8, done: int = 3) -> ColourRecipe:
    """A stage that was stopped after ``done`` shards, each of which took 10 seconds."""
    write_tars(root / "tars", shards)
    recipe = ColourRecipe(str(root / "tars"), raises=f"t{done:03d}")
    with pytest.raises(ValueError, match="bad"):
        LocalExecutor(root / "work", progress=False).run(recipe())
    for number, manifest in enumerate(read_manifests(root / "work")):
        path = manifest_path(root / "work", "colour", manifest.shard)
        path.write_text(path.read_text().replace(f'"seconds": {manifest.seconds}', '"seconds": 10'))
        os.utime(path, (1000.0 + 10 * number,) * 2)
    return recipe


def test_what_is_left_and_how_long_it_takes(tmp_path: Path) -> None:
    half_done(tmp_path)
    (status,) = read_status(tmp_path / "work")
    assert (status.shards, status.total, status.left) == (3, 8, 5)
    assert status.latest == 1020.0
    assert status.pace is not None
    assert status.pace.items == pytest.approx(0.3)
    assert status.seconds_to_go == pytest.approx(50.0)


def test_a_stage_that_has_begun_and_finished_nothing(tmp_path: Path) -> None:
    half_done(tmp_path, done=0)
    (status,) = read_status(tmp_path / "work")
    assert (status.shards, status.total, status.inputs) == (0, 8, 0)
    assert status.pace is None
    assert status.seconds_to_go is None


def test_a_shard_that_is_to_be_made_anew_is_not_complete(tmp_path: Path) -> None:
    recipe = ColourRecipe(str(tmp_path / "tars"))
    write_tars(tmp_path / "tars", 4)
    LocalExecutor(tmp_path / "work", progress=False).run(recipe())
    assert read_status(tmp_path / "work")[0].seconds_to_go == 0.0
    os.utime(tmp_path / "tars" / "t001.tar", (0, 0))  # another image source, as far as is known
    os.utime(tmp_path / "tars" / "t002.tar", (0, 0))
    failing = ColourRecipe(str(tmp_path / "tars"), raises="t002")
    with pytest.raises(ValueError, match="bad"):
        LocalExecutor(tmp_path / "work", progress=False).run(failing())
    (status,) = read_status(tmp_path / "work")
    assert (status.shards, status.left, status.inputs) == (3, 1, 9)


def test_without_a_plan_the_manifests_are_all_there_is(tmp_path: Path) -> None:
    half_done(tmp_path)
    (tmp_path / "work/colour/plan.json").write_text("{")
    (status,) = read_status(tmp_path / "work")
    assert (status.shards, status.total, status.seconds_to_go) == (3, None, None)


@pytest.mark.parametrize(
    "junk",
    [
        {"counts": ["in"]},
        {"counts": {}},
        {"counts": {"in": "many"}},
        {"seconds": "long"},
        {"seconds": float("nan")},
        {"seconds": -1.0},
        {"stage": "../elsewhere"},
        {"shard": "../../elsewhere"},
        {"inputs": [1]},
        {"files": {"../victim": {"bytes": 1, "sha256": "0"}}},
        {"files": {"/victim": {"bytes": 1, "sha256": "0"}}},
        "[" * 100_000,
    ],
)
def test_a_junk_manifest_counts_as_not_done(
    tmp_path: Path, junk: dict[str, object] | str, caplog: pytest.LogCaptureFixture
) -> None:
    write_tars(tmp_path / "tars", 2)
    recipe = ColourRecipe(str(tmp_path / "tars"))
    LocalExecutor(tmp_path / "work", progress=False).run(recipe())
    (before,) = read_status(tmp_path / "work")
    stage, shard = before.stage, recipe().shards()[0]
    path = manifest_path(tmp_path / "work", stage, shard)
    content = json.loads(path.read_text())
    path.write_text(junk if isinstance(junk, str) else json.dumps({**content, **junk}))
    (status,) = read_status(tmp_path / "work")
    assert (status.shards, status.left) == (before.shards - 1, 1)
    assert "is not a manifest" in caplog.text


def test_a_foreign_manifest_removes_nothing_outside_the_workspace(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 2)
    recipe = ColourRecipe(str(tmp_path / "tars"))
    executor = LocalExecutor(tmp_path / "work", progress=False)
    executor.run(recipe())
    job = recipe()
    content = json.loads(manifest_path(tmp_path / "work", job.name, job.shards()[0]).read_text())
    content |= {"shard": "gone", "files": {"../victim": {"bytes": 1, "sha256": "0"}}}
    manifest_path(tmp_path / "work", job.name, "gone").write_text(json.dumps(content))
    (tmp_path / "victim").write_text("kept")
    executor.run(job)
    assert (tmp_path / "victim").read_text() == "kept"
