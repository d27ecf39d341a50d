"""k-means over image features (FAISS), and the assignment of every image.

The paper uses 50 clusters on DINOv2 features (Haystack, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from haystack.errors import HaystackError, InputError, MissingDependencyError


@dataclass(frozen=True)
class Clustering:
    """A clustering of N points.

    Args:
        centroids: float32 [k, D].
        cluster: int64 [N], the nearest centroid of each point.
        distance: float32 [N], Euclidean distance to it.
        training_points: how many points k-means was trained on.
    """

    centroids: npt.NDArray[np.float32]
    cluster: npt.NDArray[np.int64]
    distance: npt.NDArray[np.float32]
    training_points: int


def cluster_features(
    features: npt.NDArray[np.floating],
    *,
    k: int,
    iterations: int,
    seed: int,
    sample_per_cluster: int,
    normalise: bool = False,
    gpu: bool = False,
) -> Clustering:
    """Train k-means on a sample and assign all points.

    Args:
        features: [N, D].
        k: number of clusters.
        iterations: rounds of Lloyd's algorithm.
        seed: of the sample and the initial centroids.
        sample_per_cluster: training uses at most ``k * sample_per_cluster`` points.
        normalise: subtract the mean and scale to length one first; centroids and distances are
            those of the normalised features.
        gpu: run on the GPUs.

    Raises:
        InputError: fewer points than clusters.
        HaystackError: a GPU is asked for and none works.
        MissingDependencyError: FAISS is not installed.
    """
    faiss = _import_faiss()
    points = np.ascontiguousarray(features, dtype=np.float32)
    count, dimension = points.shape
    if normalise:
        points = points - points.mean(axis=0)
        points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    if k > count:
        raise InputError(
            f"{k} clusters were asked for and there are {count} images; choose k <= {count}"
        )
    if gpu:
        _require_gpu(faiss)
    sample = points
    if count > k * sample_per_cluster:
        chosen = np.random.default_rng(seed).choice(count, k * sample_per_cluster, replace=False)
        sample = points[np.sort(chosen)]
    kmeans = faiss.Kmeans(
        dimension,
        k,
        niter=iterations,
        seed=seed,
        gpu=gpu,
        # Left alone, FAISS would sample again by its own default, silently.
        max_points_per_centroid=len(sample),
        min_points_per_centroid=1,
    )
    kmeans.train(sample)
    # A search index of our own: equal on CPU and GPU builds, and exact.
    index = faiss.IndexFlatL2(dimension)
    index.add(kmeans.centroids)
    squared, nearest = index.search(points, 1)
    return Clustering(
        centroids=np.asarray(kmeans.centroids, dtype=np.float32),
        cluster=nearest[:, 0].astype(np.int64),
        distance=np.sqrt(np.maximum(squared[:, 0], 0)),
        training_points=len(sample),
    )


def nearest_to_centroid(clustering: Clustering, cluster: int, limit: int) -> npt.NDArray[np.int64]:
    """Points of a cluster, nearest to its centroid first; ties by position."""
    members = np.flatnonzero(clustering.cluster == cluster)
    order = np.argsort(clustering.distance[members], kind="stable")
    nearest: npt.NDArray[np.int64] = members[order[:limit]]
    return nearest


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError("faiss-cpu", purpose="clustering", extra="cpu") from error
    return faiss


def _require_gpu(faiss: Any) -> None:
    # Kmeans(gpu=True) runs on the CPU without a word where no GPU works.
    count = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    if not count or not hasattr(faiss, "StandardGpuResources"):
        raise HaystackError(
            "cluster.gpu=true, but FAISS sees no usable GPU; install haystack-psg[gpu] on a "
            "machine with a CUDA GPU, or set cluster.gpu=false"
        )
    try:
        index = faiss.GpuIndexFlatL2(faiss.StandardGpuResources(), 2)
        index.add(np.zeros((1, 2), dtype=np.float32))
    except RuntimeError as error:
        raise HaystackError(
            f"cluster.gpu=true, but the GPU does not work: {str(error).splitlines()[0]}"
        ) from error
