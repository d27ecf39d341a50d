"""CPU time, the machine's name, and the table; standard library only until a name is asked for."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


def best_cpu_seconds(action: Callable[[], Any], repeat: int) -> float:
    """CPU time of the fastest of ``repeat`` runs after one to warm up, of all threads together."""
    action()
    return min(_cpu_seconds(action) for _ in range(repeat))


def best_seconds(action: Callable[[], Any], repeat: int, device: str) -> float:
    """CPU time on the CPU, wall time of finished work on a GPU; otherwise as above."""
    if device == "cpu":
        return best_cpu_seconds(action, repeat)
    import torch

    action()
    spent = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    return min(spent)


def _cpu_seconds(action: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    action()
    return time.process_time() - start


def peak_memory_mib() -> float:
    """Highest resident size of this process so far.

    Linux counts the peak of the process that started this one into ``ru_maxrss``, so it is asked
    only where ``/proc`` says nothing.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:", 1)[1].split()[0]) / 1024
    except (OSError, IndexError):
        import resource

        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def reset_peak_memory() -> None:
    """Let ``peak_memory_mib`` count from what is resident now; Linux only, nothing elsewhere."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        part: of the benchmark.
        what: is measured.
        ours: our figure.
        unit: of both figures.
        peer: whom it is compared with, or why with nobody.
        theirs: the peer's figure, None where it was not measured.
        ratio: theirs / ours, or what the goal is about where it is something else.
        goal: such as ``>= 10``; empty where there is none.
        met: whether the goal is met; None where nothing can be said.
        note: how the figures came about.
    """

    part: str
    what: str
    ours: float
    unit: str
    peer: str = ""
    theirs: float | None = None
    ratio: float | None = None
    goal: str = ""
    met: bool | None = None
    note: str = ""


def compared(
    part: str,
    what: str,
    ours: float,
    unit: str,
    peer: str,
    theirs: float | None,
    *,
    at_least: float | None = None,
    note: str = "",
) -> Row:
    """A row whose goal is a ratio of at least so much; without a peer, our figure alone."""
    goal = "" if at_least is None else f">= {at_least:g}"
    if theirs is None:
        return Row(part, what, ours, unit, f"{peer}: not given", goal=goal, note=note)
    ratio = theirs / ours
    met = None if at_least is None else ratio >= at_least
    return Row(part, what, ours, unit, peer, theirs, ratio, goal, met, note)


def at_most(
    part: str, what: str, ours: float, unit: str, limit: float, *, note: str = "", of: str = ""
) -> Row:
    """A row whose goal is to stay below a limit."""
    return Row(part, what, ours, unit, of, goal=f"< {limit:g} {unit}", met=ours < limit, note=note)


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    import numpy as np
    import torch

    cuda = torch.cuda.is_available()
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if cuda else None,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def as_json(rows: Sequence[Row], where: dict[str, Any]) -> dict[str, Any]:
    """Machine and rows as plain data."""
    return {"machine": where, "rows": [asdict(row) for row in rows]}


def as_table(rows: Sequence[Row], where: dict[str, Any]) -> str:
    """The rows as a Markdown table under the machine's name."""
    head = ("part", "what", "ours", "theirs", "peer", "ratio", "goal", "met")
    cells: list[tuple[str, ...]] = [head, tuple("-" * len(cell) for cell in head)]
    for row in rows:
        theirs = "" if row.theirs is None else f"{row.theirs:.4g} {row.unit}"
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        met = {None: "", True: "yes", False: "NO"}[row.met]
        ours = f"{row.ours:.4g} {row.unit}"
        cells.append((row.part, row.what, ours, theirs, row.peer, ratio, row.goal, met))
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    notes = [f"- {row.part}, {row.what}: {row.note}" for row in rows if row.note]
    name = ", ".join(f"{key} {value}" for key, value in where.items() if value is not None)
    return "\n".join([f"Machine: {name}", "", *lines, *([""] if notes else []), *notes])
