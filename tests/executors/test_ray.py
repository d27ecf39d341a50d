"""A real Ray on this machine: actors are killed, and the files are the same bytes."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import snapshot
from tiny_tars import (
    ColourRecipe,
    killing_workers,
    quarantined,
    write_tars,
)

import haystack
from haystack.errors import HaystackError, InputError
from haystack.executors import LocalExecutor

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")

from haystack.executors.ray_actors import RayExecutor  # noqa: E402  Ray may be missing

ROOT = Path(haystack.__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster of two CPUs whose processes find what these tests import."""
    found = os.pathsep.join([str(ROOT), str(Path(__file__).parents[1])])
    before = dict(os.environ)
    os.environ |= {"PYTHONPATH": found, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    yield
    ray.shutdown()
    signal.signal(signal.SIGTERM, handler)
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize(
    ("shards", "kills"), [(16, 2), pytest.param(200, 20, marks=pytest.mark.slow)]
)
def test_killed_actors_change_nothing(tmp_path: Path, shards: int, kills: int) -> None:
    broken = write_tars(tmp_path / "tars", shards)
    LocalExecutor(tmp_path / "undisturbed", progress=False).run(
        ColourRecipe(str(tmp_path / "tars"))()
    )
    trace = tmp_path / "trace"
    recipe = ColourRecipe(str(tmp_path / "tars"), seconds=0.2, trace=str(trace))
    with killing_workers(trace, kills, seed=shards) as killed:
        summary = RayExecutor(tmp_path / "work", progress=False).run(recipe(), recipe)
    assert killed
    # One that was killed between its last rename and its answer has done its shard.
    assert summary.done + summary.skipped == shards
    assert summary.done > shards // 2
    assert not summary.failed
    assert quarantined(tmp_path / "work") == broken
    assert snapshot(tmp_path / "work") == snapshot(tmp_path / "undisturbed")
    processes = {int(line.split()[1]) for line in trace.read_text().splitlines()}
    assert len(processes) >= 2 + len(killed) - 1, "actors are started anew"


def test_a_shard_that_kills_its_actors_is_given_up_and_the_rest_goes_on(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 4)
    trace = tmp_path / "trace"
    recipe = ColourRecipe(str(tmp_path / "tars"), poison="t002", trace=str(trace))
    summary = RayExecutor(tmp_path / "work", progress=False, workers=1).run(recipe(), recipe)
    assert summary.done == 3
    (failed,) = summary.failed
    assert failed.shard == "t002"
    assert "3 workers died on it" in failed.reason
    assert Counter(trace.read_text().split())["t002"] == 3
    assert not list((tmp_path / "work").rglob(".tmp-*"))
    assert not list((tmp_path / "work/colour/.claims").iterdir())


def test_what_a_job_raises_ends_the_run_with_its_sentence(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 4)
    recipe = ColourRecipe(str(tmp_path / "tars"), raises="t001")
    with pytest.raises(HaystackError, match="t001: this shard is bad") as caught:
        RayExecutor(tmp_path / "work", progress=False, workers=1).run(recipe(), recipe)
    assert caught.value.exit_code == InputError.exit_code


def test_a_stopped_run_leaves_nothing_half_done(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", 4)
    recipe = ColourRecipe(str(tmp_path / "tars"), seconds=600.0)

    def interrupt() -> None:
        while not list((tmp_path / "work").rglob(".tmp-*-t00*.json")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        RayExecutor(tmp_path / "work", progress=False).run(recipe(), recipe)
    thread.join()
    assert not list((tmp_path / "work").rglob(".tmp-*"))
    assert not list((tmp_path / "work/colour/.claims").iterdir())
    assert ray.is_initialized(), "a cluster that was there before is left as it was"


def test_a_gpu_that_is_asked_for_and_missing_is_an_error(tmp_path: Path) -> None:
    if ray.cluster_resources().get("GPU"):
        pytest.skip("this machine has a GPU")
    write_tars(tmp_path / "tars", 1)
    recipe = ColourRecipe(str(tmp_path / "tars"))
    with pytest.raises(HaystackError, match="the Ray cluster has no GPU"):
        RayExecutor(tmp_path / "work", progress=False, gpu=True).run(recipe(), recipe)


def test_only_names_of_shards_and_counts_cross(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No picture, and nothing that grows with the pictures, goes through Ray."""
    write_tars(tmp_path / "tars", 2, pictures=4, side=400)
    recipe = ColourRecipe(str(tmp_path / "tars"))
    sizes = []
    get = ray.get

    def measured(reference: object) -> object:
        value = get(reference)
        sizes.append(len(pickle.dumps(value)))
        return value

    monkeypatch.setattr(ray, "get", measured)
    RayExecutor(tmp_path / "work", progress=False, workers=1).run(recipe(), recipe)
    assert len(sizes) == 3
    assert max(sizes) < 1000
