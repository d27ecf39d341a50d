"""From what an image costs in each stage to days, disks and network for a whole collection.

    python benchmarks/scale_plan.py --images 11000000 --gpus 8 --cores 64

Figures of this repository's benchmarks are the defaults where there are any; what nothing has
measured (a GPU's milliseconds) has none and is left open. Put in your own with, for example,
``--gpu-ms segment=120``. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

_GIB = 2**30
_DAY = 86400.0


@dataclass(frozen=True)
class StageCost:
    """What one image costs in a stage.

    Args:
        name: of the stage.
        cpu_ms: milliseconds of one core.
        gpu_ms: milliseconds of one GPU; 0 = the stage uses none, None = not measured.
        read_bytes: read from the images' or an earlier stage's storage.
        write_bytes: left in the workspace.
        parallel: shards are shared out; False = one process has the whole collection, here on one
            core.
    """

    name: str
    cpu_ms: float
    gpu_ms: float | None
    read_bytes: float
    write_bytes: float
    parallel: bool = True


@dataclass(frozen=True)
class StagePlan:
    """What a stage takes for the whole collection.

    Args:
        name: of the stage.
        cpu_days: days of one core.
        gpu_days: days of one GPU; None = not measured.
        hours: until it is done with the cores and GPUs that there are, whichever take longer; None
            where the GPU's share is not known.
        read_gib, write_gib: of storage.
        network_mb_s: megabytes a second that all machines together read in those hours.
    """

    name: str
    cpu_days: float
    gpu_days: float | None
    hours: float | None
    read_gib: float
    write_gib: float
    network_mb_s: float | None


def plan(costs: Sequence[StageCost], images: int, gpus: int, cores: int) -> list[StagePlan]:
    """The costs of ``images`` on ``gpus`` and ``cores``, stage by stage.

    A stage's GPU and CPU work overlap (threads decode ahead), so that the longer one counts.
    """
    plans = []
    for cost in costs:
        cpu_seconds = images * cost.cpu_ms / 1000
        gpu_seconds = None if cost.gpu_ms is None else images * cost.gpu_ms / 1000
        seconds = None
        if gpu_seconds is not None:
            seconds = max(cpu_seconds / (cores if cost.parallel else 1), gpu_seconds / gpus)
        read = images * cost.read_bytes
        plans.append(
            StagePlan(
                name=cost.name,
                cpu_days=cpu_seconds / _DAY,
                gpu_days=None if gpu_seconds is None else gpu_seconds / _DAY,
                hours=None if seconds is None else seconds / 3600,
                read_gib=read / _GIB,
                write_gib=images * cost.write_bytes / _GIB,
                network_mb_s=read / seconds / 1e6 if seconds else None,
            )
        )
    return plans


# One core of an AMD EPYC; see benchmarks/README.md for how each figure came about.
_JPEG, _MASKS, _FEATURE = 543_000.0, 37_000.0, 2.0 * 1024
MEASURED = (
    # A draft of a JPEG of 1500 x 2250 decoded to 224 pixels; features stored as float16.
    StageCost("embed", cpu_ms=9.4, gpu_ms=None, read_bytes=_JPEG, write_bytes=_FEATURE),
    # 100,000 rows of 1,024 numbers, k = 50, 20 rounds: 6.82 s, 3.4 us a row and round. Of eleven
    # million, 25 rounds see a sample of a million, and one sees all.
    StageCost(
        "cluster",
        cpu_ms=3.4e-3 * (25 / 11 + 1),
        gpu_ms=0.0,
        read_bytes=(1 / 11 + 1) * _FEATURE,
        write_bytes=40.0,
        parallel=False,
    ),
    # Full decoding; a panoptic PNG of that size.
    StageCost("segment", cpu_ms=54.9, gpu_ms=None, read_bytes=_JPEG, write_bytes=_MASKS),
    # 412 pairs an image at 423 ns each, the rate of 100,000 images; and reading the segments' PNG.
    StageCost("score", cpu_ms=0.174 + 8.7, gpu_ms=None, read_bytes=_MASKS, write_bytes=2460.0),
)


def with_own(costs: Sequence[StageCost], own: Mapping[str, Mapping[str, float]]) -> list[StageCost]:
    """The costs with some of them replaced: field -> stage -> value.

    Raises:
        ValueError: there is no such stage.
    """
    known = {cost.name: cost for cost in costs}
    for field, values in own.items():
        for stage, value in values.items():
            if stage not in known:
                raise ValueError(f"expected a stage out of {', '.join(known)}, got {stage!r}")
            known[stage] = replace(known[stage], **{field: value})
    return list(known.values())


def _table(plans: Sequence[StagePlan]) -> str:
    head = ("stage", "core days", "GPU days", "hours", "read", "written", "network")
    lines = [head, tuple("---" for _ in head)]
    for each in plans:
        lines.append(
            (
                each.name,
                f"{each.cpu_days:,.1f}",
                "not measured" if each.gpu_days is None else f"{each.gpu_days:,.1f}",
                "open" if each.hours is None else f"{each.hours:,.1f}",
                f"{each.read_gib:,.0f} GiB",
                f"{each.write_gib:,.0f} GiB",
                "open" if each.network_mb_s is None else f"{each.network_mb_s:,.0f} MB/s",
            )
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--images", type=int, default=11_000_000)
    arguments.add_argument("--gpus", type=int, default=8)
    arguments.add_argument("--cores", type=int, default=64)
    for option, what in (
        ("--cpu-ms", "milliseconds of a core an image"),
        ("--gpu-ms", "milliseconds of a GPU an image; 0 = the stage runs on cores alone"),
        ("--read-bytes", "bytes read an image"),
        ("--write-bytes", "bytes left an image"),
    ):
        arguments.add_argument(
            option, action="append", default=[], metavar="STAGE=NUMBER", type=_own, help=what
        )
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    if min(options.images, options.gpus, options.cores) < 1:
        arguments.error("--images, --gpus and --cores expect at least 1")
    fields = ("cpu_ms", "gpu_ms", "read_bytes", "write_bytes")
    own: dict[str, dict[str, float]] = {field: dict(getattr(options, field)) for field in fields}
    try:
        costs = with_own(MEASURED, own)
    except ValueError as error:
        arguments.error(str(error))
    plans = plan(costs, options.images, options.gpus, options.cores)
    rows: list[dict[str, Any]] = [asdict(each) for each in plans]
    print(json.dumps(rows, indent=1) if options.json else _table(plans))


def _own(text: str) -> tuple[str, float]:
    stage, equals, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not equals or not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected STAGE=NUMBER, got {text!r}")
    return stage, value


if __name__ == "__main__":
    main()
