"""SIGKILL in the middle of ``train`` and ``merge``: run again, the files are the same bytes."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import folder_content as content

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


def haystack(*argv):
    return subprocess.Popen(
        [sys.executable, "-m", "haystack", *map(str, argv)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_training(tmp_path):
    verb = (
        "train",
        "train/vctree_psg_mini",
        "steps=40",
        "log_every=4",
        "checkpoint_every=1",
        "--out",
    )
    assert haystack(*verb, tmp_path / "undisturbed").wait() == 0
    killed = tmp_path / "killed"
    killed.mkdir()
    for seconds in (0.5, 3.0, 5.0):
        process = haystack(*verb, killed)
        time.sleep(seconds)
        process.kill()
        process.wait()
    assert haystack(*verb, killed).wait() == 0
    undisturbed, resumed = content(tmp_path / "undisturbed"), content(killed)
    for folder in (undisturbed, resumed):
        del folder["environment.json"]  # says where it ran, and how often it went on
    assert set(undisturbed) == {
        "checkpoints/last.safetensors",
        "config.yaml",
        "data.json",
        "metrics.jsonl",
        "model.safetensors",
        "summary.json",
    }
    assert resumed == undisturbed


def test_merging(tmp_path):
    verb = ("merge", "psg-mini", "psg-mini", "--prefix-ids", "x", "--out")
    (tmp_path / "undisturbed").mkdir()
    (tmp_path / "killed").mkdir()
    assert haystack(*verb, tmp_path / "undisturbed" / "m.json").wait() == 0
    whole = content(tmp_path / "undisturbed")
    for seconds in (0.1, 0.25, 0.4, 0.55):
        process = haystack(*verb, tmp_path / "killed" / "m.json")
        time.sleep(seconds)
        process.kill()
        process.wait()
        for name, text in content(tmp_path / "killed").items():
            assert text == whole[name]
    assert haystack(*verb, tmp_path / "killed" / "m.json").wait() == 0
    assert content(tmp_path / "killed") == whole
