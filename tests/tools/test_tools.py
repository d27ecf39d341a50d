"""The scripts that launch stages: what they would run, and what a scheduler makes of it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from processes import snapshot
from tiny_tars import ColourRecipe, quarantined, write_tars

from haystack.cli import main
from haystack.executors import LocalExecutor
from haystack.executors.slurm import STOPPED

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
SCRIPTS = ("slurm_array.sh", "one_node.sh", "ray_cluster.sh")


def tool(
    name: str, *words: object, path: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    search = os.environ["PATH"] if path is None else f"{path}:{os.environ['PATH']}"
    return subprocess.run(
        [TOOLS / name, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": search, **variables},
        timeout=600,
    )


def command(folder: Path, name: str, text: str) -> None:
    """Put a command on a path."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_says_how_it_is_used(name: str) -> None:
    for words in ((), ("--help",), ("--dry-run", "embed", "work"), ("--", "embed")):
        done = tool(name, *words)
        assert done.returncode == 2
        assert f"tools/{name}" in done.stderr
        assert done.stdout == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_has_its_line_in_the_readme(name: str) -> None:
    assert f"tools/{name}" in (ROOT / "README.md").read_text()


def test_one_node_gives_each_gpu_a_process() -> None:
    done = tool("one_node.sh", "--gpus", 3, "--dry-run", "--", "embed", "a work", "embed.device=x")
    assert shlex.split(done.stdout) == [
        *("haystack", "embed", "a work", "embed.device=x"),
        *("--devices", "cuda:0,cuda:1,cuda:2"),
    ]


def test_one_node_asks_nvidia_smi(tmp_path: Path) -> None:
    command(tmp_path, "nvidia-smi", "echo 'GPU 0: A'; echo 'GPU 1: A'")
    command(tmp_path, "haystack", 'echo "$*"')
    done = tool("one_node.sh", "--", "score", "work", path=tmp_path)
    assert done.stdout == "score work --devices cuda:0,cuda:1\n"
    command(tmp_path, "nvidia-smi", "echo 'No devices were found'; exit 6")
    done = tool("one_node.sh", "--", "score", "work", path=tmp_path)
    assert done.returncode == 2
    assert "nvidia-smi lists no GPU here; say --gpus N" in done.stderr


def test_a_running_ray_cluster_is_used() -> None:
    done = tool("ray_cluster.sh", "--address", "head:6379", "--dry-run", "--", "embed", "work")
    assert shlex.split(done.stdout) == [
        *("haystack", "embed", "work", "--executor", "ray", "--ray-address", "head:6379"),
    ]


def test_a_ray_cluster_is_started_and_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in ("ray", "ssh", "haystack"):
        code = "exit 3" if name == "haystack" else ""
        command(tmp_path / "bin", name, f'echo "{name} $*" >> {log}\n{code}')
    words = ("--nodes", "n2 n3", "--port", 7000, "--", "embed", "work")
    done = tool("ray_cluster.sh", *words, path=tmp_path / "bin")
    assert done.returncode == 3, "the stage's own exit code"
    lines = log.read_text().splitlines()
    head = os.uname().nodename
    assert lines[0] == "ray start --head --port=7000 --disable-usage-stats"
    assert [line.split()[:2] for line in lines[1:3]] == [["ssh", "n2"], ["ssh", "n3"]]
    assert all(line.endswith(f"ray start --address={head}:7000") for line in lines[1:3])
    assert lines[3] == f"haystack embed work --executor ray --ray-address {head}:7000"
    assert lines[4:] == ["ssh n2 ray stop", "ssh n3 ray stop", "ray stop"]
    shown = tool("ray_cluster.sh", "--dry-run", *words, path=tmp_path / "bin").stdout
    assert len(shown.splitlines()) == len(lines)
    assert log.read_text().splitlines() == lines, "a dry run runs nothing"


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A folder with the commands of a scheduler."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name in ("sbatch", "srun", "scontrol"):
        place = folder / name
        stub = Path(__file__).with_name("stub_slurm.py").read_text()
        place.write_text(f"#!{sys.executable}\n{stub}")
        place.chmod(0o755)
    return folder


def test_a_dry_run_shows_the_array_and_submits_nothing(tmp_path: Path, slurm: Path) -> None:
    words = ("--tasks", 64, "--grace", 90, "--sbatch", "--gpus-per-task=1", "--sbatch", "-pa b")
    done = tool(
        *("slurm_array.sh", *words, "--dry-run", "--", "embed", "a work", "cluster.k=5"),
        path=slurm,
        STUB_SLURM=str(tmp_path),
    )
    first, *script = done.stdout.splitlines()
    assert shlex.split(first.removesuffix("<<'END'")) == [
        *("sbatch", "--parsable", "--requeue", "--open-mode=append", "--array=0-63"),
        *("--signal=USR1@120", "--job-name=haystack-embed", "--gpus-per-task=1", "-pa b"),
    ]
    assert "srun haystack embed a\\ work cluster.k=5 --executor slurm --grace 90" in script
    assert not (tmp_path / "sbatch").exists()


def submitted(
    tmp_path: Path, slurm: Path, haystack: str, shards: int
) -> tuple[list[list[int]], list[list[str]]]:
    """Submit two tasks; how each ended, and what was asked of scontrol."""
    done = tool(
        *("slurm_array.sh", "--tasks", 2, "--grace", 60, "--"),
        *("embed", tmp_path / "work", f"source.images={tmp_path / 'tars'}"),
        path=slurm,
        HAYSTACK=haystack,
        STUB_SLURM=str(tmp_path),
        STUB_WORK=str(tmp_path / "work"),
        STUB_SHARDS=str(shards),
        PYTHONPATH=os.pathsep.join(sys.path),
        OMP_NUM_THREADS="1",
    )
    assert (done.returncode, done.stdout) == (0, "500\n"), done.stderr
    logs = [
        [json.loads(line) for line in (tmp_path / name).open()] for name in ("ended", "scontrol")
    ]
    return logs[0], logs[1]


def test_an_array_is_signalled_requeued_and_finished(tmp_path: Path, slurm: Path) -> None:
    broken = write_tars(tmp_path / "tars", 40)
    stage = f"{sys.executable} {Path(__file__).with_name('stage_of_colours.py')}"
    ended, asked = submitted(tmp_path, slurm, stage, shards=4)
    assert [0, 0, STOPPED] in ended, "the first life of task 0"
    assert [0, 1, 0] in ended, "its second one; quarantined images are no failure to Slurm"
    assert [1, 0, 0] in ended
    assert len(ended) == 3
    assert asked == [["show", "job", "-o", "500_0"], ["requeue", "500_0"]]
    log = (tmp_path / "slurm-0.out").read_text()
    assert "stopped by SIGUSR1; what was finished is kept; task 500_0 is requeued" in log
    assert quarantined(tmp_path / "work") == broken
    LocalExecutor(tmp_path / "undisturbed", progress=False).run(
        ColourRecipe(str(tmp_path / "tars"))()
    )
    assert snapshot(tmp_path / "work") == snapshot(tmp_path / "undisturbed")


@pytest.mark.slow
def test_an_array_of_the_real_command(tmp_path: Path, slurm: Path) -> None:
    broken = write_tars(tmp_path / "tars", 200, pictures=4)
    for name in ("work", "undisturbed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "workspace.yaml").write_text(
            "embed: {encoder: efficientnet-lite0, image_size: 32}\n"
        )
    ended, _ = submitted(tmp_path, slurm, f"{sys.executable} -m haystack", shards=20)
    assert [0, 0, STOPPED] in ended
    assert sorted(code for _, _, code in ended) == [0, 0, STOPPED]
    assert quarantined(tmp_path / "work") == broken
    code = main(["embed", str(tmp_path / "undisturbed"), f"source.images={tmp_path / 'tars'}"])
    assert code == 3
    assert snapshot(tmp_path / "work") == snapshot(tmp_path / "undisturbed")


@pytest.mark.parametrize("option", ["--tasks", "--grace"])
@pytest.mark.parametrize("value", ["0", "-1", "many", "1e3"])
def test_an_array_of_no_tasks_is_refused(option: str, value: str) -> None:
    done = tool("slurm_array.sh", option, value, "--dry-run", "--", "embed", "work")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"expect whole numbers from 1, got {value}" in done.stderr
