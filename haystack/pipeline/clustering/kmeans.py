"""Lloyd's algorithm for k-means, by FAISS in memory or streamed, and assignment to centroids.

Both start from the same centroids and minimise the same objective, the sum of squared distances.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from haystack.errors import HaystackError, InputError, MissingDependencyError
from haystack.pipeline.clustering.feature_rows import FeatureRows

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 30.0
_DRAWN_FROM = 64  # rows a cluster, among which the first centroids are drawn
_SPLIT = 0.1  # how far halves of a cluster are moved apart, in standard deviations of a coordinate


@dataclass(frozen=True)
class Trained:
    """Centroids, and how they were found.

    Args:
        centroids: float32 [k, D].
        objective: of every iteration, before its centroids were moved.
        algorithm: ``faiss`` or ``streaming``.
    """

    centroids: npt.NDArray[np.float32]
    objective: tuple[float, ...]
    algorithm: str


def chunk_size(device: torch.device) -> int:
    """Rows at a time: few enough for a core's cache, enough to keep a GPU busy."""
    return 1024 if device.type == "cpu" else 32768


def train_faiss(
    rows: FeatureRows, start: npt.NDArray[np.float32], *, iterations: int, gpu: bool = False
) -> Trained:
    """k-means by FAISS on the CPU or on all GPUs; all rows are held in memory as float32.

    An empty cluster gets half of another, drawn by FAISS in proportion to its size.

    Args:
        rows: N points.
        start: float32 [k, D], the first centroids.
        iterations: rounds, all of which are done.
        gpu: run on the GPUs.

    Raises:
        InputError: a row is not finite.
        HaystackError: a GPU is asked for and none works.
        MissingDependencyError: FAISS is not installed.
    """
    faiss = _import_faiss()
    if gpu:
        _require_gpu(faiss)
    points = np.empty((len(rows), rows.dimension), dtype=np.float32)
    at = 0
    for chunk in rows.chunks(chunk_size(torch.device("cpu"))):
        points[at : at + len(chunk)] = chunk.numpy()
        _squares(torch.from_numpy(points[at : at + len(chunk)]))
        at += len(chunk)
    kmeans = faiss.Kmeans(
        rows.dimension,
        len(start),
        niter=iterations,
        gpu=gpu,
        # Left alone, FAISS would sample by its own default, silently.
        max_points_per_centroid=len(points),
        min_points_per_centroid=1,
    )
    kmeans.train(points, init_centroids=start)
    return Trained(kmeans.centroids, tuple(map(float, kmeans.obj)), "faiss")


def train_streaming(
    rows: FeatureRows,
    start: npt.NDArray[np.float32],
    *,
    iterations: int,
    device: torch.device | None = None,
    chunk: int | None = None,
) -> Trained:
    """k-means that reads all rows anew in every iteration and holds a chunk of them.

    A chunk is summed in float32 and chunks in float64, in their order, so that neither where files
    begin nor the number of chunks moves a centroid by more than rounding within a chunk does. An
    empty cluster gets half of the one with the largest sum of squared distances: both halves keep
    its centroid, moved apart a little; where no such sum is above zero, it stays empty.

    Args:
        rows: N points.
        start: float32 [k, D], the first centroids.
        iterations: rounds at most; it ends earlier when centroids stay where they are.
        device: where to compute; the CPU by default.
        chunk: rows at a time.

    Raises:
        InputError: a row is not finite.
    """
    device = device or torch.device("cpu")
    size = chunk or chunk_size(device)
    origin = _origin(torch.from_numpy(start)).to(device)
    centroids = torch.from_numpy(start).to(device) - origin
    squares = torch.empty(len(rows), device=device)  # |x - origin|² of every row
    objective: list[float] = []
    said = time.monotonic()
    for iteration in range(iterations):
        groups = _Groups(len(start), rows.dimension, device)
        at = 0
        for part in rows.chunks(size):
            points = part.to(device).float() - origin
            square = squares[at : at + len(part)]
            if iteration == 0:
                square.copy_(_squares(points))
            groups.add(points, square, *_nearest(points, centroids))
            at += len(part)
        objective.append(float(groups.inertia.sum()))
        if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            logger.info("k-means: %d of %d iterations are done", iteration + 1, iterations)
        moved = groups.means(centroids)
        if torch.equal(moved, centroids):
            break
        centroids = moved
    return Trained((centroids + origin).cpu().numpy(), tuple(objective), "streaming")


def assigned(
    rows: FeatureRows,
    centroids: npt.NDArray[np.float32],
    *,
    device: torch.device | None = None,
    chunk: int | None = None,
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """The nearest centroid of every row, chunk after chunk.

    Args:
        rows: N points.
        centroids: float32 [k, D].
        device: where to compute; the CPU by default.
        chunk: rows at a time.

    Yields:
        Cluster int64 [n], and the Euclidean distance to its centroid float32 [n].

    Raises:
        InputError: a row is not finite.
    """
    device = device or torch.device("cpu")
    origin = _origin(torch.from_numpy(centroids)).to(device)
    middles = torch.from_numpy(centroids).to(device) - origin
    for part in rows.chunks(chunk or chunk_size(device)):
        points = part.to(device).float() - origin
        nearest = _nearest(points, middles)[1]
        # From the difference: the expanded square loses digits where points lie far from zero.
        distance = _finite(torch.linalg.vector_norm(points - middles[nearest], dim=1))
        yield nearest.cpu().numpy(), distance.cpu().numpy()


def first_centroids(
    rows: FeatureRows, k: int, random: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Draw k rows that lie apart (k-means++, Arthur and Vassilvitskii, 2007), out of 64 k.

    Each next one is drawn with a probability in proportion to its squared distance to the nearest
    of those before. Rows that are drawn equally likely leave groups without a centroid.

    Args:
        rows: at least k points.
        k: how many.
        random: draws.

    Returns:
        float32 [k, D].

    Raises:
        InputError: one of the 64 k rows is not finite.
    """
    count = min(len(rows), _DRAWN_FROM * k)
    points = rows.take(np.sort(random.choice(len(rows), count, replace=False))).float()
    apart = points - _origin(points)
    squares = _squares(apart)
    left = torch.full((count,), torch.inf)
    chosen = [int(random.integers(count))]
    while len(chosen) < k:
        last = chosen[-1]
        products = torch.mv(apart, apart[last])
        left = torch.minimum(left, squares + squares[last] - 2 * products).clamp_(min=0)
        left[last] = 0
        # Where all that are left equal a chosen one, any will do.
        weights = left if left.any() else torch.ones(count)
        upto = weights.double().cumsum(0).numpy()
        drawn = np.searchsorted(upto, random.random() * upto[-1], side="right")
        chosen.append(int(min(drawn, count - 1)))
    start: npt.NDArray[np.float32] = points[chosen].numpy()
    return start


class _Groups:
    """What an iteration sums up of each cluster."""

    def __init__(self, k: int, dimension: int, device: torch.device) -> None:
        self._sums = torch.zeros((k, dimension), dtype=torch.float64, device=device)
        self._counts = torch.zeros(k, dtype=torch.int64, device=device)
        self.inertia = torch.zeros(k, dtype=torch.float64, device=device)

    def add(self, points: Tensor, squares: Tensor, scores: Tensor, cluster: Tensor) -> None:
        """Add a chunk [n, D]: its rows' squares, smallest scores and clusters."""
        k = len(self._counts)
        distances = squares.add(scores, alpha=2).clamp_(min=0).double()
        self._sums += _sum_by(points, cluster, k)
        self._counts += torch.bincount(cluster, minlength=k)
        self.inertia += _sum_by(distances[:, None], cluster, k)[:, 0]

    def means(self, before: Tensor) -> Tensor:
        """The centroids float32 [k, D] that follow on those before."""
        counts = self._counts[:, None]
        means = torch.where(counts > 0, self._sums / counts.clamp(min=1), before).float()
        deviation = (self.inertia / self._counts.clamp(min=1) / means.shape[1]).sqrt().float()
        signs = 1 - 2 * (torch.arange(means.shape[1], device=means.device) % 2)
        left = self.inertia.clone()
        for empty in (self._counts == 0).nonzero()[:, 0].tolist():
            widest = int(left.argmax())
            if left[widest] <= 0:
                break
            step = _SPLIT * deviation[widest] * signs
            means[empty], means[widest] = means[widest] - step, means[widest] + step
            deviation[empty] = deviation[widest]
            left[widest] /= 2
            left[empty] = left[widest]
        return means


def _origin(points: Tensor) -> Tensor:
    """The row [D] of rows [n, D] in their middle, from which the others are counted.

    Distances come from expanded squares, which lose all digits where points lie much farther from
    zero than from each other. A row and not the mean: whole numbers stay whole.
    """
    return points[(points - points.double().mean(0)).square().sum(1).argmin()]


def _squares(points: Tensor) -> Tensor:
    """Squared lengths [n] of rows [n, D], which must be finite."""
    return _finite(torch.linalg.vector_norm(points, dim=1).square_())


def _finite(lengths: Tensor) -> Tensor:
    # FAISS would end the process, and Lloyd's algorithm put every row into one cluster.
    if not lengths.isfinite().all():
        raise InputError(
            "expected features whose squares are finite numbers, got some that are NaN, infinite "
            "or above 1e19; run haystack embed again, with other weights or precision"
        )
    return lengths


def _nearest(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Half the squared distance to the nearest centroid, less that to zero; and which it is."""
    half = centroids.square().sum(1) / 2
    scores, cluster = torch.addmm(half, points, centroids.T, alpha=-1).min(1)
    return scores, cluster


def _sum_by(values: Tensor, cluster: Tensor, k: int) -> Tensor:
    """Sums [k, D] of the rows [n, D] of each cluster."""
    if values.is_cuda:  # where index_add_ adds in an order of the moment
        return torch.nn.functional.one_hot(cluster, k).T.to(values.dtype) @ values
    return values.new_zeros((k, values.shape[1])).index_add_(0, cluster, values)


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        purpose = "k-means by FAISS (cluster.algorithm=streaming does without)"
        raise MissingDependencyError("faiss-cpu", purpose=purpose, extra="cpu") from error
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
