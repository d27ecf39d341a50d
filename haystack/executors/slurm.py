"""Run a job in the tasks of a Slurm array: shares by index, requeued where time runs out."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from haystack.errors import HaystackError
from haystack.executors.base import Job, Recipe, RunSummary
from haystack.executors.local import LocalExecutor
from haystack.executors.shares import slurm_share
from haystack.executors.stopping import Stopped, StopSignals

STOPPED = 75
"""Exit code of a task that a signal ended before its shards were done: "temporary failure"."""

GRACE_SECONDS = 60.0
MOST_RESTARTS_IN_VAIN = 5
_SECONDS_FOR_SCONTROL = 60.0


class TaskStoppedError(HaystackError):
    """A signal ended the task; what was finished is kept."""

    exit_code = STOPPED


class SlurmExecutor:
    """Runs this task's share, then what other tasks have not begun.

    While it is entered, the signals by which Slurm announces the end are heard:

    - SIGUSR1 (``sbatch --signal=USR1@120``: before the time limit): the shards in work are
      finished if ``grace`` seconds suffice, else dropped;
    - SIGTERM (preemption, ``scancel``): they are dropped at once.

    Then the task is requeued, if Slurm says that it may be and still calls it running: a task that
    somebody cancelled stays cancelled. The exit code is 75 (``STOPPED``) either way.

    Args:
        workspace_root: the workspace, on a file system that all tasks see.
        progress: show how far it is.
        devices: as for ``LocalExecutor``: several processes a task.
        environment: Slurm's variables.
        grace: seconds to finish shards in after SIGUSR1.

    Raises:
        InputError: not inside a Slurm job.
    """

    def __init__(
        self,
        workspace_root: str | Path,
        *,
        progress: bool = True,
        devices: Sequence[str | None] = (),
        environment: Mapping[str, str] = os.environ,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self.share = slurm_share(environment)
        self._environment = environment
        self._stop = StopSignals([signal.SIGUSR1], grace=grace)
        self._local = LocalExecutor(
            workspace_root,
            progress=progress,
            devices=devices,
            share=self.share,
            stop=self._stop,
        )

    def __enter__(self) -> SlurmExecutor:
        self._stop.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if isinstance(error, Stopped):
                raise TaskStoppedError(f"{error}; {self._requeue(error.computed)}") from None
        finally:
            self._stop.__exit__()

    def run(
        self,
        job: Job,
        recipe: Recipe | None = None,
        begun: Callable[[], None] | None = None,
    ) -> RunSummary:
        """Compute this task's share; see ``LocalExecutor.run``."""
        with self._stop:
            return self._local.run(job, recipe, begun)

    def _requeue(self, computed: int) -> str:
        """Requeue this task if that makes sense; says what was done and why."""
        self._stop.ignore()  # Slurm ends a task that it requeues by SIGTERM
        if self._environment.get("SLURM_PROCID", "0") != "0":
            return "what was finished is kept; the task's first process sees to the rest"
        restarts = int(self._environment.get("SLURM_RESTART_COUNT") or 0)
        if not computed and restarts >= MOST_RESTARTS_IN_VAIN:
            return (
                f"not requeued: it has been restarted {restarts} times and now finished no shard; "
                "give it more time, or make smaller shards"
            )
        task = self._task()
        try:
            state, allowed = _state(_scontrol("show", "job", "-o", task))
            if state != "RUNNING":
                return f"what was finished is kept; not requeued: Slurm calls the task {state}"
            if not allowed:
                return (
                    "what was finished is kept; not requeued: the job was submitted with "
                    "--no-requeue; submit it again to go on"
                )
            _scontrol("requeue", task)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip()
            return f"what was finished is kept; not requeued: {said}; submit it again to go on"
        return f"what was finished is kept; task {task} is requeued and goes on from there"

    def _task(self) -> str:
        # SLURM_JOB_ID alone may name another task of the array.
        array, task = (self._environment.get(f"SLURM_ARRAY_{k}_ID") for k in ("JOB", "TASK"))
        return f"{array}_{task}" if array and task else self._environment["SLURM_JOB_ID"]


def _scontrol(*words: str) -> str:
    return subprocess.run(
        ["scontrol", *words],
        check=True,
        capture_output=True,
        text=True,
        timeout=_SECONDS_FOR_SCONTROL,
    ).stdout


def _state(shown: str) -> tuple[str, bool]:
    """State of a job, and whether it may be requeued, from ``scontrol show job -o``."""
    values = dict(word.partition("=")[::2] for word in shown.split())
    return values.get("JobState", "unknown"), values.get("Requeue") == "1"
