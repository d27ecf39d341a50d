from __future__ import annotations

import json
import pickle
import sys
import types
import zipfile

import numpy as np
import pytest

from haystack.errors import InputError
from haystack.evaluation.predictions import READERS, open_predictions
from haystack.io.haystack_npy import write_haystack_npy
from haystack.io.prediction_parquet import write_prediction_parquet
from haystack.scene_graph import (
    RankedTriplets,
    RelationScores,
    SceneGraph,
    SceneGraphDataset,
    Segment,
    as_triplets,
)
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("person", "dog"), ("sky",), ("on", "beside", "eating"))
DATASET = SceneGraphDataset(
    VOCABULARY,
    tuple(
        SceneGraph(
            str(number),
            4,
            4,
            "x.jpg",
            segments=(Segment(1, 0, 1, (0, 0, 1, 1)), Segment(2, 1, 1, (0, 0, 1, 1))),
            relations=as_triplets([(0, 1, 2)]),
        )
        for number in (3, 4)
    ),
)
SCORES = np.array([[0.25, 0.5, 0.125]], dtype=np.float32)
IMAGE = RelationScores("3", np.array([[0, 1]]), SCORES, np.array([0.125], dtype=np.float32))
ROWS = np.array([[0.125, 0.25, 0.5, 0.125]])


def npy(path):
    write_haystack_npy([IMAGE], path)


def parquet(path, kind="probability"):
    write_prediction_parquet([IMAGE], path, VOCABULARY.predicate_classes, score_kind=kind)


def sgbench(path):
    image = {"id": 3, "categories": [0, 1], "bboxes": [[0, 0, 1, 1]] * 2, "triplets": [[0, 1, 1]]}
    path.write_text(json.dumps({"version": 1, "images": [image]}))


def sgbench_zip(path):
    image = {"id": 3, "categories": [], "triplets": []}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("triplets.json", json.dumps({"version": 2, "images": [image]}))


def fair_psgg(path):
    entry = {
        "img_id": "3",
        "box_label": np.array([0, 1]),
        "pairs": np.array([[0, 1], [0, 1]]),
        "rel_scores": np.repeat(ROWS, 2, axis=0),
    }
    path.write_bytes(pickle.dumps([entry]))


class Result:
    __module__ = "openpsg"


def openpsg(path, scores=ROWS):
    result = Result()
    result.__dict__.update(
        refine_bboxes=np.ones((2, 5)),
        labels=np.array([1, 2]),
        rel_pair_idxes=np.array([[0, 1]]),
        rel_dists=scores,
    )
    sys.modules["openpsg"] = types.ModuleType("openpsg")
    sys.modules["openpsg"].Result = Result
    try:
        path.write_bytes(pickle.dumps([result, result], protocol=2))
    finally:
        del sys.modules["openpsg"]


KINDS = {npy: "npy", parquet: "parquet", sgbench: "sgbench", sgbench_zip: "sgbench", openpsg: "pkl"}
NAMES = {
    "p.npy": "npy",
    "p.parquet": "parquet",
    "p.json": "sgbench",
    "p.zip": "sgbench",
    "p.pkl": "pkl",
    "p.PICKLE": "pkl",
    "predictions": "",
    "p.bin": "",
}


def opened(path, **options):
    return open_predictions(path, VOCABULARY, dataset=DATASET, **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("write", KINDS)
def test_the_suffix_and_else_the_content_tells_the_format(tmp_path, name, write):
    path = tmp_path / name
    write(path)
    if NAMES[name] not in ("", KINDS[write]):
        with pytest.raises(InputError, match=rf"{name}: "):
            opened(path)
        return
    source = opened(path)
    assert source.path == path
    assert not source.from_logits
    image = next(iter(source.images))
    assert image.image_id == "3"
    if write in (sgbench, sgbench_zip):
        assert isinstance(image, RankedTriplets)
    else:
        np.testing.assert_array_equal(image.pairs, [[0, 1]])
        np.testing.assert_array_equal(image.scores, SCORES)
        np.testing.assert_array_equal(image.no_relation, [0.125])


def test_pickles_are_told_apart_by_content(tmp_path):
    fair_psgg(tmp_path / "fair.pkl")
    openpsg(tmp_path / "openpsg.pkl")
    source = opened(tmp_path / "fair.pkl", repeated_pairs="first")
    assert [len(image.pairs) for image in source.images] == [1]
    assert [image.image_id for image in opened(tmp_path / "openpsg.pkl").images] == ["3", "4"]
    with pytest.raises(InputError, match=r"fair\.pkl, image 3: .* given twice"):
        list(opened(tmp_path / "fair.pkl").images)
    with pytest.raises(InputError, match=r"openpsg\.pkl: .* open them together with the annot"):
        open_predictions(tmp_path / "openpsg.pkl", VOCABULARY)
    for content, found in (([], "an empty list"), ([1], "a list of int"), ([[]], "a list of list")):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(content))
        with pytest.raises(InputError, match=f"expected OpenPSG's results .*, got {found}"):
            opened(tmp_path / "x.pkl")


def test_logits_are_announced(tmp_path):
    parquet(tmp_path / "p.parquet", "logit")
    openpsg(tmp_path / "p.pkl", ROWS * -9)
    assert opened(tmp_path / "p.parquet").from_logits
    assert opened(tmp_path / "p.pkl").from_logits


def test_where_no_relation_is_in_an_array(tmp_path):
    write_haystack_npy([IMAGE], tmp_path / "p.npy", no_relation="first")
    (image,) = opened(tmp_path / "p.npy", no_relation="first").images
    np.testing.assert_array_equal(image.scores, SCORES)


def test_predictions_in_memory_pass_through():
    images = [IMAGE]
    source = open_predictions(images, VOCABULARY)
    assert source.images is images
    assert source.path is None


def test_other_files_are_errors(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes(b"scores")
    with pytest.raises(
        InputError, match=r"p\.txt: cannot tell the format from the suffix '\.txt' or"
    ) as caught:
        opened(path)
    assert all(suffix in str(caught.value) for suffix in READERS)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="cannot tell the format"):
        opened(path)
    with pytest.raises(InputError, match="there is no such prediction file"):
        opened(str(tmp_path))
    write_prediction_parquet([IMAGE], tmp_path / "p.parquet", ("on", "eating", "beside"))
    with pytest.raises(InputError, match="number 1 is 'eating' there and 'beside' here"):
        opened(tmp_path / "p.parquet")
