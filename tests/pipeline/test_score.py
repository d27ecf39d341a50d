from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from pipeline_campaign import FakeRelationModel
from scipy.special import log_softmax, logsumexp

from haystack.errors import HaystackError, InputError
from haystack.models.relation.inputs import RelationLogits, SceneInput, all_pairs
from haystack.pipeline.candidates import Candidates
from haystack.pipeline.score import (
    PlausibleTriplets,
    SceneInCluster,
    log_ratio,
    score_images,
)
from haystack.pipeline.top_candidates import TopCandidates
from haystack.scene_graph import SceneGraph, Segment, as_triplets
from haystack.statistics import TripletStatistics

EVERYTHING = PlausibleTriplets(np.ones((3, 4), dtype=bool), np.ones((3, 4), dtype=bool))


def scene(image_id: str, labels: Sequence[int]) -> SceneInput:
    count = len(labels)
    return SceneInput(
        image_id=image_id,
        height=10,
        width=10,
        labels=np.array(labels, dtype=np.int64),
        boxes=np.tile(np.array([0, 0, 5, 5], dtype=np.float32), (count, 1)),
        id_map=None,
        segment_ids=np.arange(1, count + 1),
    )


def score(
    scenes: Sequence[SceneInput],
    model: object,
    plausible: PlausibleTriplets = EVERYTHING,
    *,
    batch_size: int = 8,
    known: Mapping[str, dict[str, object]] | None = None,
) -> tuple[Candidates, object]:
    best = TopCandidates(1, model.num_predicates, 1000)  # type: ignore[attr-defined]
    images = [
        SceneInCluster(f"{s.image_id}.jpg", 0, s, **(known or {}).get(s.image_id, {}))  # type: ignore[arg-type]
        for s in scenes
    ]
    counts = score_images(images, model, plausible, best, batch_size=batch_size)  # type: ignore[arg-type]
    return best.result(), counts


def test_log_ratio_is_the_logit_difference() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [800.0, 799.0, -1e30]])
    found = log_ratio(logits, torch.tensor([-1e4, 3.0]))
    assert found.tolist() == [[2e4, 0, 1e4], [797, 796, np.float32(-1e30)]]
    assert found.dtype == torch.float32


def test_log_ratio_equals_the_ratio_of_softmax_outputs() -> None:
    random = np.random.default_rng(3)
    logits = random.normal(size=(20, 5)) * 3
    none = random.normal(size=20)
    logs = log_softmax(np.concatenate([logits, none[:, None]], axis=1), axis=1)
    expected = logs[:, :-1] - logs[:, -1:]
    found = log_ratio(torch.from_numpy(logits), torch.from_numpy(none))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_without_no_relation_it_is_the_log_odds_of_the_own_score() -> None:
    random = np.random.default_rng(4)
    logits = np.concatenate(
        [random.normal(size=(20, 5)) * 3, [[700.0, -700, 0, 1, 2], [5.0, 5, 5, 5, 5]]]
    )
    others = [[logsumexp(np.delete(row, predicate)) for predicate in range(5)] for row in logits]
    found = log_ratio(torch.from_numpy(logits), None)
    np.testing.assert_allclose(found, logits - np.array(others), rtol=1e-5, atol=1e-6)
    assert log_ratio(torch.empty((0, 5)), None).shape == (0, 5)
    with pytest.raises(InputError, match="at least two predicates"):
        log_ratio(torch.zeros((2, 1)), None)


def test_every_ordered_pair_of_distinct_segments_is_a_candidate() -> None:
    found, counts = score([scene("a", [0, 1, 2]), scene("b", [1, 1])], FakeRelationModel())
    assert (counts.images, counts.pairs, counts.candidates) == (2, 6 + 2, (6 + 2) * 4)
    keys = found.images["image_key"].to_pylist()
    rows = {
        (keys[i], s, o) for i, s, o in zip(found.image, found.subject, found.object, strict=True)
    }
    assert rows == {("a.jpg", s, o) for s in range(3) for o in range(3) if s != o} | {
        ("b.jpg", 0, 1),
        ("b.jpg", 1, 0),
    }
    assert len(found) == 8 * 4


def test_scores_land_at_their_pair_and_predicate() -> None:
    model = FakeRelationModel()
    (answer,) = model.predict([scene("a", [0, 1, 2])])
    expected = answer.logits - answer.no_relation[:, None]
    found, _ = score([scene("a", [0, 1, 2])], model)
    pairs = {tuple(pair): row for row, pair in enumerate(answer.pairs.tolist())}
    for s, o, p, value in zip(
        found.subject, found.object, found.predicate, found.score, strict=True
    ):
        assert value == expected[pairs[(s, o)], p]


def test_batches_change_nothing() -> None:
    scenes = [scene(letter, [0, 1, 2]) for letter in "abcde"]
    one, _ = score(scenes, FakeRelationModel(), batch_size=1)
    all_at_once, _ = score(scenes, FakeRelationModel(), batch_size=100)
    for name in ("cluster", "predicate", "image", "subject", "object", "score"):
        np.testing.assert_array_equal(getattr(one, name), getattr(all_at_once, name))


def test_filter_wants_both_halves_twice_and_passes_new_combinations() -> None:
    """dog-eating and eating-banana are known, dog-eating-banana is not (the paper's example)."""
    person, dog, banana = 0, 1, 2
    eating, riding = 0, 1

    def graph(number: int, triples: list[tuple[int, int, int]]) -> SceneGraph:
        segments = tuple(Segment(i + 1, i, 1, (0, 0, 1, 1)) for i in range(3))
        return SceneGraph(str(number), 4, 4, "x", segments=segments, relations=as_triplets(triples))

    graphs = [
        graph(1, [(dog, person, eating), (person, banana, eating), (person, dog, riding)]),
        graph(2, [(dog, person, eating), (person, banana, eating)]),
    ]
    rule = PlausibleTriplets.from_statistics(TripletStatistics.from_graphs(graphs, 3, 2))
    mask = rule.mask(np.array([dog, dog, banana, person]), np.array([banana, person, dog, dog]))
    assert mask[:, eating].tolist() == [True, True, False, False]
    assert mask[:, riding].tolist() == [False] * 4, "seen once only"
    lenient = PlausibleTriplets.from_statistics(
        TripletStatistics.from_graphs(graphs, 3, 2), min_count=1
    )
    assert lenient.mask(np.array([person]), np.array([dog]))[0].tolist() == [False, True]
    found, counts = score(
        [scene("a", [dog, banana])],
        FakeRelationModel(2),
        rule,
    )
    assert [(int(s), int(o)) for s, o in zip(found.subject, found.object, strict=True)] == [(0, 1)]
    assert found.predicate.tolist() == [eating]
    assert counts.candidates == 1


def test_faulty_segments_are_never_candidates() -> None:
    found, _ = score(
        [scene("a", [0, 1, 2]), scene("b", [0, 1])],
        FakeRelationModel(),
        known={"a": {"faulty": {1}}, "b": {"faulty": (7,)}},
    )
    keys = found.images["image_key"].to_pylist()
    rows = {
        (keys[i], int(s), int(o))
        for i, s, o in zip(found.image, found.subject, found.object, strict=True)
    }
    assert rows == {("a.jpg", 0, 2), ("a.jpg", 2, 0), ("b.jpg", 0, 1), ("b.jpg", 1, 0)}


def test_answered_questions_are_never_candidates() -> None:
    found, counts = score(
        [scene("a", [0, 1, 2]), scene("b", [0, 1])],
        FakeRelationModel(),
        known={"a": {"answered": [(0, 1, 2), (2, 1, -1), (0, 9, 1)]}},
    )
    keys = found.images["image_key"].to_pylist()
    rows = {
        (keys[i], int(s), int(o), int(p))
        for i, s, o, p in zip(
            found.image, found.subject, found.object, found.predicate, strict=True
        )
    }
    everything = {
        (f"{image}.jpg", s, o, p)
        for image, count in (("a", 3), ("b", 2))
        for s in range(count)
        for o in range(count)
        for p in range(4)
        if s != o
    }
    assert everything - rows == {("a.jpg", 0, 1, 2)} | {("a.jpg", 2, 1, p) for p in range(4)}
    assert rows < everything
    assert counts.candidates == len(rows)  # type: ignore[attr-defined]


def test_images_without_pairs_are_fine() -> None:
    found, counts = score([scene("a", []), scene("b", [1])], FakeRelationModel())
    assert len(found) == 0
    assert (counts.images, counts.pairs) == (2, 0)


def test_a_model_without_no_relation_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="haystack"):
        _, counts = score(
            [scene("a", [0, 1]), scene("b", [0, 1])], FakeRelationModel(no_relation=False)
        )
    assert counts.without_no_relation == 2
    assert len([text for text in caplog.messages if "no 'no relation' output" in text]) == 1


class Misbehaving(FakeRelationModel):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        (answer,) = super().predict(scenes)
        pairs, logits = answer.pairs.copy(), answer.logits.copy()
        if self.kind == "fewer pairs":
            pairs, logits = pairs[1:], logits[1:]
        elif self.kind == "pair twice":
            pairs[1] = pairs[0]
        elif self.kind == "with itself":
            pairs[0] = (1, 1)
        elif self.kind == "out of range":
            pairs[0] = (0, 3)
        elif self.kind == "columns":
            logits = logits[:, 1:]
        elif self.kind == "nan":
            logits[2, 1] = np.nan
        elif self.kind == "infinite":
            logits[2, 1] = np.inf
        else:
            return []
        return [RelationLogits("a", pairs, logits, answer.no_relation[: len(pairs)])]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("fewer pairs", "each of the 6 ordered pairs of 3 segments once"),
        ("pair twice", "ordered pairs of 3 segments once"),
        ("with itself", "ordered pairs of 3 segments once"),
        ("out of range", "ordered pairs of 3 segments once"),
        ("columns", r"logits of shape \[6, 4\], it gave \[6, 3\]"),
        ("nan", "image a: the relation model gave logits that are NaN or infinite"),
        ("infinite", "NaN or infinite"),
        ("no answer", "answered for 0 images of 1"),
    ],
)
def test_bad_answers_of_a_model_are_named(kind: str, message: str) -> None:
    with pytest.raises(HaystackError, match=message):
        score([scene("a", [0, 1, 2])], Misbehaving(kind))


def test_all_pairs_is_what_the_stage_expects() -> None:
    assert all_pairs(3).tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
