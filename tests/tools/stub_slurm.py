"""A scheduler in one file, linked as ``sbatch``, ``srun`` and ``scontrol``; its state is a folder.

``sbatch`` runs the tasks of an array at the same time, sends the announced signal to the step of
task 0 once the workspace in ``STUB_WORK`` has ``STUB_SHARDS`` manifests, runs again what was
requeued, and returns when all tasks have ended, with their exit codes in ``ended``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ.get("STUB_SLURM", "."))
ARRAY = "500"


def note(name: str, content: object) -> None:
    with (STATE / name).open("a") as stream:
        stream.write(f"{json.dumps(content)}\n")


def sbatch(words: list[str]) -> int:
    script = STATE / "script.sh"
    script.write_text(sys.stdin.read())
    note("sbatch", words)
    options = dict(word.partition("=")[::2] for word in words)
    last = int(re.fullmatch(r"0-(\d+)", options["--array"])[1])  # type: ignore[index]
    name, seconds = options["--signal"].split("@")
    assert int(seconds) > 0
    print(ARRAY)
    sys.stdout.flush()
    tasks = {number: start(script, number, last + 1, 0) for number in range(last + 1)}
    restarts = dict.fromkeys(tasks, 0)
    signalled = False
    while tasks:
        time.sleep(0.02)
        shards = len(list(Path(os.environ["STUB_WORK"]).glob("*/*.manifest.json")))
        step = STATE / "step-0"
        if not signalled and shards >= int(os.environ["STUB_SHARDS"]) and step.exists():
            os.kill(int(step.read_text()), getattr(signal, f"SIG{name}"))
            signalled = True
        for number, task in list(tasks.items()):
            if task.poll() is None:
                continue
            note("ended", [number, restarts[number], task.returncode])
            requeued = STATE / f"requeued-{number}"
            if requeued.exists():
                requeued.unlink()
                restarts[number] += 1
                tasks[number] = start(script, number, last + 1, restarts[number])
            else:
                del tasks[number]
    return 0


def start(script: Path, number: int, count: int, restarts: int) -> subprocess.Popen[bytes]:
    variables = {
        "SLURM_JOB_ID": str(501 + number),
        "SLURM_ARRAY_JOB_ID": ARRAY,
        "SLURM_ARRAY_TASK_ID": str(number),
        "SLURM_ARRAY_TASK_COUNT": str(count),
        "SLURM_ARRAY_TASK_MIN": "0",
        "SLURM_ARRAY_TASK_STEP": "1",
        **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
    }
    with (STATE / f"slurm-{number}.out").open("ab") as stream:  # as --open-mode=append
        return subprocess.Popen(
            ["bash", script], env={**os.environ, **variables}, stdout=stream, stderr=stream
        )


def srun(words: list[str]) -> int:
    step = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    place = STATE / f"step-{os.environ['SLURM_ARRAY_TASK_ID']}"
    place.with_suffix(".tmp").write_text(str(os.getpid()))
    place.with_suffix(".tmp").rename(place)
    os.execvpe(words[0], words, {**os.environ, **step})


def scontrol(words: list[str]) -> int:
    note("scontrol", words)
    job, _, task = words[-1].partition("_")
    if job != ARRAY or not task:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    if words[0] == "show":
        print(f"JobId={501 + int(task)} ArrayJobId={ARRAY} JobState=RUNNING Requeue=1 Restarts=0")
    else:
        (STATE / f"requeued-{task}").touch()
    return 0


if __name__ == "__main__":
    sys.exit(globals()[Path(sys.argv[0]).name](sys.argv[1:]))
