"""Clusters stored features in several ways, from files to the sum of squared distances of all.

Inputs: ``float32/*.safetensors`` as the embed stage writes them, the same in ``float16``, and
``start.npy``, the first centroids.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import faiss
import numpy as np
import torch
from common import answer, parser
from measure import peak_memory_mib, reset_peak_memory
from sklearn.cluster import KMeans, MiniBatchKMeans

from haystack.pipeline.clustering.feature_rows import FeatureRows, StoredRows
from haystack.pipeline.clustering.kmeans import assigned, train_faiss, train_streaming
from haystack.pipeline.tables import Features, read_features, write_features

Way = Callable[[list[Path], np.ndarray, int], float]

_PAGE = 4 / 1024  # MiB; less cannot be seen
_BATCH = 4096  # of MiniBatchKMeans


def main() -> None:
    arguments = parser()
    arguments.add_argument("--iterations", type=int, required=True)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    best: dict[str, dict[str, float]] = {}
    # Forked before anything is computed: libraries are loaded once, memory is each one's own.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for _ in range(options.repeat):  # in turn: the machine's load changes
            for way in _WAYS:
                found = pool.apply(_measured, (way, options.inputs, options.iterations))
                best[way] = min(found, best.get(way, found), key=itemgetter("s"))
    answer(options.output, **best)


def _measured(name: str, inputs: Path, iterations: int) -> dict[str, float]:
    way, dtype = _WAYS[name]
    files = sorted((inputs / dtype).glob("*.safetensors"))
    start = np.load(inputs / "start.npy")
    _warm_up(way)
    reset_peak_memory()
    before, began = peak_memory_mib(), process_time()
    inertia = way(files, start, iterations)
    spent, taken = process_time() - began, peak_memory_mib() - before
    return {"s": spent, "MiB": max(taken, _PAGE), "inertia": inertia}


def _ours(streaming: bool, files: list[Path], start: np.ndarray, iterations: int) -> float:
    rows: FeatureRows = StoredRows(files)
    train = train_streaming if streaming else train_faiss
    found = train(rows, start, iterations=iterations)
    return sum(
        float(np.square(distance, dtype=np.float64).sum())
        for _, distance in assigned(rows, found.centroids)
    )


def _faiss(files: list[Path], start: np.ndarray, iterations: int) -> float:
    points = _loaded(files)
    kmeans = faiss.Kmeans(
        points.shape[1],
        len(start),
        niter=iterations,
        max_points_per_centroid=len(points),
        min_points_per_centroid=1,
    )
    kmeans.train(points, init_centroids=start)
    squared, _ = kmeans.index.search(points, 1)
    return float(squared.sum(dtype=np.float64))


def _sklearn(kind: Callable[..., Any], files: list[Path], start: np.ndarray, rounds: int) -> float:
    # They assign all points once more at the end, as the others do.
    points = _loaded(files)
    found = kind(n_clusters=len(start), init=start, n_init=1, max_iter=rounds, tol=0).fit(points)
    return float(found.inertia_)


def _warm_up(way: Way) -> None:
    """Libraries load and start their threads on a first call; what that takes is nobody's."""
    with TemporaryDirectory() as folder:
        points = np.random.default_rng(0).standard_normal((300, 8), dtype=np.float32)
        file = Path(folder) / "a.safetensors"
        write_features(file, Features(tuple(map(str, range(300))), points))
        way([file], points[:2].copy(), 1)


def _loaded(files: list[Path]) -> np.ndarray:
    parts = [read_features(file).features.astype(np.float32, copy=False) for file in files]
    points = np.empty((sum(map(len, parts)), parts[0].shape[1]), dtype=np.float32)
    return np.concatenate(parts, out=points)


_WAYS: dict[str, tuple[Way, str]] = {
    "k-means by FAISS": (partial(_ours, False), "float32"),
    "streaming k-means": (partial(_ours, True), "float32"),
    "streaming k-means, float16": (partial(_ours, True), "float16"),
    "FAISS directly": (_faiss, "float32"),
    "sklearn's KMeans": (partial(_sklearn, KMeans), "float32"),
    "MiniBatchKMeans": (
        partial(_sklearn, partial(MiniBatchKMeans, batch_size=_BATCH, max_no_improvement=None)),
        "float32",
    ),
}


if __name__ == "__main__":
    main()
