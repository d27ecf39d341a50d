"""The cluster stage as a job: which files it reads and writes, and how edits survive."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from haystack import files
from haystack.executors.base import Counts, Outputs
from haystack.io.images import ImageSource, decode_image
from haystack.pipeline import tables
from haystack.pipeline.cluster import Clustering, cluster_features, nearest_to_centroid
from haystack.pipeline.contact_sheet import contact_sheet
from haystack.pipeline.upstream import ALL, upstream_checksums
from haystack.pipeline.workspace import (
    ASSIGNMENTS,
    CENTROIDS,
    CLUSTERS,
    CONTACT_SHEET,
    Workspace,
)

logger = logging.getLogger(__name__)


class ClusterJob:
    """Clusters of all images, with a contact sheet each.

    Args:
        workspace: where to read and write; its ``config.cluster`` holds.
        source: the images, for the contact sheets.
    """

    name: ClassVar[str] = "cluster"

    def __init__(self, workspace: Workspace, source: ImageSource) -> None:
        self._workspace = workspace
        self._config = workspace.config.cluster
        self._source = source

    def shards(self) -> Sequence[str]:
        """One: all images."""
        return [ALL]

    def inputs(self, shard: str) -> Mapping[str, str]:
        """All features."""
        return upstream_checksums(self._workspace, "embed", self._source.shards())

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """Settings."""
        settings = asdict(self._config)
        del settings["gpu"]  # where it runs, not what it means
        return settings

    def run(self, shard: str, out: Outputs) -> Counts:
        """Cluster, assign, and write ``clusters.yaml``; edits of it survive if nothing changed."""
        parts = [self._workspace.features(name) for name in self._source.shards()]
        keys = tuple(key for part in parts for key in part.image_keys)
        clustering = cluster_features(
            np.concatenate([part.features for part in parts]),
            k=self._config.k,
            iterations=self._config.iterations,
            seed=self._config.seed,
            sample_per_cluster=self._config.sample_per_cluster,
            normalise=self._config.normalise,
            gpu=self._config.gpu,
        )
        assignments = tables.Assignments(keys, clustering.cluster, clustering.distance)
        centroids_file, assignments_file = out.path(CENTROIDS), out.path(ASSIGNMENTS)
        tables.write_centroids(centroids_file, clustering.centroids)
        tables.write_assignments(assignments_file, assignments)
        identity = files.sha256_text(
            files.sha256_file(centroids_file) + files.sha256_file(assignments_file)
        )
        clusters = self._clusters(clustering, identity)
        text = tables.dump_clusters(clusters, identity)
        out.path(CLUSTERS, editable=True).write_text(text, encoding="utf-8")
        for number in range(self._config.k):
            self._sheet(number, keys, clustering, out)
        out.advance(len(keys))
        training = {"training_points": clustering.training_points}
        return Counts(inputs=len(keys), ok=len(keys), extra=training)

    def _clusters(self, clustering: Clustering, identity: str) -> list[tables.Cluster]:
        path = self._workspace.path(CLUSTERS)
        if path.is_file():
            edited, known = tables.load_clusters(path)
            if known == identity:
                tables.check_clusters(edited, self._config.k, path)
                return edited
            previous = path.with_name(path.name + ".previous")
            files.write_bytes(previous, path.read_bytes())
            logger.warning(
                "the clustering changed, so all clusters are included again; the file with your "
                "choices is kept as %s",
                previous,
            )
        sizes = np.bincount(clustering.cluster, minlength=self._config.k).tolist()
        return [
            tables.Cluster(number, f"cluster-{number:02d}", size)
            for number, size in enumerate(sizes)
        ]

    def _sheet(
        self, cluster: int, keys: Sequence[str], clustering: Clustering, out: Outputs
    ) -> None:
        rows = nearest_to_centroid(clustering, cluster, self._config.sheet_images)
        if not len(rows):
            return
        pictures = [decode_image(self._source.read(keys[row]), keys[row]) for row in rows]
        size = int((clustering.cluster == cluster).sum())
        content = contact_sheet(pictures, f"cluster {cluster}: {size} images")
        out.path(CONTACT_SHEET.format(cluster=cluster)).write_bytes(content)
