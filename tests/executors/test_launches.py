"""Equal processes of one launch, as torchrun and Slurm start them, share out a stage."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from processes import snapshot
from tiny_tars import ColourRecipe, quarantined, write_tars

from haystack.errors import HaystackError
from haystack.executors import LocalExecutor
from haystack.executors.locks import stage_lock
from haystack.executors.shares import Share

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def launch(root: Path, recipe: ColourRecipe, index: int, count: int) -> int:
    """Start a process of a launch; its process number. It exits with the shards that it did."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            share = Share(index, count, "launch")
            code = LocalExecutor(root, progress=False, share=share).run(recipe()).done
        finally:
            os._exit(code)
    return child


def wait_for(*children: int) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.fixture
def tars(tmp_path: Path) -> tuple[str, set[str]]:
    return str(tmp_path / "tars"), write_tars(tmp_path / "tars", 24)


def test_no_shard_is_computed_twice(tmp_path: Path, tars: tuple[str, set[str]]) -> None:
    trace = tmp_path / "trace"
    recipe = ColourRecipe(tars[0], seconds=0.03, trace=str(trace))
    done = wait_for(*(launch(tmp_path / "work", recipe, index, 3) for index in range(3)))
    begun = Counter(line.split()[0] for line in trace.read_text().splitlines())
    assert set(begun.values()) == {1}
    assert len(begun) == sum(done) == 24
    assert min(done) > 0
    LocalExecutor(tmp_path / "undisturbed", progress=False).run(ColourRecipe(tars[0])())
    assert snapshot(tmp_path / "work") == snapshot(tmp_path / "undisturbed")
    assert quarantined(tmp_path / "work") == tars[1]


def test_who_is_through_helps_and_a_dead_ones_shards_are_done(
    tmp_path: Path, tars: tuple[str, set[str]]
) -> None:
    slow = launch(tmp_path / "work", ColourRecipe(tars[0], seconds=600.0), 0, 2)
    claim = tmp_path / "work/colour/.claims/t000"
    deadline = time.monotonic() + 60
    while not claim.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert wait_for(launch(tmp_path / "work", ColourRecipe(tars[0]), 1, 2)) == [23]
    os.kill(slow, signal.SIGKILL)
    os.waitpid(slow, 0)
    assert claim.exists()
    assert wait_for(launch(tmp_path / "work", ColourRecipe(tars[0]), 1, 2)) == [1]
    LocalExecutor(tmp_path / "undisturbed", progress=False).run(ColourRecipe(tars[0])())
    assert snapshot(tmp_path / "work") == snapshot(tmp_path / "undisturbed")


def test_a_shard_in_other_hands_is_said_to_be_so(
    tmp_path: Path, tars: tuple[str, set[str]]
) -> None:
    slow = launch(tmp_path / "work", ColourRecipe(tars[0], seconds=600.0), 0, 2)
    try:
        while not (tmp_path / "work/colour/.claims/t000").exists():
            time.sleep(0.01)
        share = Share(1, 2, "launch")
        summary = LocalExecutor(tmp_path / "work", progress=False, share=share).run(
            ColourRecipe(tars[0])()
        )
    finally:
        os.kill(slow, signal.SIGTERM)
        wait_for(slow)
    assert (summary.done, summary.elsewhere) == (23, 1)
    assert "1 more in the hands of other processes" in str(summary)
    assert not list((tmp_path / "work").rglob(".tmp-*")), "SIGTERM ends a process cleanly"
    assert not (tmp_path / "work/colour/.claims/t000").exists()


def test_only_a_shards_own_process_reads_all_of_its_files(
    tmp_path: Path, tars: tuple[str, set[str]]
) -> None:
    recipe = ColourRecipe(tars[0])
    LocalExecutor(tmp_path / "work", progress=False).run(recipe())
    damaged = tmp_path / "work/colour/t000.json"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + b" ")
    assert wait_for(launch(tmp_path / "work", recipe, 1, 2)) == [0]
    assert wait_for(launch(tmp_path / "work", recipe, 0, 2)) == [1]
    assert damaged.read_bytes() == content


def test_processes_of_one_plan_share_a_stage_and_others_stay_out(tmp_path: Path) -> None:
    with stage_lock(tmp_path, "colour", plan="a", shared=True):
        with stage_lock(tmp_path, "colour", plan="a", shared=True):
            pass
        with (
            pytest.raises(HaystackError, match="with other settings, weights or images"),
            stage_lock(tmp_path, "colour", plan="b", shared=True),
        ):
            pass
        with (
            pytest.raises(HaystackError, match=f"process {os.getpid()} is running the stage"),
            stage_lock(tmp_path, "colour", plan="a", shared=False),
        ):
            pass
    with stage_lock(tmp_path, "colour", plan="b", shared=True):
        pass


def test_a_launch_that_is_kept_out_is_not_begun(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 1)
    job, begun = ColourRecipe(str(tmp_path / "tars"))(), []
    executor = LocalExecutor(tmp_path / "work", progress=False)
    with (
        stage_lock(tmp_path / "work", job.name, plan="", shared=False),
        pytest.raises(HaystackError, match="is running the stage"),
    ):
        executor.run(job, begun=lambda: begun.append(1))
    assert not begun
    executor.run(job, begun=lambda: begun.append(1))
    assert begun == [1]
