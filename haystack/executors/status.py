"""How far a workspace is, and how fast, read from its manifests and plans alone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from haystack.executors.base import manifest_path
from haystack.executors.manifest import CurrentChecksums, Manifest, read_manifests, read_plan

RECENT_SECONDS = 900.0
RECENT_SHARDS = 16
"""What counts as lately: so long ago, or so many shards where that goes further back."""


@dataclass(frozen=True)
class Pace:
    """How fast a stage went lately.

    Args:
        items: a second, all workers together.
        shards: likewise.
    """

    items: float
    shards: float


@dataclass(frozen=True)
class StageStatus:
    """Progress of one stage.

    Args:
        stage: its name.
        shards: shards that are complete, for the settings of the latest run.
        counts: sums over them: ``in``, ``ok``, ``quarantined`` and the stage's own.
        seconds: compute time, summed over them.
        outdated_by: the stage whose outputs have changed since this one was made from them.
        total: shards that there are, as the latest run saw them; None where that is not known.
        pace: lately; None where too little is known.
        latest: when the latest shard was finished, in seconds since the epoch.
    """

    stage: str
    shards: int
    counts: dict[str, int]
    seconds: float
    outdated_by: str | None = None
    total: int | None = None
    pace: Pace | None = None
    latest: float | None = None

    @property
    def inputs(self) -> int:
        """Items that were looked at."""
        return self.counts.get("in", 0)

    @property
    def ok(self) -> int:
        """Items that came through."""
        return self.counts.get("ok", 0)

    @property
    def quarantined(self) -> int:
        """Items that were set aside."""
        return self.counts.get("quarantined", 0)

    @property
    def left(self) -> int:
        """Shards that are not complete."""
        return max(0, (self.total or 0) - self.shards)

    @property
    def seconds_to_go(self) -> float | None:
        """Time that the rest takes at the pace of late; None where that is not known."""
        if not self.left or self.total is None:
            return 0.0 if self.total is not None else None
        return None if self.pace is None else self.left / self.pace.shards


def read_status(workspace_root: str | Path) -> list[StageStatus]:
    """Status of every stage that has begun, by name. Opens no output and loads no model."""
    root = Path(workspace_root)
    current = CurrentChecksums(root)
    made: dict[str, list[Manifest]] = defaultdict(list)
    for manifest in read_manifests(root):
        made[manifest.stage].append(manifest)
    stages = {path.parent.name for path in root.glob("*/plan.json")} | made.keys()
    return [_stage_status(root, stage, made[stage], current) for stage in sorted(stages)]


def _stage_status(
    root: Path, stage: str, made: Sequence[Manifest], current: CurrentChecksums
) -> StageStatus:
    plan = read_plan(root, stage)
    if plan is not None:  # a shard that is being made anew is not complete
        made = [m for m in made if plan.get(m.shard) == m.fingerprint]
    counts: dict[str, int] = {}
    for manifest in made:
        for key, value in manifest.counts.items():
            counts[key] = counts.get(key, 0) + value
    outdated = (current.outdated_stage(manifest) for manifest in made)
    spans = [span for manifest in made if (span := _span(root, manifest)) is not None]
    return StageStatus(
        stage,
        len(made),
        counts,
        round(sum(manifest.seconds for manifest in made), 3),
        next((found for found in outdated if found is not None), None),
        None if plan is None else len(plan),
        pace_of(spans),
        max((end for _, end, _ in spans), default=None),
    )


def _span(root: Path, manifest: Manifest) -> tuple[float, float, int] | None:
    """When the shard was begun and finished, and its items."""
    try:
        # The time of writing: in the manifest's text it would make equal runs differ.
        end = manifest_path(root, manifest.stage, manifest.shard).stat().st_mtime
    except FileNotFoundError:
        return None
    return end - manifest.seconds, end, manifest.counts["in"]


def pace_of(spans: Sequence[tuple[float, float, int]]) -> Pace | None:
    """How fast finished shards followed each other lately.

    A shard in work leaves no trace yet, so that counting what was finished lately is too low where
    shards take long and too high where workers finish together. Hence: the number of workers, seen
    at a time that is long enough ago for their shards to be finished, over the time that a shard
    takes.

    Args:
        spans: begin and end in seconds, and items, of each finished shard.

    Returns:
        None without a shard that took time.
    """
    if not spans:
        return None
    spans = sorted(spans, key=lambda span: span[1])
    last = spans[-1][1]
    recent = [span for span in spans if span[1] > last - RECENT_SECONDS]
    recent = recent if len(recent) > RECENT_SHARDS else spans[-RECENT_SHARDS:]
    seconds = sum(end - begin for begin, end, _ in recent)
    if seconds <= 0:
        return None
    longest = max(end - begin for begin, end, _ in recent)
    until = last - longest
    since = min(until - RECENT_SECONDS, *(begin for begin, _, _ in recent))
    since = max(since, min(begin for begin, _, _ in spans))
    if until > since:
        busy = sum(max(0.0, min(end, until) - max(begin, since)) for begin, end, _ in spans)
        workers = busy / (until - since)
    else:  # the first shards of all: they were all in work together
        workers = seconds / (last - since)
    items = sum(count for _, _, count in recent)
    return Pace(workers * items / seconds, workers * len(recent) / seconds) if workers else None


def age(status: StageStatus) -> float | None:
    """Seconds since the stage's latest shard was finished."""
    return None if status.latest is None else max(0.0, time.time() - status.latest)
