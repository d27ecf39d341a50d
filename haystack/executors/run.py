"""Running a stage: what every executor does around handing out its shards."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from haystack import files
from haystack.errors import HaystackError
from haystack.executors.base import Job, RunSummary, manifest_path
from haystack.executors.claims import LEASE_SECONDS, Claims, RunIdentity
from haystack.executors.dispatch import Dispatcher, Outcomes, Workers
from haystack.executors.locks import LOCK, locked, stage_lock
from haystack.executors.manifest import (
    read_manifests,
    remove_shard,
    write_plan,
    write_quarantine,
)
from haystack.executors.progress import Progress
from haystack.executors.shard import Result, State, Task, complete, fingerprint_of
from haystack.executors.shares import Share
from haystack.executors.stopping import StopSignals
from haystack.executors.temporaries import remove_strays

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """One run of a stage in one launching process.

    Args:
        root: the workspace.
        job: the stage.
        share: which part of a launch of several processes this one is, if it is one of several.
        progress: whether to show any.
        stop: signals that end it.
        lease: see ``Claims``.
        begun: called once it is known that there may be a run.
    """

    root: Path
    job: Job
    share: Share | None = None
    progress: bool = True
    stop: StopSignals | None = None
    lease: float = LEASE_SECONDS
    begun: Callable[[], None] | None = None

    def with_workers(self, make: Callable[[Claims, Progress], Workers]) -> RunSummary:
        """Compute every shard that is not complete.

        Args:
            make: makes the workers, once it is known that there may be a run.

        Raises:
            HaystackError: another launch runs this stage in this workspace, or a job raised.
        """
        started, stage = time.monotonic(), self.job.name
        stop = self.stop or StopSignals()
        plan = self._plan()
        planned = files.sha256_text(files.canonical_json(plan))
        if not _writable(self.root):
            return self._as_it_is(plan)
        with stage_lock(self.root, stage, plan=planned, shared=self.share is not None), stop:
            if self.begun is not None:
                self.begun()
            remove_strays(self.root, stage)
            self._forget_other_shards(plan)
            # Written down so that others can tell how far the stage is.
            write_plan(self.root, stage, plan)
            tasks = self._tasks(plan)
            identity = RunIdentity.new(None if self.share is None else self.share.launch)
            claims = Claims(self.root, stage, identity, lease=self.lease)
            try:
                with Progress(stage, len(plan), shown=self.progress) as progress:
                    outcomes = Dispatcher(
                        tasks,
                        make(claims, progress),
                        claims,
                        progress=progress,
                        stop=stop,
                        launch_is_shared=self.share is not None,
                    ).run()
            finally:
                claims.close()
                self._refresh_quarantine()
        return _summary(stage, outcomes, time.monotonic() - started)

    def _as_it_is(self, plan: Mapping[str, str]) -> RunSummary:
        """What is there, where nothing can be written and all is complete.

        Raises:
            HaystackError: something is not.
        """
        started, stage = time.monotonic(), self.job.name
        results = {}
        for task in self._tasks(plan):
            manifest = complete(self.root, stage, task)
            if manifest is None:
                raise HaystackError(
                    f"the shard {task.shard} of the stage '{stage}' is not complete, and nothing "
                    f"can be written to the workspace {self.root}; make it writable"
                )
            results[task.shard] = Result(task.shard, State.COMPLETE, manifest.counts)
        return _summary(stage, Outcomes(results, (), ()), time.monotonic() - started)

    def _plan(self) -> Mapping[str, str]:
        """Shard -> fingerprint."""
        plan = {}
        for shard in self.job.shards():
            manifest_path(self.root, self.job.name, shard)  # refuses names that are no file names
            plan[shard] = fingerprint_of(self.job, shard)[0]
        return plan

    def _tasks(self, plan: Mapping[str, str]) -> list[Task]:
        shards = list(plan)
        if self.share is None:
            return [Task(shard, plan[shard]) for shard in shards]
        own, others = self.share.split(shards)
        # Each reads its own files in full: were all to read all, that alone would take for ever.
        return [
            *(Task(shard, plan[shard]) for shard in own),
            *(Task(shard, plan[shard], thorough=False) for shard in others),
        ]

    def _forget_other_shards(self, plan: Mapping[str, str]) -> None:
        stage = self.job.name
        for manifest in list(read_manifests(self.root, stage)):
            if manifest.shard not in plan:
                logger.info(
                    "%s: the source has no shard %r any more; its outputs are removed",
                    stage,
                    manifest.shard,
                )
                remove_shard(self.root, manifest)

    def _refresh_quarantine(self) -> None:
        # Stages that run side by side would overwrite each other's view of the manifests.
        with locked(self.root / LOCK, wait=True):
            write_quarantine(self.root)


def _writable(root: Path) -> bool:
    """Whether a workspace can be written to, or made."""
    return not root.is_dir() or os.access(root, os.W_OK | os.X_OK)


def _summary(stage: str, outcomes: Outcomes, seconds: float) -> RunSummary:
    results = outcomes.results.values()
    done = sum(result.state is State.COMPUTED for result in results)
    totals = {
        key: sum(result.counts[key] for result in results) for key in ("in", "ok", "quarantined")
    }
    return RunSummary(
        stage=stage,
        done=done,
        skipped=len(results) - done,
        inputs=totals["in"],
        ok=totals["ok"],
        quarantined=totals["quarantined"],
        seconds=seconds,
        failed=outcomes.failed,
        elsewhere=len(outcomes.elsewhere),
    )
