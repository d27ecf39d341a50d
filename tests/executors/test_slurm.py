"""Tasks of a Slurm array: signals end them cleanly, and they are requeued where it makes sense."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from processes import snapshot
from tiny_tars import ColourJob, ColourRecipe, write_tars

from haystack.executors import Counts, LocalExecutor, Outputs
from haystack.executors.slurm import STOPPED, SlurmExecutor, TaskStoppedError

SHARDS = 8
VARIABLES = {
    "SLURM_JOB_ID": "512",
    "SLURM_ARRAY_JOB_ID": "500",
    "SLURM_ARRAY_TASK_ID": "0",
    "SLURM_ARRAY_TASK_COUNT": "2",
}


class Interrupted(ColourJob):
    """Does something once, in the middle of its third shard."""

    def __init__(self, recipe: ColourRecipe, act: Callable[[], None]) -> None:
        super().__init__(recipe, None)
        self.act = act
        self.begun: list[str] = []

    def run(self, shard: str, out: Outputs) -> Counts:
        self.begun.append(shard)
        out.path(f"colour/{shard}.json").write_text("half")
        if len(self.begun) == 3:
            self.act()
        return super().run(shard, out)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A task that is requeued hears no more signals; the tests go on."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def source(tmp_path: Path) -> ColourRecipe:
    write_tars(tmp_path / "tars", SHARDS)
    return ColourRecipe(str(tmp_path / "tars"))


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a ``scontrol`` on the path that shows a job so; returns the log of its calls."""

    def make(shown: str, *, refuses: bool = False) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        log = tmp_path / "scontrol.log"
        log.touch()
        refusal = 'echo "Requested operation is presently disabled" >&2; exit 1'
        (folder / "scontrol").write_text(
            f'#!/bin/sh\necho "$*" >> {log}\n'
            f'case $1 in show) echo "{shown}" ;; *) {refusal if refuses else ":"} ;; esac\n'
        )
        (folder / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return log

    return make


RUNNING = "JobId=512 ArrayJobId=500 JobState=RUNNING Reason=None Requeue=1 Restarts=0"


def send(*signals: signal.Signals, wait: float = 0.0) -> Callable[[], None]:
    def act() -> None:
        for number in signals:
            os.kill(os.getpid(), number)
        time.sleep(wait)

    return act


def stopped(
    root: Path,
    source: ColourRecipe,
    act: Callable[[], None],
    variables: Mapping[str, str] = VARIABLES,
    grace: float = 60.0,
) -> tuple[str, Interrupted]:
    """Run until ``act`` ends it; the sentence, and the job."""
    job = Interrupted(source, act)
    with (
        pytest.raises(TaskStoppedError) as caught,
        SlurmExecutor(root, progress=False, environment=variables, grace=grace) as executor,
    ):
        executor.run(job)
    assert caught.value.exit_code == STOPPED == 75
    assert not list(root.rglob(".tmp-*"))
    assert not list((root / "colour/.claims").iterdir())
    return str(caught.value), job


def manifests(root: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in root.glob("colour/*.manifest.json")}


def test_a_task_takes_its_share_then_what_is_left(tmp_path: Path, source: ColourRecipe) -> None:
    job = Interrupted(source, lambda: None)
    with SlurmExecutor(
        tmp_path / "work",
        progress=False,
        environment={**VARIABLES, "SLURM_ARRAY_TASK_ID": "1"},
    ) as executor:
        summary = executor.run(job)
    assert summary.done == SHARDS
    assert job.begun == [f"t{n:03d}" for n in (1, 3, 5, 7, 0, 2, 4, 6)]


def test_sigusr1_finishes_the_shard_and_requeues_the_task(
    tmp_path: Path, source: ColourRecipe, scontrol: Callable[..., Path]
) -> None:
    log = scontrol(RUNNING)
    message, job = stopped(tmp_path / "work", source, send(signal.SIGUSR1, wait=0.1))
    assert "stopped by SIGUSR1" in message
    assert "task 500_0 is requeued" in message
    assert log.read_text().splitlines() == ["show job -o 500_0", "requeue 500_0"]
    assert manifests(tmp_path / "work") == set(job.begun) == {"t000", "t002", "t004"}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "Slurm ends what it requeues"


def test_sigusr1_drops_the_shard_when_the_grace_is_over(
    tmp_path: Path, source: ColourRecipe, scontrol: Callable[..., Path]
) -> None:
    scontrol(RUNNING)
    started = time.monotonic()
    message, _ = stopped(tmp_path / "work", source, send(signal.SIGUSR1, wait=600), grace=0.1)
    assert time.monotonic() - started < 300
    assert "is requeued" in message
    assert manifests(tmp_path / "work") == {"t000", "t002"}


def test_sigterm_drops_the_shard_at_once(
    tmp_path: Path, source: ColourRecipe, scontrol: Callable[..., Path]
) -> None:
    scontrol(RUNNING)
    message, _ = stopped(tmp_path / "work", source, send(signal.SIGUSR1, signal.SIGTERM))
    assert "stopped by SIGTERM" in message
    assert "is requeued" in message
    assert manifests(tmp_path / "work") == {"t000", "t002"}


def test_a_requeued_task_ends_with_the_bytes_of_an_undisturbed_run(
    tmp_path: Path, source: ColourRecipe, scontrol: Callable[..., Path]
) -> None:
    scontrol(RUNNING)
    stopped(tmp_path / "work", source, send(signal.SIGTERM))
    with SlurmExecutor(
        tmp_path / "work",
        progress=False,
        environment={**VARIABLES, "SLURM_RESTART_COUNT": "1"},
    ) as executor:
        summary = executor.run(source())
    assert (summary.done, summary.skipped) == (SHARDS - 2, 2)
    LocalExecutor(tmp_path / "undisturbed", progress=False).run(source())
    assert snapshot(tmp_path / "work") == snapshot(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("shown", "refuses", "words"),
    [
        ("JobState=CANCELLED Requeue=1", False, "not requeued: Slurm calls the task CANCELLED"),
        ("JobState=PREEMPTED Requeue=1", False, "not requeued: Slurm calls the task PREEMPTED"),
        ("JobState=RUNNING Requeue=0", False, "--no-requeue; submit it again"),
        (RUNNING, True, "operation is presently disabled; submit it again"),
    ],
)
def test_a_task_that_may_not_be_requeued_is_not(
    tmp_path: Path,
    source: ColourRecipe,
    scontrol: Callable[..., Path],
    shown: str,
    refuses: bool,
    words: str,
) -> None:
    log = scontrol(shown, refuses=refuses)
    message, _ = stopped(tmp_path / "work", source, send(signal.SIGTERM))
    assert words in message
    assert ("requeue 500_0" in log.read_text()) == refuses


def test_without_scontrol_the_sentence_says_what_to_do(
    tmp_path: Path, source: ColourRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    message, _ = stopped(tmp_path / "work", source, send(signal.SIGTERM))
    assert "not requeued" in message
    assert "scontrol" in message
    assert "submit it again" in message


def test_only_the_first_process_of_a_task_requeues_it(
    tmp_path: Path, source: ColourRecipe, scontrol: Callable[..., Path]
) -> None:
    log = scontrol(RUNNING)
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    message, _ = stopped(
        tmp_path / "work", source, send(signal.SIGTERM), variables={**VARIABLES, **step}
    )
    assert "first process" in message
    assert log.read_text() == ""


def test_a_task_that_gets_nowhere_is_not_requeued_for_ever(
    tmp_path: Path, source: ColourRecipe, scontrol: Callable[..., Path]
) -> None:
    log = scontrol(RUNNING)
    job = Interrupted(source, send(signal.SIGTERM))
    job.begun = ["earlier", "earlier"]  # so that the first shard is interrupted
    with (
        pytest.raises(TaskStoppedError, match="restarted 5 times and now finished no shard"),
        SlurmExecutor(
            tmp_path / "work",
            progress=False,
            environment={**VARIABLES, "SLURM_RESTART_COUNT": "5"},
        ) as executor,
    ):
        executor.run(job)
    assert log.read_text() == ""


def test_a_signal_before_the_work_begins_is_heard(
    tmp_path: Path, scontrol: Callable[..., Path]
) -> None:
    log = scontrol(RUNNING)
    with (
        pytest.raises(TaskStoppedError, match="SIGUSR1"),
        SlurmExecutor(tmp_path / "work", progress=False, environment=VARIABLES),
    ):
        send(signal.SIGUSR1, wait=5)()  # while the job is built
    assert "requeue 500_0" in log.read_text()


@pytest.mark.parametrize(("grace", "seconds"), [(60.0, 0.3), (0.1, 600.0)])
def test_a_task_of_several_processes_ends_as_one_does(
    tmp_path: Path, scontrol: Callable[..., Path], grace: float, seconds: float
) -> None:
    log = scontrol(RUNNING)
    write_tars(tmp_path / "tars", 40)
    recipe = ColourRecipe(str(tmp_path / "tars"), seconds=seconds)
    root = tmp_path / "work"

    def announce() -> None:
        deadline = time.monotonic() + 120
        while len(list(root.glob("colour/.tmp-*-t0*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=announce)
    thread.start()
    with (
        pytest.raises(TaskStoppedError, match=r"stopped by SIGUSR1.*is requeued"),
        SlurmExecutor(
            root, progress=False, devices=["a", "b"], environment=VARIABLES, grace=grace
        ) as executor,
    ):
        executor.run(recipe(), recipe)
    thread.join()
    assert "requeue 500_0" in log.read_text()
    assert bool(manifests(root)) == (grace > seconds), "shards in work are finished, or dropped"
    assert len(manifests(root)) < 40
    assert not list(root.rglob(".tmp-*"))
    assert not list((root / "colour/.claims").iterdir())
