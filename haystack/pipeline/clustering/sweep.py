"""How k-means does with one number of clusters or another: inertia, and whether it comes again.

Inertia falls with every further cluster. Whether a clustering is more than an accident of the
images that it was made from is asked of two others, made from halves of these images that share
none: they should put any two images together, or apart, alike (stability, Lange et al.,
"Stability-based validation of clustering solutions", Neural Computation 16, 2004).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from haystack.errors import MissingDependencyError
from haystack.pipeline.clustering.cluster import device_of, prepared, train
from haystack.pipeline.clustering.feature_rows import FeatureRows, Rows, SelectedRows
from haystack.pipeline.clustering.kmeans import assigned
from haystack.pipeline.config import ClusterConfig

PAIRS = 3
"""How often the images are halved."""

JUDGED = 100_000
"""Images, at most, whose clusters are compared."""


@dataclass(frozen=True)
class SweptK:
    """What came of one number of clusters.

    Args:
        k: the number.
        images: how many were clustered.
        training_points: how many of them k-means was trained on.
        algorithm: ``faiss`` or ``streaming``.
        inertia: squared distance to the nearest centroid, mean over all images.
        agreement: adjusted Rand index of each pair of clusterings that were trained on halves of
            the training points: 1 = the same, 0 = as much as by chance. Empty where a half has
            fewer points than clusters.
        smallest, largest: images in a cluster.
        empty: clusters without an image.
    """

    k: int
    images: int
    training_points: int
    algorithm: str
    inertia: float
    agreement: tuple[float, ...]
    smallest: int
    largest: int
    empty: int

    @property
    def stability(self) -> float | None:
        """Mean agreement; None where there is none."""
        return sum(self.agreement) / len(self.agreement) if self.agreement else None


def sweep_k(features: FeatureRows, config: ClusterConfig) -> SweptK:
    """Cluster as the configuration says, and ``2 * PAIRS`` times more on halves.

    The clustering is the one that
    :func:`~haystack.pipeline.clustering.cluster.cluster_features` makes.

    Args:
        features: N points.
        config: see there.

    Raises:
        InputError: fewer points than clusters.
        HaystackError: a GPU is asked for and none works.
        MissingDependencyError: scikit-learn is not installed, or FAISS, where it is needed.
    """
    _adjusted_rand_index()  # before hours of work
    rows, sample, settled = prepared(features, config)
    trained = train(sample, settled, np.random.default_rng([config.seed, 1]))
    sizes, total = np.zeros(config.k, dtype=np.int64), 0.0
    for cluster, distance in assigned(rows, trained.centroids, device=device_of(config)):
        sizes += np.bincount(cluster, minlength=config.k)
        total += float(np.square(distance, dtype=np.float64).sum())
    return SweptK(
        k=config.k,
        images=len(rows),
        training_points=len(sample),
        algorithm=trained.algorithm,
        inertia=total / len(rows),
        agreement=_agreement(rows, sample, settled),
        smallest=int(sizes.min()),
        largest=int(sizes.max()),
        empty=int((sizes == 0).sum()),
    )


def _agreement(rows: FeatureRows, sample: FeatureRows, config: ClusterConfig) -> tuple[float, ...]:
    half = len(sample) // 2
    if half < config.k:
        return ()
    random = np.random.default_rng([config.seed, 2])
    judged = SelectedRows(rows, _drawn(random, len(rows), min(len(rows), JUDGED)))

    def labels(chosen: Rows) -> np.ndarray:
        trained = train(SelectedRows(sample, chosen), config, random)
        found = assigned(judged, trained.centroids, device=device_of(config))
        return np.concatenate([cluster for cluster, _ in found])

    score = _adjusted_rand_index()
    agreement = []
    for _ in range(PAIRS):
        order = random.permutation(len(sample))
        first, second = (labels(np.sort(part)) for part in (order[:half], order[half:]))
        agreement.append(float(score(first, second)))
    return tuple(agreement)


def _drawn(random: np.random.Generator, count: int, wanted: int) -> Rows:
    return np.sort(random.choice(count, wanted, replace=False))


def _adjusted_rand_index() -> Callable[[np.ndarray, np.ndarray], float]:
    """Hubert and Arabie, "Comparing partitions", Journal of Classification 2, 1985."""
    # torchmetrics has it, too, but its products of counts of pairs overflow from 40,000 images on.
    try:
        from sklearn.metrics import adjusted_rand_score
    except ImportError as error:
        raise MissingDependencyError(
            "scikit-learn", purpose="the stability of clusterings", extra="sweep"
        ) from error
    return adjusted_rand_score
