"""Which part of a launch a process is, from the variables of torchrun and Slurm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haystack.errors import InputError
from haystack.executors.shares import Share, slurm_share, torchrun_share

ARRAY = {
    "SLURM_JOB_ID": "812",
    "SLURM_ARRAY_JOB_ID": "800",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_ARRAY_TASK_COUNT": "4",
    "SLURM_ARRAY_TASK_MIN": "0",
}


@given(st.integers(1, 9), st.integers(0, 40))
def test_the_shares_are_all_shards_and_the_others_follow(count: int, shards: int) -> None:
    names = [str(number) for number in range(shards)]
    owned = []
    for index in range(count):
        own, others = Share(index, count, "l").split(names)
        assert sorted(own + others) == sorted(names)
        owned += own
    assert sorted(owned) == sorted(names)


def test_neighbours_look_at_each_others_shards_in_turn() -> None:
    assert Share(1, 3, "l").split(["a", "b", "c", "d"]) == (["b"], ["c", "a", "d"])


def test_torchrun() -> None:
    variables = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"}
    assert torchrun_share(variables) == Share(5, 8, "torchrun-x", 1)
    assert torchrun_share({}) is None
    assert torchrun_share({"RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is missing"),
        ({"WORLD_SIZE": "2"}, "RANK is missing"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK from 0 to WORLD_SIZE - 1, got 2 of 2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "whole number in RANK, got 'one'"),
    ],
)
def test_half_of_torchruns_variables(variables: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        torchrun_share(variables)


@pytest.mark.parametrize(
    ("changes", "index", "count"),
    [
        ({}, 3, 4),
        ({"SLURM_ARRAY_TASK_MIN": "1"}, 2, 4),
        ({"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_STEP": "2"}, 1, 4),
        ({"SLURM_ARRAY_TASK_ID": "70", "SLURM_ARRAY_TASK_MIN": "7"}, 3, 4),  # --array=7,20,41,70
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 7, 8),
    ],
)
def test_a_slurm_array(changes: dict[str, str], index: int, count: int) -> None:
    share = slurm_share({**ARRAY, **changes})
    assert (share.index, share.count, share.launch) == (index, count, "slurm-800")


def test_a_slurm_job_without_an_array() -> None:
    assert slurm_share({"SLURM_JOB_ID": "9", "SLURM_NTASKS": "4"}) == Share(0, 1, "slurm-9")
    step = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}
    assert slurm_share({"SLURM_JOB_ID": "9", **step}) == Share(2, 4, "slurm-9", 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_ARRAY_TASK_COUNT": None}, "SLURM_ARRAY_TASK_COUNT is missing"),
        ({"SLURM_ARRAY_TASK_ID": None}, "SLURM_ARRAY_TASK_ID is missing"),
        ({"SLURM_ARRAY_TASK_ID": "x"}, "whole number in SLURM_ARRAY_TASK_ID"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID is missing"),
        ({"SLURM_JOB_ID": None}, "inside a Slurm job"),
    ],
)
def test_half_of_slurms_variables(changes: dict[str, str | None], message: str) -> None:
    variables = {k: v for k, v in {**ARRAY, **changes}.items() if v is not None}
    with pytest.raises(InputError, match=message):
        slurm_share(variables)
