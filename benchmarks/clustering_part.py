"""The part of pipeline.py about k-means: ours beside FAISS and scikit-learn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
from measure import Row, compared
from peers import Peers

from haystack.pipeline.cluster import cluster_features
from haystack.pipeline.config import ClusterConfig
from haystack.pipeline.feature_rows import MemoryRows

Points = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sizes:
    """How much is clustered.

    Args:
        cluster_points, cluster_dimension: of the features; DINOv2 ViT-L/14 has 1,024 numbers.
        clusters: k, 50 in the paper.
        cluster_iterations: of Lloyd's algorithm, on every side.
    """

    cluster_points: int = 100_000
    cluster_dimension: int = 1024
    clusters: int = 50
    cluster_iterations: int = 20


def clustering(sizes: Sizes, _: Peers, __: Path) -> list[Row]:
    """k-means and the assignment of every point."""
    points = _points(sizes)
    config = ClusterConfig(
        k=sizes.clusters, iterations=sizes.cluster_iterations, sample_per_cluster=None
    )
    faiss.omp_set_num_threads(1)
    ours, found = _cpu_seconds(lambda: cluster_features(MemoryRows(points), config))
    theirs, inertia = _cpu_seconds(lambda: _faiss_directly(points, sizes))
    apart = abs(float((found.distance.astype(np.float64) ** 2).sum()) / inertia - 1)
    what = f"{len(points)} x {points.shape[1]}, k = {sizes.clusters}"
    note = f"inertia differs by {apart:.1g}"
    return [
        compared("clustering", what, ours, "s", "FAISS directly", theirs, at_least=1, note=note)
    ]


PARTS: dict[str, Callable[[Any, Peers, Path], list[Row]]] = {"clustering": clustering}


def _points(sizes: Sizes) -> Points:
    """Overlapping groups, as features of photographs are."""
    random = np.random.default_rng(0)
    shape = (sizes.clusters, sizes.cluster_dimension)
    centres = random.standard_normal(shape, dtype=np.float32)
    group = random.integers(sizes.clusters, size=sizes.cluster_points)
    noise = random.standard_normal((len(group), sizes.cluster_dimension), dtype=np.float32)
    return centres[group] + 2 * noise


def _faiss_directly(points: Points, sizes: Sizes) -> float:
    kmeans = faiss.Kmeans(
        points.shape[1],
        sizes.clusters,
        niter=sizes.cluster_iterations,
        seed=0,
        max_points_per_centroid=len(points),
    )
    kmeans.train(points)
    squared, _ = kmeans.index.search(points, 1)
    return float(squared.sum(dtype=np.float64))


def _cpu_seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    answer = action()
    return time.process_time() - start, answer
