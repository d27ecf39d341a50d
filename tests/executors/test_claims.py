"""Claims: one owner at a time, dead owners found out, nothing taken from the living."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from processes import in_child

from haystack.executors.claims import FOLDER, Claim, Claims, Holder, RunIdentity


def claims(root: Path, run: str | None = None, lease: float = 60.0) -> Claims:
    return Claims(root, "stage", RunIdentity.new(run), lease=lease)


def place(root: Path, shard: str) -> Path:
    return root / "stage" / FOLDER / shard


def on_another_machine(root: Path, shard: str, **changes: object) -> Claim:
    """Rewrite a claim as if a process elsewhere had it."""
    content = json.loads(place(root, shard).read_text())
    claim = replace(Claim(**content), machine="another", host="elsewhere", **changes)
    place(root, shard).write_text(json.dumps(asdict(claim)))
    return claim


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    ours, theirs = claims(tmp_path), claims(tmp_path)
    claim = ours.take("s")
    assert claim is not None
    assert theirs.take("s") is None
    assert ours.holds("s", claim)
    assert theirs.look("s")[0] is Holder.ALIVE
    ours.release("s", claim)
    assert theirs.look("s")[0] is Holder.NOBODY
    assert theirs.take("s") is not None


def test_many_processes_take_each_shard_once(tmp_path: Path) -> None:
    shards = [f"s{number}" for number in range(60)]

    def take_all() -> None:
        mine = claims(tmp_path)
        taken = [shard for shard in shards if mine.take(shard) is not None]
        (tmp_path / f"taken-{os.getpid()}").write_text(" ".join(taken))

    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            take_all()
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    taken = [s for path in tmp_path.glob("taken-*") for s in path.read_text().split()]
    assert sorted(taken) == sorted(shards)


def test_a_dead_process_of_this_machine_is_found_out_at_once(tmp_path: Path) -> None:
    assert in_child(lambda: claims(tmp_path, run="r").take("s")) == 0
    ours = claims(tmp_path, run="r")
    assert ours.take("s") is None, "only the coordinator removes claims"
    holder, dead = ours.look("s")
    assert holder is Holder.DEAD
    assert ours.losses(dead) == 1
    assert claims(tmp_path, run="another").losses(dead) == 0, "deaths count within a run"
    assert ours.clear("s", dead)
    assert ours.take("s", lost=1) is not None


def test_a_number_that_was_given_again_is_no_sign_of_life(tmp_path: Path) -> None:
    ours = claims(tmp_path)
    claim = ours.take("s")
    assert claim is not None
    place(tmp_path, "s").write_text(json.dumps(asdict(replace(claim, born="1"))))
    assert ours.look("s")[0] is Holder.DEAD


def test_a_process_elsewhere_is_dead_when_nobody_renews_for_a_lease(tmp_path: Path) -> None:
    ours = claims(tmp_path, lease=0.2)
    theirs = claims(tmp_path)
    assert theirs.take("s") is not None
    theirs.close()
    on_another_machine(tmp_path, "s")
    # A modification time of long ago says nothing: clocks differ.
    os.utime(place(tmp_path, "s"), (0, 0))
    assert ours.look("s")[0] is Holder.UNSURE
    assert ours.look("s")[0] is Holder.UNSURE
    time.sleep(0.25)
    assert ours.look("s")[0] is Holder.DEAD


def test_a_process_elsewhere_that_renews_is_alive(tmp_path: Path) -> None:
    theirs = claims(tmp_path, lease=0.4)
    claim = theirs.take("s")
    assert claim is not None
    on_another_machine(tmp_path, "s")
    ours = claims(tmp_path, lease=60.0)
    assert ours.look("s")[0] is Holder.UNSURE
    deadline = time.monotonic() + 30
    while ours.look("s")[0] is Holder.UNSURE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ours.look("s")[0] is Holder.ALIVE
    theirs.close()


def test_an_owner_finds_out_that_it_was_taken_for_dead(tmp_path: Path) -> None:
    theirs, ours = claims(tmp_path), claims(tmp_path)
    claim = theirs.take("s")
    assert claim is not None
    assert ours.clear("s", claim)
    assert not theirs.holds("s", claim)
    assert ours.take("s") is not None
    theirs.release("s", claim)
    assert ours.look("s")[0] is Holder.ALIVE, "releasing what is lost takes nothing from its owner"


def test_clearing_takes_nothing_from_one_who_was_faster(tmp_path: Path) -> None:
    assert in_child(lambda: claims(tmp_path).take("s")) == 0
    slow, fast = claims(tmp_path), claims(tmp_path)
    _, dead = slow.look("s")
    assert fast.clear("s", dead)
    taken = fast.take("s")
    assert taken is not None
    assert not slow.clear("s", dead)
    assert fast.holds("s", taken)
    assert not [path for path in place(tmp_path, "s").parent.iterdir() if path.name != "s"]


@pytest.mark.parametrize("content", ["", '{"token": "x"'])
def test_a_claim_that_is_being_written_counts_until_its_lease_ends(
    tmp_path: Path, content: str
) -> None:
    ours = claims(tmp_path, lease=0.1)
    place(tmp_path, "s").write_text(content)
    assert ours.take("s") is None
    assert ours.look("s") == (Holder.UNSURE, None)
    time.sleep(0.15)
    assert ours.look("s") == (Holder.DEAD, None)
    assert ours.clear("s", None)
    assert ours.take("s") is not None


def test_what_was_given_up_is_tried_again_in_the_next_run(tmp_path: Path) -> None:
    claims(tmp_path, run="r").give_up("s")
    assert claims(tmp_path, run="r").look("s")[0] is Holder.FAILED
    later = claims(tmp_path, run="later")
    holder, claim = later.look("s")
    assert holder is Holder.DEAD
    assert later.losses(claim) == 0


def test_a_coordinator_clears_the_claims_of_its_own_workers_only(tmp_path: Path) -> None:
    ours, others = claims(tmp_path), claims(tmp_path)
    worker = Claims(tmp_path, "stage", ours.identity)
    assert worker.take("s") is not None
    assert others.take("o") is not None
    ours.clear_own("s")
    ours.clear_own("o")
    assert ours.look("s")[0] is Holder.NOBODY
    assert ours.look("o")[0] is Holder.ALIVE


def test_a_claim_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = claims(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("json.dump", full)
        with pytest.raises(OSError, match="No space"):
            own.take("a")
    assert own.look("a") == (Holder.NOBODY, None)
    assert own.take("a") is not None
    own.close()
