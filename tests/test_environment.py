"""What a result was computed with is written beside it, and read from where it really stands."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

import haystack
from haystack.cli import main
from haystack.environment import driver_version, environment, note_environment
from haystack.errors import InputError


@pytest.fixture(autouse=True)
def outside_any_image(monkeypatch):
    for name in [name for name in os.environ if name.startswith("HAYSTACK_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Wed Aug 27 19:00:00 UTC\n"
            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
            "580.82.07",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n",
            "570.133.20",
        ),
        ("something else 1.2 \n", None),
    ],
)
def test_the_drivers_version_is_read_from_its_kernel_module(text, version, tmp_path):
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path / "version") == version
    assert driver_version(tmp_path / "missing") is None


def test_an_image_is_named_by_what_it_holds(tmp_path, monkeypatch):
    lock = tmp_path / "requirements-cpu.lock"
    lock.write_text("torch==1\n")
    base = "python:3.11-slim@sha256:" + "0" * 64
    monkeypatch.setenv("HAYSTACK_COMMIT", "0123abc")
    monkeypatch.setenv("HAYSTACK_BASE_IMAGE", base)
    monkeypatch.setenv("HAYSTACK_LOCK", str(lock))
    found = environment()
    assert (found["commit"], found["base_image"]) == ("0123abc", base)
    assert found["lock_sha256"] == sha256(lock)
    assert found["image_digest"] is None
    monkeypatch.setenv("HAYSTACK_IMAGE_DIGEST", "sha256:" + "1" * 64)
    assert environment()["image_digest"] == "sha256:" + "1" * 64


def test_outside_an_image_nothing_is_said_of_one(monkeypatch, tmp_path):
    monkeypatch.setattr(haystack, "__file__", str(tmp_path / "site" / "haystack" / "__init__.py"))
    monkeypatch.setenv("HAYSTACK_COMMIT", "")  # a build argument that nobody gave
    found = environment()
    names = ("commit", "image_digest", "base_image", "lock_sha256", "gpu")
    assert [found[name] for name in names] == [None] * 5


def test_a_checkout_names_its_commit_and_whether_files_differ(tmp_path, monkeypatch):
    package = tmp_path / "haystack"
    package.mkdir()
    (package / "__init__.py").write_text("")

    def git(*words):
        identity = ("-c", "user.name=n", "-c", "user.email=e@e")
        done = subprocess.run(
            ["git", "-C", tmp_path, *identity, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    monkeypatch.setattr(haystack, "__file__", str(package / "__init__.py"))
    commit = git("rev-parse", "HEAD")
    assert environment()["commit"] == commit
    (package / "__init__.py").write_text("changed = True\n")
    assert environment()["commit"] == f"{commit}-dirty"


def test_asking_imports_nothing_heavy():
    code = (
        "import json, sys; from haystack.environment import environment; json.dumps(environment());"
        "sys.exit(sorted({'torch', 'numpy'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_that_goes_on_elsewhere_names_both_places(tmp_path, monkeypatch):
    notes = tmp_path / "environment.json"
    note_environment(tmp_path)
    note_environment(tmp_path)
    first = [environment()]
    assert json.loads(notes.read_text())["environments"] == first
    monkeypatch.setenv("HAYSTACK_COMMIT", "another")
    note_environment(tmp_path)
    assert json.loads(notes.read_text())["environments"] == [*first, environment()]
    notes.write_text("[1]")
    with pytest.raises(InputError, match="expected the environments"):
        note_environment(tmp_path)


def test_a_result_names_its_inputs_settings_and_environment(tmp_path):
    from haystack.io.datasets import BUNDLED

    frequency, out = tmp_path / "frequency", tmp_path / "P.parquet"
    assert main(["train", "train/frequency_psg_mini", "--out", str(frequency)]) == 0
    noted = json.loads((frequency / "environment.json").read_text())["environments"]
    assert noted == [environment()]
    predict = ["predict", "psg-mini", "--split", "test", "--model", str(frequency)]
    assert main([*predict, "--out", str(out)]) == 0
    evaluate = ["evaluate", "--annotations", "psg-mini", "--predictions", str(out), "--seed", "3"]
    assert main([*evaluate, "--out", str(tmp_path / "result.json")]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    run = result["run"]
    assert run["environment"] == environment()
    assert run["settings"]["seed"] == 3
    assert run["settings"]["protocol"] == result["protocol"]
    assert run["inputs"] == {
        "annotations": {"path": "psg-mini", "sha256": sha256(BUNDLED["psg-mini"])},
        "predictions": {"path": str(out), "sha256": sha256(out)},
    }


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
