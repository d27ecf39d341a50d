"""Choosing clusters by looking at them."""

from __future__ import annotations

import io
import tarfile
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pipeline_campaign import Campaign

from haystack.errors import ConflictError, InputError
from haystack.executors import LocalExecutor
from haystack.executors.locks import LOCK, locked
from haystack.io.images import open_source
from haystack.pipeline import cluster_choice, tables
from haystack.pipeline.cluster_choice import ClusterChoice
from haystack.pipeline.clustering.samples import lots, sample_clusters
from haystack.pipeline.jobs.cluster import ClusterJob
from haystack.pipeline.thumbnails import Thumbnails
from haystack.pipeline.workspace import CLUSTERS, Workspace


@pytest.fixture
def clustered(campaign: Campaign) -> Campaign:
    """A campaign that goes no further: nothing is segmented, scored or proposed."""
    campaign.run("embed")
    campaign.run("cluster")
    return campaign


# ---------------------------------------------------------------- samples


def assigned(path: Path, clusters: int, sizes: list[int], seed: int = 0) -> tables.Assignments:
    random = np.random.default_rng(seed)
    count = sum(sizes)
    everything = tables.Assignments(
        tuple(f"image-{row:05d}" for row in range(count)),
        random.integers(0, clusters, count),
        # Few values, so that there are ties.
        random.integers(0, 40, count).astype(np.float32) / 8,
    )
    starts = np.cumsum([0, *sizes])
    tables.write_assignments(
        path,
        (
            tables.Assignments(
                everything.image_keys[a:b], everything.cluster[a:b], everything.distance[a:b]
            )
            for a, b in pairwise(starts.tolist())
        ),
    )
    return everything


@pytest.mark.parametrize("sizes", [[900], [1, 300, 0, 299, 300], [90] * 10])
def test_samples_are_those_of_sorting_everything(tmp_path: Path, sizes: list[int]) -> None:
    every = assigned(tmp_path / "a.parquet", 7, sizes)
    draw = lots(np.arange(len(every.image_keys)), 3)
    found = sample_clusters(tmp_path / "a.parquet", 8, 5, seed=3)
    assert len(found) == 8
    for number, sample in enumerate(found):
        members = np.flatnonzero(every.cluster == number).tolist()
        nearest = sorted(members, key=lambda row: (every.distance[row], row))[:5]
        drawn = sorted(members, key=lambda row: draw[row])[:5]
        assert sample.nearest == tuple(every.image_keys[row] for row in nearest)
        assert sample.drawn == tuple(every.image_keys[row] for row in drawn)


def test_the_draw_is_fair() -> None:
    rows = np.arange(100_000)
    for seed in (0, 1):
        draw = lots(rows, seed)
        assert len(np.unique(draw)) == len(draw)
        assert 0 <= draw.min() < draw.max() < 1
        # Each tenth of the images gives its share of the first thousand, within 5 deviations.
        chosen = np.bincount(np.argsort(draw)[:1000] // 10_000, minlength=10)
        assert np.abs(chosen - 100).max() < 5 * np.sqrt(90)
    assert np.abs(np.corrcoef(lots(rows, 0), lots(rows, 1))[0, 1]) < 0.02


# ---------------------------------------------------------------- the choice


def test_clusters_can_be_looked_at_before_anything_is_proposed(clustered: Campaign) -> None:
    choice = ClusterChoice(clustered.workspace)
    now = choice.choice()
    assert list(now.clusters) == clustered.workspace.clusters()
    assert (now.proposals, now.candidates, now.to_run) == (None, None, ())
    shards = clustered.workspace.source.shards()
    keys = [key for shard in shards for key in clustered.workspace.features(shard).image_keys]
    seen: list[str] = []
    for cluster in now.clusters:
        sample = choice.sample(cluster.id, now.clustering)
        assert set(sample.nearest) == set(sample.drawn)  # all of them: the clusters are small
        assert len(sample.nearest) == cluster.size
        seen += sample.nearest
    assert sorted(seen) == sorted(keys)


def test_the_choice_is_written_where_the_pipeline_reads_it(clustered: Campaign) -> None:
    path = clustered.workspace.path(CLUSTERS)
    path.write_text(f"# by Lea\n{path.read_text()}# the end\n")
    choice = ClusterChoice(clustered.workspace)
    before = choice.choice()
    after = choice.include(1, False, before.clustering)
    assert [cluster.included for cluster in after.clusters][:3] == [True, False, True]
    assert clustered.workspace.clusters() == list(after.clusters)
    text = path.read_text()
    assert text.startswith("# by Lea\n")
    assert text.endswith("# the end\n")
    assert choice.include(1, False, before.clustering) == after
    assert choice.include(1, True, before.clustering) == before
    clustered.run("cluster")  # complete already: what was chosen stays
    assert clustered.workspace.clusters() == list(before.clusters)


def test_what_others_change_meanwhile_stays(clustered: Campaign) -> None:
    here, there = ClusterChoice(clustered.workspace), ClusterChoice(clustered.workspace)
    seen = here.choice()
    there.include(0, False, seen.clustering)
    path = clustered.workspace.path(CLUSTERS)
    path.write_text(path.read_text().replace("cluster-02", "logos"))
    after = here.include(1, False, seen.clustering)
    assert [cluster.included for cluster in after.clusters][:2] == [False, False]
    assert after.clusters[2].name == "logos"


def test_many_at_once_lose_nothing(clustered: Campaign) -> None:
    clustering = ClusterChoice(clustered.workspace).choice().clustering
    count = len(clustered.workspace.clusters())

    def exclude(number: int) -> None:
        ClusterChoice(clustered.workspace).include(number, False, clustering)

    threads = [threading.Thread(target=exclude, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(cluster.included for cluster in clustered.workspace.clusters())


def test_a_clustering_made_meanwhile_is_not_touched(clustered: Campaign) -> None:
    choice = ClusterChoice(clustered.workspace)
    seen = choice.choice()
    choice.sample(0, seen.clustering)
    cluster = replace(clustered.workspace.config.cluster, seed=5)
    config = replace(clustered.workspace.config, cluster=cluster)
    anew = Workspace(clustered.workspace.root, config)
    LocalExecutor(anew.root, progress=False).run(ClusterJob(anew, anew.source))
    now = choice.choice()
    assert now.clustering != seen.clustering
    text = clustered.workspace.path(CLUSTERS).read_text()
    with pytest.raises(ConflictError, match="clustered anew meanwhile"):
        choice.include(0, False, seen.clustering)
    with pytest.raises(ConflictError, match="clustered anew meanwhile"):
        choice.sample(0, seen.clustering)
    assert clustered.workspace.path(CLUSTERS).read_text() == text
    assert choice.sample(0, now.clustering).nearest


def test_while_the_images_are_being_clustered_nothing_is_chosen(
    clustered: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_choice, "_SECONDS_TO_LOCK", 0.05)
    choice = ClusterChoice(clustered.workspace)
    seen = choice.choice()
    with (
        locked(clustered.workspace.root / "cluster" / LOCK, wait=False),
        pytest.raises(ConflictError, match="haystack cluster is running"),
    ):
        choice.include(0, False, seen.clustering)
    assert choice.choice() == seen


def test_bad_input_is_a_sentence(clustered: Campaign) -> None:
    choice = ClusterChoice(clustered.workspace)
    clustering = choice.choice().clustering
    for number in (-1, 10_000):
        with pytest.raises(InputError, match=f"expected a cluster in 0\\.\\..*, got {number}"):
            choice.include(number, False, clustering)
        with pytest.raises(InputError, match="expected a cluster in"):
            choice.sample(number, clustering)
    for key in ("../../etc/passwd", "", "a\0b"):
        with pytest.raises(InputError, match="not in the source"):
            choice.thumbnail(key)
    path = clustered.workspace.path(CLUSTERS)
    path.write_text("clusters: [")
    with pytest.raises(InputError, match="cannot read the clusters"):
        choice.include(0, False, clustering)
    assert path.read_text() == "clusters: ["


def test_without_clusters_the_error_says_what_to_run(campaign: Campaign) -> None:
    with pytest.raises(InputError, match="run: haystack cluster"):
        ClusterChoice(campaign.workspace).choice()


def test_what_must_be_run_again(campaign: Campaign) -> None:
    campaign.run()
    choice = ClusterChoice(campaign.workspace)
    now = choice.choice()
    root = campaign.workspace.root
    proposals = campaign.workspace.proposals()
    queued = [sum(p.cluster == c.id for p in proposals) for c in now.clusters]
    assert now.proposals == tuple(queued)
    assert now.candidates is not None
    assert sum(now.candidates) >= sum(queued) > 0
    assert now.to_run == ()
    # A cluster less: the scores are there, only the queue changes.
    fewer = choice.include(0, False, now.clustering)
    assert fewer.to_run == (f"haystack propose {root}",)
    for stage in ("gather", "propose"):
        campaign.run(stage)
    assert choice.choice().to_run == ()
    counts = choice.choice().proposals
    assert counts is not None
    assert counts[0] == 0 < sum(counts)
    # Back again, from scores that know it.
    assert choice.include(0, True, now.clustering).to_run == (f"haystack propose {root}",)
    choice.include(0, False, now.clustering)
    for stage in ("score", "gather", "propose"):
        campaign.run(stage)
    assert choice.choice().to_run == ()
    # A cluster that was never scored.
    assert choice.include(0, True, now.clustering).to_run == (
        f"haystack score {root}",
        f"haystack propose {root}",
    )
    for stage in ("score", "gather", "propose"):
        campaign.run(stage)
    assert choice.choice() == now


# ---------------------------------------------------------------- thumbnails


def photograph(size: tuple[int, int], form: str, orientation: int = 1) -> bytes:
    """Red left, blue right, as stored."""
    picture = Image.new("RGB", size, (220, 30, 30))
    picture.paste((30, 30, 220), (size[0] // 2, 0, size[0], size[1]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    picture.save(stream, form, exif=exif)
    return stream.getvalue()


def shown(content: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(content))
    assert picture.format == "JPEG"
    return picture


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_thumbnails_are_upright_and_small(tmp_path: Path, form: str) -> None:
    suffix = {"JPEG": "jpg"}.get(form, form.lower())
    (tmp_path / f"lying.{suffix}").write_bytes(photograph((1500, 900), form))
    (tmp_path / f"turned.{suffix}").write_bytes(photograph((1500, 900), form, orientation=6))
    thumbnails = Thumbnails(open_source(tmp_path), side=100)
    lying = shown(thumbnails.get(f"lying.{suffix}"))
    assert lying.size == (100, 60)
    turned = shown(thumbnails.get(f"turned.{suffix}"))
    assert turned.size == (60, 100)
    top, bottom = turned.getpixel((30, 10)), turned.getpixel((30, 90))
    assert top[0] > 150 > top[2]
    assert bottom[2] > 150 > bottom[0]


def test_thumbnails_come_from_tars_too(tmp_path: Path) -> None:
    content = photograph((300, 200), "JPEG")
    with tarfile.open(tmp_path / "sa_000001.tar", "w") as tar:
        entry = tarfile.TarInfo("./sa_17.jpg")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    source = open_source(tmp_path)
    (key,) = (key for key, _ in source.iterate("sa_000001"))
    assert shown(Thumbnails(source, side=30).get(key)).size == (30, 20)


def test_thumbnails_take_no_more_memory_than_allowed(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.jpg").write_bytes(photograph((200 + number, 100), "JPEG"))
    source = open_source(tmp_path)
    reads: list[str] = []

    class Counting:
        def read(self, key: str) -> bytes:
            reads.append(key)
            return source.read(key)

    size = len(Thumbnails(source, side=64).get("0.jpg"))
    thumbnails = Thumbnails(Counting(), side=64, memory=3 * size + size // 2)  # type: ignore[arg-type]
    for key in ("0.jpg", "1.jpg", "2.jpg", "0.jpg"):
        thumbnails.get(key)
    assert reads == ["0.jpg", "1.jpg", "2.jpg"]
    thumbnails.get("3.jpg")  # takes the place of the one that was not asked for the longest
    thumbnails.get("0.jpg")
    thumbnails.get("1.jpg")
    assert reads == ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "1.jpg"]


def test_a_broken_picture_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "cut.jpg").write_bytes(photograph((300, 200), "JPEG")[:400])
    thumbnails = Thumbnails(open_source(tmp_path))
    for key in ("empty.jpg", "cut.jpg"):
        with pytest.raises(InputError, match=rf"^{key}: "):
            thumbnails.get(key)
