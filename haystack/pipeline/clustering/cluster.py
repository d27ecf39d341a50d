"""k-means over image features, and the assignment of every image.

The paper uses 50 clusters on DINOv2 features (Haystack, section 3.1). Features are read in chunks;
in memory are the points that FAISS trains on, or none of them, and a few bytes an image.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from haystack.devices import usable_device
from haystack.errors import InputError
from haystack.pipeline.clustering.available_memory import available_memory
from haystack.pipeline.clustering.feature_rows import CentredRows, FeatureRows, SelectedRows
from haystack.pipeline.clustering.kmeans import (
    Trained,
    assigned,
    chunk_size,
    first_centroids,
    train_faiss,
    train_streaming,
)
from haystack.pipeline.config import ClusterConfig

logger = logging.getLogger(__name__)

_SHARE = 0.5
"""Share of the available memory that training points may fill."""


@dataclass(frozen=True)
class Clustering:
    """A clustering of N points.

    Args:
        centroids: float32 [k, D].
        cluster: int64 [N], the nearest centroid of each point.
        distance: float32 [N], Euclidean distance to it.
        training_points: how many points k-means was trained on.
        algorithm: ``faiss`` or ``streaming``.
    """

    centroids: npt.NDArray[np.float32]
    cluster: npt.NDArray[np.int64]
    distance: npt.NDArray[np.float32]
    training_points: int
    algorithm: str


def cluster_features(features: FeatureRows, config: ClusterConfig) -> Clustering:
    """Train k-means on a sample, or on all, and assign all points.

    Args:
        features: N points. With ``config.normalise``, centroids and distances are those of the
            normalised features.
        config: see there.

    Raises:
        InputError: fewer points than clusters, or points that are not finite.
        HaystackError: a GPU is asked for and none works.
        MissingDependencyError: FAISS is needed and not installed.
    """
    rows, sample, settled = prepared(features, config)
    trained = train(sample, settled, np.random.default_rng([config.seed, 1]))
    cluster = np.empty(len(rows), dtype=np.int64)
    distance = np.empty(len(rows), dtype=np.float32)
    at = 0
    for nearest, apart in assigned(rows, trained.centroids, device=device_of(config)):
        cluster[at : at + len(nearest)] = nearest
        distance[at : at + len(nearest)] = apart
        at += len(nearest)
    return Clustering(trained.centroids, cluster, distance, len(sample), trained.algorithm)


def prepared(
    features: FeatureRows, config: ClusterConfig
) -> tuple[FeatureRows, FeatureRows, ClusterConfig]:
    """What k-means works on.

    Returns:
        All points, centred and scaled where the configuration says so; those to train on, all or
        so many a cluster, drawn by the seed; and the configuration with an algorithm chosen.

    Raises:
        InputError: fewer points than clusters.
    """
    k, count = config.k, len(features)
    if k > count:
        raise InputError(
            f"{k} clusters were asked for and there are {count} images; choose k <= {count}"
        )
    rows = features
    if config.normalise:
        rows = CentredRows(features, chunk_size(torch.device("cpu")))
    sample = rows
    if config.sample_per_cluster is not None and count > k * config.sample_per_cluster:
        random = np.random.default_rng(config.seed)
        chosen = random.choice(count, k * config.sample_per_cluster, replace=False)
        sample = SelectedRows(rows, np.sort(chosen))
    return rows, sample, replace(config, algorithm=_algorithm(sample, config))


def train(sample: FeatureRows, config: ClusterConfig, random: np.random.Generator) -> Trained:
    """k-means.

    Args:
        sample: at least k points.
        config: names the algorithm: not ``auto``.
        random: draws the first centroids.

    Raises:
        HaystackError: a GPU is asked for and none works.
        MissingDependencyError: FAISS is needed and not installed.
    """
    start = first_centroids(sample, config.k, random)
    if config.algorithm == "faiss":
        return train_faiss(sample, start, iterations=config.iterations, gpu=config.gpu)
    return train_streaming(sample, start, iterations=config.iterations, device=device_of(config))


def device_of(config: ClusterConfig) -> torch.device:
    """Where PyTorch computes.

    Raises:
        HaystackError: a GPU is asked for and none works.
    """
    return usable_device("cuda" if config.gpu else "cpu")


def nearest_to_centroid(clustering: Clustering, cluster: int, limit: int) -> npt.NDArray[np.int64]:
    """Points of a cluster, nearest to its centroid first; ties by position."""
    members = np.flatnonzero(clustering.cluster == cluster)
    order = np.argsort(clustering.distance[members], kind="stable")
    nearest: npt.NDArray[np.int64] = members[order[:limit]]
    return nearest


def _algorithm(sample: FeatureRows, config: ClusterConfig) -> str:
    if config.algorithm != "auto":
        return config.algorithm
    needed = len(sample) * sample.dimension * np.dtype(np.float32).itemsize
    free = available_memory()
    chosen = "faiss" if needed <= _SHARE * free else "streaming"
    logger.info(
        "k-means by %s: %s training points take %s MiB, %s MiB of memory are available",
        "FAISS" if chosen == "faiss" else "streaming",
        *(f"{number:,}" for number in (len(sample), needed >> 20, free >> 20)),
    )
    return chosen
