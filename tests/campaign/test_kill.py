from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from haystack.annotate.store.store import AnnotationStore
from haystack.campaign.rounds import Round
from haystack.pipeline.config import load_config

DRIVER = Path(__file__).with_name("kill_every_step.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork, which this system lacks"),
]


def content(work):
    """Everything that a round makes; the queue, and what the database holds."""
    folder = Round(work, 1).folder
    found = {
        path.relative_to(work).as_posix(): path.read_bytes()
        for path in (*folder.rglob("*"), work / "proposals.parquet")
        if path.is_file() and path.name != "environment.json"  # of the process that made it
    }
    found["settings"] = load_config(work / "workspace.yaml")
    with AnnotationStore(work / "annotations.db") as store:
        found["answers"] = list(store.answers())
        found["open"] = [store.upcoming(p, "nobody", 999) for p in store.progress()]
    return found


def run(campaign):
    settings = [*campaign.settings, "campaign.settings=[steps=4, checkpoint_every=1]"]
    return subprocess.run(
        [sys.executable, str(DRIVER), str(campaign.work), *settings],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_killed_at_every_step_a_round_ends_as_undisturbed(campaign):
    work, before = campaign.work, campaign.work.with_name("before")
    shutil.copytree(work, before)
    campaign.next("campaign.settings=[steps=4, checkpoint_every=1]")
    undisturbed = content(work)
    shutil.rmtree(work)
    before.rename(work)
    done = run(campaign)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 15, done.stderr
    found = content(work)
    assert found.keys() == undisturbed.keys()
    assert {name for name in found if found[name] != undisturbed[name]} == set()
