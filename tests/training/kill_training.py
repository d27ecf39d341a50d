"""Kill training by SIGKILL at every point where a file appears or a step is done, resume, compare.

Run as: python kill_training.py ANNOTATIONS CONFIG FOLDER. Prints one JSON object: at how many
points it was killed, at which of these the resumed run differs from an undisturbed one in its files
or in the metrics that it returns, and where a model was left half-written. Children are forked, so
that PyTorch is imported once; in a process of its own, because a fork of one whose autograd has
started threads cannot train.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from processes import folder_content, in_child

from haystack.config import load_config
from haystack.io import read_psg
from haystack.training.config import TrainConfig
from haystack.training.trainer import train


def kill_at(point):
    """Count files that appear and steps that are done; at number ``point`` the process dies."""
    events = 0

    def event():
        nonlocal events
        if events == point:
            os.kill(os.getpid(), signal.SIGKILL)
        events += 1

    move = os.replace

    def killing_replace(source, target):
        event()
        move(source, target)
        event()

    os.replace = killing_replace
    return lambda step, steps, losses: event()


def main():
    annotations, settings, folder = map(Path, sys.argv[1:])
    config, dataset = load_config(TrainConfig(), settings), read_psg(annotations)
    assert in_child(lambda: train(config, dataset, folder / "whole")) == 0
    whole = folder_content(folder / "whole")
    rows = [json.loads(line) for line in whole["metrics.jsonl"].splitlines()]
    answer = {"files": sorted(whole), "differing": [], "half_written": []}
    point = 0
    while True:
        out = folder / f"killed-{point}"

        def attempt(out=out, point=point):
            train(config, dataset, out, progress=kill_at(point))

        status = in_child(attempt)
        if not os.WIFSIGNALED(status):
            assert status == 0
            break
        for path in out.rglob("*.safetensors"):
            if not path.name.startswith(".tmp-") and path.stat().st_size <= 1000:
                answer["half_written"].append(f"{point}: {path.name}")
        result = train(config, dataset, out)
        if folder_content(out) != whole or result.metrics != rows:
            answer["differing"].append(point)
        shutil.rmtree(out)
        point += 1
    print(json.dumps({**answer, "points": point}))


if __name__ == "__main__":
    main()
