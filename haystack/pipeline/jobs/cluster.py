"""The cluster stage as a job: which files it reads and writes, and how edits survive."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from haystack import files
from haystack.executors.base import Counts, Outputs
from haystack.io.images import ImageSource, decode_image
from haystack.pipeline import tables
from haystack.pipeline.clustering.cluster import Clustering, cluster_features, nearest_to_centroid
from haystack.pipeline.clustering.clusters_file import (
    Cluster,
    check_clusters,
    dump_clusters,
    load_clusters,
)
from haystack.pipeline.clustering.contact_sheet import CELL, contact_sheet
from haystack.pipeline.clustering.feature_rows import StoredRows
from haystack.pipeline.config import ClusterConfig
from haystack.pipeline.jobs.upstream import ALL, upstream_checksums
from haystack.pipeline.workspace import (
    ASSIGNMENTS,
    CENTROIDS,
    CLUSTERS,
    CONTACT_SHEET,
    FEATURES,
    Workspace,
)

logger = logging.getLogger(__name__)


def feature_rows(workspace: Workspace, shards: Sequence[str]) -> StoredRows:
    """The features of these shards' images (stage ``embed``)."""
    return StoredRows([workspace.path(FEATURES, shard=shard) for shard in shards])


def clustering_settings(config: ClusterConfig) -> dict[str, Any]:
    """The settings that decide what clusters come out, of those of the stage."""
    settings = asdict(config)
    for key in ("gpu", "algorithm", "sheet_images"):  # how it is computed; what is drawn of it
        del settings[key]
    return settings


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
        return {
            **clustering_settings(self._config),
            "sheet_images": self._config.sheet_images,
        }

    def run(self, shard: str, out: Outputs) -> Counts:
        """Cluster, assign, and write ``clusters.yaml``; edits of it survive if nothing changed."""
        rows = feature_rows(self._workspace, self._source.shards())
        clustering = cluster_features(rows, self._config)
        shown = {
            number: nearest_to_centroid(clustering, number, self._config.sheet_images).tolist()
            for number in range(self._config.k)
        }
        centroids_file, assignments_file = out.path(CENTROIDS), out.path(ASSIGNMENTS)
        tables.write_centroids(centroids_file, clustering.centroids)
        tables.write_assignments(assignments_file, _by_shard(rows.paths, clustering))
        identity = files.sha256_text(
            files.sha256_file(centroids_file) + files.sha256_file(assignments_file)
        )
        sizes = np.bincount(clustering.cluster, minlength=self._config.k).tolist()
        clusters = self._clusters(sizes, identity)
        text = dump_clusters(clusters, identity)
        out.path(CLUSTERS, editable=True).write_text(text, encoding="utf-8")
        wanted = {row for rows in shown.values() for row in rows}
        every = chain.from_iterable(map(tables.read_feature_keys, rows.paths))
        keys = {row: key for row, key in enumerate(every) if row in wanted}
        for number, rows in shown.items():
            self._sheet(number, sizes[number], [keys[row] for row in rows], out)
        count = len(clustering.cluster)
        out.advance(count)
        return Counts(
            inputs=count,
            ok=count,
            extra={"training_points": clustering.training_points},
            notes={"algorithm": clustering.algorithm},
        )

    def _clusters(self, sizes: Sequence[int], identity: str) -> list[Cluster]:
        path = self._workspace.path(CLUSTERS)
        if path.is_file():
            edited, known = load_clusters(path)
            if known == identity:
                check_clusters(edited, self._config.k, path)
                return edited
            previous = path.with_name(path.name + ".previous")
            files.write_bytes(previous, path.read_bytes())
            logger.warning(
                "the clustering changed, so all clusters are included again; the file with your "
                "choices is kept as %s",
                previous,
            )
        return [Cluster(number, f"cluster-{number:02d}", size) for number, size in enumerate(sizes)]

    def _sheet(self, cluster: int, size: int, keys: Sequence[str], out: Outputs) -> None:
        if not keys:
            return
        pictures = [decode_image(self._source.read(key), key, draft_edge=CELL) for key in keys]
        content = contact_sheet(pictures, f"cluster {cluster}: {size} images")
        out.path(CONTACT_SHEET.format(cluster=cluster)).write_bytes(content)


def _by_shard(places: Sequence[Path], clustering: Clustering) -> Iterator[tables.Assignments]:
    start = 0
    for place in places:
        keys = tables.read_feature_keys(place)
        part = slice(start, start + len(keys))
        yield tables.Assignments(keys, clustering.cluster[part], clustering.distance[part])
        start = part.stop
