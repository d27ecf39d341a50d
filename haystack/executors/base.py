"""What a job promises to an executor, and what an executor hands to a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from haystack import files
from haystack.errors import InputError

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Counts:
    """What became of a shard's items.

    Args:
        inputs: items that the job looked at.
        ok: items that came through; the others were quarantined.
        extra: further counts worth keeping in the manifest (training points, pairs, ...).
        notes: what else later stages or reports ask of this shard; JSON-able values.
    """

    inputs: int
    ok: int
    extra: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Quarantined:
    """One item that was set aside, and why."""

    item: str
    reason: str


@dataclass(frozen=True)
class FailedShard:
    """A shard that was given up, and why; the next run tries it again."""

    shard: str
    reason: str


@dataclass(frozen=True)
class RunSummary:
    """Outcome of running one stage over all its shards.

    Args:
        stage: the job's name.
        done: shards computed in this run.
        skipped: shards that were complete already.
        inputs, ok, quarantined: items of all shards, those of skipped shards included.
        seconds: wall time of this run.
        failed: shards that killed each process that tried them.
        elsewhere: shards that other processes were computing when this run ended.
    """

    stage: str
    done: int
    skipped: int
    inputs: int
    ok: int
    quarantined: int
    seconds: float
    failed: tuple[FailedShard, ...] = ()
    elsewhere: int = 0

    def __str__(self) -> str:
        text = (
            f"{self.stage}: {self.done} shard{'' if self.done == 1 else 's'} done, "
            f"{self.skipped} already complete, "
            f"{self.ok} of {self.inputs} items ok in {self.seconds:.1f} s"
        )
        if self.elsewhere:
            text += f"; {self.elsewhere} more in the hands of other processes"
        if self.failed:
            reasons = ", ".join(f"{failed.shard} ({failed.reason})" for failed in self.failed)
            text += f"; {len(self.failed)} shards failed and are not done: {reasons}"
        return f"{text}; {self.quarantined} quarantined" if self.quarantined else text


class Outputs:
    """Hands out temporary files for a shard's outputs and collects what had to be set aside.

    Nothing that is written here is visible under its final name before the whole shard is done.

    Args:
        root: the workspace; output names are relative to it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.temporaries: dict[str, Path] = {}
        self.editable: set[str] = set()
        self.quarantined: list[Quarantined] = []
        self.items = 0

    def path(self, relative: str, *, editable: bool = False) -> Path:
        """A temporary file to write; it becomes ``root / relative`` when the shard is done.

        Args:
            relative: final name, relative to the workspace, with forward slashes.
            editable: people may change the file later; the executor then asks only that it
                exists, not that its content is what the job wrote.
        """
        if relative not in self.temporaries:
            final = self._root / relative
            final.parent.mkdir(parents=True, exist_ok=True)
            self.temporaries[relative] = files.temporary_name(final)
        if editable:
            self.editable.add(relative)
        return self.temporaries[relative]

    def quarantine(self, item: str, reason: str) -> None:
        """Set ``item`` aside; the run goes on and says so at its end."""
        self.quarantined.append(Quarantined(item, reason))

    def advance(self, items: int = 1) -> None:
        """Tell the progress bar that ``items`` more were looked at."""
        self.items += items

    def discard(self) -> None:
        """Remove the temporaries that were not published."""
        for temporary in self.temporaries.values():
            temporary.unlink(missing_ok=True)


class Job(Protocol):
    """One stage over one workspace: which shards there are, and how to compute one of them."""

    @property
    def name(self) -> str:
        """The stage's name; its manifests lie in the folder of that name."""

    def shards(self) -> Sequence[str]:
        """Names of the shards, in a fixed order; letters, digits and ``_ . + -`` only."""

    def inputs(self, shard: str) -> Mapping[str, str]:
        """Outputs of other stages that the shard is made from: name -> checksum."""

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """What else determines the shard's output, as JSON-able values.

        The stage's settings, hashes of the models used, what the source says of its images. Equal
        inputs and an equal fingerprint mean that the shard need not be computed again.
        """

    def run(self, shard: str, out: Outputs) -> Counts:
        """Compute the shard; the same fingerprint gives the same bytes."""


class Recipe(Protocol):
    """Builds a job, in this process or in another one: picklable, and small."""

    def __call__(self, device: str | None = None) -> Job:
        """The job; on ``device`` where one is given, else on the one that is configured."""


class Executor(Protocol):
    """Runs a job over its shards; what is complete is skipped, whoever computed it."""

    def run(
        self,
        job: Job,
        recipe: Recipe | None = None,
        begun: Callable[[], None] | None = None,
    ) -> RunSummary:
        """Compute every shard that is not complete.

        Args:
            job: the stage, as this process sees it.
            recipe: the same stage for processes that this one starts, where it starts any.
            begun: called once it is known that there may be a run, before anything is computed.
        """


def manifest_path(root: Path, stage: str, shard: str) -> Path:
    """Where the manifest of a shard lies.

    Raises:
        InputError: the shard's name would not be a safe file name.
    """
    if not _SAFE_NAME.fullmatch(shard):
        raise InputError(
            f"expected a shard name of letters, digits, '_', '.', '+' and '-', got {shard!r}; "
            "rename the shard's file"
        )
    return root / stage / f"{shard}.manifest.json"
