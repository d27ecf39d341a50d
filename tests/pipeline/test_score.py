from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from pipeline_campaign import FakeRelationModel
from scipy.special import log_softmax, logsumexp
from torch.utils._python_dispatch import TorchDispatchMode

from haystack.errors import HaystackError, InputError
from haystack.models.relation.inputs import PairLogits, RelationLogits, SceneInput, all_pairs
from haystack.models.relation.overlap import OverlapFilter
from haystack.pipeline.scoring.candidates import Candidates
from haystack.pipeline.scoring.score import (
    PlausibleTriplets,
    SceneInCluster,
    log_ratio,
    score_images,
)
from haystack.pipeline.scoring.top_candidates import TopCandidates
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


class OnDevice(FakeRelationModel):
    """The same answers as tensors, with no rows for images without pairs."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.most = 1 << 30

    def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
        if len(scenes) > self.most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        answers = super().predict(scenes)
        logits = [torch.from_numpy(answer.logits) for answer in answers]
        none = [torch.from_numpy(answer.no_relation) for answer in answers if self.no_relation]
        return PairLogits(torch.cat(logits), torch.cat(none) if none else None)

    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        raise AssertionError("the score stage asks for tensors where it can have them")


SCENES = [scene(letter, [0, 1, 2] * (place % 3)) for place, letter in enumerate("abcdefg")]


def same(one: Candidates, other: Candidates) -> None:
    assert len(one) == len(other) > 0
    assert one.images.equals(other.images)
    for name in ("cluster", "predicate", "image", "subject", "object", "score"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("no_relation", [True, False])
def test_logits_that_stay_on_the_device_give_the_same_candidates(no_relation: bool) -> None:
    known = {"b": {"faulty": {1}, "answered": [(0, 2, 3)]}}
    copied, counts = score(SCENES, FakeRelationModel(no_relation=no_relation), known=known)
    kept, same_counts = score(SCENES, OnDevice(no_relation=no_relation), known=known, batch_size=3)
    same(copied, kept)
    assert counts == same_counts


@pytest.mark.parametrize("no_relation", [True, False])
def test_an_overlap_filter_leaves_logits_on_the_device(no_relation: bool) -> None:
    boxes = np.array([[0, 0, 5, 5], [4, 4, 9, 9], [6, 0, 9, 3]], dtype=np.float32)
    scenes = [replace(s, boxes=np.tile(boxes, (len(s) // 3, 1))) for s in SCENES]
    filtered, _ = score(scenes, OverlapFilter(FakeRelationModel(no_relation=no_relation)))
    kept, _ = score(scenes, OverlapFilter(OnDevice(no_relation=no_relation)))
    same(filtered, kept)
    assert filtered.score.min() < -30, "pairs apart from each other"


def test_the_order_of_a_models_pairs_does_not_matter() -> None:
    class Turned(FakeRelationModel):
        def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
            return [
                replace(
                    a, pairs=a.pairs[::-1], logits=a.logits[::-1], no_relation=a.no_relation[::-1]
                )
                for a in super().predict(scenes)
            ]

    same(score(SCENES, FakeRelationModel())[0], score(SCENES, Turned())[0])


def test_batches_that_do_not_fit_are_halved(caplog: pytest.LogCaptureFixture) -> None:
    model = OnDevice()
    model.most = 2
    with caplog.at_level(logging.WARNING, logger="haystack"):
        halved, counts = score(SCENES, model, batch_size=7)
    same(halved, score(SCENES, FakeRelationModel())[0])
    assert counts.images == 7  # type: ignore[attr-defined]
    assert any("out of memory with 7 images at once" in text for text in caplog.messages)
    model.most = 0
    with pytest.raises(HaystackError, match="a single image does not fit"):
        score(SCENES, model)


def test_batches_have_a_bounded_number_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("haystack.pipeline.scoring.score.MOST_PAIRS", 40)
    seen: list[int] = []

    class Counting(FakeRelationModel):
        def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
            seen.append(sum(len(s) * (len(s) - 1) for s in scenes))
            return super().predict(scenes)

    scenes = [
        scene(letter, [0] * size) for letter, size in zip("abcdef", (4, 6, 3, 9, 2, 2), strict=True)
    ]
    _, counts = score(scenes, Counting(), batch_size=100)
    assert seen == [12, 30 + 6, 72, 2 + 2]
    assert counts.pairs == sum(seen)  # type: ignore[attr-defined]


def test_an_infinite_logit_on_the_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Infinite(OnDevice):
        def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
            answer = super().predict_on_device(scenes)
            answer.logits[-1, 2] = torch.nan
            return answer

    for pairs in (1 << 14, 7):  # the last image lies in one chunk with others, or across several
        monkeypatch.setattr("haystack.pipeline.scoring.score._CHUNK", pairs)
        with pytest.raises(
            InputError, match="image c: the relation model gave logits that are NaN"
        ):
            score(SCENES[:3], Infinite())


@pytest.mark.parametrize("no_relation", [True, False])
def test_gradients_of_a_models_answers_are_dropped(no_relation: bool) -> None:
    """A model of one's own need not say ``no_grad``; known questions are among those asked."""
    seen = []

    class Training(OnDevice):
        def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
            seen.append(torch.is_grad_enabled())
            answer = super().predict_on_device(scenes)
            none = answer.no_relation
            return PairLogits(
                torch.nn.Parameter(answer.logits),
                None if none is None else torch.nn.Parameter(none),
            )

    known: dict[str, dict[str, object]] = {"b": {"answered": [(0, 1, 2)]}}
    found, _ = score(SCENES, Training(no_relation=no_relation), known=known)
    same(found, score(SCENES, OnDevice(no_relation=no_relation), known=known)[0])
    assert not any(seen), "the graph of a whole batch would be kept"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (None, "NoneType"),
        ((torch.zeros(6, 4), torch.zeros(6)), "tuple"),
        (
            PairLogits(np.zeros((6, 4)), None),  # type: ignore[arg-type]
            "PairLogits of ndarray and NoneType",
        ),
    ],
)
def test_answers_that_are_no_tensors_are_named(answer: object, found: str) -> None:
    class Wrong(OnDevice):
        def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
            return answer  # type: ignore[return-value]

    with pytest.raises(
        InputError, match=rf"Wrong: predict_on_device.* of tensors, it returned {found}$"
    ):
        score([scene("a", [0, 1, 2])], Wrong())


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
        ),
    ],
)
def test_lists_that_are_on_the_models_device_already_take_more_in(device: str) -> None:
    class There(OnDevice):
        def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
            answer = super().predict_on_device(scenes)
            assert answer.no_relation is not None
            return PairLogits(answer.logits.to(device), answer.no_relation.to(device))

    model = There()
    best = TopCandidates(1, model.num_predicates, 5, device=device)
    images = [SceneInCluster(f"{s.image_id}.jpg", 0, s) for s in SCENES]
    for part in (images[:3], images[3:]):
        score_images(part, model, EVERYTHING, best)
        best.result()  # which numbers the images anew
    at_once = TopCandidates(1, model.num_predicates, 5)
    score_images(images, OnDevice(), EVERYTHING, at_once)
    same(best.result(), at_once.result())


def test_a_second_model_scores_the_same_pairs() -> None:
    class Other(FakeRelationModel):
        def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
            return [replace(a, logits=-2 * a.logits) for a in super().predict(scenes)]

    best = TopCandidates(1, 4, 1000, opinions=2)
    images = [SceneInCluster(f"{s.image_id}.jpg", 0, s) for s in SCENES]
    score_images(images, OnDevice(), EVERYTHING, best, second=Other(), batch_size=2)
    both = best.result()
    same(replace(both, second_score=None), score(SCENES, FakeRelationModel())[0])
    alone, _ = score(SCENES, Other())
    places = [(c.predicate, c.image, c.subject, c.object) for c in (both, alone)]
    first, second = (np.lexsort(place) for place in places)
    np.testing.assert_array_equal(both.second_score[first], alone.score[second])


@pytest.mark.parametrize("pairs", [1, 5, 12, 1 << 14])
@pytest.mark.parametrize("second", [None, FakeRelationModel(no_relation=False)])
def test_how_many_pairs_are_scored_at_once_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, pairs: int, second: FakeRelationModel | None
) -> None:
    """Against every pair by hand; chunks begin and end in the middle of images."""
    monkeypatch.setattr("haystack.pipeline.scoring.score._CHUNK", pairs)
    scenes = [
        scene(letter, [0, 1, 2, 1, 0][:size])
        for letter, size in zip("abcdef", (3, 0, 1, 5, 2, 4), strict=True)
    ]
    known = {
        "d": {"faulty": {4}, "answered": [(0, 2, 3), (1, 0, -1)]},
        "f": {"answered": [(3, 2, 0)]},
    }
    random = np.random.default_rng(6)
    plausible = PlausibleTriplets(*(random.random((2, 3, 4)) < 0.7))
    models = [FakeRelationModel(), *([second] if second else [])]
    best = TopCandidates(1, 4, 1000, opinions=len(models))
    images = [
        SceneInCluster(f"{s.image_id}.jpg", 0, s, **known.get(s.image_id, {})) for s in scenes
    ]  # type: ignore[arg-type]
    counts = score_images(images, models[0], plausible, best, second=second, batch_size=4)
    expected = {}
    for each in scenes:
        facts = known.get(each.image_id, {})
        answered = set(facts.get("answered", ()))  # type: ignore[call-overload]
        (one, *others) = [model.predict([each])[0] for model in models]
        ratios = [
            log_ratio(
                torch.from_numpy(a.logits),
                None if a.no_relation is None else torch.from_numpy(a.no_relation),
            )
            for a in (one, *others)
        ]
        for row, (s, o) in enumerate(one.pairs.tolist()):
            for p in range(4):
                passes = (
                    plausible.subject[each.labels[s], p] and plausible.object[each.labels[o], p]
                )
                is_known = {(s, o, p), (s, o, -1)} & answered or {s, o} & set(
                    facts.get("faulty", ())
                )  # type: ignore[call-overload]
                if passes and not is_known:
                    expected[f"{each.image_id}.jpg", s, o, p] = [float(r[row, p]) for r in ratios]
    found = best.result()
    keys = found.images["image_key"].to_pylist()
    scores = [found.score] + ([found.second_score] if second else [])
    rows = zip(found.image, found.subject, found.object, found.predicate, *scores, strict=True)
    assert {(keys[i], s, o, p): each for i, s, o, p, *each in rows} == expected
    assert (counts.pairs, counts.candidates) == (3 * 2 + 5 * 4 + 2 + 4 * 3, len(expected))


def test_what_is_allocated_at_once_does_not_grow_with_the_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haystack.pipeline.scoring.score._CHUNK", 64)
    rare = PlausibleTriplets(np.zeros((3, 40), dtype=bool), np.zeros((3, 40), dtype=bool))
    rare.subject[0, 5] = rare.object[1, 5] = True

    class Allocated(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.most = max(self.most, tensor.untyped_storage().nbytes())
            return result

    class Zeros:
        reads_images = False
        num_predicates = 40

        def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
            raise AssertionError("asked for tensors")

        def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
            rows = sum(len(s) * (len(s) - 1) for s in scenes)
            zero = torch.zeros(1)  # stands for what a model would give: no memory of its own
            return PairLogits(zero.expand(rows, 40), zero.expand(rows))

    def most(size: int) -> int:
        with Allocated() as allocated:
            best = TopCandidates(1, 40, 2)
            image = SceneInCluster("a.jpg", 0, scene("a", [0, *[1] * (size - 1)]))
            score_images([image], Zeros(), rare, best)  # type: ignore[arg-type]
        return allocated.most

    assert most(150) == most(15) == 64 * 40 * 4


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
        ("no answer", "one RelationLogits a scene; given 1, it returned a list of 0"),
    ],
)
def test_bad_answers_of_a_model_are_named(kind: str, message: str) -> None:
    with pytest.raises(HaystackError, match=message):
        score([scene("a", [0, 1, 2])], Misbehaving(kind))


def test_all_pairs_is_what_the_stage_expects() -> None:
    assert all_pairs(3).tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]


def test_an_image_that_does_not_fit_alone_is_set_aside() -> None:
    class Narrow(OnDevice):
        def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
            if any(each.image_id == "c" for each in scenes):
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return super().predict_on_device(scenes)

    best = TopCandidates(1, Narrow().num_predicates, 1000)
    aside: list[tuple[str, str]] = []
    counts = score_images(
        [SceneInCluster(f"{each.image_id}.jpg", 0, each) for each in SCENES],
        Narrow(),
        EVERYTHING,
        best,
        set_aside=lambda key, reason: aside.append((key, reason)),
    )
    ((key, reason),) = aside
    assert key == "c.jpg"
    assert reason.startswith("a single image does not fit")
    assert counts.images == len(SCENES) - 1
    same(best.result(), score([each for each in SCENES if each.image_id != "c"], OnDevice())[0])
