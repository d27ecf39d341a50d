"""Computing one shard: the function that every executor runs, in whichever process."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import haystack
from haystack import files
from haystack.errors import HaystackError
from haystack.executors.base import Job, Outputs
from haystack.executors.claims import Claim, Claims
from haystack.executors.manifest import (
    Manifest,
    counts_with_quarantine,
    describe_outputs,
    read_manifest,
    remove_outputs,
    write_manifest,
)


@dataclass(frozen=True)
class Task:
    """A shard to see to.

    Args:
        shard: its name.
        fingerprint: what its manifest must carry to count as complete.
        thorough: check the content of its files, not only their sizes.
        lost: processes of this run that died on it.
    """

    shard: str
    fingerprint: str
    thorough: bool = True
    lost: int = 0


class State(Enum):
    """What became of a shard."""

    COMPUTED = "computed"
    COMPLETE = "complete"  # before
    CLAIMED = "claimed"  # by another process


@dataclass(frozen=True)
class Result:
    """What a worker says of a shard: small, since it may cross machines.

    Args:
        shard: its name.
        state: what became of it.
        counts: those of its manifest; empty where another process has it.
        advanced: items that were reported already while it was in work.
    """

    shard: str
    state: State
    counts: Mapping[str, int]
    advanced: int = 0


class _Lost(Exception):  # noqa: N818  it is no error
    """The claim on the shard went to another process, which took this one for dead."""


def fingerprint_of(job: Job, shard: str) -> tuple[str, dict[str, str]]:
    """SHA-256 of all that determines a shard's output, and the outputs that it is made from."""
    inputs = dict(job.inputs(shard))
    known = {"inputs": inputs, "job": job.fingerprint(shard)}
    return files.sha256_text(files.canonical_json(known)), inputs


def run_shard(
    root: Path,
    job: Job,
    task: Task,
    claims: Claims,
    *,
    advance: Callable[[int], None],
    strict: bool = False,
) -> Result:
    """Compute a shard unless it is complete, or another process is at it.

    Args:
        root: the workspace.
        job: the stage.
        task: the shard.
        claims: of this process.
        advance: told of items as they are looked at.
        strict: refuse to compute what the process that gave the task would not take for complete.

    Raises:
        HaystackError: ``strict``, and this process sees other settings, weights or images.
    """
    known = complete(root, job.name, task)
    if known is not None:
        return Result(task.shard, State.COMPLETE, known.counts)
    claim = claims.take(task.shard, lost=task.lost)
    if claim is None:
        return Result(task.shard, State.CLAIMED, {})
    try:
        known = complete(root, job.name, task)
        if known is not None:  # since the first look
            return Result(task.shard, State.COMPLETE, known.counts)
        fingerprint, inputs = fingerprint_of(job, task.shard)
        if strict and fingerprint != task.fingerprint:
            raise HaystackError(
                f"the shard {task.shard} looks different on {platform.node()} than where the run "
                "was started: other weights, other images, another version of Haystack, or they "
                "changed while it ran; make them equal and run it again"
            )
        return _compute(root, job, task.shard, fingerprint, inputs, (claims, claim), advance)
    except _Lost:
        return Result(task.shard, State.CLAIMED, {})
    finally:
        claims.release(task.shard, claim)


def complete(root: Path, stage: str, task: Task) -> Manifest | None:
    """The manifest of a shard that need not be computed again; None where it has to be."""
    manifest = read_manifest(root, stage, task.shard)
    if manifest is None or manifest.fingerprint != task.fingerprint:
        return None
    return manifest if manifest.complete(root, thorough=task.thorough) else None


def _compute(
    root: Path,
    job: Job,
    shard: str,
    fingerprint: str,
    inputs: Mapping[str, str],
    held: tuple[Claims, Claim],
    advance: Callable[[int], None],
) -> Result:
    started = time.monotonic()
    old = read_manifest(root, job.name, shard)
    out = _ReportingOutputs(root, advance)
    try:
        counts = job.run(shard, out)
        manifest = Manifest(
            stage=job.name,
            shard=shard,
            fingerprint=fingerprint,
            version=haystack.__version__,
            counts=counts_with_quarantine(counts, out),
            inputs=inputs,
            files=describe_outputs(out),
            quarantined=tuple(out.quarantined),
            seconds=round(time.monotonic() - started, 3),
            notes=counts.notes,
        )
        claims, claim = held
        if not claims.holds(shard, claim):
            raise _Lost
        for name, temporary in out.temporaries.items():
            files.publish(temporary, root / name)
        # The old manifest stays until here: it names the leftovers should this be cut short.
        if old is not None:
            remove_outputs(root, old, keep=manifest.files)
        write_manifest(root, manifest)
    finally:
        out.discard()
    return Result(shard, State.COMPUTED, manifest.counts, out.items)


class _ReportingOutputs(Outputs):
    """Outputs whose ``advance`` is also told to others."""

    def __init__(self, root: Path, advance: Callable[[int], None]) -> None:
        super().__init__(root)
        self._advance = advance

    def advance(self, items: int = 1) -> None:
        super().advance(items)
        self._advance(items)
