"""The plan for millions of images: its arithmetic, and its commands at small size."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from haystack.cli.parser import parse

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
_SMALLER = {"--shards": "8", "--kills": "1"}


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, *words[1:]] if words[0] == "python" else words
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(command: str) -> None:
    words = shlex.split(command)
    if words[0] == "haystack":
        assert callable(parse(words[1:]).run)
        return
    if words[0].startswith("tools/"):
        words.insert(1, "--dry-run")
        assert callable(parse(words[words.index("--") + 1 :]).run)
    for option, value in _SMALLER.items():
        if option in words:
            words[words.index(option) + 1] = value
    done = run(words)
    assert done.returncode == 0, done.stderr or done.stdout
    assert done.stdout


def test_the_page_shows_what_its_first_command_prints() -> None:
    shown = run(shlex.split(COMMANDS[0])).stdout.strip()
    assert shown in PAGE


def plan(*words: str) -> dict[str, dict[str, float | None]]:
    done = run(["python", "benchmarks/scale_plan.py", "--json", *words])
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def test_the_longer_of_cores_and_gpus_counts() -> None:
    words = ["--images=3600000", "--cores=10", "--gpus=4", "--cpu-ms", "segment=50"]
    assert plan(*words)["segment"]["hours"] is None, "nobody has measured the GPU"
    slow = plan(*words, "--gpu-ms", "segment=200", "--read-bytes", "segment=1000")["segment"]
    assert slow["hours"] == pytest.approx(3600000 * 0.2 / 4 / 3600)
    assert slow["cpu_days"] == pytest.approx(3600000 * 0.05 / 86400)
    assert slow["network_mb_s"] == pytest.approx(3600000 * 1000 / 1e6 / (50 * 3600))
    fast = plan(*words, "--gpu-ms", "segment=0")["segment"]
    assert fast["hours"] == pytest.approx(3600000 * 0.05 / 10 / 3600)


@pytest.mark.parametrize("words", [["--gpu-ms", "walk=3"], ["--gpu-ms", "embed"], ["--gpus", "0"]])
def test_what_cannot_be_is_refused(words: list[str]) -> None:
    done = run(["python", "benchmarks/scale_plan.py", *words])
    assert done.returncode == 2
    assert "expect" in done.stderr
