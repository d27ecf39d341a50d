"""What jobs read: the source's images, and stages before them, complete and current."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from haystack.errors import InputError
from haystack.executors.base import Counts, Outputs, manifest_path
from haystack.executors.manifest import (
    PLAN,
    CurrentChecksums,
    Manifest,
    read_manifest,
    read_plan,
)
from haystack.io.images import Content, ImageSource
from haystack.pipeline.workspace import Workspace, missing_stage, verb_of

ALL = "all"
"""The one shard of a stage that works on all shards at once."""


def finished(workspace: Workspace, stage: str, shard: str) -> Manifest:
    """The manifest of another stage's shard.

    Raises:
        InputError: that shard is not done.
    """
    manifest = read_manifest(workspace.root, stage, shard)
    if manifest is None:
        raise missing_stage(workspace.root, stage, manifest_path(workspace.root, stage, shard))
    return manifest


def upstream_checksums(workspace: Workspace, stage: str, shards: Sequence[str]) -> dict[str, str]:
    """Checksums of another stage's outputs, from its manifests.

    Raises:
        InputError: that stage is not complete, was made from outputs that have changed since, or
            was begun anew with other settings or inputs and is not done with these shards.
    """
    checksums: dict[str, str] = {}
    current = CurrentChecksums(workspace.root)
    planned = _plan(workspace.root, stage, _written(workspace.root / stage / PLAN))
    for shard in shards:
        manifest = finished(workspace, stage, shard)
        # Else shards of two settings would be mixed: features of both look alike.
        if planned.get(shard, manifest.fingerprint) != manifest.fingerprint:
            raise InputError(
                f"the stage '{stage}' was begun anew and is not done with the shard {shard}; "
                f"run again: haystack {verb_of(stage)} {workspace.root}"
            )
        changed = current.outdated_stage(manifest)
        if changed is not None:
            raise InputError(
                f"the stage '{stage}' was made from an earlier '{changed}'; "
                f"run again: haystack {verb_of(stage)} {workspace.root}"
            )
        checksums.update(manifest.checksums())
    return checksums


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.is_file() else 0


@lru_cache(maxsize=8)
def _plan(root: Path, stage: str, written: int) -> Mapping[str, str]:
    """The stage's plan as of this time; read once, as jobs ask for each of thousands of shards."""
    return read_plan(root, stage) or {}


def shard_contents(source: ImageSource, shard: str, out: Outputs) -> Iterator[tuple[str, Content]]:
    """The shard's images, each with its bytes or why there are none; a break comes last, as one."""
    try:
        for key, content in source.iterate(shard):
            out.advance()
            yield key, content
    except InputError as error:
        yield shard, InputError(str(error))


def shard_images(source: ImageSource, shard: str, out: Outputs) -> Iterator[tuple[str, bytes]]:
    """The shard's images; what cannot be read is quarantined, the rest of a broken shard too."""
    for key, content in shard_contents(source, shard, out):
        if isinstance(content, InputError):
            out.quarantine(key, content.message)
        else:
            yield key, content


def counts_of(ok: int, out: Outputs) -> Counts:
    """Counts of a shard of which ``ok`` images came through and the others were set aside."""
    return Counts(inputs=ok + len(out.quarantined), ok=ok)
