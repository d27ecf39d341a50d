from __future__ import annotations

from pathlib import Path

import pytest

from haystack.pipeline.clustering.available_memory import available_memory

GIB = 2**30
V2 = "0::/slurm/job_7/step_0\n"
V1 = "5:devices:/x\n4:hugetlb,memory:/slurm/job_7\n0::/\n"


def system(root: Path, groups: str, files: dict[str, str], available: int = 64 * GIB) -> Path:
    files = {
        "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:   {available // 1024} kB\n",
        "proc/self/cgroup": groups,
        **files,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def group(folder: str, version: int, limit: object, usage: int, cached: int = 0) -> dict[str, str]:
    names = {
        2: ("memory.max", "memory.current"),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    }[version]
    stat = f"inactive_file {cached}\n"
    if version == 1:
        stat = f"inactive_file 0\ntotal_inactive_file {cached}\n"
    return {
        f"{folder}/{names[0]}": f"{limit}\n",
        f"{folder}/{names[1]}": f"{usage}\n",
        f"{folder}/memory.stat": stat,
    }


def test_without_limits_it_is_what_the_machine_has(tmp_path: Path) -> None:
    root = system(tmp_path, V2, group("sys/fs/cgroup/slurm/job_7/step_0", 2, "max", GIB))
    assert available_memory(root) == 64 * GIB
    assert available_memory() > 0


def test_a_group_around_the_own_one_limits(tmp_path: Path) -> None:
    own = group("sys/fs/cgroup/slurm/job_7/step_0", 2, "max", GIB)
    job = group("sys/fs/cgroup/slurm/job_7", 2, 8 * GIB, 6 * GIB, cached=5 * GIB)
    assert available_memory(system(tmp_path, V2, {**own, **job})) == 7 * GIB


def test_version_one_groups(tmp_path: Path) -> None:
    files = group("sys/fs/cgroup/memory/slurm/job_7", 1, 8 * GIB, 6 * GIB, cached=GIB)
    unlimited = group("sys/fs/cgroup/memory", 1, 2**63 - 4096, 9 * GIB)
    assert available_memory(system(tmp_path, V1, {**files, **unlimited})) == 3 * GIB


def test_the_machine_may_have_less_than_the_group_allows(tmp_path: Path) -> None:
    files = group("sys/fs/cgroup", 2, 500 * GIB, GIB)
    assert available_memory(system(tmp_path, "0::/\n", files, available=GIB)) == GIB


def test_never_below_zero(tmp_path: Path) -> None:
    files = group("sys/fs/cgroup", 2, GIB, 2 * GIB)
    assert available_memory(system(tmp_path, "0::/\n", files)) == 0


def test_other_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", sizes.__getitem__)
    assert available_memory(tmp_path) == 2_048_000
