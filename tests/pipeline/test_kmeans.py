from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.errors import HaystackError, InputError
from haystack.pipeline.clustering.cluster import train
from haystack.pipeline.clustering.feature_rows import MemoryRows
from haystack.pipeline.clustering.kmeans import (
    Trained,
    assigned,
    first_centroids,
    train_faiss,
    train_streaming,
)
from haystack.pipeline.config import ClusterConfig

faiss = pytest.importorskip("faiss", reason="needs faiss: pip install 'haystack-psg[cpu]'")


def points_of(seed: int = 0, count: int = 5000, dimension: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)


def inertia(points: np.ndarray, centroids: np.ndarray) -> float:
    apart = points[:, None].astype(float) - centroids[None].astype(float)
    return float((apart**2).sum(-1).min(1).sum())


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_streaming_equals_faiss_and_sklearn_from_the_same_start(dtype: type) -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    points = (5 + points_of()).astype(dtype)
    start = points[:9].astype(np.float32)
    rows = MemoryRows(points)
    ours = train_streaming(rows, start, iterations=12, chunk=700)
    by_faiss = train_faiss(rows, start, iterations=12)
    reference = cluster.KMeans(9, init=start, n_init=1, max_iter=12, tol=0, algorithm="lloyd")
    reference.fit(points.astype(np.float32))
    expected = inertia(points, reference.cluster_centers_)
    for trained in (ours, by_faiss):
        assert inertia(points, trained.centroids) == pytest.approx(expected, rel=1e-5)
        assert len(trained.objective) == 12
        assert all(np.diff(trained.objective) < 0)
    np.testing.assert_allclose(ours.objective, by_faiss.objective, rtol=1e-4)
    assert ours.objective[0] == pytest.approx(inertia(points, start), rel=1e-5)


def test_faiss_trains_on_all_that_it_is_given() -> None:
    """Its own limit of 256 points a centroid would drop most of these, silently."""
    points = points_of()
    found = train_faiss(MemoryRows(points), points[:2], iterations=20)
    direct = faiss.Kmeans(16, 2, niter=20, max_points_per_centroid=10_000)
    direct.train(points, init_centroids=points[:2])
    np.testing.assert_array_equal(found.centroids, direct.centroids)
    capped = faiss.Kmeans(16, 2, niter=20)
    capped.train(points, init_centroids=points[:2])
    assert not np.array_equal(found.centroids, capped.centroids)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), chunk=st.integers(1, 400), k=st.integers(1, 12))
def test_chunks_do_not_matter(seed: int, chunk: int, k: int) -> None:
    points = points_of(seed, count=300, dimension=5)
    rows, start = MemoryRows(points), points[:k]
    whole = train_streaming(rows, start, iterations=8, chunk=300)
    parts = train_streaming(rows, start, iterations=8, chunk=chunk)
    np.testing.assert_allclose(parts.objective, whole.objective, rtol=1e-5)
    np.testing.assert_allclose(parts.centroids, whole.centroids, atol=1e-4)
    pieces = list(assigned(rows, whole.centroids, chunk=chunk))
    assert [len(cluster) for cluster, _ in pieces[:-1]] == [chunk] * (len(pieces) - 1)
    cluster, distance = (np.concatenate(part) for part in zip(*pieces, strict=True))
    apart = np.linalg.norm(points[:, None] - whole.centroids[None], axis=2)
    np.testing.assert_allclose(distance, apart.min(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(apart[np.arange(300), cluster], apart.min(1), rtol=1e-5)


def test_it_stops_when_nothing_moves_any_more() -> None:
    points = np.repeat(np.eye(3, dtype=np.float32), 10, axis=0)
    found = train_streaming(MemoryRows(points), np.eye(3, dtype=np.float32), iterations=50)
    assert len(found.objective) == 1
    np.testing.assert_allclose(found.centroids, np.eye(3), atol=1e-7)


def test_points_far_from_zero_are_clustered_as_near_it() -> None:
    """Whole numbers, so that moving them by 2 ** 20 loses nothing."""
    random = np.random.default_rng(0)
    middles = random.integers(-200, 200, size=(6, 8))
    near = (middles[random.integers(0, 6, 3000)] + random.integers(-9, 10, (3000, 8))).astype(float)
    labels = []
    for offset in (0.0, 2.0**20):
        rows = MemoryRows((near + offset).astype(np.float32))
        start = first_centroids(rows, 6, np.random.default_rng(1))
        found = train_streaming(rows, start, iterations=20, chunk=700)
        cluster, distance = zip(*assigned(rows, found.centroids, chunk=700), strict=True)
        labels.append(np.concatenate(cluster))
        apart = near + offset - found.centroids[labels[-1]].astype(float)
        expected = np.linalg.norm(apart, axis=1)
        np.testing.assert_allclose(np.concatenate(distance), expected, rtol=1e-3)
    np.testing.assert_array_equal(*labels)


def test_an_empty_cluster_gets_half_of_the_widest() -> None:
    random = np.random.default_rng(0)
    tight = random.normal(0, 0.01, size=(900, 2))
    wide = random.normal((10, 10), 1, size=(100, 2))
    points = np.concatenate([tight, wide]).astype(np.float32)
    start = np.array([[0, 0], [10, 10], [-1000, -1000], [-1000, -1000]], dtype=np.float32)
    found = train_streaming(MemoryRows(points), start, iterations=30)
    ((cluster, _),) = assigned(MemoryRows(points), found.centroids, chunk=1000)
    assert set(cluster[:900]) == {0}, "the largest cluster is not the widest"
    assert set(cluster[900:]) == {1, 2, 3}
    assert found.objective[-1] < 0.6 * found.objective[0]


def test_points_that_are_all_equal_leave_clusters_empty() -> None:
    points = np.ones((50, 3), dtype=np.float32)
    start = first_centroids(MemoryRows(points), 4, np.random.default_rng(0))
    found = train_streaming(MemoryRows(points), start, iterations=5)
    assert np.isfinite(found.centroids).all()
    ((cluster, distance),) = assigned(MemoryRows(points), found.centroids)
    assert set(cluster) == {0}
    assert set(distance) == {0}


def test_first_centroids_lie_in_different_groups() -> None:
    """Of 20 groups, 20 rows drawn alike would meet 13 (20 * (1 - (1 - 1/20)^20))."""
    random = np.random.default_rng(0)
    group = random.integers(20, size=4000)
    points = np.eye(20, dtype=np.float32)[group] * 100 + random.normal(size=(4000, 20))
    rows = MemoryRows(points.astype(np.float32))
    start = first_centroids(rows, 20, np.random.default_rng(1))
    assert len(set(start.argmax(1))) == 20
    again = first_centroids(rows, 20, np.random.default_rng(1))
    np.testing.assert_array_equal(start, again)


def test_first_centroids_are_different_rows_even_if_many_are_equal() -> None:
    points = np.repeat(np.arange(5, dtype=np.float32), 100)[:, None]
    for seed in range(20):
        start = first_centroids(MemoryRows(points), 5, np.random.default_rng(seed))
        assert sorted(start[:, 0]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("algorithm", ["faiss", "streaming"])
def test_the_seed_decides(algorithm: str) -> None:
    def trained(seed: int) -> Trained:
        config = ClusterConfig(k=5, iterations=4, algorithm=algorithm)
        return train(MemoryRows(points_of()), config, np.random.default_rng(seed))

    one, two, other = trained(1), trained(1), trained(2)
    np.testing.assert_array_equal(one.centroids, two.centroids)
    assert one.objective == two.objective
    assert not np.array_equal(one.centroids, other.centroids)


def test_threads_do_not_matter() -> None:
    points = points_of(dimension=64)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(train_streaming(MemoryRows(points), points[:9], iterations=5))
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(found[0].centroids, found[1].centroids)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_an_error() -> None:
    config = ClusterConfig(k=2, algorithm="streaming", gpu=True)
    with pytest.raises(HaystackError, match="the device 'cuda' cannot be used"):
        train(MemoryRows(points_of()), config, np.random.default_rng(0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_gpu_finds_what_the_cpu_finds() -> None:
    points = points_of(dimension=64)
    rows, device = MemoryRows(points.astype(np.float16)), torch.device("cuda")
    cpu = train_streaming(rows, points[:9], iterations=10)
    gpu, again = (train_streaming(rows, points[:9], iterations=10, device=device) for _ in "12")
    np.testing.assert_allclose(gpu.objective, cpu.objective, rtol=1e-4)
    np.testing.assert_array_equal(gpu.centroids, again.centroids)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
def test_rows_that_are_not_finite_are_refused_everywhere(value: float) -> None:
    """FAISS would end the process, and Lloyd's algorithm put every row into one cluster."""
    points = points_of(count=40)
    start = points[:3].copy()
    points[30, 2] = value
    rows, words = MemoryRows(points), "squares are finite numbers"
    for train_it in (train_faiss, train_streaming):
        with pytest.raises(InputError, match=words):
            train_it(rows, start, iterations=2)
    with pytest.raises(InputError, match=words):
        first_centroids(rows, 3, np.random.default_rng(0))
    with pytest.raises(InputError, match=words):
        list(assigned(rows, start))
