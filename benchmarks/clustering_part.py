"""The part of pipeline.py about k-means: ours beside FAISS and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import Row, compared
from peers import Peers, run_driver

from haystack.pipeline.clustering.feature_rows import StoredRows
from haystack.pipeline.clustering.kmeans import first_centroids
from haystack.pipeline.tables import Features, write_features

_OURS = ("k-means by FAISS", "streaming k-means", "streaming k-means, float16")
_FAISS, _MINIBATCH = "FAISS directly", "MiniBatchKMeans"
_PEERS = (_FAISS, "sklearn's KMeans", _MINIBATCH)
_NOISE = 0.95  # runs of one side differ by as much
_TOLERANCE = 1e-4  # of inertia, relative; mini-batches end elsewhere
_SHARD = 10_000


@dataclass(frozen=True)
class Sizes:
    """How much is clustered.

    Args:
        cluster_points, cluster_dimension: of the features; DINOv2 ViT-L/14 has 1,024 numbers.
        clusters: k, 50 in the paper.
        cluster_iterations: of Lloyd's algorithm, on every side; epochs of mini-batches.
        cluster_repeat: the fastest of so many runs counts, each in a process of its own.
    """

    cluster_points: int = 100_000
    cluster_dimension: int = 1024
    clusters: int = 50
    cluster_iterations: int = 20
    cluster_repeat: int = 2


def clustering(sizes: Sizes, _: Peers, scratch: Path) -> list[Row]:
    """k-means and the assignment of every point, from files and from the same first centroids."""
    _write(scratch, sizes)
    extra = f"--iterations={sizes.cluster_iterations}"
    best = run_driver("kmeans", scratch, extra, repeat=sizes.cluster_repeat)
    return [row for name in _OURS for row in _beside(name, best)]


PARTS: dict[str, Callable[[Any, Peers, Path], list[Row]]] = {"clustering": clustering}


def _beside(name: str, best: dict[str, dict[str, float]]) -> list[Row]:
    rows = []
    for peer in _PEERS:
        mine, other = best[name], best[peer]
        apart = mine["inertia"] / other["inertia"] - 1
        if peer != _MINIBATCH and abs(apart) > _TOLERANCE:
            raise SystemExit(f"{name}: inertia differs from that of {peer} by {apart:.2g}")
        limit = _NOISE if (name, peer) == (_OURS[0], _FAISS) else None
        for unit, goal in (("s", limit), ("MiB", None)):
            note = f"inertia {apart:+.1g} of theirs" if unit == "s" else ""
            rows.append(
                compared(
                    "clustering",
                    name,
                    mine[unit],
                    unit,
                    peer,
                    other[unit],
                    at_least=goal,
                    note=note,
                )
            )
    return rows


def _write(folder: Path, sizes: Sizes) -> None:
    """Overlapping groups, as features of photographs are, and first centroids."""
    random = np.random.default_rng(0)
    shape = (sizes.clusters, sizes.cluster_dimension)
    centres = random.standard_normal(shape, dtype=np.float32)
    files = []
    for dtype in ("float32", "float16"):
        (folder / dtype).mkdir()
    for begin in range(0, sizes.cluster_points, _SHARD):
        count = min(_SHARD, sizes.cluster_points - begin)
        group = random.integers(sizes.clusters, size=count)
        points = random.standard_normal((count, shape[1]), dtype=np.float32)
        points = centres[group] + 2 * points
        keys = tuple(map(str, range(begin, begin + count)))
        name = f"{begin:07d}.safetensors"
        files.append(folder / "float32" / name)
        write_features(files[-1], Features(keys, points))
        write_features(folder / "float16" / name, Features(keys, points.astype(np.float16)))
    start = first_centroids(StoredRows(files), sizes.clusters, np.random.default_rng(0))
    np.save(folder / "start.npy", start)
