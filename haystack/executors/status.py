"""How far a workspace is, read from its manifests alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from haystack.executors.manifest import CurrentChecksums, read_manifests


@dataclass(frozen=True)
class StageStatus:
    """Progress of one stage.

    Args:
        stage: its name.
        shards: number of shards with a manifest.
        counts: sums over the shards: ``in``, ``ok``, ``quarantined`` and the stage's own.
        seconds: compute time, summed over the shards.
        outdated_by: the stage whose outputs have changed since this one was made from them.
    """

    stage: str
    shards: int
    counts: dict[str, int]
    seconds: float
    outdated_by: str | None = None

    @property
    def inputs(self) -> int:
        """Items that were looked at."""
        return self.counts["in"]

    @property
    def ok(self) -> int:
        """Items that came through."""
        return self.counts["ok"]

    @property
    def quarantined(self) -> int:
        """Items that were set aside."""
        return self.counts["quarantined"]


def read_status(workspace_root: str | Path) -> list[StageStatus]:
    """Status of every stage that has a manifest, by name. Opens no output and loads no model."""
    root = Path(workspace_root)
    collected: dict[str, StageStatus] = {}
    current = CurrentChecksums(root)
    for manifest in read_manifests(root):
        known = collected.get(manifest.stage, StageStatus(manifest.stage, 0, {}, 0.0))
        counts = dict(known.counts)
        for key, value in manifest.counts.items():
            counts[key] = counts.get(key, 0) + value
        collected[manifest.stage] = StageStatus(
            manifest.stage,
            known.shards + 1,
            counts,
            round(known.seconds + manifest.seconds, 3),
            known.outdated_by or current.outdated_stage(manifest),
        )
    return list(collected.values())
