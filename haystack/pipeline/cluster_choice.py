"""Choosing clusters by looking at them: samples, counts, and which clusters are included.

The paper's authors looked at example images of each cluster and left out those whose images are
unsuitable, logos and portraits for example (Haystack, section 3.1). The choice stands in
``clusters.yaml``, where people edit it as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from haystack import files
from haystack.errors import ConflictError, InputError
from haystack.executors.locks import LOCK, locked
from haystack.executors.manifest import read_manifest, read_manifests
from haystack.io.images import ImageSource
from haystack.pipeline import tables
from haystack.pipeline.clustering.clusters_file import (
    Cluster,
    parse_clusters,
    read_text,
    with_included,
)
from haystack.pipeline.clustering.samples import ClusterSample, sample_clusters
from haystack.pipeline.jobs.upstream import ALL
from haystack.pipeline.thumbnails import Thumbnails
from haystack.pipeline.workspace import ASSIGNMENTS, CLUSTERS, PROPOSALS, Workspace

_SECONDS_TO_LOCK = 2.0


@dataclass(frozen=True)
class Choice:
    """Which clusters are included, and what has come of it.

    Args:
        clustering: hash of the clustering that the clusters belong to.
        clusters: by id.
        proposals: proposals in the queue, by cluster; None while there is no queue.
        candidates: candidates that were gathered, by cluster; None while there are none.
        to_run: commands that make the choice take effect, in their order; none when it has.
    """

    clustering: str
    clusters: tuple[Cluster, ...]
    proposals: tuple[int, ...] | None
    candidates: tuple[int, ...] | None
    to_run: tuple[str, ...]


class ClusterChoice:
    """The clusters of a workspace; safe to call from several threads and processes.

    Args:
        workspace: its stage ``cluster`` is done.
        source: the images; the workspace's own if None.
        shown: images of either kind that a sample holds: the nearest ones, and drawn ones.
        seed: of the draw.
    """

    def __init__(
        self,
        workspace: Workspace,
        source: ImageSource | None = None,
        *,
        shown: int = 96,
        seed: int = 0,
    ) -> None:
        self._workspace = workspace
        self._shown = shown
        self._seed = seed
        self._thumbnails = Thumbnails(source or workspace.source)
        self._sampled: tuple[str, list[ClusterSample]] = ("", [])
        self._lock = threading.Lock()

    def choice(self) -> Choice:
        """The clusters as they are now.

        Raises:
            InputError: there is no clustering, or someone's edit broke the file.
        """
        clusters, clustering, _ = self._read()
        return self._choice(clusters, clustering)

    def include(self, cluster: int, included: bool, clustering: str) -> Choice:
        """Include or exclude one cluster; all else in the file stays as it is then.

        Args:
            cluster: its number.
            included: whether its images are to be proposed.
            clustering: the clustering that the decision was about.

        Returns:
            The clusters as they are then, with what others changed meanwhile.

        Raises:
            ConflictError: the images were clustered anew meanwhile, or are being clustered.
            InputError: there is no such cluster, or someone's edit broke the file.
        """
        with self._lock, self._alone():
            clusters, text = self._clusters_of(clustering)
            self._check(cluster, clusters)
            if clusters[cluster].included != included:
                edited = with_included(text, cluster, included, self._path)
                files.write_text(self._path, edited)
        return self.choice()

    def sample(self, cluster: int, clustering: str) -> ClusterSample:
        """Images of a cluster, to judge it by.

        Args:
            cluster: its number.
            clustering: the clustering that it is one of.

        Raises:
            ConflictError: the images were clustered anew meanwhile.
            InputError: there is no such cluster.
        """
        clusters, _ = self._clusters_of(clustering)
        self._check(cluster, clusters)
        with self._lock:  # one pass over all images, not one for each who asks meanwhile
            if self._sampled[0] != clustering:
                path = self._workspace.path(ASSIGNMENTS)
                samples = sample_clusters(path, len(clusters), self._shown, seed=self._seed)
                self._sampled = (clustering, samples)
            return self._sampled[1][cluster]

    def thumbnail(self, image_key: str) -> bytes:
        """A small picture of an image of the source (JPEG).

        Raises:
            InputError: unknown, broken or unreadable image.
        """
        return self._thumbnails.get(image_key)

    @property
    def _path(self) -> Path:
        return self._workspace.path(CLUSTERS)

    def _read(self) -> tuple[list[Cluster], str, str]:
        """The clusters, the hash of their clustering, and the text of the file."""
        self._workspace.clusters()  # says what to run where there are none
        text = read_text(self._path)
        return (*parse_clusters(text, self._path), text)

    def _clusters_of(self, clustering: str) -> tuple[list[Cluster], str]:
        clusters, now, text = self._read()
        if now != clustering:
            raise ConflictError(
                "the images were clustered anew meanwhile, so the numbers mean other clusters; "
                "nothing was changed, look at the new ones"
            )
        return clusters, text

    def _check(self, cluster: int, clusters: Sequence[Cluster]) -> None:
        if not 0 <= cluster < len(clusters):
            raise InputError(f"expected a cluster in 0..{len(clusters) - 1}, got {cluster}")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep the stage ``cluster`` and other processes that choose out."""
        deadline = time.monotonic() + _SECONDS_TO_LOCK
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(locked(self._path.parent / LOCK, wait=False))
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ConflictError(
                            "haystack cluster is running, or somebody else is choosing; nothing "
                            "was changed, try again when it has ended"
                        ) from None
                    time.sleep(0.02)
            yield

    def _choice(self, clusters: Sequence[Cluster], clustering: str) -> Choice:
        root, count = self._workspace.root, len(clusters)
        queue = self._workspace.path(PROPOSALS)
        gathered = [
            root / name
            for manifest in read_manifests(root, "gather")
            for name in manifest.checksums()
        ]
        return Choice(
            clustering,
            tuple(clusters),
            proposals=_counted((queue,), count),
            candidates=_counted(gathered, count),
            to_run=self._to_run({cluster.id for cluster in clusters if cluster.included}),
        )

    def _to_run(self, included: set[int]) -> tuple[str, ...]:
        root = self._workspace.root
        scored = [set(manifest.notes["included"]) for manifest in read_manifests(root, "gather")]
        proposed = read_manifest(root, "propose", ALL)
        if proposed is None or not scored:
            return ()  # the choice is read by stages that are still to run
        if not included <= set.intersection(*scored):
            return tuple(f"haystack {stage} {root}" for stage in ("score", "propose"))
        if set(proposed.notes.get("included", ())) != included:
            return (f"haystack propose {root}",)
        return ()


def _counted(paths: Sequence[Path], clusters: int) -> tuple[int, ...] | None:
    """Rows of each cluster in all of these files; None where none of them is there."""
    there = [path for path in paths if path.is_file()]
    if not there:
        return None
    counts = [_count(path, clusters, path.stat().st_mtime_ns) for path in there]
    return tuple(np.sum(counts, axis=0).tolist())


@lru_cache(maxsize=256)
def _count(path: Path, clusters: int, written: int) -> npt.NDArray[np.int64]:
    """Counted once a version of the file: the page asks at every keystroke."""
    return tables.count_by_cluster(path, clusters)
