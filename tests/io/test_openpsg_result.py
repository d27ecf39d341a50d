from __future__ import annotations

import os

import numpy as np
import pytest
from openpsg_pickles import Result, write_results

from haystack.errors import InputError
from haystack.evaluation import evaluate
from haystack.io.openpsg_result import OpenPsgResult, read_openpsg_result
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("person", "dog"), ("sky",), ("on", "beside", "eating"))


def graph(image_id, relations=((0, 1, 0),), negatives=()):
    segments = tuple(Segment(i + 1, i % 3, 4, (0, 0, 2, 2)) for i in range(3))
    return SceneGraph(
        image_id,
        4,
        5,
        f"{image_id}.jpg",
        segments=segments,
        relations=as_triplets(relations),
        neg_relations=as_triplets(negatives),
    )


def dataset(*graphs, test=None):
    ids = [g.image_id for g in graphs] if test is None else test
    return SceneGraphDataset(VOCABULARY, graphs, test_image_ids=tuple(ids))


def result(number=0, **changes):
    generator = np.random.default_rng(number)
    scores = generator.random((3, 4)).astype(np.float32)
    masks = np.zeros((3, 4, 5), dtype=bool)
    masks[0, 0], masks[1, 1], masks[2, 2:, :3] = True, True, True
    attributes = {
        "refine_bboxes": (generator.random((3, 5)) * 4).astype(np.float32),
        "labels": np.array([1, 3, 2]),
        "masks": masks,
        "rel_pair_idxes": np.array([[2, 0], [0, 1], [1, 2]]),
        "rel_dists": scores / scores.sum(1, keepdims=True),
        "formatted_bboxes": [np.zeros((0, 5), dtype=np.float32)] * 3,
        "img_shape": (4, 5, 3),
        "pan_results": None,
    }
    return Result(**{**attributes, **changes})


def nothing_found():
    import torch

    return Result(refine_bboxes=None, labels=[torch.zeros(0, dtype=torch.int64)], bboxes=[])


def one(tmp_path, **changes):
    """The only image of a result."""
    (image,) = read_openpsg_result(
        write_results(tmp_path / "r.pkl", [result(**changes)]), dataset(graph("7"))
    )
    return image


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_results_are_read_in_the_order_of_the_test_split(tmp_path, protocol):
    graphs = [graph("9"), graph("2"), graph("empty", ()), graph("5"), graph("train")]
    results = [result(1), result(2), nothing_found()]
    path = write_results(tmp_path / "r.pkl", results, protocol)
    images = read_openpsg_result(path, dataset(*graphs, test=["5", "2", "9", "empty"]))
    assert len(images) == 3
    assert not images.from_logits
    for _ in range(2):
        first, second, none = images
        assert [first.image_id, second.image_id, none.image_id] == ["9", "2", "5"]
        for image, wanted in ((first, results[0]), (second, results[1])):
            np.testing.assert_array_equal(image.pairs, wanted.rel_pair_idxes)
            np.testing.assert_array_equal(image.scores, wanted.rel_dists[:, 1:])
            np.testing.assert_array_equal(image.no_relation, wanted.rel_dists[:, 0])
            assert image.objects.labels.tolist() == [0, 2, 1]
            np.testing.assert_array_equal(image.objects.boxes, wanted.refine_bboxes[:, :4])
            np.testing.assert_array_equal(image.objects.scores, wanted.refine_bboxes[:, 4])
            np.testing.assert_array_equal(image.objects.masks.dense(), wanted.masks)
            assert image.scores.dtype == image.objects.boxes.dtype == np.float32
        assert none.pairs.shape == (0, 2)
        assert none.scores.shape == (0, 3)
        assert len(none.objects) == 0


def test_masks_may_overlap_or_be_absent(tmp_path):
    masks = np.ones((3, 4, 5), dtype=bool)
    assert one(tmp_path, masks=masks).objects.masks.id_map() is None
    np.testing.assert_array_equal(one(tmp_path, masks=list(masks)).objects.masks.dense(), masks)
    assert one(tmp_path).objects.masks.id_map() is not None
    assert one(tmp_path, masks=None).objects.masks is None


def test_no_objects_and_a_lonely_object(tmp_path):
    image = one(
        tmp_path,
        refine_bboxes=np.zeros((0, 5)),
        labels=np.zeros(0),
        masks=np.zeros((0, 4, 5)),
        rel_pair_idxes=np.zeros((0,)),
        rel_dists=np.zeros((0, 0)),
    )
    assert image.scores.shape == (0, 3)
    image = one(
        tmp_path,
        refine_bboxes=np.ones((1, 5)),
        labels=np.array([1]),
        masks=np.ones((1, 4, 5), dtype=bool),
        rel_pair_idxes=np.array([[0, 0]]),
        rel_dists=np.full((1, 4), 0.25),
    )
    assert image.pairs.tolist() == [[0, 0]]


def test_a_minus_one_keeps_a_record_as_upstream(tmp_path):
    graphs = [graph("1"), graph("2", (), [(0, 1, -1)]), graph("3", (), [(0, 1, 2)])]

    def ids(count):
        path = write_results(tmp_path / "r.pkl", [result(i) for i in range(count)])
        return [image.image_id for image in OpenPsgResult(path, dataset(*graphs))]

    assert ids(1) == ["1"]
    assert ids(2) == ["1", "2"]
    assert ids(3) == ["1", "2", "3"]
    with pytest.raises(
        InputError,
        match=r"\(1 with relations, 2 with relations or a -1, 3 in all\), got 4 results; give",
    ):
        ids(4)


def test_without_a_test_split_all_images_count(tmp_path):
    path = write_results(tmp_path / "r.pkl", [result(0), result(1)])
    images = read_openpsg_result(path, dataset(graph("1"), graph("2"), test=()))
    assert [image.image_id for image in images] == ["1", "2"]


def test_logits_are_told_from_probabilities(tmp_path):
    logits = np.array([[1.0, -3.0, 0.5, 2.0]] * 3)
    path = write_results(tmp_path / "r.pkl", [nothing_found(), result(rel_dists=logits), result(1)])
    images = read_openpsg_result(path, dataset(graph("1"), graph("2"), graph("3")))
    assert images.from_logits
    assert len(list(images)) == 3
    write_results(path, [result(1), result(rel_dists=logits)])
    images = read_openpsg_result(path, dataset(graph("1"), graph("2")))
    assert not images.from_logits
    with pytest.raises(InputError, match=r"image 2: expected probabilities under 'rel_dists'"):
        list(images)


def test_a_pair_given_again(tmp_path):
    pairs = np.array([[2, 0], [0, 1], [2, 0]])
    path = write_results(tmp_path / "r.pkl", [result(rel_pair_idxes=pairs)])
    data = dataset(graph("7"))
    with pytest.raises(
        InputError, match=r"image 7: the pair \(2, 0\) is given twice, the second time in row 2"
    ):
        list(read_openpsg_result(path, data))
    (first,) = read_openpsg_result(path, data, repeated_pairs="first")
    assert first.pairs.tolist() == [[2, 0], [0, 1]]
    assert first.scores.shape == (2, 3)
    (kept,) = read_openpsg_result(path, data, repeated_pairs="keep")
    assert kept.pairs.tolist() == pairs.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([1, 4, 2])}, r"expected object classes 0..2, got 3 for object 1"),
        ({"labels": np.array([1, 0, 2])}, "expected object classes 0..2, got -1 for object 1"),
        ({"labels": np.array([1, 2])}, "expected 2 boxes, one an object, got 3"),
        ({"labels": np.array([1.0, 2.0, 3.0])}, r"integers \[N\] under 'labels', got \[3\] of fl"),
        ({"labels": None}, r"integers \[N\] under 'labels', got none"),
        ({"refine_bboxes": np.ones((3, 6))}, r"numbers \[N, 4\] under 'boxes', got \[3, 6\]"),
        ({"refine_bboxes": np.full((3, 5), np.nan)}, r"finite numbers under 'boxes', got nan"),
        ({"rel_pair_idxes": np.array([[0, 1], [1, 3], [2, 0]])}, "objects 0..2, got 3 in row 1"),
        ({"rel_pair_idxes": np.array([[0, 1], [-1, 2], [2, 0]])}, "objects 0..2, got -1 in row 1"),
        ({"rel_pair_idxes": np.array([[0, 1]])}, "scores for 1 pairs, one row a pair, got 3 rows"),
        ({"rel_pair_idxes": None}, r"integers \[N, 2\] under 'rel_pair_idxes', got none"),
        ({"rel_dists": np.ones((3, 3))}, r"numbers \[N, 4\] under 'rel_dists', got \[3, 3\]"),
        ({"rel_dists": np.full((3, 4), np.inf)}, r"finite numbers under 'rel_dists', got inf at"),
        ({"masks": np.ones((2, 4, 5), dtype=bool)}, "expected 3 masks, one an object, got 2"),
        ({"masks": np.ones((3, 4), dtype=bool)}, r"booleans \[N, H, W\] under 'masks'"),
        ({"masks": [np.ones((4, 5), bool), np.ones((4, 4), bool)]}, "4 x 5 pixels, got 4 x 4"),
        ({"masks": np.ones((3, 4, 5))}, r"booleans \[N, H, W\] under 'masks'"),
        ({"masks": "all"}, r"booleans \[N, H, W\] under 'masks'"),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path, changes, message):
    with pytest.raises(InputError, match=rf"r\.pkl, image 7: .*{message}"):
        one(tmp_path, **changes)


def test_other_pickles_are_errors(tmp_path):
    path = write_results(tmp_path / "r.pkl", [{"img_id": "1"}])
    with pytest.raises(InputError, match="image 7: expected a Result, got a value of type dict"):
        read_openpsg_result(path, dataset(graph("7")))

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trace"),)

    with pytest.raises(InputError, match="refused the global"):
        one(tmp_path, labels=Evil())
    assert not (tmp_path / "trace").exists()


def test_the_order_of_rows_is_the_rank_whatever_the_scores(tmp_path):
    image = one(tmp_path)
    assert image.pair_ranking.tolist() == [0, -1, -2]
    data = dataset(graph("7", ((2, 0, 1),)))
    found = {}
    for name, order in (("first", [0, 1, 2]), ("last", [1, 2, 0])):
        rows = result()
        scores = np.full((3, 4), 0.05, np.float32)
        scores[0] = 0.1, 0.2, 0.6, 0.1  # (2, 0): the annotated triplet, with the best score
        rows.rel_dists, rows.rel_pair_idxes = scores[order], rows.rel_pair_idxes[order]
        rows.labels, rows.masks = np.array([1, 2, 3]), None
        rows.refine_bboxes = np.array([[0, 0, 2, 2, 1]] * 3, np.float32)
        path = write_results(tmp_path / f"{name}.pkl", [rows])
        found[name] = evaluate(data, path, protocol="openpsg", ks=(1, 3)).metrics
    assert (found["first"]["R@1"], found["last"]["R@1"]) == (1.0, 0.0)
    assert found["last"]["R@3"] == 1.0
