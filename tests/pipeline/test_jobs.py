from __future__ import annotations

import json
import logging
import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from pipeline_campaign import (
    BROKEN,
    NUM_IMAGES,
    STAGES,
    UNMASKED,
    VOCABULARY,
    Campaign,
    edit_clusters,
)
from processes import snapshot

from haystack.errors import InputError
from haystack.executors import LocalExecutor, Outputs, read_status
from haystack.executors.base import Counts
from haystack.io.images import open_source
from haystack.pipeline import tables
from haystack.pipeline.workspace import ASSIGNMENTS, CLUSTERS, Workspace


def test_all_stages_end_to_end(finished: Campaign) -> None:
    workspace = finished.workspace
    keys = [
        key for shard in finished.source.shards() for key in workspace.features(shard).image_keys
    ]
    assert len(keys) == NUM_IMAGES - 1
    assert BROKEN not in keys
    assert workspace.features("000000").features.dtype == np.float32
    assignments = tables.read_assignments(workspace.path(ASSIGNMENTS))
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
    retrained = done("propose.seed=4", model_hash="retrained")
    assert retrained == {"score": 3, "gather": 1, "propose": 1}
    assert done() == {"score": 3, "gather": 1, "propose": 1}
    assert done("cluster.sheet_images=2") == {"cluster": 1}, "contact sheets matter to nobody else"
    assert done("cluster.sheet_images=2", "cluster.seed=1") == {
        "cluster": 1,
        "score": 3,
        "gather": 1,
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


def edit_list(campaign: Campaign, edit: Callable[[list[dict[str, object]]], object]) -> None:
    path = campaign.workspace.path(CLUSTERS)
    content = yaml.safe_load(path.read_text())
    edit(content["clusters"])
    path.write_text(yaml.safe_dump(content, sort_keys=False))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda rows: rows.pop(), "expected 3 entries under 'clusters', one for each .*, got 2"),
        (lambda rows: rows.pop(0), "expected id 0, got 1"),
        (lambda rows: rows.clear(), "expected 3 entries .*, got 0"),
        (lambda rows: rows.append(dict(rows[-1])), "expected id 3, got 2"),
        (lambda rows: rows.append({**rows[-1], "id": 3}), "expected 3 entries .*, got 4"),
    ],
)
def test_removed_or_added_clusters_are_an_error_of_every_stage(
    campaign: Campaign, edit: Callable[[list[dict[str, object]]], object], message: str
) -> None:
    campaign.run("embed", "cluster", "segment", "score", "gather")
    edit_list(campaign, edit)
    (campaign.root / "cluster/sheets/000.jpg").unlink()  # makes the stage run again
    for stage in ("propose", "score", "cluster"):
        with pytest.raises(InputError, match=rf"clusters\.yaml.*: {message}"):
            Campaign(campaign.root, campaign.source_root).run(stage)


def test_changed_inputs_outdate_a_stage_and_are_named(campaign: Campaign) -> None:
    campaign.run()
    job = campaign.job("score")
    inputs = job.inputs("000001")
    assert set(inputs) == {"segment/000001.parquet", "cluster/assignments.parquet"}
    assert set(campaign.job("propose").inputs("all")) == {"gather/block-0000.parquet"}
    assert set(campaign.job("gather").inputs("block-0000")) == {
        f"score/{shard}.parquet" for shard in campaign.source.shards()
    }
    assert campaign.job("embed").inputs("000001") == campaign.job("segment").inputs("000001") == {}
    assert {status.outdated_by for status in read_status(campaign.root)} == {None}
    Campaign(campaign.root, campaign.source_root, ("embed.dtype=float16",)).run("embed")
    states = {status.stage: status.outdated_by for status in read_status(campaign.root)}
    assert states["cluster"] == "embed"
    with pytest.raises(InputError, match="'cluster' was made from an earlier 'embed'; run again"):
        campaign.job("score").inputs("000001")


def test_images_of_two_tars_that_took_one_record_are_refused(
    tmp_path: Path, source_root: Path
) -> None:
    """A tar has no table of contents, so segmenting it cannot know of the other.

    Scoring may have seen a part of the segments only, where several machines share the work.
    """
    images = sorted((source_root / "images").glob("*.jpg"))
    folder = tmp_path / "tars"
    folder.mkdir()

    def pack(number: int, chunk: Sequence[Path]) -> None:
        with tarfile.open(folder / f"sa_{number}.tar", "w") as archive:
            for image in chunk:
                archive.add(image, image.name)

    pack(0, images[:3])
    pack(1, images[2:7])
    campaign = Campaign(tmp_path / "w", source_root)
    campaign.source = open_source(folder)
    campaign.run("embed", "cluster", "segment")
    twice = f"sa_0/{images[2].name} and sa_1/{images[2].name} took the same record, image id 1002"
    with pytest.raises(InputError, match=twice):
        campaign.run("score")
    with pytest.raises(InputError, match=twice):
        campaign.job("gather").run("block-0000", Outputs(campaign.root))


def test_names_that_repeat_in_folders_take_no_record_twice(
    tmp_path: Path, source_root: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(source_root, source)
    (source / "images/again").mkdir()
    shutil.copy(source / "images/image-00.jpg", source / "images/again/image-00.jpg")
    campaign = Campaign(tmp_path / "w", source, shard_size=1)
    assert campaign.run("segment")["segment"].quarantined == 3  # type: ignore[attr-defined]
    ids = [i.image_id for s in campaign.source.shards() for i in campaign.workspace.segmented(s)]
    assert len(ids) == len(set(ids))
    lines = (tmp_path / "w/quarantine.jsonl").read_text().splitlines()
    reasons = {row["item"]: row["reason"] for row in map(json.loads, lines)}
    assert "is that of image-00.jpg too" in reasons["again/image-00.jpg"]


def test_odd_entries_of_the_source_are_quarantined(tmp_path: Path, source_root: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(source_root, source)
    (source / "images/dir.jpg").mkdir()
    (source / "images/dangling.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (source / "images" / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"x")
    campaign = Campaign(tmp_path / "w", source)
    summaries = campaign.run("embed", "segment")
    assert summaries["embed"].quarantined == 3  # type: ignore[attr-defined]
    assert summaries["segment"].quarantined == 4  # type: ignore[attr-defined]
    lines = (tmp_path / "w/quarantine.jsonl").read_text().splitlines()
    reasons = {row["item"]: row["reason"] for row in map(json.loads, lines)}
    assert reasons["dangling.jpg"] == "not a file, or a link that leads nowhere"
    assert reasons["caf\\xe9.jpg"] == "its name is not valid UTF-8; rename it"


def test_a_file_is_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for root in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(InputError, match="file: expected a folder for the workspace"):
            Workspace.configured(root)


@pytest.mark.parametrize(
    ("stage", "missing"),
    [("cluster", "embed"), ("score", "segment"), ("gather", "score"), ("propose", "propose")],
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


@pytest.mark.parametrize(
    ("stage", "setting", "reader"),
    [("embed", "embed.dtype=float16", "cluster"), ("score", "score.min_count=0", "gather")],
)
def test_a_stage_that_began_anew_and_was_cut_short_is_not_read(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, stage: str, setting: str, reader: str
) -> None:
    """Else shards made by the settings of before and of now would be mixed without a word."""
    campaign.run()
    changed = Campaign(campaign.root, campaign.source_root, (setting,))
    job = changed.job(stage)
    run = job.run

    def cut_short(shard: str, out: Outputs) -> Counts:
        if shard == "000001":
            raise InputError("cut short")
        return run(shard, out)

    monkeypatch.setattr(job, "run", cut_short)
    with pytest.raises(InputError, match="cut short"):
        LocalExecutor(campaign.root, progress=False).run(job)
    with pytest.raises(
        InputError, match=f"'{stage}' was begun anew .* run again: haystack {stage}"
    ):
        changed.run(reader)
    changed.run(stage)
    changed.run(reader)


def test_a_tar_that_breaks_off_is_quarantined(tmp_path: Path, source_root: Path) -> None:
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


def test_what_is_stuff_decides_what_is_segmented(tmp_path: Path, source_root: Path) -> None:
    """Segmenters join regions of stuff, so the same names, split otherwise, give other segments."""
    campaign = Campaign(tmp_path / "workspace", source_root)
    names = VOCABULARY.object_classes
    fingerprints = []
    for things in (3, 2):
        campaign.workspace.vocabulary = replace(
            VOCABULARY, thing_classes=names[:things], stuff_classes=names[things:]
        )
        job = campaign.job("segment")
        fingerprints.append(job.fingerprint(job.shards()[0]))
    assert fingerprints[0] != fingerprints[1]
