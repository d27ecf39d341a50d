"""How much memory this process may still take: the machine's, or its control group's if less."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

# Mount point, limit and usage of the memory controller, by what stands in /proc/self/cgroup.
_CONTROLLERS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def available_memory(root: str | Path = "/") -> int:
    """Bytes that can be taken without swapping and without a batch system's limit being hit.

    Slurm and containers limit a job by its control group (version 1 or 2), of which
    ``MemAvailable`` knows nothing. File pages that the group can drop count as available. Systems
    without ``/proc`` get half of the physical memory.

    Args:
        root: where ``proc`` and ``sys`` lie.
    """
    found = list(_of_groups(Path(root)))
    try:
        text = Path(root, "proc/meminfo").read_text()
        found.append(1024 * int(re.findall(r"^MemAvailable:\s+(\d+)", text, re.MULTILINE)[0]))
    except (OSError, IndexError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    return max(0, min(found))


def _of_groups(root: Path) -> Iterator[int]:
    """What the process's control groups leave, its own and those around it."""
    try:
        lines = Path(root, "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            if name in _CONTROLLERS:
                mount, limit, usage = _CONTROLLERS[name]
                place = Path(path.lstrip("/"))
                for folder in (place, *place.parents):
                    yield from _of_group(Path(root, mount, folder), limit, usage)


def _of_group(folder: Path, limit: str, usage: str) -> Iterator[int]:
    try:
        most, used = (int((folder / name).read_text()) for name in (limit, usage))
        cached = re.findall(
            r"^(?:total_)?inactive_file (\d+)", (folder / "memory.stat").read_text(), re.MULTILINE
        )
    except (OSError, ValueError):  # no such group seen from here, or "max": no limit
        return
    yield most - used + max(map(int, cached), default=0)
