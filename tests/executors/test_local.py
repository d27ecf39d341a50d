from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from haystack import files
from haystack.errors import HaystackError, InputError
from haystack.executors import Counts, LocalExecutor, Outputs, read_status
from haystack.executors import progress as progress_module
from haystack.executors.manifest import read_manifest


class LettersJob:
    """Writes each item of a shard to a file of its own; items that start with '!' are bad."""

    name = "letters"

    def __init__(self, shards: Mapping[str, str], *, setting: int = 1) -> None:
        self.content = dict(shards)
        self.setting = setting
        self.made_from: dict[str, Mapping[str, str]] = {}
        self.computed: list[str] = []

    def shards(self) -> Sequence[str]:
        return list(self.content)

    def inputs(self, shard: str) -> Mapping[str, str]:
        return dict(self.made_from.get(shard, {}))

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        return {"content": self.content[shard], "setting": self.setting}

    def run(self, shard: str, out: Outputs) -> Counts:
        self.computed.append(shard)
        items = self.content[shard].split()
        for item in items:
            out.advance()
            if item.startswith("!"):
                out.quarantine(item, "starts with an exclamation mark")
            else:
                out.path(f"letters/{shard}/{item}.txt").write_text(f"{item} {self.setting}\n")
        out.path("letters/notes.txt", editable=True).write_text("edit me\n")
        ok = len(items) - len(out.quarantined)
        return Counts(len(items), ok, {"length": len(items)}, {"items": items})


def run(root: Path, job: Any) -> Any:
    return LocalExecutor(root, progress=False).run(job)


def test_writes_outputs_and_manifests(tmp_path: Path) -> None:
    summary = run(tmp_path, LettersJob({"s0": "a b", "s1": "c !x"}))
    assert (summary.done, summary.skipped) == (2, 0)
    assert (summary.inputs, summary.ok, summary.quarantined) == (4, 3, 1)
    assert "1 quarantined" in str(summary)
    assert (tmp_path / "letters/s1/c.txt").read_text() == "c 1\n"
    manifest = json.loads((tmp_path / "letters/s1.manifest.json").read_text())
    assert manifest["counts"] == {"in": 2, "ok": 1, "quarantined": 1, "length": 2}
    assert set(manifest["files"]) == {"letters/s1/c.txt", "letters/notes.txt"}
    assert manifest["files"]["letters/s1/c.txt"]["bytes"] == 4
    assert not list(tmp_path.rglob(".tmp-*"))


def test_complete_shards_are_skipped(tmp_path: Path) -> None:
    run(tmp_path, LettersJob({"s0": "a", "s1": "!x"}))
    job = LettersJob({"s0": "a", "s1": "!x", "s2": "c"})
    summary = run(tmp_path, job)
    assert job.computed == ["s2"]
    assert (summary.done, summary.skipped) == (1, 2)
    assert (summary.inputs, summary.quarantined) == (3, 1), "skipped shards count as well"


def test_a_workspace_that_cannot_be_written_to_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(tmp_path, LettersJob({"s0": "a", "s1": "!x"}))
    content = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr("haystack.executors.run._writable", lambda _: False)
    summary = run(tmp_path, LettersJob({"s0": "a", "s1": "!x"}))
    assert (summary.done, summary.skipped) == (0, 2)
    assert (summary.inputs, summary.quarantined) == (before.inputs, before.quarantined)
    job = LettersJob({"s0": "a", "s1": "b"})
    with pytest.raises(HaystackError, match="shard s1 of the stage 'letters' is not complete, and"):
        run(tmp_path, job)
    assert job.computed == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == content


def test_changed_fingerprint_is_computed_again(tmp_path: Path) -> None:
    run(tmp_path, LettersJob({"s0": "a", "s1": "b"}))
    job = LettersJob({"s0": "a", "s1": "B"})
    run(tmp_path, job)
    assert job.computed == ["s1"]
    assert not (tmp_path / "letters/s1/b.txt").exists(), "outputs of the older run are removed"
    job = LettersJob({"s0": "a", "s1": "B"}, setting=2)
    run(tmp_path, job)
    assert job.computed == ["s0", "s1"]


@pytest.mark.parametrize("damage", ["other content", "other size", "missing", "broken manifest"])
def test_damaged_output_is_computed_again(tmp_path: Path, damage: str) -> None:
    run(tmp_path, LettersJob({"s0": "a", "s1": "b"}))
    output = tmp_path / "letters/s0/a.txt"
    if damage == "other content":
        output.write_text("A 1\n")
    elif damage == "other size":
        output.write_text("a 1\na 1\n")
    elif damage == "missing":
        output.unlink()
    else:
        (tmp_path / "letters/s0.manifest.json").write_text('{"stage": ')
    job = LettersJob({"s0": "a", "s1": "b"})
    run(tmp_path, job)
    assert job.computed == ["s0"]
    assert output.read_text() == "a 1\n"


def test_editable_output_may_change_but_not_vanish(tmp_path: Path) -> None:
    notes = tmp_path / "letters/notes.txt"
    run(tmp_path, LettersJob({"s0": "a"}))
    notes.write_text("edited\n")
    job = LettersJob({"s0": "a"})
    run(tmp_path, job)
    assert job.computed == []
    assert notes.read_text() == "edited\n"
    notes.unlink()
    run(tmp_path, job)
    assert job.computed == ["s0"]


def test_shards_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    run(tmp_path, LettersJob({"s0": "a", "s1": "b !x"}))
    summary = run(tmp_path, LettersJob({"s0": "a"}))
    assert summary.quarantined == 0
    assert not (tmp_path / "letters/s1/b.txt").exists()
    assert not (tmp_path / "letters/s1.manifest.json").exists()
    assert (tmp_path / "quarantine.jsonl").read_text() == ""


def test_quarantine_is_derived_and_sorted(tmp_path: Path) -> None:
    run(tmp_path, LettersJob({"s1": "!b !a", "s0": "!c d"}))
    (tmp_path / "quarantine.jsonl").write_text("nonsense\n")
    run(tmp_path, LettersJob({"s1": "!b !a", "s0": "!c d"}))
    rows = [json.loads(line) for line in (tmp_path / "quarantine.jsonl").read_text().splitlines()]
    assert [(row["shard"], row["item"]) for row in rows] == [
        ("s0", "!c"),
        ("s1", "!a"),
        ("s1", "!b"),
    ]
    assert {row["stage"] for row in rows} == {"letters"}
    assert rows[0]["reason"] == "starts with an exclamation mark"


def test_failure_keeps_what_was_done_and_leaves_nothing_half(tmp_path: Path) -> None:
    class Failing(LettersJob):
        def run(self, shard: str, out: Outputs) -> Counts:
            counts = super().run(shard, out)
            if shard == "s1":
                raise InputError("the second shard is bad")
            return counts

    with pytest.raises(InputError, match="second shard"):
        run(tmp_path, Failing({"s0": "a !x", "s1": "b"}))
    assert (tmp_path / "letters/s0/a.txt").exists()
    assert not (tmp_path / "letters/s1/b.txt").exists()
    assert not list(tmp_path.rglob(".tmp-*"))
    assert "!x" in (tmp_path / "quarantine.jsonl").read_text()
    job = LettersJob({"s0": "a !x", "s1": "b"})
    run(tmp_path, job)
    assert job.computed == ["s1"]


def test_one_process_a_stage(tmp_path: Path) -> None:
    class Nested(LettersJob):
        def run(self, shard: str, out: Outputs) -> Counts:
            with pytest.raises(HaystackError) as caught:
                LocalExecutor(tmp_path, progress=False).run(LettersJob({"s0": "a"}))
            assert f"process {os.getpid()} is running the stage 'letters'" in str(caught.value)
            other = LettersJob({"s0": "a"})
            other.name = "others"  # another stage may run at the same time
            assert LocalExecutor(tmp_path, progress=False).run(other).done == 1
            return super().run(shard, out)

    assert run(tmp_path, Nested({"s0": "a"})).done == 1
    assert run(tmp_path, LettersJob({"s0": "a", "s1": "b"})).done == 1, "the lock was released"


def test_temporaries_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    here, elsewhere = files.machine(), "0a0a0a0a"
    strays = {
        "dead": tmp_path / f"letters/s0/.tmp-{dead.pid}-{here}-0-x.txt",
        "dead at the top": tmp_path / f".tmp-{dead.pid}-{here}-0-proposals.parquet",
        "earlier process of this number": tmp_path / f"letters/.tmp-{os.getpid()}-{here}-0-x",
        "alive": tmp_path / f"letters/.tmp-{os.getppid()}-{here}-0-x",
        "elsewhere": tmp_path / f"letters/.tmp-{dead.pid}-{elsewhere}-0-x",
        "elsewhere, of old": tmp_path / f"letters/.tmp-{dead.pid}-{elsewhere}-1-x",
    }
    for stray in strays.values():
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_text("half")
    os.utime(strays["elsewhere, of old"], (0, 0))
    run(tmp_path, LettersJob({"s0": "a"}))
    assert [name for name, stray in strays.items() if stray.exists()] == ["alive", "elsewhere"]
    assert files.temporary_name(Path("x")).name.startswith(f".tmp-{os.getpid()}-{here}-")


def test_shard_names_must_be_file_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got '\.\./up'"):
        run(tmp_path, LettersJob({"../up": "a"}))
    assert list(tmp_path.rglob("*.txt")) == []


def test_progress_is_logged_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_module, "SECONDS_BETWEEN_LOG_LINES", 0.0)
    with caplog.at_level(logging.INFO, logger="haystack"):
        LocalExecutor(tmp_path).run(LettersJob({"s0": "a b", "s1": "c"}))
    assert caplog.messages[-1] == "letters: 2 of 2 shards, 3 items"


def test_status_reads_manifests_only(tmp_path: Path) -> None:
    run(tmp_path, LettersJob({"s0": "a b", "s1": "c !x"}))
    for output in tmp_path.rglob("*.txt"):
        output.unlink()
    (status,) = read_status(tmp_path)
    assert (status.stage, status.shards) == ("letters", 2)
    assert status.counts == {"in": 4, "ok": 3, "quarantined": 1, "length": 4}
    assert (status.inputs, status.ok, status.quarantined) == (4, 3, 1)
    assert status.seconds >= 0
    assert read_status(tmp_path / "nowhere") == []


class WordsJob(LettersJob):
    """Each shard is made from the same shard of ``letters``."""

    name = "words"

    def __init__(self, root: Path, shards: Mapping[str, str]) -> None:
        super().__init__(shards)
        for shard in shards:
            manifest = read_manifest(root, "letters", shard)
            assert manifest is not None
            self.made_from[shard] = manifest.checksums()


def test_what_is_made_from_a_changed_output_is_outdated_and_computed_again(tmp_path: Path) -> None:
    def states() -> dict[str, str | None]:
        return {status.stage: status.outdated_by for status in read_status(tmp_path)}

    run(tmp_path, LettersJob({"s0": "a", "s1": "b"}))
    run(tmp_path, WordsJob(tmp_path, {"s0": "x", "s1": "y"}))
    assert states() == {"letters": None, "words": None}
    manifest = read_manifest(tmp_path, "words", "s1")
    assert manifest is not None
    letters = read_manifest(tmp_path, "letters", "s1")
    assert letters is not None
    assert manifest.inputs == {"letters/s1/b.txt": letters.checksums()["letters/s1/b.txt"]}

    run(tmp_path, LettersJob({"s0": "a", "s1": "c"}))
    assert states() == {"letters": None, "words": "letters"}
    job = WordsJob(tmp_path, {"s0": "x", "s1": "y"})
    run(tmp_path, job)
    assert job.computed == ["s1"], "the other shard was made from what is there still"
    assert states() == {"letters": None, "words": None}

    run(tmp_path, LettersJob({"s0": "a"}))
    assert states()["words"] == "letters", "made from a shard that is gone"


def test_equal_outputs_outdate_nothing(tmp_path: Path) -> None:
    run(tmp_path, LettersJob({"s0": "a"}))
    run(tmp_path, WordsJob(tmp_path, {"s0": "x"}))
    (tmp_path / "letters/s0/a.txt").unlink()
    job = LettersJob({"s0": "a"})
    run(tmp_path, job)
    assert job.computed == ["s0"]
    assert {status.outdated_by for status in read_status(tmp_path)} == {None}
    words = WordsJob(tmp_path, {"s0": "x"})
    run(tmp_path, words)
    assert words.computed == []


def test_manifest_round_trip(tmp_path: Path) -> None:
    run(tmp_path, LettersJob({"s0": "a !x"}))
    manifest = read_manifest(tmp_path, "letters", "s0")
    assert manifest is not None
    assert manifest.complete(tmp_path)
    assert list(manifest.checksums()) == ["letters/s0/a.txt"]
    assert manifest.quarantined[0].item == "!x"
    assert manifest.notes == {"items": ["a", "!x"]}
    assert read_manifest(tmp_path, "letters", "s9") is None
