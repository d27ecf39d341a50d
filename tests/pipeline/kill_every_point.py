"""Kill a stage by SIGKILL at every point where its files change, resume, compare.

Run as: python kill_every_point.py SOURCE FOLDER STAGE[:OVERRIDE] ... Prints one JSON object: for
each stage the number of points, and the files that differ from an uninterrupted run. With an
override the stage has been run before with that setting, so that older outputs are in the way.
Children are forked, so that PyTorch and FAISS are imported once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))

import faiss  # noqa: F401  imported before the forks
import torch
from pipeline_campaign import STAGES, Campaign
from processes import in_child, snapshot

from haystack.executors.base import Outputs


def open_campaign(root: Path, source: Path, *overrides: str) -> Campaign:
    """Two shards and two clusters: every kind of point, few of each.

    Labels are no setting: ``labelled=N`` among the overrides says how many images were answered.
    """
    settings = tuple(text for text in overrides if not text.startswith("labelled="))
    labelled = [int(text.partition("=")[2]) for text in overrides if text not in settings]
    campaign = Campaign(root, source, ("cluster.k=2", *settings), shard_size=6)
    campaign.labelled = labelled[0] if labelled else 2
    return campaign


def kill_at(point: int) -> None:
    """From now on count events; the process kills itself at event number ``point``."""
    events = 0

    def event() -> None:
        nonlocal events
        if events == point:
            os.kill(os.getpid(), signal.SIGKILL)
        events += 1

    replace, path = os.replace, Outputs.path

    def killing_replace(source: object, target: object) -> None:
        event()  # what follows one rename precedes the next, so this covers both sides
        replace(source, target)  # type: ignore[arg-type]

    def killing_path(self: Outputs, relative: str, *, editable: bool = False) -> Path:
        event()
        return path(self, relative, editable=editable)

    os.replace = killing_replace  # type: ignore[assignment]
    Outputs.path = killing_path  # type: ignore[method-assign]


def kill_everywhere(
    source: Path, folder: Path, stage: str, older: tuple[str, ...]
) -> dict[str, object]:
    """Kill and resume at one point after the other, until a run gets through."""
    before, reference = folder / "before", folder / "reference"

    def prepare() -> None:
        campaign = open_campaign(before, source, *older)
        for earlier in STAGES[: STAGES.index(stage)]:
            campaign.run(earlier)
        if older:
            campaign.run(stage)

    assert in_child(prepare) == 0
    shutil.copytree(before, reference)
    assert in_child(lambda: void(open_campaign(reference, source).run(stage))) == 0
    expected = snapshot(reference)
    points, differing = 0, set()
    while True:
        root = folder / f"killed-{points}"
        shutil.copytree(before, root)

        def attempt(root: Path = root, point: int = points) -> None:
            campaign = open_campaign(root, source)
            kill_at(point)
            campaign.run(stage)

        status = in_child(attempt)
        if not os.WIFSIGNALED(status):
            assert status == 0
            break
        assert in_child(lambda root=root: void(open_campaign(root, source).run(stage))) == 0
        found = snapshot(root)
        differing |= {
            f"{points}:{name}"
            for name in expected.keys() | found.keys()
            if expected.get(name) != found.get(name)
        }
        shutil.rmtree(root)
        points += 1
    return {"points": points, "differing": sorted(differing)}


def void(_: object) -> None:
    """Swallow a value."""


def main(source: Path, folder: Path, stages: list[str]) -> None:
    torch.set_num_threads(1)
    report = {}
    for request in stages:
        stage, _, override = request.partition(":")
        (folder / stage).mkdir()
        report[stage] = kill_everywhere(
            source, folder / stage, stage, (override,) if override else ()
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
