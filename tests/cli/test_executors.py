"""The stages of the command line in several processes: stopped, killed, resumed, watched."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from processes import snapshot
from tiny_tars import quarantined, write_tars

from haystack import files
from haystack.cli import executors, main
from haystack.cli.executors import Chosen
from haystack.cli.outcome import QUARANTINED, Outcome
from haystack.executors.locks import stage_lock
from haystack.executors.shares import Share

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def settings(tars: Path) -> list[str]:
    return [f"source.images={tars}", "embed.encoder=efficientnet-lite0", "embed.image_size=32"]


def start(*words: object, launcher: tuple[str, ...] = ("-m", "haystack")) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *launcher, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )


def run(*words: object, launcher: tuple[str, ...] = ("-m", "haystack")) -> tuple[int, str, str]:
    process = start(*words, launcher=launcher)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def undisturbed_run(verb: str, work: Path, tars: Path) -> None:
    """In this process, with one thread as the others have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert main([verb, str(work), *settings(tars)]) == QUARANTINED
    finally:
        torch.set_num_threads(threads)


def wait_for_shards(work: Path, process: subprocess.Popen[str], count: int) -> None:
    deadline = time.monotonic() + 300
    while len(list(work.glob("embed/*.manifest.json"))) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that a launch has started for its workers."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [
        int(child)
        for child in listed
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("shards", "signals"),
    [
        (16, []),
        pytest.param(200, [signal.SIGINT, signal.SIGTERM] * 2, marks=pytest.mark.slow),
    ],
)
def test_stopped_killed_and_resumed_equals_undisturbed(
    tmp_path: Path, shards: int, signals: list[signal.Signals]
) -> None:
    broken = write_tars(tmp_path / "tars", shards, pictures=4)
    undisturbed, work = tmp_path / "undisturbed", tmp_path / "work"
    undisturbed_run("embed", undisturbed, tmp_path / "tars")

    verb = ("embed", work, "--workers", 2, *settings(tmp_path / "tars"))
    for turn, number in enumerate(signals):
        process = start(*verb)
        wait_for_shards(work, process, (turn + 1) * shards // (len(signals) + 2))
        os.killpg(process.pid, number)  # Ctrl-C reaches the workers as well
        _, err = process.communicate(timeout=300)
        assert process.returncode == 1
        assert err.splitlines()[-1].endswith("what was finished is kept, run it again to go on")
        assert "Traceback" not in err
        assert not list(work.rglob(".tmp-*"))
        assert not list((work / "embed/.claims").iterdir())

    process = start(*verb, "--json")
    wait_for_shards(work, process, len(list(work.glob("embed/*.manifest.json"))) + 4)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == QUARANTINED
    result = json.loads(out)
    assert result["shards_done"] + result["shards_skipped"] == shards
    assert result["quarantined"] == len(broken)
    assert quarantined(work) == broken
    content, expected = snapshot(work), snapshot(undisturbed)
    assert content == expected


@pytest.mark.slow
def test_under_torchrun_each_rank_takes_its_share(tmp_path: Path) -> None:
    broken = write_tars(tmp_path / "tars", 12)
    code, _, err = run(
        *("embed", tmp_path / "work", *settings(tmp_path / "tars")),
        launcher=("-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "haystack"),
    )
    assert code == 0, err
    assert quarantined(tmp_path / "work") == broken
    undisturbed_run("embed", tmp_path / "undisturbed", tmp_path / "tars")
    assert snapshot(tmp_path / "work") == snapshot(tmp_path / "undisturbed")


@pytest.mark.slow
def test_on_ray_the_bytes_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", os.pathsep.join(sys.path))
    broken = write_tars(tmp_path / "tars", 12)
    verb = ("embed", tmp_path / "work", "--executor", "ray", "--workers", 2)
    code, _, err = run(*verb, *settings(tmp_path / "tars"))
    assert code == QUARANTINED, err
    assert quarantined(tmp_path / "work") == broken
    undisturbed_run("embed", tmp_path / "undisturbed", tmp_path / "tars")
    assert snapshot(tmp_path / "work") == snapshot(tmp_path / "undisturbed")


def verb(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_rank_of_torchrun_does_its_part_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tars(tmp_path / "tars", 4)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ("embed", tmp_path / "work", *settings(tmp_path / "tars"), "--json")
    code, out, _ = verb(capsys, *words)
    assert code == 0, "torchrun takes 3 for a crash"
    assert json.loads(out)["quarantined"] == 1
    code, _, err = verb(capsys, *words, "--workers", "2")
    assert code == 2
    assert "torchrun starts a process for each device already" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "0"), "--workers expects at least 1, got 0"),
        (("--devices", ","), "--devices expects names such as cuda:0,cuda:1"),
        (("--executor", "ray", "--devices", "cuda:0"), "Ray hands out the GPUs"),
        (("--ray-address", "auto"), "--ray-address goes with --executor ray"),
        (("--grace", "5"), "--grace goes with --executor slurm"),
        (("--executor", "slurm", "--grace", "0"), "--grace expects a positive number"),
        (("--executor", "slurm"), "SLURM_JOB_ID is not set; tools/slurm_array.sh"),
        (("--executor", "spark"), "unknown 'spark'"),
    ],
)
def test_settings_that_do_not_go_together(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    try:
        code = main(["embed", str(tmp_path), *words])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    err = capsys.readouterr().err
    assert code == 2
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "workspace.yaml").exists()


@pytest.mark.parametrize(
    ("on_machine", "visible", "configured", "device"),
    [
        (1, 4, "cuda", "cuda:1"),
        (5, 4, "cuda", "cuda:1"),
        (1, 1, "cuda", None),  # the launcher shows each process its own
        (1, 4, "cuda:0", None),
        (1, 4, "cpu", None),
    ],
)
def test_each_process_of_a_launch_has_its_device(
    monkeypatch: pytest.MonkeyPatch,
    on_machine: int,
    visible: int,
    configured: str,
    device: str | None,
) -> None:
    monkeypatch.setattr(executors, "_cuda_devices", lambda: visible)
    chosen = Chosen(lambda _: pytest.fail("not asked for"), share=Share(0, 8, "l", on_machine))
    assert chosen.device_for(configured) == device
    assert chosen.outcome(Outcome("", {}, QUARANTINED)).exit_code == QUARANTINED


def test_status_tells_what_is_left_and_how_long_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tars(tmp_path / "tars", 4)
    work = tmp_path / "work"
    assert verb(capsys, "embed", work, *settings(tmp_path / "tars"))[0] == QUARANTINED
    for number, shard in enumerate(("t000", "t001", "t002")):
        path = work / f"embed/{shard}.manifest.json"
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "seconds": 3600.0}))
        os.utime(path, (3600.0 * number,) * 2)
    (work / "embed/t003.manifest.json").unlink()
    code, out, err = verb(capsys, "status", work, "--json")
    (stage,) = json.loads(out)["stages"]
    assert code == 0
    assert (stage["shards"], stage["shards_total"]) == (3, 4)
    assert stage["items_per_second"] == pytest.approx(9 / 10800)
    assert stage["seconds_to_go"] == pytest.approx(3600)
    assert stage["seconds_since_latest"] > 1e6
    assert "3 of 4" in err
    assert "latest shard" in err


def test_status_is_shown_again_until_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workspace.yaml").write_text("vocabulary: psg\n")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", wait)
    code, _, err = verb(capsys, "status", tmp_path, "--watch", "2")
    assert code == 0
    assert waits == [2.0, 2.0, 2.0]
    assert err.splitlines() == ["no stage has run here yet"] * 3
    waits.clear()
    _, out, _ = verb(capsys, "status", tmp_path, "--watch", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [{"stages": []}] * 4
    assert waits == [5.0, 5.0, 5.0]
    assert verb(capsys, "status", tmp_path, "--watch", "0")[0] == 2


def test_settings_of_a_launch_that_is_kept_out_are_not_remembered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tars(tmp_path / "tars", 1)
    work, words = tmp_path / "work", settings(tmp_path / "tars")
    assert verb(capsys, "embed", work, *words)[0] == 0
    before = (work / "workspace.yaml").read_text()
    with stage_lock(work, "embed", plan="", shared=False):
        code, _, err = verb(capsys, "embed", work, "embed.image_size=64")
    assert (code, (work / "workspace.yaml").read_text()) == (1, before), err
    assert "is running the stage 'embed'" in err


def test_what_the_disk_refuses_is_a_sentence_and_the_next_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tars(tmp_path / "tars", 2)
    work, words = tmp_path / "work", settings(tmp_path / "tars")
    publish = files.publish

    def full(temporary: Path, final: Path) -> None:
        if final.name == "t001.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device", str(final))
        publish(temporary, final)

    with monkeypatch.context() as patch:
        patch.setattr(files, "publish", full)
        code, _, err = verb(capsys, "embed", work, *words)
    assert code == 1
    assert err.endswith(
        "t001.safetensors: No space left on device; what was finished is kept: mend that, and run "
        "it again\n"
    )
    assert not list(work.rglob(".tmp-*"))
    assert not list((work / "embed/.claims").iterdir())
    code, out, _ = verb(capsys, "embed", work, "--json")
    result = json.loads(out)
    assert (code, result["shards_done"], result["shards_skipped"]) == (0, 1, 1)
