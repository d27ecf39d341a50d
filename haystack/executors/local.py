"""Run a job on this machine: in this process, or in one process a device."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from haystack.errors import HaystackError
from haystack.executors.base import Job, Recipe, RunSummary
from haystack.executors.claims import LEASE_SECONDS, Claims
from haystack.executors.dispatch import InlineWorker, Workers
from haystack.executors.processes import ProcessWorkers, Setup
from haystack.executors.progress import Progress
from haystack.executors.run import Run
from haystack.executors.shard import run_shard
from haystack.executors.shares import Share
from haystack.executors.stopping import StopSignals


class LocalExecutor:
    """Runs shards one after the other; re-running resumes, whatever stopped the run before.

    Args:
        workspace_root: the workspace that outputs and manifests go to.
        progress: show a bar on a terminal, or a log line now and then elsewhere.
        devices: one process for each, where there are two or more (one device may come several
            times, None is the one that is configured); else this process computes, on the device
            that its job was made for.
        share: which part of a launch of several processes this one is. Each takes its share first,
            then what the others have not begun.
        stop: signals that end a run; SIGTERM by default.
        lease: seconds after which processes of other machines count as dead, see ``Claims``.
    """

    def __init__(
        self,
        workspace_root: str | Path,
        *,
        progress: bool = True,
        devices: Sequence[str | None] = (),
        share: Share | None = None,
        stop: StopSignals | None = None,
        lease: float = LEASE_SECONDS,
    ) -> None:
        self._root = Path(workspace_root)
        self._progress = progress
        self._devices = list(devices)
        self._share = share
        self._stop = stop
        self._lease = lease

    def run(
        self,
        job: Job,
        recipe: Recipe | None = None,
        begun: Callable[[], None] | None = None,
    ) -> RunSummary:
        """Compute every shard that is not complete.

        Args:
            job: the stage.
            recipe: how the processes build it, where there are several devices.
            begun: called once it is known that there may be a run.

        Raises:
            HaystackError: another process is running the same stage in this workspace.
        """
        run = Run(self._root, job, self._share, self._progress, self._stop, self._lease, begun)
        if len(self._devices) < 2:
            return run.with_workers(partial(self._inline, job))
        if recipe is None:
            raise HaystackError("several devices need a recipe by which processes build the job")
        return run.with_workers(partial(self._processes, job.name, recipe))

    def _inline(self, job: Job, claims: Claims, progress: Progress) -> Workers:
        return InlineWorker(
            lambda task, advance: run_shard(self._root, job, task, claims, advance=advance),
            progress,
        )

    def _processes(self, stage: str, recipe: Recipe, claims: Claims, _: Progress) -> Workers:
        setup = Setup(
            root=self._root,
            recipe=pickle.dumps(recipe),
            device=None,
            identity=claims.identity,
            lease=self._lease,
            threads=max(1, (os.cpu_count() or 1) // len(self._devices)),
        )
        setups = [replace(setup, device=device) for device in self._devices]
        return ProcessWorkers(self._root, stage, setups)
