"""Run a job over its shards in this process, skipping what is done, never leaving anything half."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import haystack
from haystack import files
from haystack.errors import HaystackError
from haystack.executors.base import Job, Outputs, RunSummary, remove_stray_temporaries
from haystack.executors.manifest import (
    Manifest,
    counts_with_quarantine,
    describe_outputs,
    read_manifest,
    read_manifests,
    remove_outputs,
    remove_shard,
    write_manifest,
    write_quarantine,
)

logger = logging.getLogger(__name__)

LOCK = ".lock"
SECONDS_BETWEEN_LOG_LINES = 30.0


class LocalExecutor:
    """Runs shards one after the other; re-running resumes, whatever stopped the run before.

    Args:
        workspace_root: the workspace that outputs and manifests go to.
        progress: show a bar on a terminal, or a log line now and then elsewhere.
    """

    def __init__(self, workspace_root: str | Path, *, progress: bool = True) -> None:
        self._root = Path(workspace_root)
        self._progress = progress

    def run(self, job: Job) -> RunSummary:
        """Compute every shard that is not complete.

        Raises:
            HaystackError: another process is running the same stage in this workspace.
        """
        started = time.monotonic()
        with self._exclusive(job.name):
            remove_stray_temporaries(self._root / job.name)
            remove_stray_temporaries(self._root, recursive=False)
            shards = list(job.shards())
            self._forget_other_shards(job.name, set(shards))
            manifests: list[Manifest] = []
            done = 0
            try:
                with _Progress(job.name, len(shards), shown=self._progress) as progress:
                    for shard in shards:
                        manifest, computed = self._shard(job, shard, progress)
                        manifests.append(manifest)
                        done += computed
            finally:
                self._refresh_quarantine()
        totals = {
            key: sum(manifest.counts[key] for manifest in manifests)
            for key in ("in", "ok", "quarantined")
        }
        return RunSummary(
            stage=job.name,
            done=done,
            skipped=len(shards) - done,
            inputs=totals["in"],
            ok=totals["ok"],
            quarantined=totals["quarantined"],
            seconds=time.monotonic() - started,
        )

    def _shard(self, job: Job, shard: str, progress: _Progress) -> tuple[Manifest, bool]:
        old = read_manifest(self._root, job.name, shard)
        inputs = dict(job.inputs(shard))
        known = {"inputs": inputs, "job": job.fingerprint(shard)}
        fingerprint = files.sha256_text(files.canonical_json(known))
        if old is not None and old.fingerprint == fingerprint and old.complete(self._root):
            progress.shard(old.counts["in"])
            return old, False
        started = time.monotonic()
        out = _ReportingOutputs(self._root, progress)
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
            for name, temporary in out.temporaries.items():
                files.publish(temporary, self._root / name)
            # The old manifest stays until here: it names the leftovers should this be cut short.
            if old is not None:
                remove_outputs(self._root, old, keep=manifest.files)
            write_manifest(self._root, manifest)
        finally:
            out.discard()
        progress.shard(max(0, counts.inputs - out.items))
        return manifest, True

    def _forget_other_shards(self, stage: str, shards: set[str]) -> None:
        for manifest in list(read_manifests(self._root, stage)):
            if manifest.shard not in shards:
                logger.info(
                    "%s: the source has no shard %r any more; its outputs are removed",
                    stage,
                    manifest.shard,
                )
                remove_shard(self._root, manifest)

    def _refresh_quarantine(self) -> None:
        # Stages that run side by side would overwrite each other's view of the manifests.
        with _locked(self._root / LOCK, wait=True):
            write_quarantine(self._root)

    @contextmanager
    def _exclusive(self, stage: str) -> Iterator[None]:
        lock = self._root / stage / LOCK
        try:
            with _locked(lock, wait=False):
                yield
        except BlockingIOError:
            owner = lock.read_text(encoding="utf-8").strip() or "unknown"
            raise HaystackError(
                f"process {owner} is running the stage '{stage}' in the workspace {self._root}; "
                "wait until it ends, or stop it"
            ) from None


class _ReportingOutputs(Outputs):
    """Outputs whose ``advance`` also moves the progress display."""

    def __init__(self, root: Path, progress: _Progress) -> None:
        super().__init__(root)
        self._progress = progress

    def advance(self, items: int = 1) -> None:
        super().advance(items)
        self._progress.items(items)


class _Progress:
    """A bar on a terminal, a log line every half minute elsewhere."""

    def __init__(self, stage: str, shards: int, *, shown: bool) -> None:
        self._stage = stage
        self._total = shards
        self._shards = 0
        self._items = 0
        self._bar: Any = None
        self._shown = shown
        self._last = time.monotonic()
        if shown and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=shards, desc=stage, unit="shard", file=sys.stderr)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def items(self, count: int) -> None:
        """``count`` more items of the current shard were looked at."""
        self._items += count
        self._show()

    def shard(self, items: int) -> None:
        """One shard is finished, with ``items`` that were not counted yet."""
        self._shards += 1
        self._items += items
        if self._bar is not None:
            self._bar.update(1)
        self._show()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.set_postfix(items=self._items, refresh=False)
            self._bar.update(0)
        elif self._shown and time.monotonic() - self._last >= SECONDS_BETWEEN_LOG_LINES:
            self._last = time.monotonic()
            logger.info(
                "%s: %d of %d shards, %d items", self._stage, self._shards, self._total, self._items
            )


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the system drops it when this process dies.

    Raises:
        BlockingIOError: someone else holds it and ``wait`` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)
