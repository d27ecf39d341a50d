"""Launches of several equal processes: which of them this one is, as the launcher tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from haystack.errors import InputError

Item = TypeVar("Item")


@dataclass(frozen=True)
class Share:
    """One process of a launch.

    Args:
        index: its number, from 0.
        count: how many there are.
        launch: name of the launch, the same for all.
        on_machine: its number among those on its machine; picks its device.
    """

    index: int
    count: int
    launch: str
    on_machine: int = 0

    def split(self, items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
        """This process's share, and the others', which it looks at when it is through.

        The latter begin with its neighbour's, so that processes that are through early do not all
        look at the same ones.
        """
        own = list(items[self.index :: self.count])
        others = [
            item
            for step in range(1, self.count)
            for item in items[(self.index + step) % self.count :: self.count]
        ]
        return own, others


def torchrun_share(environment: Mapping[str, str]) -> Share | None:
    """The share that ``torchrun`` gives, or None where there is none, or only one process.

    Raises:
        InputError: only some of the variables are set, or they are no numbers.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    index, count = _numbers(environment, "RANK", "WORLD_SIZE", launcher="torchrun")
    if count == 1:
        return None
    return Share(
        index,
        count,
        f"torchrun-{environment.get('TORCHELASTIC_RUN_ID', '')}",
        _number(environment, "LOCAL_RANK", default=0),
    )


def slurm_share(environment: Mapping[str, str]) -> Share:
    """The share of a task of a Slurm job: of its array, and of the processes that ``srun`` starts.

    Indices of an array may have gaps; its number of tasks is what counts.

    Raises:
        InputError: not inside a Slurm job, or only some of the variables are set.
    """
    if "SLURM_JOB_ID" not in environment:
        raise InputError(
            "--executor slurm is for a process inside a Slurm job, and SLURM_JOB_ID is not set; "
            "tools/slurm_array.sh submits an array of them"
        )
    index, count, launch = 0, 1, environment["SLURM_JOB_ID"]
    if "SLURM_ARRAY_TASK_ID" in environment or "SLURM_ARRAY_TASK_COUNT" in environment:
        task, count = _numbers(
            environment,
            "SLURM_ARRAY_TASK_ID",
            "SLURM_ARRAY_TASK_COUNT",
            launcher="Slurm",
            any_index=True,
        )
        first = _number(environment, "SLURM_ARRAY_TASK_MIN", default=0)
        step = max(1, _number(environment, "SLURM_ARRAY_TASK_STEP", default=1))
        index = (task - first) // step % count
        launch = environment.get("SLURM_ARRAY_JOB_ID", launch)
    if "SLURM_STEP_NUM_TASKS" in environment:  # srun's; the batch script has none
        process, processes = _numbers(
            environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", launcher="srun"
        )
        index, count = index * processes + process, count * processes
    return Share(index, count, f"slurm-{launch}", _number(environment, "SLURM_LOCALID", default=0))


def _numbers(
    environment: Mapping[str, str],
    index: str,
    count: str,
    *,
    launcher: str,
    any_index: bool = False,
) -> tuple[int, int]:
    missing = [name for name in (index, count) if name not in environment]
    if missing:
        raise InputError(
            f"{launcher} sets {index} and {count}; here {missing[0]} is missing; "
            "set both, or neither"
        )
    numbers = _number(environment, index), _number(environment, count)
    if numbers[1] < 1 or numbers[0] < 0 or (numbers[0] >= numbers[1] and not any_index):
        raise InputError(
            f"expected {index} from 0 to {count} - 1, got {numbers[0]} of {numbers[1]}"
        )
    return numbers


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise InputError(f"expected a whole number in {name}, got {text!r}") from None
