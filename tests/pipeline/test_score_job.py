from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pipeline_campaign import Campaign, FakeRelationModel

from haystack.errors import InputError
from haystack.executors import LocalExecutor
from haystack.executors.manifest import read_manifest
from haystack.models.relation.inputs import RelationLogits, SceneInput
from haystack.pipeline.jobs.score import ScoreJob, ScoringModel
from haystack.statistics import TripletStatistics


def all_questions(campaign: Campaign) -> list[tuple[str, int, int, int]]:
    return [
        (row.image_id, row.subject, row.object, row.predicate)
        for row in campaign.workspace.proposals()
    ]


def test_answers_make_room_below_the_cut(tmp_path: Path, source_root: Path) -> None:
    def campaign(*answered: tuple[str, int, int, int], top: int = 2) -> Campaign:
        settings = (f"score.top={top}", "score.min_count=0", "propose.limit=1000")
        return Campaign(
            tmp_path / f"top-{top}", source_root, settings, shard_size=50, answered=list(answered)
        )

    everything = campaign(top=1000)
    everything.run()
    first = campaign()
    first.run()
    answered: list[tuple[str, int, int, int]] = []
    asked = all_questions(first)
    rounds = 0
    while asked:
        assert not set(asked) & set(answered)
        answered += asked
        dry = campaign(*answered)
        dry.run("gather", "propose")
        assert all_questions(dry) == []
        notes = read_manifest(dry.root, "propose", "all").notes
        assert [row[2] for row in notes["exhausted"]].count(2) >= 1
        again = campaign(*answered)
        again.run("score", "gather", "propose")
        asked = all_questions(again)
        rounds += 1
    assert rounds > 5
    assert sorted(answered) == sorted(all_questions(everything)), "every pair had its turn"
    manifest = read_manifest(first.root, "propose", "all")
    assert manifest.notes["exhausted"] == []
    assert manifest.counts["exhausted_groups"] == 0


def test_answers_and_faults_touch_only_the_shard_of_their_image(campaign: Campaign) -> None:
    campaign.run()
    row = campaign.workspace.proposals()[0]
    shard = next(
        shard
        for shard in campaign.source.shards()
        for image in campaign.workspace.segmented(shard)
        if image.image_id == row.image_id
    )
    assert campaign.run("score")["score"].done == 0  # type: ignore[attr-defined]
    before = {s: campaign.job("score").fingerprint(s) for s in campaign.source.shards()}
    campaign.answered = [(row.image_id, row.subject, row.object, row.predicate), ("9", 0, 1, 2)]
    after = {s: campaign.job("score").fingerprint(s) for s in campaign.source.shards()}
    assert [s for s in before if before[s] != after[s]] == [shard]
    assert campaign.run("score")["score"].done == 1  # type: ignore[attr-defined]
    job = ScoreJob(
        campaign.workspace,
        campaign.source.shards(),
        model=ScoringModel("fake", "fake", FakeRelationModel),
        statistics=TripletStatistics.from_graphs(campaign.dataset.graphs, 5, 4),
        answered=campaign.answered,
        faulty=[(row.image_id, row.subject)],
    )
    assert LocalExecutor(campaign.root, progress=False).run(job).done == 1
    found = campaign.workspace.candidates(shard)
    ids = [found.images["image_id"][i].as_py() for i in found.image.tolist()]
    used = {*zip(ids, found.subject, strict=True), *zip(ids, found.object, strict=True)}
    assert used
    assert (row.image_id, row.subject) not in used


def test_segments_that_the_annotations_call_faulty_are_never_scored(campaign: Campaign) -> None:
    campaign.run()
    assert any(3 in (r.subject, r.object) for r in campaign.workspace.proposals())
    graphs = campaign.dataset.graphs
    faulty = {graph.image_id: (3,) for graph in graphs}
    campaign.dataset = replace(campaign.dataset, faulty_segments=faulty)
    assert campaign.run("segment")["segment"].done == 3  # type: ignore[attr-defined]
    campaign.run("score", "gather", "propose")
    for shard in campaign.source.shards():
        assert all(image.faulty == (3,) for image in campaign.workspace.segmented(shard))
        found = campaign.workspace.candidates(shard)
        assert len(found)
        assert not {3} & {*found.subject.tolist(), *found.object.tolist()}


def test_scores_do_not_depend_on_the_number_of_threads(campaign: Campaign) -> None:
    seen = []

    class Counting(FakeRelationModel):
        def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
            seen.append(torch.get_num_threads())
            return super().predict(scenes)

    campaign.model = Counting()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        campaign.run("embed", "cluster", "segment", "score")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_model_of_another_vocabulary_is_refused(campaign: Campaign) -> None:
    campaign.run("embed", "cluster", "segment")
    job = ScoreJob(
        campaign.workspace,
        campaign.source.shards(),
        model=ScoringModel("x", "x", lambda: FakeRelationModel(56)),
        statistics=TripletStatistics.from_graphs(campaign.dataset.graphs, 5, 4),
    )
    with pytest.raises(InputError, match="scores 56 predicates and the vocabulary has 4"):
        LocalExecutor(campaign.root, progress=False).run(job)


def test_a_model_is_loaded_only_when_something_is_to_do(campaign: Campaign) -> None:
    campaign.run()

    def load() -> FakeRelationModel:
        raise AssertionError("loaded")

    again = Campaign(campaign.root, campaign.source_root)
    statistics = TripletStatistics.from_graphs(campaign.dataset.graphs, 5, 4)
    job = ScoreJob(
        again.workspace,
        again.source.shards(),
        model=ScoringModel("fake", "fake", load),
        statistics=statistics,
    )
    assert LocalExecutor(campaign.root, progress=False).run(job).skipped == 3
