"""Run a job on a Ray cluster: actors that are handed names of shards.

Only names of shards and counts cross between machines. Workers read images from where the source is
and write to the workspace themselves, so both lie on a file system that all nodes see, and nothing
of either enters Ray's object store.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack import files
from haystack.errors import HaystackError, InputError, MissingDependencyError
from haystack.executors.base import Job, Recipe, RunSummary
from haystack.executors.claims import LEASE_SECONDS, Claims
from haystack.executors.dispatch import FALSE_STARTS, Event, Finished, Lost, Raised, Ready, Workers
from haystack.executors.processes import Setup, WorkerError
from haystack.executors.progress import Progress
from haystack.executors.run import Run
from haystack.executors.shard import Result, Task, run_shard
from haystack.executors.temporaries import remove_strays_of

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger(__name__)

_SECONDS_TO_WARN = 60.0


class RayExecutor:
    """Actors pull shards, one actor a GPU, or a CPU; Ray starts anew those that die.

    Args:
        workspace_root: the workspace, on a file system that all nodes see.
        progress: show how far it is.
        address: of the cluster; None = what ``RAY_ADDRESS`` says, else one that runs on this
            machine, else a new one on it for as long as the run takes.
        workers: how many actors; None = as many as the cluster has GPUs, or CPUs without ``gpu``.
            A cluster that grows on demand needs the number.
        gpu: whether each actor gets a GPU of its own, which it sees as ``cuda``.
        lease: see ``Claims``.
    """

    def __init__(
        self,
        workspace_root: str | Path,
        *,
        progress: bool = True,
        address: str | None = None,
        workers: int | None = None,
        gpu: bool = False,
        lease: float = LEASE_SECONDS,
    ) -> None:
        self._root = Path(os.path.abspath(workspace_root))
        self._progress = progress
        self._address = address
        self._workers = workers
        self._gpu = gpu
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
            recipe: how the actors build it.
            begun: called once it is known that there may be a run.

        Raises:
            HaystackError: Ray or its cluster cannot be had, or has no GPU that is asked for.
        """
        if recipe is None:
            raise HaystackError("Ray's actors need a recipe by which they build the job")
        with _connected(self._address) as ray:
            run = Run(self._root, job, progress=self._progress, lease=self._lease, begun=begun)
            return run.with_workers(partial(self._actors, ray, job.name, recipe))

    def _actors(
        self, ray: ModuleType, stage: str, recipe: Recipe, claims: Claims, _: Progress
    ) -> Workers:
        setup = Setup(
            root=self._root,
            recipe=pickle.dumps(recipe),
            device="cuda" if self._gpu else None,
            identity=claims.identity,
            lease=self._lease,
            threads=1,
        )
        return RayActors(ray, stage, setup, self._count(ray), gpus=int(self._gpu))

    def _count(self, ray: ModuleType) -> int:
        resources = ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        if self._workers is not None:
            return self._workers
        if self._gpu and not gpus:
            raise HaystackError(
                "the device is cuda and the Ray cluster has no GPU; set the stage's device to cpu, "
                "or give --workers if the cluster adds nodes on demand"
            )
        if gpus and not self._gpu:
            logger.warning(
                "the Ray cluster has %d GPUs, and the stage's device is not cuda: they stay idle",
                gpus,
            )
        return gpus if self._gpu else max(1, cpus)


@dataclass(frozen=True)
class _Place:
    """Where an actor's process is."""

    process: int
    machine: str


class Actor:
    """What runs in Ray's processes: builds the job once, computes shards.

    Args:
        setup: see there.
    """

    def __init__(self, setup: Setup) -> None:
        logging.basicConfig(format="%(message)s", stream=sys.stderr, force=True)
        logging.getLogger("haystack").setLevel(logging.INFO)
        self._setup = setup
        self._job: Job | None = None
        self._claims: Claims | None = None

    def ready(self) -> _Place | WorkerError:
        """Build the job; where this process is, or why the job cannot be built."""
        try:
            if self._job is None:
                self._job = pickle.loads(self._setup.recipe)(self._setup.device)  # our driver's
                self._claims = Claims(
                    self._setup.root,
                    self._job.name,
                    self._setup.identity,
                    lease=self._setup.lease,
                )
        except Exception as error:
            return WorkerError.from_exception(error)
        return _Place(os.getpid(), files.machine())

    def compute(self, task: Task) -> Result | WorkerError:
        """Compute a shard; what became of it, or what the job raised."""
        assert self._job is not None
        assert self._claims is not None
        try:
            return run_shard(
                self._setup.root, self._job, task, self._claims, advance=_unheard, strict=True
            )
        except Exception as error:
            return WorkerError.from_exception(error)


def _unheard(items: int) -> None:
    """Actors report whole shards."""


class RayActors:
    """Workers of the dispatcher that are actors.

    A shard whose actor dies comes back as ``Lost`` at once (``max_task_retries=0``), so that
    another one takes it; Ray starts the actor anew meanwhile (``max_restarts=-1``), on another node
    if need be, and it gets no shard until it has said that it is ready.

    Args:
        ray: the module, connected.
        stage: name of the job.
        setup: what each actor is told.
        count: how many.
        gpus: for each.
    """

    def __init__(self, ray: ModuleType, stage: str, setup: Setup, count: int, *, gpus: int) -> None:
        self.count = count
        self._ray = ray
        self._stage = stage
        self._setup = setup
        self._class = ray.remote(Actor).options(
            num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=0
        )
        self._actors: dict[int, Any] = {}
        self._starting: dict[Any, int] = {}
        self._computing: dict[Any, int] = {}
        self._places: dict[int, _Place] = {}
        self._false_starts = [0] * count
        self._warn_at = time.monotonic() + _SECONDS_TO_WARN

    def start(self) -> None:
        """Ask Ray for the actors."""
        for worker in range(self.count):
            self._actors[worker] = self._class.remote(self._setup)
            self._await(worker)

    def give(self, worker: int, task: Task) -> None:
        """Hand a shard to an actor."""
        self._computing[self._actors[worker].compute.remote(task)] = worker

    def events(self, timeout: float) -> Sequence[Event]:
        """What the actors answered, and which of them died."""
        if not self._places and time.monotonic() > self._warn_at:
            self._warn_at = time.monotonic() + _SECONDS_TO_WARN
            free = self._ray.available_resources()
            logger.warning(
                "no Ray worker has started yet; free are %g CPUs and %g GPUs",
                *(free.get(kind, 0.0) for kind in ("CPU", "GPU")),
            )
        awaited = [*self._starting, *self._computing]
        answers = self._ray.wait(awaited, timeout=timeout)[0] if awaited else []
        return [self._answer(answer) for answer in answers]

    def stop(self) -> None:
        """Kill the actors, and remove what they left half done."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        for worker in set(self._computing.values()):
            self._clean(worker)
        self._actors.clear()

    def _await(self, worker: int) -> None:
        ready = self._actors[worker].ready.options(max_task_retries=FALSE_STARTS)
        self._starting[ready.remote()] = worker

    def _answer(self, answer: Any) -> Event:
        starting = answer in self._starting
        worker = (self._starting if starting else self._computing).pop(answer)
        try:
            value: _Place | Result | WorkerError = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            return self._lose(worker, error, starting=starting)
        if isinstance(value, WorkerError):
            return Raised(worker, value)
        if isinstance(value, Result):
            return Finished(worker, value)
        self._places[worker] = value
        self._false_starts[worker] = 0
        return Ready(worker)

    def _lose(self, worker: int, error: Exception, *, starting: bool) -> Lost:
        self._clean(worker)
        reason = f"{type(error).__name__} on the Ray cluster"
        self._false_starts[worker] += starting
        if self._false_starts[worker] >= FALSE_STARTS:
            self._ray.kill(self._actors.pop(worker))
            return Lost(worker, f"{reason}, before it could start: {error}", for_good=True)
        self._await(worker)
        return Lost(worker, reason)

    def _clean(self, worker: int) -> None:
        place = self._places.pop(worker, None)
        if place is not None:
            remove_strays_of(self._setup.root, self._stage, place.process, place.machine)


@contextmanager
def _connected(address: str | None) -> Iterator[ModuleType]:
    """Ray, connected to a cluster; left as it was found."""
    # A cluster that is started here reports to nobody; a running one does what its owner chose.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("ray", purpose="--executor ray", extra="ray") from error
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address=address, include_dashboard=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot reach a Ray cluster at {address or 'here'}: {reason}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
