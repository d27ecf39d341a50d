from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from pipeline_campaign import Campaign, FakeRelationModel, edit_clusters

from haystack.errors import InputError
from haystack.executors import LocalExecutor
from haystack.executors.manifest import read_manifest
from haystack.models.relation.inputs import RelationLogits, SceneInput
from haystack.pipeline.jobs.propose import ProposeJob
from haystack.pipeline.jobs.score import ScoringModel, scene_of
from haystack.pipeline.tables import read_assignments
from haystack.pipeline.workspace import ASSIGNMENTS
from haystack.statistics import TripletStatistics


def test_proposals_are_the_best_plausible_candidates(finished: Campaign) -> None:
    """Recomputed the slow way: every pair, no bound, no shards."""
    statistics = TripletStatistics.from_graphs(finished.dataset.graphs, 5, 4)
    assignments = read_assignments(finished.workspace.path(ASSIGNMENTS))
    cluster_of = dict(zip(assignments.image_keys, assignments.cluster.tolist(), strict=True))
    rows = []
    model = FakeRelationModel()
    for shard in finished.source.shards():
        for image in finished.workspace.segmented(shard):
            (answer,) = model.predict([scene_of(image)])
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


def test_excluding_at_proposal_time_needs_no_new_scores(campaign: Campaign) -> None:
    campaign.run()
    edit_clusters(campaign, included=False)
    again = Campaign(campaign.root, campaign.source_root)
    again.run("gather", "propose")
    assert all(row.cluster != 1 for row in again.workspace.proposals())


def test_answered_and_faulty_leave_the_queue(campaign: Campaign) -> None:
    campaign.run()
    first, second = campaign.workspace.proposals()[:2]
    job = ProposeJob(
        campaign.workspace,
        campaign.job("gather").shards(),
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


def test_a_cluster_included_after_scoring_asks_for_new_scores(campaign: Campaign) -> None:
    campaign.run("embed", "cluster", "segment")
    edit_clusters(campaign, included=False)
    Campaign(campaign.root, campaign.source_root).run("score", "gather", "propose")
    edit_clusters(campaign, included=True)
    with pytest.raises(InputError, match=r"cluster 1 had not been included .*: haystack score"):
        Campaign(campaign.root, campaign.source_root).run("gather", "propose")
    again = Campaign(campaign.root, campaign.source_root)
    again.run("score", "gather", "propose")
    assert any(row.cluster == 1 for row in again.workspace.proposals())


def test_fewer_clusters_than_were_scored_ask_for_new_scores(campaign: Campaign) -> None:
    campaign.run()
    fewer = Campaign(campaign.root, campaign.source_root, ("cluster.k=2",))
    fewer.run("cluster")
    with pytest.raises(InputError, match="'score' was made from an earlier 'cluster'"):
        fewer.run("gather", "propose")


def test_only_full_groups_with_nothing_left_are_exhausted(campaign: Campaign) -> None:
    campaign.run()
    sizes: dict[tuple[int, int], int] = {}
    for shard in campaign.source.shards():
        rows = campaign.workspace.candidates(shard)
        for group in zip(rows.cluster.tolist(), rows.predicate.tolist(), strict=True):
            sizes[group] = sizes.get(group, 0) + 1
    full = {group for group, size in sizes.items() if size >= 7}
    assert full
    assert full < set(sizes)
    images = [g.image_id for g in campaign.dataset.graphs]
    pairs = [(image, s, o) for image in images for s in range(4) for o in range(4) if s != o]
    campaign.answered = [(*pair, -1) for pair in pairs]
    campaign.run("gather", "propose")
    manifest = read_manifest(campaign.root, "propose", "all")
    expected = [[*group, 7] for group in sorted(full)]
    assert manifest.notes["exhausted"] == expected
    assert manifest.counts["exhausted_groups"] == len(expected)
    campaign.answered = [(*pair, -1) for pair in pairs[12:]]  # one image is left
    campaign.run("gather", "propose")
    left = {(row.cluster, row.predicate) for row in campaign.workspace.proposals()}
    assert left
    notes = read_manifest(campaign.root, "propose", "all").notes
    assert {tuple(row[:2]) for row in notes["exhausted"]} == full - left


class Opposed(FakeRelationModel):
    """Sees everything the other way round."""

    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        return [replace(answer, logits=-answer.logits) for answer in super().predict(scenes)]


def test_a_second_opinion_is_averaged_and_both_are_recorded(campaign: Campaign) -> None:
    campaign.run()
    before = campaign.workspace.proposals()
    assert {row.second_rank for row in before} == {None}
    campaign.second = ScoringModel("opposed", "opposed", Opposed)
    assert campaign.run("score")["score"].done == 3  # type: ignore[attr-defined]
    campaign.run("gather", "propose")
    rows = campaign.workspace.proposals()
    assert rows != before
    for group in {(row.predicate, row.cluster) for row in rows}:
        means = [r.model_rank + r.second_rank for r in rows if (r.predicate, r.cluster) == group]
        assert means == sorted(means)
    assert max(max(row.model_rank, row.second_rank) for row in rows) <= 7 + 1
    notes = read_manifest(campaign.root, "propose", "all").notes
    assert [model["name"] for model in notes["models"]] == ["fake", "opposed"]


def test_the_origin_of_a_proposal_names_models_ranks_and_scores(campaign: Campaign) -> None:
    campaign.run()
    row = replace(campaign.workspace.proposals()[0], cluster=4, score=2.34567, model_rank=3)
    assert row.origin(["a"]) == "cluster 4: a rank 3 (score 2.35)"
    both = replace(row, second_score=-1.0, second_rank=1)
    assert both.origin(["a", "b"]) == "cluster 4: a rank 3 (score 2.35), b rank 1 (score -1)"


def test_shards_of_different_models_are_not_merged(campaign: Campaign) -> None:
    campaign.run("embed", "cluster", "segment", "score")
    path = campaign.root / "score" / f"{campaign.source.shards()[1]}.manifest.json"
    content = json.loads(path.read_text())
    content["notes"]["models"][0]["hash"] = "another"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"scored by different models.*: haystack score"):
        campaign.run("gather")
