"""The loop that hands out shards, with workers that do as they are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from processes import in_child

from haystack.errors import HaystackError
from haystack.executors.claims import Claims, RunIdentity
from haystack.executors.dispatch import (
    Dispatcher,
    Event,
    Finished,
    Lost,
    Outcomes,
    Raised,
    Ready,
)
from haystack.executors.progress import Progress
from haystack.executors.shard import Result, State, Task
from haystack.executors.stopping import StopSignals


class Scripted:
    """Workers that answer each task at once, as a function says."""

    def __init__(self, answer: Callable[[int, Task], Event], count: int = 2) -> None:
        self.count = count
        self._answer = answer
        self._events: list[Event] = []
        self.given: list[str] = []
        self.stopped = False

    def start(self) -> None:
        self._events = [Ready(worker) for worker in range(self.count)]

    def give(self, worker: int, task: Task) -> None:
        self.given.append(task.shard)
        event = self._answer(worker, task)
        self._events.append(event)
        if isinstance(event, Lost) and not event.for_good:
            self._events.append(Ready(worker))

    def events(self, timeout: float) -> Sequence[Event]:
        events, self._events = self._events, []
        return events

    def stop(self) -> None:
        self.stopped = True


def done(worker: int, task: Task) -> Event:
    return Finished(worker, Result(task.shard, State.COMPUTED, {"in": 1}))


def claimed(worker: int, task: Task) -> Event:
    return Finished(worker, Result(task.shard, State.CLAIMED, {}))


def dispatch(
    root: Path,
    workers: Scripted,
    shards: Sequence[str] = ("a", "b", "c"),
    *,
    run: str = "r",
    lease: float = 60.0,
    shared: bool = False,
) -> Outcomes:
    claims = Claims(root, "stage", RunIdentity.new(run), lease=lease)
    with Progress("stage", len(shards), shown=False) as progress:
        return Dispatcher(
            [Task(shard, "") for shard in shards],
            workers,
            claims,
            progress=progress,
            stop=StopSignals(),
            launch_is_shared=shared,
        ).run()


def test_each_shard_is_given_once(tmp_path: Path) -> None:
    workers = Scripted(done)
    outcomes = dispatch(tmp_path, workers)
    assert workers.given == ["a", "b", "c"]
    assert workers.stopped
    assert set(outcomes.results) == {"a", "b", "c"}


def test_what_a_worker_loses_is_given_out_again_after_the_others(tmp_path: Path) -> None:
    deaths = iter([True])

    def answer(worker: int, task: Task) -> Event:
        died = task.shard == "a" and next(deaths, False)
        return Lost(worker, "struck") if died else done(worker, task)

    workers = Scripted(answer, count=1)
    outcomes = dispatch(tmp_path, workers)
    assert workers.given == ["a", "b", "c", "a"]
    assert set(outcomes.results) == {"a", "b", "c"}
    assert not outcomes.failed


def test_three_deaths_and_a_shard_is_given_up(tmp_path: Path) -> None:
    workers = Scripted(lambda w, t: Lost(w, "struck") if t.shard == "b" else done(w, t))
    outcomes = dispatch(tmp_path, workers)
    assert workers.given.count("b") == 3
    assert [(f.shard, f.reason) for f in outcomes.failed] == [
        ("b", "3 workers died on it, the last: struck")
    ]
    assert set(outcomes.results) == {"a", "c"}


def test_the_run_goes_on_while_a_worker_is_left(tmp_path: Path) -> None:
    def answer(worker: int, task: Task) -> Event:
        return Lost(worker, "gone", for_good=True) if worker == 0 else done(worker, task)

    assert set(dispatch(tmp_path, Scripted(answer)).results) == {"a", "b", "c"}
    with pytest.raises(HaystackError, match="no worker is left: gone"):
        dispatch(tmp_path, Scripted(answer, count=1))


def test_an_error_lets_the_others_finish_and_then_ends_the_run(tmp_path: Path) -> None:
    def answer(worker: int, task: Task) -> Event:
        if task.shard == "a":
            return Raised(worker, HaystackError("no good"))
        return done(worker, task)

    workers = Scripted(answer)
    with pytest.raises(HaystackError, match="no good"):
        dispatch(tmp_path, workers)
    assert workers.given == ["a", "b"]
    assert workers.stopped


def test_a_shard_that_a_living_process_has_is_left_to_it(tmp_path: Path) -> None:
    other = Claims(tmp_path, "stage", RunIdentity.new("r"))
    assert other.take("b") is not None
    workers = Scripted(lambda w, t: claimed(w, t) if t.shard == "b" else done(w, t))
    outcomes = dispatch(tmp_path, workers)
    assert outcomes.elsewhere == ("b",)
    assert set(outcomes.results) == {"a", "c"}


def test_a_shard_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    assert in_child(lambda: Claims(tmp_path, "stage", RunIdentity.new("r")).take("b")) == 0
    lost = []

    def answer(worker: int, task: Task) -> Event:
        lost.append((task.shard, task.lost))
        there = (tmp_path / "stage/.claims" / task.shard).exists()
        return claimed(worker, task) if there else done(worker, task)

    assert set(dispatch(tmp_path, Scripted(answer, count=1)).results) == {"a", "b", "c"}
    assert lost == [("a", 0), ("b", 0), ("c", 0), ("b", 1)]


def test_a_shard_that_killed_processes_of_the_launch_is_given_up_for_all(tmp_path: Path) -> None:
    def die_on_it() -> None:
        Claims(tmp_path, "stage", RunIdentity.new("r")).take("b", lost=2)

    assert in_child(die_on_it) == 0

    def answer(worker: int, task: Task) -> Event:
        there = (tmp_path / "stage/.claims" / task.shard).exists()
        return claimed(worker, task) if there else done(worker, task)

    first = dispatch(tmp_path, Scripted(answer), shared=True)
    assert [failed.shard for failed in first.failed] == ["b"]
    assert "3 processes died" in first.failed[0].reason
    workers = Scripted(answer)
    assert [failed.shard for failed in dispatch(tmp_path, workers, shared=True).failed] == ["b"]
    assert workers.given.count("b") == 1
    # Another launch tries it again.
    assert set(dispatch(tmp_path, Scripted(answer), run="later").results) == {"a", "b", "c"}


def test_a_claim_from_elsewhere_is_watched_for_a_lease_and_no_longer(tmp_path: Path) -> None:
    folder = tmp_path / "stage/.claims"
    folder.mkdir(parents=True)
    (folder / "b").write_text("")  # somebody died between creating and writing it

    def answer(worker: int, task: Task) -> Event:
        there = (folder / task.shard).exists()
        return claimed(worker, task) if there else done(worker, task)

    started = time.monotonic()
    outcomes = dispatch(tmp_path, Scripted(answer), lease=0.5)
    assert set(outcomes.results) == {"a", "b", "c"}
    assert time.monotonic() - started < 60
