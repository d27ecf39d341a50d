"""What a cluster looks like: its images nearest to the centroid, and a fair draw of all of them.

Eleven million images are looked at in one pass over their clusters and distances; in memory are the
few that are the best so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from haystack.pipeline import tables

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_ROOM = 4
"""Rows that wait until they are sorted out, as a multiple of those that are kept."""


@dataclass(frozen=True)
class ClusterSample:
    """Images of one cluster.

    Args:
        nearest: image keys, nearest to the centroid first; ties by position.
        drawn: image keys drawn at random from the whole cluster, in the order of the draw.
    """

    nearest: tuple[str, ...]
    drawn: tuple[str, ...]


def sample_clusters(path: Path, clusters: int, limit: int, *, seed: int = 0) -> list[ClusterSample]:
    """Images that show what each cluster holds.

    Args:
        path: the assignments of all images.
        clusters: how many clusters there are.
        limit: images of either kind and cluster.
        seed: of the draw; the same one draws the same images.

    Returns:
        One sample a cluster, by its number.
    """
    nearest, drawn = Lowest(clusters, limit), Lowest(clusters, limit)
    start = 0
    for cluster, distance in tables.stream_clusters(path):
        rows = np.arange(start, start + len(cluster), dtype=np.int64)
        nearest.add(cluster, distance.astype(np.float64), rows)
        drawn.add(cluster, lots(rows, seed), rows)
        start += len(cluster)
    shown = [each.rows() for each in (nearest, drawn)]
    keys = tables.read_assigned_keys(path, {row for kind in shown for part in kind for row in part})
    return [
        ClusterSample(*(tuple(keys[row] for row in kind[number]) for kind in shown))
        for number in range(clusters)
    ]


def lots(rows: Ints, seed: int) -> Floats:
    """A number in [0, 1) for each row, as random as one drawn for it, from row and seed alone.

    The rows with the lowest numbers are a draw without replacement, whatever the order in which
    rows come. (The finaliser of SplitMix64; Steele, Lea and Flood, 2014.)
    """
    with np.errstate(over="ignore"):
        mixed = rows.astype(np.uint64) + np.uint64(1)
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Lowest:
    """The rows with the lowest values of each cluster, of rows that come in parts.

    Args:
        clusters: how many there are.
        limit: rows that are kept of each.
    """

    def __init__(self, clusters: int, limit: int) -> None:
        self._limit = limit
        self._clusters = clusters
        self._bar: Floats = np.full(clusters, np.inf)
        self._cluster: Ints = np.empty(0, dtype=np.int64)
        self._value: Floats = np.empty(0, dtype=np.float64)
        self._row: Ints = np.empty(0, dtype=np.int64)

    def add(self, cluster: Ints, value: Floats, row: Ints) -> None:
        """Look at more rows: the cluster, value and number of each, int64, float64, int64 [n]."""
        hopeful = value <= self._bar[cluster]
        self._cluster = np.concatenate([self._cluster, cluster[hopeful]])
        self._value = np.concatenate([self._value, value[hopeful]])
        self._row = np.concatenate([self._row, row[hopeful]])
        if len(self._row) > _ROOM * self._clusters * self._limit:
            self._sort_out()

    def rows(self) -> list[list[int]]:
        """Rows of each cluster, lowest value first, ties by number."""
        self._sort_out()
        ends = np.searchsorted(self._cluster, np.arange(self._clusters + 1))
        return [self._row[first:end].tolist() for first, end in pairwise(ends.tolist())]

    def _sort_out(self) -> None:
        order = np.lexsort((self._row, self._value, self._cluster))
        cluster = self._cluster[order]
        place = np.arange(len(order)) - np.searchsorted(cluster, cluster)
        kept = order[place < self._limit]
        self._cluster, self._value = self._cluster[kept], self._value[kept]
        self._row = self._row[kept]
        last = cluster[place == self._limit - 1]
        self._bar[last] = self._value[np.searchsorted(self._cluster, last, side="right") - 1]
