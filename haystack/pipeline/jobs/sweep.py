"""The sweep over numbers of clusters as a job: a shard a number; ``cluster`` stays as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

from haystack.executors.base import Counts, Outputs
from haystack.pipeline.clustering.sweep import SweptK, sweep_k
from haystack.pipeline.jobs.cluster import clustering_settings, feature_rows
from haystack.pipeline.jobs.upstream import upstream_checksums
from haystack.pipeline.workspace import SWEPT, Workspace


class SweepJob:
    """k-means with several numbers of clusters, to choose one.

    Args:
        workspace: where to read and write; its ``config.cluster`` holds but for ``k``.
        source_shards: the shards whose features are clustered.
        numbers: of clusters.
    """

    name: ClassVar[str] = "sweep"

    def __init__(
        self, workspace: Workspace, source_shards: Sequence[str], numbers: Sequence[int]
    ) -> None:
        self._workspace = workspace
        self._source_shards = list(source_shards)
        self._configs = {
            f"k-{k}": replace(workspace.config.cluster, k=k) for k in sorted(set(numbers))
        }

    def shards(self) -> Sequence[str]:
        """One a number of clusters, ascending."""
        return list(self._configs)

    def inputs(self, shard: str) -> Mapping[str, str]:
        """All features."""
        return upstream_checksums(self._workspace, "embed", self._source_shards)

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """The settings of k-means."""
        return clustering_settings(self._configs[shard])

    def run(self, shard: str, out: Outputs) -> Counts:
        """Cluster, also halves, and write what came of it."""
        found = sweep_k(feature_rows(self._workspace, self._source_shards), self._configs[shard])
        content = {**asdict(found), "stability": found.stability}
        text = json.dumps(content, indent=1) + "\n"
        out.path(SWEPT.format(shard=shard)).write_text(text, encoding="utf-8")
        out.advance(found.images)
        return Counts(inputs=found.images, ok=found.images)

    def results(self) -> list[SweptK]:
        """What came of each number, once all shards are done."""
        found = []
        for shard in self.shards():
            content = json.loads(self._workspace.path(SWEPT, shard=shard).read_text())
            del content["stability"]
            found.append(SweptK(**{**content, "agreement": tuple(content["agreement"])}))
        return found
