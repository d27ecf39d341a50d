from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from haystack.errors import HaystackError, InputError
from haystack.pipeline.clustering.cluster import Clustering, cluster_features, nearest_to_centroid
from haystack.pipeline.clustering.contact_sheet import contact_sheet
from haystack.pipeline.clustering.feature_rows import MemoryRows
from haystack.pipeline.config import ClusterConfig

faiss = pytest.importorskip("faiss", reason="needs faiss: pip install 'haystack-psg[cpu]'")


def blobs(per_blob: int = 40) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    centres = np.array([[0, 0, 0], [10, 0, 0], [0, 10, 0], [0, 0, 10]], dtype=np.float32)
    truth = np.repeat(np.arange(4), per_blob)
    points = centres[truth] + random.normal(scale=0.5, size=(len(truth), 3))
    return points.astype(np.float32), truth


def run(points: np.ndarray, **changes: object) -> Clustering:
    options = {"k": 4, "iterations": 20, "seed": 1, **changes}
    return cluster_features(MemoryRows(points), ClusterConfig(**options))  # type: ignore[arg-type]


def test_finds_separated_groups() -> None:
    points, truth = blobs()
    found = run(points)
    pairs = set(zip(found.cluster.tolist(), truth.tolist(), strict=True))
    assert len(pairs) == 4, "clusters and groups map one to one"
    assert found.training_points == len(points)


def test_assignment_and_distance_are_exact() -> None:
    points, _ = blobs()
    found = run(points)
    distances = np.linalg.norm(points[:, None] - found.centroids[None], axis=2)
    np.testing.assert_array_equal(found.cluster, distances.argmin(axis=1))
    np.testing.assert_allclose(found.distance, distances.min(axis=1), atol=2e-3)


def test_deterministic_by_seed() -> None:
    points = np.random.default_rng(2).normal(size=(300, 8)).astype(np.float32)
    one, two, other = run(points), run(points), run(points, seed=2)
    np.testing.assert_array_equal(one.centroids, two.centroids)
    np.testing.assert_array_equal(one.cluster, two.cluster)
    assert not np.array_equal(one.centroids, other.centroids)


def test_trains_on_a_sample_and_assigns_all() -> None:
    points, truth = blobs(per_blob=100)
    found = run(points, sample_per_cluster=15)
    assert found.training_points == 60
    assert len(found.cluster) == 400
    assert len(set(zip(found.cluster.tolist(), truth.tolist(), strict=True))) == 4


def test_half_precision_features() -> None:
    points, truth = blobs()
    found = run(points.astype(np.float16))
    assert len(set(zip(found.cluster.tolist(), truth.tolist(), strict=True))) == 4


def test_normalised_features_are_clustered_by_direction() -> None:
    random = np.random.default_rng(0)
    directions = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, -1]], dtype=np.float32)
    truth = random.integers(4, size=200)
    lengths = random.uniform(40, 100, size=(200, 1)).astype(np.float32)
    points = directions[truth] * lengths
    found = run(points, normalise=True)
    assert len(set(zip(found.cluster.tolist(), truth.tolist(), strict=True))) == 4
    centred = points - points.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    apart = np.linalg.norm(centred - found.centroids[found.cluster], axis=1)
    np.testing.assert_allclose(found.distance, apart, atol=1e-5)


def test_both_algorithms_find_the_same() -> None:
    points = np.random.default_rng(2).normal(size=(3000, 8)).astype(np.float32)
    ones = {name: run(points, k=7, algorithm=name) for name in ("faiss", "streaming", "auto")}
    sums = {name: float((one.distance.astype(float) ** 2).sum()) for name, one in ones.items()}
    assert sums["streaming"] == pytest.approx(sums["faiss"], rel=1e-4)
    assert {name: one.algorithm for name, one in ones.items()} == {
        "faiss": "faiss",
        "streaming": "streaming",
        "auto": "faiss",
    }


def test_auto_streams_what_does_not_fit_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points, _ = blobs()
    monkeypatch.setattr(
        "haystack.pipeline.clustering.cluster.available_memory", lambda: points.nbytes
    )
    caplog.set_level("INFO", "haystack")
    assert run(points).algorithm == "streaming"
    assert "k-means by streaming: 160 training points take" in caplog.text
    assert run(points, sample_per_cluster=20).algorithm == "faiss", "half the points are 80"


def test_more_clusters_than_images_is_an_error() -> None:
    with pytest.raises(
        InputError, match="5 clusters were asked for and there are 3 images; choose k <= 3"
    ):
        run(np.zeros((3, 2), dtype=np.float32), k=5)
    assert run(np.eye(3, dtype=np.float32), k=3).centroids.shape == (3, 3)


@pytest.mark.skipif(
    faiss.get_num_gpus() > 0, reason="needs a machine without a GPU, this one has one"
)
def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(HaystackError, match="FAISS sees no usable GPU"):
        run(blobs()[0], gpu=True)


def test_nearest_to_centroid() -> None:
    clustering = Clustering(
        centroids=np.zeros((2, 1), dtype=np.float32),
        cluster=np.array([0, 1, 0, 0, 1]),
        distance=np.array([3, 1, 1, 3, 0], dtype=np.float32),
        training_points=5,
        algorithm="faiss",
    )
    assert nearest_to_centroid(clustering, 0, 10).tolist() == [2, 0, 3]
    assert nearest_to_centroid(clustering, 1, 1).tolist() == [4]


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (6, 6, 1), (7, 6, 2)])
def test_contact_sheet_shows_every_picture(count: int, columns: int, rows: int) -> None:
    colours = [(255, 40 * number, 0) for number in range(count)]
    pictures = [Image.new("RGB", (300, 300), colour) for colour in colours]
    content = contact_sheet(pictures, "cluster 3: 7 images")
    assert content == contact_sheet(pictures, "cluster 3: 7 images")
    with Image.open(io.BytesIO(content)) as sheet:
        assert sheet.format == "JPEG"
        assert sheet.height == 32 + rows * 164
        assert sheet.width >= columns * 164
        for number, colour in enumerate(colours):
            row, column = divmod(number, 6)
            middle = sheet.getpixel((4 + column * 164 + 80, 28 + row * 164 + 80))
            assert np.abs(np.subtract(middle, colour)).max() < 12
