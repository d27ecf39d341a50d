from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from pipeline_campaign import (
    BROKEN,
    NUM_IMAGES,
    STAGES,
    UNMASKED,
    Campaign,
    FakeRelationModel,
    snapshot,
)

from haystack.errors import InputError
from haystack.executors import LocalExecutor
from haystack.io.images import open_source
from haystack.pipeline.jobs import ProposeJob, ScoreJob
from haystack.pipeline.workspace import CLUSTERS, Workspace
from haystack.statistics import TripletStatistics


def edit_clusters(campaign: Campaign, **changes: object) -> None:
    path = campaign.workspace.path(CLUSTERS)
    content = yaml.safe_load(path.read_text())
    content["clusters"][1].update(changes)
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def test_all_stages_end_to_end(finished: Campaign) -> None:
    workspace = finished.workspace
    keys = [
        key for shard in finished.source.shards() for key in workspace.features(shard).image_keys
    ]
    assert len(keys) == NUM_IMAGES - 1
    assert BROKEN not in keys
    assert workspace.features("000000").features.dtype == np.float32
    assignments = workspace.assignments()
    assert list(assignments.image_keys) == keys
    assert workspace.centroids().shape == (3, 12)
    clusters = workspace.clusters()
    assert [cluster.size for cluster in clusters] == np.bincount(assignments.cluster).tolist()
    assert all(cluster.included for cluster in clusters)
    segmented = [
        image for shard in finished.source.shards() for image in workspace.segmented(shard)
    ]
    assert {image.image_key for image in segmented} == set(keys) - {UNMASKED}
    graphs = finished.dataset.by_id()
    for image in segmented:
        assert image.segments == graphs[image.image_id].segments
        assert set(np.unique(image.id_map()).tolist()) == {5, 11, 300, 70_000}
    proposals = workspace.proposals()
    assert proposals
    cluster_of = dict(zip(assignments.image_keys, assignments.cluster.tolist(), strict=True))
    for proposal in proposals:
        assert cluster_of[proposal.image_key] == proposal.cluster
        assert graphs[proposal.image_id].file_name == f"images/{proposal.image_key}"


def test_proposals_are_the_best_plausible_candidates(finished: Campaign) -> None:
    """Recomputed the slow way: every pair, no bound, no shards."""
    statistics = TripletStatistics.from_graphs(finished.dataset.graphs, 5, 4)
    assignments = finished.workspace.assignments()
    cluster_of = dict(zip(assignments.image_keys, assignments.cluster.tolist(), strict=True))
    rows = []
    model = FakeRelationModel()
    for shard in finished.source.shards():
        for image in finished.workspace.segmented(shard):
            from haystack.pipeline.jobs import _scene

            (answer,) = model.predict([_scene(image)])
            for (s, o), logits, none in zip(
                answer.pairs.tolist(), answer.logits, answer.no_relation, strict=True
            ):
                for p in range(4):
                    if (
                        statistics.subject_predicate[image.segments[s].category, p] >= 2
                        and statistics.predicate_object[p, image.segments[o].category] >= 2
                    ):
                        rows.append(
                            (
                                cluster_of[image.image_key],
                                p,
                                none - logits[p],
                                image.image_key,
                                s,
                                o,
                            )
                        )
    expected = set()
    for group in {row[:2] for row in rows}:
        expected |= set(sorted(row for row in rows if row[:2] == group)[:7])
    found = {
        (p.cluster, p.predicate, -p.score, p.image_key, p.subject, p.object)
        for p in finished.workspace.proposals()
    }
    assert len(found) == len(finished.workspace.proposals())
    limited = {p for p in range(4) if sum(row[1] == p for row in expected) > 20}
    assert found <= expected
    assert {row for row in found if row[1] not in limited} == {
        row for row in expected if row[1] not in limited
    }


def test_second_run_does_nothing(campaign: Campaign) -> None:
    first = campaign.run()
    before = snapshot(campaign.root)
    again = Campaign(campaign.root, campaign.source_root)
    second = again.run()
    assert {stage: summary.done for stage, summary in second.items()} == dict.fromkeys(STAGES, 0)  # type: ignore[attr-defined]
    assert snapshot(campaign.root) == before
    assert first["embed"].quarantined == second["embed"].quarantined == 1  # type: ignore[attr-defined]


def test_quarantine_names_image_and_reason(finished: Campaign) -> None:
    text = (finished.root / "quarantine.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(row["stage"], row["item"]) for row in rows] == [
        ("embed", BROKEN),
        ("segment", BROKEN),
        ("segment", UNMASKED),
    ]
    assert "broken" in rows[0]["reason"]
    assert "cannot read the panoptic PNG" in rows[2]["reason"]


def test_only_what_depends_on_a_change_runs_again(tmp_path: Path, source_root: Path) -> None:
    root, source = tmp_path / "workspace", tmp_path / "source"
    shutil.copytree(source_root, source)
    Campaign(root, source).run()

    def done(*overrides: str, model_hash: str = "fake") -> dict[str, int]:
        summaries = Campaign(root, source, overrides, model_hash=model_hash).run()
        return {stage: summary.done for stage, summary in summaries.items() if summary.done}  # type: ignore[attr-defined]

    assert done("embed.device=cpu", "embed.batch_size=5") == {}
    assert done("propose.seed=4") == {"propose": 1}
    assert done("propose.seed=4", model_hash="retrained") == {"score": 3}, (
        "equal scores give equal files, so the queue stands"
    )
    assert done() == {"score": 3, "propose": 1}
    assert done("cluster.sheet_images=2") == {"cluster": 1}, "contact sheets matter to nobody else"
    assert done("cluster.sheet_images=2", "cluster.seed=1") == {
        "cluster": 1,
        "score": 3,
        "propose": 1,
    }
    shutil.copy(source / "images/image-09.jpg", source / "images/image-10.jpg")
    changed = done()
    assert (changed["embed"], changed["segment"], changed["cluster"]) == (1, 1, 1)


def test_exclusion_survives_and_is_obeyed(
    campaign: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    campaign.run()
    assert any(row.cluster == 1 for row in campaign.workspace.proposals())
    edit_clusters(campaign, included=False, name="logos")
    (campaign.root / "cluster/sheets/000.jpg").unlink()  # makes the stage run again
    again = Campaign(campaign.root, campaign.source_root)
    summaries = again.run()
    assert summaries["cluster"].done == 1  # type: ignore[attr-defined]
    cluster = again.workspace.clusters()[1]
    assert (cluster.name, cluster.included) == ("logos", False)
    assert summaries["score"].done == 3  # type: ignore[attr-defined]
    proposals = again.workspace.proposals()
    assert proposals
    assert all(row.cluster != 1 for row in proposals)
    counts = [
        json.loads(path.read_text())["counts"]
        for path in (campaign.root / "score").glob("*.manifest.json")
    ]
    assert sum(count["excluded"] for count in counts) > 0
    assert not (campaign.root / "cluster/clusters.yaml.previous").exists()

    with caplog.at_level(logging.WARNING, logger="haystack"):
        Campaign(campaign.root, campaign.source_root, ("cluster.k=4",)).run("cluster")
    assert "all clusters are included again" in caplog.text
    assert len(again.workspace.clusters()) == 4
    assert all(entry.included for entry in again.workspace.clusters())
    previous = (campaign.root / "cluster/clusters.yaml.previous").read_text()
    assert yaml.safe_load(previous)["clusters"][1]["name"] == "logos"


def test_excluding_at_proposal_time_needs_no_new_scores(campaign: Campaign) -> None:
    campaign.run()
    edit_clusters(campaign, included=False)
    again = Campaign(campaign.root, campaign.source_root)
    again.run("propose")
    assert all(row.cluster != 1 for row in again.workspace.proposals())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"included": "maybe"}, "expected included to be true or false, got 'maybe'"),
        ({"id": 7}, "expected id 1, got 7"),
        ({"colour": "red"}, "expected the keys id, name, size, included"),
    ],
)
def test_broken_edits_of_clusters_are_named(
    campaign: Campaign, change: dict[str, object], message: str
) -> None:
    campaign.run("embed", "cluster")
    edit_clusters(campaign, **change)
    with pytest.raises(InputError, match=message):
        campaign.workspace.clusters()


def test_answered_and_faulty_leave_the_queue(campaign: Campaign) -> None:
    campaign.run()
    first, second = campaign.workspace.proposals()[:2]
    job = ProposeJob(
        campaign.workspace,
        campaign.source.shards(),
        answered=[(first.image_id, first.subject, first.object, first.predicate)],
        faulty=[(second.image_id, second.subject)],
    )
    assert LocalExecutor(campaign.root, progress=False).run(job).done == 1
    rows = campaign.workspace.proposals()
    assert rows
    asked = {(row.image_id, row.subject, row.object, row.predicate) for row in rows}
    assert (first.image_id, first.subject, first.object, first.predicate) not in asked
    for row in rows:
        if row.image_id == second.image_id:
            assert second.subject not in (row.subject, row.object)


@pytest.mark.parametrize(
    ("stage", "missing"),
    [("cluster", "embed"), ("score", "segment"), ("propose", "score")],
)
def test_a_stage_before_its_input_says_what_to_run(
    campaign: Campaign, stage: str, missing: str
) -> None:
    with pytest.raises(InputError, match=f"run: haystack {missing}"):
        campaign.run(stage)


def test_embedding_that_was_cut_short_is_not_clustered(campaign: Campaign) -> None:
    campaign.run("embed")
    (campaign.root / "embed/000002.manifest.json").unlink()
    with pytest.raises(InputError, match="run: haystack embed"):
        campaign.run("cluster")


def test_model_of_another_vocabulary_is_refused(campaign: Campaign) -> None:
    campaign.run("embed", "cluster", "segment")
    job = ScoreJob(
        campaign.workspace,
        campaign.source.shards(),
        load_model=lambda: FakeRelationModel(56),
        model_hash="x",
        statistics=TripletStatistics.from_graphs(campaign.dataset.graphs, 5, 4),
    )
    with pytest.raises(InputError, match="scores 56 predicates and the vocabulary has 4"):
        LocalExecutor(campaign.root, progress=False).run(job)


def test_a_model_is_loaded_only_when_something_is_to_do(campaign: Campaign) -> None:
    campaign.run()

    def load() -> FakeRelationModel:
        raise AssertionError("loaded")

    again = Campaign(campaign.root, campaign.source_root)
    job = again.job("score")
    job._load_model = load  # type: ignore[attr-defined]
    assert LocalExecutor(campaign.root, progress=False).run(job).skipped == 3


def test_a_tar_that_breaks_off_is_quarantined(tmp_path: Path, source_root: Path) -> None:
    import tarfile

    images = sorted((source_root / "images").glob("*.jpg"))
    folder = tmp_path / "tars"
    folder.mkdir()
    for number, chunk in enumerate((images[:3], images[4:9])):
        with tarfile.open(folder / f"sa_{number}.tar", "w") as archive:
            for image in chunk:
                archive.add(image, image.name)
    broken = folder / "sa_1.tar"
    broken.write_bytes(broken.read_bytes()[:3000])
    campaign = Campaign(tmp_path / "w", source_root)
    campaign.source = open_source(folder)
    summary = campaign.run("embed")["embed"]
    assert summary.done == 2  # type: ignore[attr-defined]
    assert summary.quarantined == 1  # type: ignore[attr-defined]
    (row,) = (
        json.loads(line) for line in (tmp_path / "w/quarantine.jsonl").read_text().splitlines()
    )
    assert (row["shard"], row["item"]) == ("sa_1", "sa_1")
    assert "breaks off after" in row["reason"]
    assert campaign.workspace.features("sa_1").image_keys[0] == f"sa_1/{images[4].name}"


def test_workspace_is_opened_with_its_settings(finished: Campaign, tmp_path: Path) -> None:
    opened = Workspace.open(finished.root)
    assert opened.config == finished.workspace.config
    assert opened.vocabulary == finished.workspace.vocabulary
    assert opened.source.shards() == finished.source.shards()
    with pytest.raises(InputError, match=r"has no workspace\.yaml"):
        Workspace.open(tmp_path)
    with pytest.raises(InputError, match=r"give source\.images=FOLDER"):
        Workspace.create(tmp_path / "new").source  # noqa: B018


def test_wrong_settings_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        Workspace.create(tmp_path / "w", overrides=["cluster.k=x"])
    assert not (tmp_path / "w").exists()


def test_settings_of_an_existing_workspace_hold(tmp_path: Path) -> None:
    Workspace.create(tmp_path, overrides=["cluster.k=5", "cluster.seed=2"])
    again = Workspace.create(tmp_path, overrides=["cluster.k=6"])
    assert (again.config.cluster.k, again.config.cluster.seed) == (6, 2)


def test_predicates_by_name(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path, overrides=["propose.predicates=[kissing,on]"])
    assert workspace.predicate_indices() == [25, 3]
    wrong = Workspace.create(tmp_path, overrides=["propose.predicates=[kising]"])
    with pytest.raises(InputError, match="nearest: kissing"):
        wrong.predicate_indices()
