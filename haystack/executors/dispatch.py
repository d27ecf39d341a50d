"""Handing out shards to workers: the loop that all executors share.

A worker computes one shard at a time, in this process, in another one, or on another machine. What
is lost with a worker is given out again; what kills each worker that tries it is given up.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from haystack.errors import HaystackError
from haystack.executors.base import FailedShard
from haystack.executors.claims import Claims, Holder
from haystack.executors.progress import Progress
from haystack.executors.shard import Result, State, Task
from haystack.executors.stopping import Stopped, StopSignals

ATTEMPTS = 3
"""Processes that may die on a shard before it is given up."""

FALSE_STARTS = 5
"""Times in a row that a worker may die before it is ready; then it is given up."""

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_OF_PATIENCE = 0.2


@dataclass(frozen=True)
class Ready:
    """A worker has started and can take a shard."""

    worker: int


@dataclass(frozen=True)
class Advanced:
    """A worker has looked at more items of its shard."""

    worker: int
    items: int


@dataclass(frozen=True)
class Finished:
    """A worker is through with its shard and can take another one."""

    worker: int
    result: Result


@dataclass(frozen=True)
class Raised:
    """A worker's job raised: the run has to end."""

    worker: int
    error: BaseException


@dataclass(frozen=True)
class Lost:
    """A worker died. It is being replaced: ``Ready`` follows, unless ``for_good``."""

    worker: int
    reason: str
    for_good: bool = False


ComputeShard = Callable[[Task, Callable[[int], None]], Result]
"""``run_shard`` with all but the task, and whom to tell of items, bound."""

Event = Ready | Advanced | Finished | Raised | Lost


class Workers(Protocol):
    """Processes that compute shards, numbered from 0."""

    @property
    def count(self) -> int:
        """How many they are."""

    def start(self) -> None:
        """Start them; ``Ready`` tells when."""

    def give(self, worker: int, task: Task) -> None:
        """Hand a shard to a worker that is free."""

    def events(self, timeout: float) -> Sequence[Event]:
        """What happened; waits at most ``timeout`` seconds for something to happen."""

    def stop(self) -> None:
        """End them all, also in the middle of a shard, and remove what they left half done."""


class InlineWorker:
    """One worker: this process.

    Args:
        compute: computes a shard; its second argument is told of items as they are looked at.
        progress: shown while a shard is in work.
    """

    count = 1

    def __init__(self, compute: ComputeShard, progress: Progress) -> None:
        self._compute = compute
        self._progress = progress
        self._task: Task | None = None

    def start(self) -> None:
        """Nothing to start."""

    def give(self, worker: int, task: Task) -> None:
        """Keep the task for the next ``events``."""
        self._task = task

    def events(self, timeout: float) -> Sequence[Event]:
        """Compute the shard that was given; errors pass through."""
        if self._task is None:
            return [Ready(0)]
        task, self._task = self._task, None
        return [Finished(0, self._compute(task, self._progress.items))]

    def stop(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True)
class Outcomes:
    """What became of the shards.

    Args:
        results: of the shards that are complete now.
        failed: shards that were given up.
        elsewhere: shards that other processes have.
    """

    results: Mapping[str, Result]
    failed: tuple[FailedShard, ...]
    elsewhere: tuple[str, ...]


class Dispatcher:
    """Gives shards to workers until each is complete, given up, or in the hands of others.

    Args:
        tasks: the shards, in the order in which to give them out.
        workers: they.
        claims: of this process.
        progress: shown.
        stop: ends it early; shards in work are then finished if there is time.
        launch_is_shared: other processes of the same launch are told which shards are given up.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        workers: Workers,
        claims: Claims,
        *,
        progress: Progress,
        stop: StopSignals,
        launch_is_shared: bool = False,
    ) -> None:
        self._pending = deque(tasks)
        self._workers = workers
        self._claims = claims
        self._progress = progress
        self._stop = stop
        self._shared = launch_is_shared
        self._free: set[int] = set()
        self._in_work: dict[int, Task] = {}
        self._claimed: list[Task] = []
        self._next_look = 0.0
        self._deaths: Counter[str] = Counter()
        self._gone: list[str] = []
        self._raised: BaseException | None = None
        self._results: dict[str, Result] = {}
        self._failed: list[FailedShard] = []
        self._elsewhere: list[str] = []

    def run(self) -> Outcomes:
        """Run to the end.

        Raises:
            Stopped: a signal came, and shards are left.
            HaystackError: a job raised, or no worker is left.
        """
        self._stop.work(begins=True)
        try:
            self._workers.start()
            while self._in_work or (self._left() and not self._ending()):
                self._give()
                for event in self._workers.events(_SECONDS_OF_PATIENCE):
                    self._take(event)
                self._look_at_claimed()
            if self._left() and self._raised is None:
                assert self._stop.requested is not None
                raise Stopped(self._stop.requested)
        except Stopped as stopped:
            stopped.computed = sum(r.state is State.COMPUTED for r in self._results.values())
            raise
        finally:
            self._stop.work(begins=False)
            self._workers.stop()
            for task in self._in_work.values():
                self._claims.clear_own(task.shard)
        if self._raised is not None:
            raise self._raised
        return Outcomes(self._results, tuple(self._failed), tuple(self._elsewhere))

    def _left(self) -> bool:
        return bool(self._pending or self._claimed)

    def _ending(self) -> bool:
        return self._raised is not None or self._stop.requested is not None

    def _give(self) -> None:
        while self._pending and self._free and not self._ending():
            worker = min(self._free)
            self._free.remove(worker)
            self._in_work[worker] = self._pending.popleft()
            self._workers.give(worker, self._in_work[worker])

    def _take(self, event: Event) -> None:
        if isinstance(event, Advanced):
            self._progress.items(event.items)
            return
        task = self._in_work.pop(event.worker, None)
        if isinstance(event, Ready):
            self._free.add(event.worker)
        elif isinstance(event, Finished):
            assert task is not None
            self._free.add(event.worker)
            self._finish(task, event.result)
        elif isinstance(event, Raised):
            self._raised = self._raised or event.error
        else:
            self._lose(task, event)

    def _finish(self, task: Task, result: Result) -> None:
        if result.state is State.CLAIMED:
            self._claimed.append(task)
            return
        self._results[result.shard] = result
        self._progress.shard(max(0, result.counts["in"] - result.advanced))

    def _lose(self, task: Task | None, event: Lost) -> None:
        self._free.discard(event.worker)
        if event.for_good:
            self._gone.append(event.reason)
        if task is not None:
            self._claims.clear_own(task.shard)
            self._deaths[task.shard] += 1
            if self._deaths[task.shard] + task.lost >= ATTEMPTS:
                self._give_up(task, f"{ATTEMPTS} workers died on it, the last: {event.reason}")
            else:
                self._pending.append(task)
        if len(self._gone) == self._workers.count and self._raised is None:
            self._raised = HaystackError(f"no worker is left: {self._gone[-1]}")

    def _look_at_claimed(self) -> None:
        """Find out what became of the shards that other processes have."""
        idle = not (self._pending or self._in_work)
        wait = self._next_look - time.monotonic()
        if not self._claimed or self._ending() or (wait > 0 and not idle):
            return
        time.sleep(max(0.0, wait))
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        claimed, self._claimed = self._claimed, []
        for task in claimed:
            holder, claim = self._claims.look(task.shard)
            if holder is Holder.UNSURE:
                self._claimed.append(task)
            elif holder is Holder.ALIVE:
                self._elsewhere.append(task.shard)
            elif holder is Holder.FAILED:
                self._give_up(task, "other processes died on it")
            elif holder is Holder.DEAD and self._claims.clear(task.shard, claim):
                lost = self._claims.losses(claim)
                if lost >= ATTEMPTS:
                    self._give_up(task, f"{lost} processes died on it")
                else:
                    self._pending.append(replace(task, lost=lost))
            else:  # free by now
                self._pending.append(task)

    def _give_up(self, task: Task, reason: str) -> None:
        if self._shared:
            self._claims.give_up(task.shard)
        self._failed.append(FailedShard(task.shard, reason))
        self._progress.shard(0)
