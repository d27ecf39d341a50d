"""Kill ``campaign next`` by SIGKILL inside and after every step, and go on each time.

Run as: python kill_every_step.py FOLDER SETTING ... Prints a JSON list of the points at which it
was killed. Children are forked, so that PyTorch is imported once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import torch
from processes import in_child

from haystack import files
from haystack.annotate.store.queue import Queue
from haystack.campaign import steps
from haystack.campaign.rounds import Round
from haystack.cli.verbs import run_verb
from haystack.executors.local import LocalExecutor
from haystack.training.run_folder import RunFolder


def killed(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def on_call(owner: object, name: str, number: int) -> None:
    """Die at a call of a function, counted from 0, before it does anything."""
    original, calls = getattr(owner, name), 0

    def counting(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls > number:
            killed()
        return original(*args, **kwargs)

    setattr(owner, name, counting)


POINTS = {
    "before it began": lambda: on_call(Round, "begin", 0),
    "answers written, not in place": lambda: on_call(os, "rename", 0),
    "answers in place": lambda: on_call(Round, "finish", 0),
    "training": lambda: on_call(RunFolder, "save_checkpoint", 2),
    "trained": lambda: on_call(Round, "finish", 1),
    "measuring": lambda: on_call(steps, "measurement", 0),
    "measured": lambda: on_call(Round, "finish", 1),
    "scoring": lambda: on_call(LocalExecutor, "run", 0),
    "scored": lambda: on_call(Round, "finish", 0),
    "proposing": lambda: on_call(LocalExecutor, "run", 1),
    "proposed": lambda: on_call(Round, "finish", 0),
    "loading": lambda: on_call(Queue, "_record_round", 0),
    "loaded": lambda: on_call(Round, "finish", 0),
    "report half written": lambda: on_call(files, "write_json", 1),
    "reported": lambda: on_call(Round, "finish", 0),
}


def main(folder: Path, settings: list[str]) -> None:
    torch.set_num_threads(1)
    found = []
    for name, arrange in POINTS.items():

        def attempt(arrange: object = arrange) -> None:
            arrange()  # type: ignore[operator]
            run_verb("campaign", "next", folder, *settings)

        status = in_child(attempt)
        if os.WIFSIGNALED(status):
            found.append(name)
        else:
            print(f"not killed: {name}, status {status}", file=sys.stderr)
    assert in_child(lambda: run_verb("campaign", "next", folder, *settings)) == 0
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
