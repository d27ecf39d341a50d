"""Workers that are processes of this machine, started anew: CUDA cannot be forked."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from haystack import files
from haystack.errors import HaystackError
from haystack.executors.claims import Claims, RunIdentity
from haystack.executors.dispatch import FALSE_STARTS, Advanced, Event, Finished, Lost, Raised, Ready
from haystack.executors.shard import Task, run_shard
from haystack.executors.stopping import StopSignals
from haystack.executors.temporaries import remove_strays_of

_SECONDS_BETWEEN_REPORTS = 0.5
_SECONDS_TO_END = 10.0


class WorkerError(HaystackError):
    """What a job raised in another process.

    Args:
        message: the error's own sentence.
        exit_code: its meaning on the command line.
    """

    def __init__(self, message: str, exit_code: int = HaystackError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.exit_code)

    @classmethod
    def from_exception(cls, error: Exception) -> WorkerError:
        """The same sentence, in a form that crosses processes."""
        if isinstance(error, HaystackError):
            return cls(str(error), error.exit_code)
        logging.getLogger(__name__).error("a worker failed", exc_info=error)
        return cls(f"unexpected {type(error).__name__} in a worker: {error}")


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know; crosses to its process.

    Args:
        root: the workspace.
        recipe: how to build the job; pickled, since its modules may only be imported once
            ``threads`` is set.
        device: where to compute, or None for the one that is configured.
        identity: of the run.
        lease: see ``Claims``.
        threads: on the CPU; ``OMP_NUM_THREADS`` overrides it.
    """

    root: Path
    recipe: bytes
    device: str | None
    identity: RunIdentity
    lease: float
    threads: int


class ProcessWorkers:
    """A process for each setup; one that dies is replaced.

    Args:
        root: the workspace.
        stage: name of the job.
        setups: what each process is told.
    """

    def __init__(self, root: Path, stage: str, setups: Sequence[Setup]) -> None:
        self.count = len(setups)
        self._root = root
        self._stage = stage
        self._setups = setups
        self._running: dict[int, tuple[BaseProcess, Connection]] = {}
        self._started = [False] * len(setups)
        self._false_starts = [0] * len(setups)

    def start(self) -> None:
        """Start the processes."""
        for worker in range(self.count):
            self._start(worker)

    def give(self, worker: int, task: Task) -> None:
        """Send a shard to a process."""
        with suppress(OSError):  # it just died: `events` will find out
            self._running[worker][1].send(task)

    def events(self, timeout: float) -> Sequence[Event]:
        """What the processes sent, and which of them died."""
        running = list(self._running.items())
        heard = wait([connection for _, (_, connection) in running], timeout)
        return [
            self._receive(worker, connection)
            for worker, (_, connection) in running
            if connection in heard
        ]

    def stop(self) -> None:
        """End all processes: those without a shard at once, the others as SIGTERM does."""
        for process, _ in self._running.values():
            process.terminate()
        deadline = time.monotonic() + _SECONDS_TO_END
        for process, connection in self._running.values():
            self._end(process, connection, deadline - time.monotonic())
        self._running.clear()

    def _start(self, worker: int) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(
            target=_work, args=(worker, self._setups[worker], there), name=f"worker-{worker}"
        )
        self._started[worker] = False
        # Ctrl-C reaches the whole group of processes: only this one acts on it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        self._running[worker] = (process, here)

    def _receive(self, worker: int, connection: Connection) -> Event:
        try:
            event: Event = connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return self._bury(worker)
        if isinstance(event, Ready):
            self._started[worker], self._false_starts[worker] = True, 0
        return event

    def _bury(self, worker: int) -> Lost:
        process, connection = self._running.pop(worker)
        self._end(process, connection, _SECONDS_TO_END)
        code = process.exitcode or 0
        reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._false_starts[worker] += not self._started[worker]
        if self._false_starts[worker] >= FALSE_STARTS:
            return Lost(worker, f"{reason}, before it could start", for_good=True)
        self._start(worker)
        return Lost(worker, reason)

    def _end(self, process: BaseProcess, connection: Connection, patience: float) -> None:
        connection.close()
        process.join(max(0.0, patience))
        if process.is_alive():
            process.kill()
            process.join()
        if process.exitcode and process.pid is not None:
            remove_strays_of(self._root, self._stage, process.pid, files.machine())


def _work(worker: int, setup: Setup, connection: Connection) -> None:
    """The life of a worker's process."""
    os.environ.setdefault("OMP_NUM_THREADS", str(setup.threads))
    logging.basicConfig(format="%(message)s", stream=sys.stderr, force=True)
    logging.getLogger("haystack").setLevel(logging.INFO)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with StopSignals(), suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
        try:
            _compute_shards(worker, setup, connection)
        except (KeyboardInterrupt, EOFError, BrokenPipeError):
            raise
        except Exception as error:
            connection.send(Raised(worker, WorkerError.from_exception(error)))
            connection.recv()  # until the parent ends it


def _compute_shards(worker: int, setup: Setup, connection: Connection) -> None:
    job = pickle.loads(setup.recipe)(setup.device)  # our own parent's
    claims = Claims(setup.root, job.name, setup.identity, lease=setup.lease)
    report = _Reports(worker, connection)
    connection.send(Ready(worker))
    while True:
        task = connection.recv()
        result = run_shard(setup.root, job, task, claims, advance=report.add, strict=True)
        report.send()
        connection.send(Finished(worker, result))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _Reports:
    """Tells the parent of items, not too often."""

    def __init__(self, worker: int, connection: Connection) -> None:
        self._worker = worker
        self._connection = connection
        self._items = 0
        self._last = time.monotonic()

    def add(self, items: int) -> None:
        """``items`` more were looked at."""
        self._items += items
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_REPORTS:
            self.send()

    def send(self) -> None:
        """Send what was not sent yet."""
        if self._items:
            self._connection.send(Advanced(self._worker, self._items))
        self._items, self._last = 0, time.monotonic()
