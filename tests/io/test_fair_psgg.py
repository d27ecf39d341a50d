from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from haystack.errors import InputError
from haystack.io.fair_psgg import read_fair_psgg
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("person", "dog"), ("sky",), ("on", "beside", "eating"))


def entry(number=0, **changes):
    generator = np.random.default_rng(number)
    content = {
        "img_id": str(number),
        "bboxes": (generator.random((3, 4)) * 4).astype(np.float32),
        "mask": np.array([[0, 0, -1, 2], [0, -1, -1, 2]]),
        "box_label": np.array([0, 2, 1]),
        "pairs": np.array([[2, 0], [0, 1]]),
        "rel_scores": generator.random((2, 4)).astype(np.float32),
        "rel_rank": generator.random(2),
    }
    return {**content, **changes}


def write(path, entries, protocol=4):
    path.write_bytes(pickle.dumps(entries, protocol=protocol))
    return path


def one(tmp_path, **changes):
    (image,) = read_fair_psgg(write(tmp_path / "p.pkl", [entry(**changes)]), VOCABULARY)
    return image


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_entries_are_read(tmp_path, protocol):
    entries = [entry(0), entry(1, img_id=17, rel_rank=None), entry(2, img_id=np.int64(5))]
    images = read_fair_psgg(write(tmp_path / "p.pkl", entries, protocol), VOCABULARY)
    assert len(images) == 3
    for _ in range(2):
        found = list(images)
        assert [image.image_id for image in found] == ["0", "17", "5"]
        for image, wanted in zip(found, entries, strict=True):
            np.testing.assert_array_equal(image.pairs, wanted["pairs"])
            np.testing.assert_array_equal(image.scores, wanted["rel_scores"][:, 1:])
            np.testing.assert_array_equal(image.no_relation, wanted["rel_scores"][:, 0])
            np.testing.assert_array_equal(image.objects.labels, wanted["box_label"])
            np.testing.assert_array_equal(image.objects.boxes, wanted["bboxes"])
            np.testing.assert_array_equal(image.objects.masks.id_map(), wanted["mask"])
            assert image.objects.masks.areas.tolist() == [3, 0, 2]
            assert image.objects.scores is None
        np.testing.assert_array_equal(
            found[0].pair_ranking, entries[0]["rel_rank"].astype(np.float32)
        )
        assert found[1].pair_ranking.tolist() == [0, -1]  # the order of the rows


def test_boxes_with_a_score_and_without_boxes_or_masks(tmp_path):
    boxes = np.arange(15.0).reshape(3, 5)
    objects = one(tmp_path, bboxes=boxes).objects
    assert objects.boxes.tolist() == boxes[:, :4].tolist()
    assert objects.scores.tolist() == boxes[:, 4].tolist()
    assert one(tmp_path, bboxes=None).objects.boxes is None
    assert one(tmp_path, mask=None).objects.masks is None


def test_no_pairs(tmp_path):
    image = one(tmp_path, pairs=np.zeros((0, 2)), rel_scores=np.zeros((0, 4)), rel_rank=np.zeros(0))
    assert image.pairs.shape == (0, 2)
    assert image.pairs.dtype == np.int64
    assert image.scores.shape == (0, 3)


def test_a_pair_given_again(tmp_path):
    scores = np.arange(12.0).reshape(3, 4)
    changes = {"pairs": [[2, 0], [0, 1], [2, 0]], "rel_scores": scores, "rel_rank": [1, 2, 3]}
    path = write(tmp_path / "p.pkl", [entry(**changes)])
    with pytest.raises(InputError, match=r"image 0: the pair \(2, 0\) is given twice"):
        list(read_fair_psgg(path, VOCABULARY))
    (first,) = read_fair_psgg(path, VOCABULARY, repeated_pairs="first")
    assert first.pairs.tolist() == [[2, 0], [0, 1]]
    assert first.pair_ranking.tolist() == [1, 2]
    assert first.no_relation.tolist() == [0, 4]
    (kept,) = read_fair_psgg(path, VOCABULARY, repeated_pairs="keep")
    assert kept.pair_ranking.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": np.array([[3, 0]])}, "expected an id map of numbers 0..2, or -1 for none, got 3"),
        ({"mask": np.array([[-2, 0]])}, "expected an id map of numbers 0..2, or -1 for none, got "),
        ({"mask": np.ones((3, 2, 2), dtype=bool)}, r"integers \[H, W\] under 'mask'"),
        ({"mask": [[0]]}, r"integers \[H, W\] under 'mask'"),
        ({"box_label": np.array([0, 3, 1])}, "object classes 0..2, got 3 for object 1"),
        ({"box_label": None}, "under 'box_label', got none"),
        ({"bboxes": np.ones((2, 4))}, "expected 3 boxes, one an object, got 2"),
        ({"bboxes": np.ones((3, 4, 1))}, "under 'boxes'"),
        ({"bboxes": 3}, "under 'boxes', got a value of type int"),
        ({"pairs": np.array([[0, 3], [1, 0]])}, "expected objects 0..2, got 3 in row 0"),
        ({"pairs": np.array([[0.0, 1.0], [1.0, 0.0]])}, r"integers \[N, 2\] under 'pairs'"),
        ({"pairs": [[0, 1], [2]]}, "under 'pairs', got uneven rows"),
        ({"pairs": [[0, 2**70], [0, 1]]}, "under 'pairs', got"),
        ({"rel_scores": np.ones((2, 3))}, r"numbers \[N, 4\] under 'rel_scores', got \[2, 3\]"),
        ({"rel_scores": np.ones((3, 4))}, "scores for 2 pairs, one row a pair, got 3 rows"),
        ({"rel_scores": np.full((2, 4), np.nan)}, "finite numbers under 'rel_scores', got nan"),
        ({"rel_scores": np.full((2, 4), "1")}, "refused an array of type"),
        ({"rel_rank": np.ones(3)}, "scores for 2 pairs, one row a pair, got 3 rows"),
        ({"rel_rank": np.array([1, np.nan])}, r"finite numbers under 'rel_rank', got nan at \[1\]"),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path, changes, message):
    with pytest.raises(InputError, match=rf"p\.pkl, (image|entry) 0: .*{message}") as caught:
        one(tmp_path, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"img_id": "1"}], "entry 0: expected a dict with the keys .*, got none called 'box_lab"),
        ([3], "entry 0: expected a dict with the keys img_id, .*, got int"),
        ([entry(img_id=None)], "entry 0: expected an image id as text or integer, got None"),
        ([entry(img_id=1.5)], "entry 0: expected an image id as text or integer, got 1.5"),
        ({"img_id": "1"}, "expected a pickled list"),
    ],
)
def test_other_pickles_are_errors(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        list(read_fair_psgg(write(tmp_path / "p.pkl", content), VOCABULARY))


def test_nothing_is_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trace"),)

    with pytest.raises(InputError, match="refused the global"):
        one(tmp_path, rel_rank=Evil())
    assert not (tmp_path / "trace").exists()
