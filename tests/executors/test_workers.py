"""Several processes, killed at random: the same bytes as one that nobody disturbs."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from processes import snapshot
from tiny_tars import (
    ColourRecipe,
    killing_workers,
    quarantined,
    write_tars,
)

from haystack.errors import HaystackError, InputError
from haystack.executors import LocalExecutor, RunSummary, read_status


def run(root: Path, recipe: ColourRecipe, workers: int = 2) -> RunSummary:
    executor = LocalExecutor(root, progress=False, devices=[f"d{n}" for n in range(workers)])
    return executor.run(recipe(), recipe)


def undisturbed(root: Path, source: Path) -> dict[str, object]:
    recipe = ColourRecipe(str(source))
    LocalExecutor(root, progress=False).run(recipe())
    return snapshot(root)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The sizes of the runs whose workers are killed: those of the command line, where given."""
    if metafunc.definition.originalname != "test_killed_workers_change_nothing":
        return
    shards = metafunc.config.getoption("--shards")
    sizes = [(24, 4), pytest.param(200, 25, marks=pytest.mark.slow)]
    if shards is not None:
        kills = metafunc.config.getoption("--kills")
        sizes = [(shards, max(1, shards // 10) if kills is None else kills)]
    metafunc.parametrize(("shards", "kills"), sizes)


def test_killed_workers_change_nothing(tmp_path: Path, shards: int, kills: int) -> None:
    broken = write_tars(tmp_path / "tars", shards)
    expected = undisturbed(tmp_path / "undisturbed", tmp_path / "tars")
    trace = tmp_path / "trace"
    recipe = ColourRecipe(str(tmp_path / "tars"), seconds=0.2, trace=str(trace))
    with killing_workers(trace, kills, seed=shards) as killed:
        summary = run(tmp_path / "disturbed", recipe)
    assert killed
    # One that was killed between its last rename and its answer has done its shard.
    assert summary.done + summary.skipped == shards
    assert summary.done > shards // 2
    assert not summary.failed
    assert summary.quarantined == len(broken)
    assert quarantined(tmp_path / "disturbed") == broken
    assert snapshot(tmp_path / "disturbed") == expected


def test_each_shard_is_computed_once_on_the_devices_that_are_named(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 8)
    trace = tmp_path / "trace"
    recipe = ColourRecipe(str(tmp_path / "tars"), seconds=0.3, trace=str(trace))
    assert run(tmp_path / "work", recipe).done == 8
    shards, processes, devices = zip(*map(str.split, trace.read_text().splitlines()), strict=True)
    assert len(set(shards)) == len(shards) == 8
    assert len(set(processes)) == 2
    assert set(devices) == {"d0", "d1"}
    again = run(tmp_path / "work", recipe)
    assert (again.done, again.skipped, again.inputs) == (0, 8, 24)


def test_a_shard_that_kills_its_workers_is_given_up_and_the_rest_goes_on(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 6)
    trace = tmp_path / "trace"
    recipe = ColourRecipe(str(tmp_path / "tars"), poison="t002", trace=str(trace))
    summary = run(tmp_path / "work", recipe)
    assert summary.done == 5
    (failed,) = summary.failed
    assert failed.shard == "t002"
    assert "3 workers died on it" in failed.reason
    assert "SIGKILL" in failed.reason
    assert "t002" in str(summary)
    tried = Counter(line.split()[0] for line in trace.read_text().splitlines())
    assert tried["t002"] == 3
    assert not list((tmp_path / "work").rglob(".tmp-*"))
    assert not list((tmp_path / "work/colour/.claims").iterdir())
    assert not (tmp_path / "work/colour/t002.manifest.json").exists()
    # Once the cause is removed the next run does it.
    assert run(tmp_path / "work", ColourRecipe(str(tmp_path / "tars"))).done == 1


def test_what_a_job_raises_ends_the_run_with_its_sentence(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 6)
    recipe = ColourRecipe(str(tmp_path / "tars"), raises="t001", seconds=0.1)
    with pytest.raises(HaystackError, match="t001: this shard is bad") as caught:
        run(tmp_path / "work", recipe)
    assert caught.value.exit_code == InputError.exit_code
    assert not list((tmp_path / "work").rglob(".tmp-*"))
    assert not list((tmp_path / "work/colour/.claims").iterdir())


def test_workers_that_cannot_build_the_job_end_the_run(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 1)
    recipe = ColourRecipe(str(tmp_path / "gone"))
    with pytest.raises(HaystackError, match="gone"):
        LocalExecutor(tmp_path / "work", progress=False, devices=["a", "b"]).run(
            ColourRecipe(str(tmp_path / "tars"))(), recipe
        )


def test_workers_that_die_as_they_start_are_no_endless_loop(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 1)
    with pytest.raises(HaystackError, match="no worker is left: killed by SIGKILL, before"):
        run(tmp_path / "work", ColourRecipe(str(tmp_path / "tars"), stillborn=True))


def test_several_devices_need_a_recipe(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 1)
    with pytest.raises(HaystackError, match="recipe"):
        LocalExecutor(tmp_path, devices=["a", "b"]).run(ColourRecipe(str(tmp_path / "tars"))())


def test_workers_report_items_while_they_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_tars(tmp_path / "tars", 3)
    monkeypatch.setattr("haystack.executors.progress.SECONDS_BETWEEN_LOG_LINES", 0.0)
    recipe = ColourRecipe(str(tmp_path / "tars"))
    with caplog.at_level(logging.INFO, logger="haystack"):
        LocalExecutor(tmp_path / "work", devices=["a", "b"]).run(recipe(), recipe)
    assert caplog.messages[-1] == "colour: 3 of 3 shards, 9 items"
    assert read_status(tmp_path / "work")[0].shards == 3


DRIVER = """
import signal
import sys
from tiny_tars import ColourRecipe
from haystack.executors import LocalExecutor
recipe = ColourRecipe(sys.argv[1], seconds=0.3)
# A shell that starts tests in the background has them, and all below, ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
if __name__ == "__main__":
    LocalExecutor(sys.argv[2], progress=False, devices=["a", "b"]).run(recipe(), recipe)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_launch_that_is_ended_takes_its_workers_along(tmp_path: Path, number: int) -> None:
    write_tars(tmp_path / "tars", 60)
    driver, work = tmp_path / "driver.py", tmp_path / "work"
    driver.write_text(DRIVER)
    launch = subprocess.Popen(
        [sys.executable, driver, tmp_path / "tars", work],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while len(list(work.glob("colour/*.manifest.json"))) < 1:
        assert launch.poll() is None
        time.sleep(0.02)
    if number == signal.SIGKILL:
        launch.kill()  # it alone: its workers have to notice
    else:
        os.killpg(launch.pid, number)
    assert launch.stderr is not None
    shown = launch.stderr.read()  # ends when the last process that could write to it has ended
    launch.wait()
    assert "worker-" not in shown, "workers die without a word"
    if number != signal.SIGKILL:
        assert len(list(work.glob("colour/*.manifest.json"))) < 60
    # A process that is ended while it cleans up leaves a stray; the next run sweeps it.
    LocalExecutor(work, progress=False).run(ColourRecipe(str(tmp_path / "tars"))())
    assert not list(work.rglob(".tmp-*"))
    assert not list((work / "colour/.claims").iterdir())
