"""Manifests: the record that a shard is done, of what it holds, and of what was set aside.

A manifest is written after all files that it names. A shard is complete when its manifest carries
the fingerprint of the job as it is now and every file has the recorded size and checksum.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from haystack import files
from haystack.executors.base import Counts, Outputs, Quarantined, manifest_path

logger = logging.getLogger(__name__)

QUARANTINE = "quarantine.jsonl"
PLAN = "plan.json"
"""Beside a stage's manifests: its shards and their fingerprints when the latest run began."""
_SUFFIX = ".manifest.json"


@dataclass(frozen=True)
class OutputFile:
    """One output of a shard.

    Args:
        bytes: its size, or None for a file that people may edit.
        sha256: checksum of its content, or None for a file that people may edit.
    """

    bytes: int | None
    sha256: str | None


@dataclass(frozen=True)
class Manifest:
    """What is known of a finished shard.

    Args:
        stage, shard: which one.
        fingerprint: SHA-256 of the job's fingerprint in canonical JSON.
        version: of Haystack, when it was computed. Not part of the fingerprint: an upgrade
            does not throw away weeks of work; a stage whose output changes says so itself.
        counts: ``in``, ``ok``, ``quarantined`` and what else the stage counted.
        inputs: outputs of other stages that it was made from: name -> checksum then.
        files: output name relative to the workspace -> size and checksum.
        quarantined: items that were set aside, in the order in which they were met.
        seconds: wall time; the one value that differs between equal runs.
        notes: what the stage left for later stages and reports.
    """

    stage: str
    shard: str
    fingerprint: str
    version: str
    counts: Mapping[str, int]
    inputs: Mapping[str, str]
    files: Mapping[str, OutputFile]
    quarantined: tuple[Quarantined, ...]
    seconds: float
    notes: Mapping[str, Any] = field(default_factory=dict)

    def complete(self, root: Path, *, thorough: bool = True) -> bool:
        """Whether every file is there, unchanged where it must be.

        Args:
            root: the workspace.
            thorough: read the files and compare checksums; else compare sizes alone.
        """
        return all(_unchanged(root / name, entry, thorough) for name, entry in self.files.items())

    def checksums(self) -> dict[str, str]:
        """Output name -> checksum, of the files that people may not edit."""
        return {
            name: entry.sha256 for name, entry in self.files.items() if entry.sha256 is not None
        }


class CurrentChecksums:
    """What the manifests of a workspace say of its files now; each stage is read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stages: dict[str, dict[str, str]] = {}

    def outdated_stage(self, manifest: Manifest) -> str | None:
        """The stage whose outputs have changed since ``manifest`` was made from them, if any."""
        for name, checksum in manifest.inputs.items():
            stage = name.partition("/")[0]
            if stage not in self._stages:
                made = read_manifests(self._root, stage)
                self._stages[stage] = {k: v for m in made for k, v in m.checksums().items()}
            if self._stages[stage].get(name) != checksum:
                return stage
        return None


def describe_outputs(out: Outputs) -> dict[str, OutputFile]:
    """Size and checksum of a shard's outputs while they still have their temporary names."""
    return {
        name: OutputFile(None, None)
        if name in out.editable
        else OutputFile(temporary.stat().st_size, files.sha256_file(temporary))
        for name, temporary in sorted(out.temporaries.items())
    }


def counts_with_quarantine(counts: Counts, out: Outputs) -> dict[str, int]:
    """The counts as a manifest keeps them."""
    return {
        "in": counts.inputs,
        "ok": counts.ok,
        "quarantined": len(out.quarantined),
        **dict(sorted(counts.extra.items())),
    }


def write_plan(root: Path, stage: str, plan: Mapping[str, str]) -> None:
    """Note which shards a stage has and the fingerprint of each, so that progress can be told."""
    files.write_json(root / stage / PLAN, dict(plan), indent=0)


def read_plan(root: Path, stage: str) -> dict[str, str] | None:
    """Shard -> fingerprint as the latest run saw them, or None where that is not known."""
    try:
        plan = json.loads((root / stage / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return plan if isinstance(plan, dict) else None


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write a manifest, atomically."""
    files.write_json(manifest_path(root, manifest.stage, manifest.shard), asdict(manifest))


def read_manifest(root: Path, stage: str, shard: str) -> Manifest | None:
    """The manifest of a shard, or None where there is none that can be read."""
    return _load(manifest_path(root, stage, shard))


def read_manifests(root: Path, stage: str | None = None) -> Iterator[Manifest]:
    """All manifests of one stage or of all, by stage, then shard."""
    for path in sorted(root.glob(f"{stage or '*'}/*{_SUFFIX}")):
        if not path.name.startswith(".") and (manifest := _load(path)) is not None:
            yield manifest


def remove_shard(root: Path, manifest: Manifest) -> None:
    """Remove a shard's outputs, then its manifest; files that people may edit stay."""
    remove_outputs(root, manifest, keep=())
    manifest_path(root, manifest.stage, manifest.shard).unlink(missing_ok=True)


def remove_outputs(root: Path, manifest: Manifest, keep: Collection[str]) -> None:
    """Remove the outputs of an older run of a shard that are not among ``keep``."""
    for name in manifest.checksums():
        if name not in keep:
            (root / name).unlink(missing_ok=True)


def write_quarantine(root: Path) -> None:
    """Rewrite ``quarantine.jsonl`` from all manifests: derived, sorted, never half-written."""
    written, rows = None, _quarantined(root)
    while written != rows:  # where there are no locks, a later view must not be overwritten
        keys = ("stage", "shard", "item", "reason")
        lines = (json.dumps(dict(zip(keys, row, strict=True)), ensure_ascii=False) for row in rows)
        files.write_text(root / QUARANTINE, "".join(f"{line}\n" for line in lines))
        written, rows = rows, _quarantined(root)


def _quarantined(root: Path) -> list[tuple[str, str, str, str]]:
    return sorted(
        (manifest.stage, manifest.shard, entry.item, entry.reason)
        for manifest in read_manifests(root)
        for entry in manifest.quarantined
    )


def _load(path: Path) -> Manifest | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["files"] = {name: OutputFile(**entry) for name, entry in content["files"].items()}
        content["quarantined"] = tuple(Quarantined(**row) for row in content["quarantined"])
        manifest = Manifest(**content)
        wrong = _what_is_wrong(manifest, path)
        if wrong:
            raise ValueError(wrong)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        logger.warning("%s is not a manifest (%s); its shard counts as not done", path, error)
        return None
    return manifest


def _what_is_wrong(manifest: Manifest, path: Path) -> str:
    """Why a manifest cannot be one that Haystack wrote there, or "".

    Outputs are removed by the names in it, so that none may lead out of the workspace.
    """
    if (manifest.stage, f"{manifest.shard}{_SUFFIX}") != (path.parent.name, path.name):
        return f"it is of {manifest.stage}/{manifest.shard}"
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            return f"its output {name} lies outside the workspace"
    counts = manifest.counts
    if "in" not in counts or any(type(count) is not int for count in counts.values()):
        return "its counts are no whole numbers, or 'in' is missing"
    if not 0 <= manifest.seconds < math.inf:
        return f"it says {manifest.seconds} seconds"
    if not all(isinstance(inputs, dict) for inputs in (manifest.inputs, manifest.notes)):
        return "its inputs or notes have no names"
    return ""


def _unchanged(path: Path, entry: OutputFile, thorough: bool) -> bool:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return False
    if entry.sha256 is None:
        return True
    if size != entry.bytes:
        return False
    return not thorough or files.sha256_file(path) == entry.sha256
