"""The frequency baseline and the overlap filter, against counting by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from haystack.errors import InputError
from haystack.io import read_psg
from haystack.models.relation.files import (
    load_relation_model,
    load_relation_network,
    save_relation_model,
)
from haystack.models.relation.frequency import FrequencyModel, count_predicates
from haystack.models.relation.inputs import RelationLogits, SceneInput, all_pairs
from haystack.models.relation.overlap import OverlapFilter, overlapping
from haystack.models.relation.predict import read_scene, relation_scores
from haystack.models.relation.protocol import RelationModel
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.training.frequency import FrequencyConfig, count_model
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("person", "dog"), ("grass",), ("on", "beside"))


def graph(labels, relations, boxes=None, image_id="a"):
    boxes = boxes or [(0, 0, 4, 4)] * len(labels)
    segments = tuple(
        Segment(i + 1, label, 16, box)
        for i, (label, box) in enumerate(zip(labels, boxes, strict=True))
    )
    return SceneGraph(image_id, 8, 8, "a.jpg", None, segments, as_triplets(relations))


def scene_of(labels, boxes=None, id_map=None):
    count = len(labels)
    boxes = np.array(boxes or [(0, 0, 4, 4)] * count, np.float32).reshape(-1, 4)
    return SceneInput("a", 8, 8, np.array(labels, np.int64), boxes, id_map, np.arange(1, count + 1))


def test_counts_by_hand():
    graphs = [
        # person 0 on grass 2 twice in the file, and beside dog 1 as well as on it.
        graph([0, 1, 2], [(0, 2, 0), (0, 2, 0), (0, 1, 0), (0, 1, 1)]),
        graph([0, 2], [(0, 1, 0)], image_id="b"),
    ]
    counts = count_predicates(graphs, VOCABULARY)
    assert counts[0, 2].tolist() == [0, 2, 0]
    assert counts[0, 1].tolist() == [0, 1, 1]
    assert counts[2, 0].tolist() == [2, 0, 0]
    assert counts[1, 0].tolist() == counts[1, 2].tolist() == [1, 0, 0]
    assert counts.sum() == 2 + 2 + 2 + 1 + 1 + 1
    without = count_predicates(graphs, VOCABULARY, faulty={"a": [1]})
    assert without[1].sum() == without[2, 1].sum() == 0
    assert without[0, 1].tolist() == [0, 1, 1]


def test_counts_of_psg_mini_are_those_of_a_plain_loop():
    dataset = read_psg("psg-mini")
    counts = count_predicates(dataset.graphs, dataset.vocabulary)
    expected = Counter()
    for one in dataset.graphs:
        labels = one.labels.tolist()
        related = set()
        for subject, target, predicate in {tuple(row) for row in one.relations.tolist()}:
            expected[labels[subject], labels[target], predicate + 1] += 1
            related.add((subject, target))
        for i in range(len(labels)):
            for j in range(len(labels)):
                if i != j and (i, j) not in related:
                    expected[labels[i], labels[j], 0] += 1
    assert counts.sum() == sum(expected.values())
    assert all(counts[place] == number for place, number in expected.items())


def test_logits_are_the_log_of_shares():
    counts = np.zeros((3, 3, 3), np.int32)
    counts[0, 2] = 1, 6, 2
    model = FrequencyModel(counts, VOCABULARY, epsilon=1e-3)
    assert isinstance(model, RelationModel)
    (answer,) = model.predict([scene_of([0, 2])])
    np.testing.assert_array_equal(answer.pairs, [(0, 1), (1, 0)])
    np.testing.assert_allclose(np.exp(answer.logits[0]) - 1e-3, [0.6, 0.2], atol=1e-6)
    np.testing.assert_allclose(np.exp(answer.no_relation[0]) - 1e-3, 0.2, atol=1e-6)
    # Grass and person in this order were never seen: most likely not related.
    np.testing.assert_allclose(np.exp(answer.no_relation[1]), 1.001, atol=1e-6)
    assert (answer.logits[1] < -6).all()


def test_few_objects_and_unknown_classes():
    model = FrequencyModel(np.zeros((3, 3, 3), np.int32), VOCABULARY)
    for count in (0, 1):
        (answer,) = model.predict([scene_of([0] * count)])
        assert answer.logits.shape == (0, 2)
    with pytest.raises(InputError, match=r"a: expected object classes below 3, got 7"):
        model.predict([scene_of([0, 7])])
    with pytest.raises(InputError, match=r"counts of shape \[3, 3, 3\], got \[2, 3, 3\]"):
        FrequencyModel(np.zeros((2, 3, 3), np.int32), VOCABULARY)
    with pytest.raises(InputError, match="positive epsilon"):
        FrequencyModel(np.zeros((3, 3, 3), np.int32), VOCABULARY, epsilon=0)


def test_boxes_overlap_where_they_share_pixels():
    boxes = [(0, 0, 4, 4), (4, 0, 6, 4), (3, 3, 8, 8)]
    meets = overlapping(scene_of([0, 0, 0], boxes), "boxes")
    assert meets.tolist() == [[1, 0, 1], [0, 1, 1], [1, 1, 1]]


def test_masks_overlap_where_they_touch_or_a_seam_is_between():
    id_map = np.zeros((8, 8), np.int32)
    id_map[:, 0] = 1
    id_map[:, 2] = 2  # one pixel of void between: reached
    id_map[:, 7] = 3
    meets = overlapping(scene_of([0, 0, 0], id_map=id_map), "masks")
    assert meets[0, 1]
    assert meets[1, 0]
    assert not meets[2, :2].any()
    # Without masks, boxes stand for them.
    assert overlapping(scene_of([0, 0]), "masks").all()


class Fixed:
    reads_images = False
    num_predicates = 2

    def __init__(self, logits, none):
        self.logits, self.none = np.array(logits, np.float32), none

    def predict(self, scenes):
        none = None if self.none is None else np.array(self.none, np.float32)
        return [RelationLogits(scene.image_id, all_pairs(2), self.logits, none) for scene in scenes]


@pytest.mark.parametrize("none", [[0.5, 0.5], None])
@pytest.mark.parametrize("apart", [True, False])
def test_the_filter_moves_only_pairs_apart(none, apart):
    model = Fixed([[3, 1], [-2, 9]], none)
    boxes = [(0, 0, 2, 2), (5, 5, 8, 8)] if apart else None
    scene = scene_of([0, 1], boxes)
    before = relation_scores(model.predict([scene])[0])
    after = relation_scores(OverlapFilter(model, "boxes").predict([scene])[0])
    if apart:
        assert (after.scores < 1e-15).all()
        assert (after.scores > 0).all()
        np.testing.assert_allclose(after.no_relation, 1)
        # Their order stays, so that ties do not decide.
        order = [x.scores.ravel().argsort().tolist() for x in (before, after)]
        assert none is None or order[0] == order[1]
    else:
        np.testing.assert_allclose(after.scores, before.scores, rtol=1e-6)


@pytest.mark.parametrize("overlap", ["none", "boxes", "masks"])
def test_counted_models_are_files_like_others(tmp_path, overlap):
    dataset = read_psg("psg-mini")
    config = FrequencyConfig(overlap=overlap)
    for name in ("a", "b"):
        model = count_model(config, dataset, tmp_path / name)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]
    loaded = load_relation_model(tmp_path / "a" / "model.safetensors")
    assert isinstance(loaded, FrequencyModel if overlap == "none" else OverlapFilter)
    scene = read_scene(dataset, dataset.split("test")[0])
    one, other = model.predict([scene])[0], loaded.predict([scene])[0]
    np.testing.assert_array_equal(one.logits, other.logits)
    np.testing.assert_array_equal(one.no_relation, other.no_relation)
    with pytest.raises(InputError, match="frequency baseline; count again"):
        load_relation_network(tmp_path / "a" / "model.safetensors")


def test_a_filter_around_ones_own_model_is_no_file(tmp_path):
    with pytest.raises(InputError, match="a model of one's own is named by its class"):
        save_relation_model(OverlapFilter(Fixed([[0, 0]], None)), tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"overlap": "near"}, "overlap to be one of none, boxes, masks"),
        ({"split": "all of it"}, "split to be one of"),
        ({"epsilon": 0.0}, "positive epsilon"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises(InputError, match=words):
        FrequencyConfig(**settings)


def test_an_empty_split_is_refused():
    empty = SceneGraphDataset(VOCABULARY, (graph([0, 1], []),), test_image_ids=("a",))
    with pytest.raises(InputError, match="the split 'train' has no image"):
        count_model(FrequencyConfig(), empty)
