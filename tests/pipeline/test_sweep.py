from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from pipeline_campaign import Campaign
from processes import snapshot

from haystack.cli import main
from haystack.errors import InputError, MissingDependencyError
from haystack.executors import LocalExecutor
from haystack.pipeline.clustering.cluster import cluster_features
from haystack.pipeline.clustering.feature_rows import MemoryRows
from haystack.pipeline.clustering.sweep import PAIRS, sweep_k
from haystack.pipeline.config import ClusterConfig
from haystack.pipeline.jobs.sweep import SweepJob

pytest.importorskip("faiss", reason="needs faiss: pip install 'haystack-psg[cpu]'")
pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'haystack-psg[sweep]'")


def groups(count: int, spread: float) -> MemoryRows:
    random = np.random.default_rng(0)
    centres = 10 * np.eye(5)[random.integers(5, size=count)]
    return MemoryRows((centres + random.normal(scale=spread, size=(count, 5))).astype(np.float32))


def test_the_right_number_of_clusters_is_the_stable_one() -> None:
    rows = groups(1000, 0.5)
    found = {k: sweep_k(rows, ClusterConfig(k=k)) for k in (4, 5, 8)}
    assert found[5].agreement == (1.0,) * PAIRS
    assert found[5].stability == 1
    assert max(found[4].stability, found[8].stability) < 0.95  # type: ignore[type-var]
    assert found[4].inertia > found[5].inertia > found[8].inertia
    assert (found[5].images, found[5].empty) == (1000, 0)


def test_without_structure_little_comes_again() -> None:
    random = np.random.default_rng(0)
    rows = MemoryRows(random.normal(size=(1000, 30)).astype(np.float32))
    found = sweep_k(rows, ClusterConfig(k=10))
    assert len(found.agreement) == PAIRS
    assert found.stability is not None
    assert 0 <= found.stability < 0.3


@pytest.mark.parametrize("algorithm", ["faiss", "streaming"])
def test_it_is_the_clustering_that_the_stage_would_make(algorithm: str) -> None:
    rows = groups(600, 3)
    config = ClusterConfig(k=6, sample_per_cluster=50, algorithm=algorithm, normalise=True)
    found, clustering = sweep_k(rows, config), cluster_features(rows, config)
    sizes = np.bincount(clustering.cluster, minlength=6)
    assert found.inertia == pytest.approx((clustering.distance.astype(float) ** 2).mean())
    assert (found.smallest, found.largest) == (sizes.min(), sizes.max())
    assert (found.training_points, found.algorithm) == (300, algorithm)
    assert found == sweep_k(rows, config), "equal settings give equal results"


def test_halves_that_are_too_small_say_nothing_of_stability() -> None:
    rows = groups(7, 1)
    found = sweep_k(rows, ClusterConfig(k=4))
    assert (found.agreement, found.stability) == ((), None)
    assert len(sweep_k(rows, ClusterConfig(k=3)).agreement) == PAIRS


def test_clusters_without_an_image_are_counted() -> None:
    rows = MemoryRows(np.repeat(np.eye(2, dtype=np.float32), 20, axis=0))
    found = sweep_k(rows, ClusterConfig(k=5, algorithm="streaming"))
    assert (found.smallest, found.empty, found.inertia) == (0, 3, 0)


def test_without_scikit_learn_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'haystack-psg\[sweep\]'"):
        sweep_k(groups(100, 1), ClusterConfig(k=3))


class TestJob:
    @pytest.fixture
    def clustered(self, campaign: Campaign) -> Campaign:
        campaign.run("embed", "cluster")
        return campaign

    def sweep(self, campaign: Campaign, *numbers: int) -> tuple[SweepJob, int]:
        job = SweepJob(campaign.workspace, campaign.source.shards(), numbers)
        return job, LocalExecutor(campaign.root, progress=False).run(job).done

    def test_numbers_are_shards_and_the_clusters_stay(self, clustered: Campaign) -> None:
        before = snapshot(clustered.root / "cluster")
        job, done = self.sweep(clustered, 4, 2, 4)
        assert done == 2
        assert [found.k for found in job.results()] == [2, 4]
        assert all(found.images == 10 for found in job.results())
        written = json.loads((clustered.root / "sweep/k-2.json").read_text())
        assert written["inertia"] == job.results()[0].inertia
        assert self.sweep(clustered, 2, 3, 4)[1] == 1, "only the new number is computed"
        assert snapshot(clustered.root / "cluster") == before

    def test_sheets_and_the_own_k_do_not_matter_seeds_do(self, clustered: Campaign) -> None:
        assert self.sweep(clustered, 2)[1] == 1
        paths = clustered.root, clustered.source_root
        other = Campaign(*paths, ("cluster.k=4", "cluster.sheet_images=1"))
        assert self.sweep(other, 2)[1] == 0
        assert self.sweep(Campaign(*paths, ("cluster.seed=1",)), 2)[1] == 1

    def test_more_clusters_than_images_are_refused(self, clustered: Campaign) -> None:
        with pytest.raises(InputError, match="11 clusters were asked for and there are 10 images"):
            self.sweep(clustered, 2, 11)
        assert self.sweep(clustered, 2)[1] == 0, "what was done before stays"

    def test_the_verb_shows_a_table(
        self, clustered: Campaign, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["cluster", str(clustered.root), "--sweep", "2,6", "--json"]) == 0
        printed = capsys.readouterr()
        data = json.loads(printed.out)
        assert [(row["k"], len(row["agreement"])) for row in data["sweep"]] == [(2, PAIRS), (6, 0)]
        assert data["sweep"][1]["stability"] is None
        lines = printed.err.splitlines()
        (header,) = (line for line in lines if line.split()[:1] == ["k"])
        assert header.split() == ["k", "inertia", "stability", "smallest", "largest", "empty"]
        assert [line.split()[2] for line in lines if line.split()[:1] == ["6"]] == ["-"]
        assert main(["status", str(clustered.root), "--json"]) == 0
        stages = json.loads(capsys.readouterr().out)["stages"]
        assert [row["stage"] for row in stages] == ["embed", "sweep", "cluster"]

    @pytest.mark.parametrize("text", ["", "ten", "5,", "0,3"])
    def test_numbers_that_are_none_are_refused(
        self, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as exit:
            main(["cluster", str(tmp_path), "--sweep", text])
        assert exit.value.code == 2
        assert "expected numbers of clusters such as 10,25,50" in capsys.readouterr().err
