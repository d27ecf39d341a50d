"""Where a stage runs: ``--executor local|slurm|ray`` and the devices."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from haystack.cli.outcome import OK, QUARANTINED, Outcome
from haystack.errors import InputError

if TYPE_CHECKING:
    from haystack.executors.base import Executor
    from haystack.executors.shares import Share

_ALL = "all"


def add_executor_arguments(verb: argparse.ArgumentParser) -> None:
    """The executor and its settings; they change how fast a result comes, never the result."""
    group = verb.add_argument_group("where it runs")
    group.add_argument(
        "--executor",
        choices=("local", "slurm", "ray"),
        default="local",
        help="local: this machine, also as torchrun's process; slurm: as a task of a Slurm array; "
        "ray: actors of a Ray cluster (default: local)",
    )
    group.add_argument(
        "--devices",
        metavar="LIST",
        help="a process for each, for example cuda:0,cuda:1; 'all' = every GPU of this machine; "
        "default: the stage's setting 'device', in this process",
    )
    group.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes for each device; with ray: actors in all (default: one for each GPU of the "
        "cluster, or for each CPU where the stage's device is cpu)",
    )
    group.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="the Ray cluster; default: RAY_ADDRESS, or the one that runs here, or a new one here",
    )
    group.add_argument(
        "--grace",
        type=float,
        metavar="SECONDS",
        help="slurm: time to finish the shards in work after SIGUSR1, then they are dropped "
        "(default: 60)",
    )


@dataclass(frozen=True)
class Chosen:
    """An executor, and what choosing it means for the job and for the exit code.

    Args:
        make: makes it, given the device that is configured for the stage.
        device: where this process computes, or None for that device.
        share: which process of a launch this is.
    """

    make: Callable[[str], Executor]
    device: str | None = None
    share: Share | None = None

    def device_for(self, configured: str) -> str | None:
        """Where this process computes, given the device that is configured; None = there."""
        if self.device is None and self.share is not None and configured == "cuda":
            count = _cuda_devices()
            return f"cuda:{self.share.on_machine % count}" if count > 1 else None
        return self.device

    def outcome(self, outcome: Outcome) -> Outcome:
        """The outcome of a stage, with an exit code that the launcher understands."""
        torchrun = self.share is not None and self.share.launch.startswith("torchrun")
        if torchrun and outcome.exit_code == QUARANTINED:
            return replace(outcome, exit_code=OK)  # any other would have it stop the other ranks
        return outcome


@contextmanager
def chosen_executor(args: argparse.Namespace) -> Iterator[Chosen]:
    """The executor of a verb's arguments; its signals are heard while it is entered.

    Raises:
        InputError: settings that do not go together.
    """
    from haystack.executors.local import LocalExecutor
    from haystack.executors.shares import torchrun_share

    root, kind = Path(args.workspace), getattr(args, "executor", None)
    if kind is None:  # a stage of one shard
        yield Chosen(lambda _: LocalExecutor(root))
        return
    _check(args)
    if kind == "ray":
        yield Chosen(lambda configured: _ray(args, configured))
        return
    devices = _devices(args)
    if kind == "slurm":
        from haystack.executors.slurm import GRACE_SECONDS, SlurmExecutor

        grace = GRACE_SECONDS if args.grace is None else args.grace
        with SlurmExecutor(root, devices=devices, grace=grace) as executor:
            yield Chosen(lambda _: executor, devices[0], executor.share)
        return
    share = torchrun_share(os.environ)
    if share is not None and len(devices) > 1:
        raise InputError(
            "torchrun starts a process for each device already; leave --devices and --workers out"
        )
    shown = share is None or share.on_machine == 0
    local = LocalExecutor(root, devices=devices, share=share, progress=shown)
    yield Chosen(lambda _: local, devices[0], share)


def _ray(args: argparse.Namespace, configured: str) -> Executor:
    from haystack.executors.ray_actors import RayExecutor

    return RayExecutor(
        args.workspace,
        address=args.ray_address,
        workers=args.workers,
        gpu=configured.startswith("cuda"),
    )


def _check(args: argparse.Namespace) -> None:
    if args.workers is not None and args.workers < 1:
        raise InputError(f"--workers expects at least 1, got {args.workers}")
    if args.executor == "ray" and args.devices is not None:
        raise InputError(
            "Ray hands out the GPUs: leave --devices out, and set the stage's device to cuda or cpu"
        )
    if args.executor != "ray" and args.ray_address is not None:
        raise InputError("--ray-address goes with --executor ray")
    if args.executor != "slurm" and args.grace is not None:
        raise InputError("--grace goes with --executor slurm")
    if args.grace is not None and not args.grace > 0:
        raise InputError(f"--grace expects a positive number of seconds, got {args.grace}")


def _devices(args: argparse.Namespace) -> list[str | None]:
    """A device for each process; None is the one that is configured."""
    named: list[str | None] = [None]
    if args.devices == _ALL:
        named = [f"cuda:{index}" for index in range(_cuda_devices())]
        if not named:
            raise InputError("--devices all: PyTorch sees no CUDA device on this machine")
    elif args.devices is not None:
        named = [name.strip() for name in args.devices.split(",") if name.strip()]
        if not named:
            raise InputError("--devices expects names such as cuda:0,cuda:1, got none")
    return [device for device in named for _ in range(args.workers or 1)]


def _cuda_devices() -> int:
    import torch

    return torch.cuda.device_count()
