from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from haystack.errors import InputError
from haystack.io.prediction_parquet import read_prediction_parquet, write_prediction_parquet
from haystack.scene_graph import MaskRuns, PredictedObjects, RelationScores

PREDICATES = ("on", "beside", "eating")


def images(count=5, none=True):
    generator = np.random.default_rng(0)
    made = []
    for number in range(count):
        pairs = np.array([(s, o) for s in range(number) for o in range(number)], dtype=np.int64)
        pairs = pairs.reshape(-1, 2)
        scores = generator.random((len(pairs), 3), dtype=np.float32)
        extra = generator.random(len(pairs), dtype=np.float32) if none else None
        made.append(RelationScores(f"sa_{number}", pairs, scores, extra))
    return made


def rewrite(path, metadata=None, **columns):
    """The file with other metadata or columns."""
    table = pq.read_table(path)
    for name, values in columns.items():
        position = table.schema.get_field_index(name)
        table = table.set_column(
            position, table.field(name), pa.array(values, table.field(name).type)
        )
    if metadata is not None:
        table = table.replace_schema_metadata(metadata)
    pq.write_table(table, path)


@pytest.mark.parametrize("none", [True, False])
@pytest.mark.parametrize("images_per_group", [1, 2, 64])
def test_written_predictions_are_read_back(tmp_path, none, images_per_group):
    path = tmp_path / "p.parquet"
    before = images(none=none)
    count = write_prediction_parquet(
        iter(before), path, PREDICATES, images_per_group=images_per_group
    )
    assert count == 5
    after = read_prediction_parquet(path)
    assert after.predicate_classes == PREDICATES
    assert after.score_kind == "probability"
    assert len(after) == 5
    for _ in range(2):  # can be read again
        for one, other in zip(before, after, strict=True):
            assert one.image_id == other.image_id
            np.testing.assert_array_equal(one.pairs, other.pairs)
            np.testing.assert_array_equal(one.scores, other.scores)
            assert other.scores.shape == one.scores.shape
            assert other.scores.dtype == np.float32
            assert (other.no_relation is None) == (one.no_relation is None)
            if none:
                np.testing.assert_array_equal(one.no_relation, other.no_relation)


def test_same_predictions_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_prediction_parquet(images(), tmp_path / name, PREDICATES, score_kind="logit")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_prediction_parquet(tmp_path / "a").score_kind == "logit"


def test_no_images(tmp_path):
    write_prediction_parquet([], tmp_path / "p.parquet", PREDICATES)
    assert list(read_prediction_parquet(tmp_path / "p.parquet")) == []


def test_an_error_while_writing_leaves_nothing(tmp_path):
    good, bad = images()[2], images(none=False)[3]
    for broken, message in (
        (RelationScores("x", good.pairs, good.scores[:, :2], good.no_relation), "expected scores"),
        (
            RelationScores("x", good.pairs, good.scores, good.no_relation[:1]),
            "expected no_relation",
        ),
        (bad, "logits need"),
    ):
        with pytest.raises(InputError, match=message):
            write_prediction_parquet(
                [good, broken], tmp_path / "p.parquet", PREDICATES, score_kind="logit"
            )
    with pytest.raises(InputError, match="score_kind"):
        write_prediction_parquet([good], tmp_path / "p.parquet", PREDICATES, score_kind="odds")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["nothing", "version", "kind", "names"])
def test_metadata_that_does_not_fit_is_an_error(tmp_path, change):
    path = tmp_path / "p.parquet"
    write_prediction_parquet(images(), path, PREDICATES)
    content = {"version": 1, "predicate_classes": list(PREDICATES), "score_kind": "probability"}
    changes = {
        "nothing": ({}, "no such metadata"),
        "version": ({**content, "version": 3}, "version 3"),
        "kind": ({**content, "score_kind": "odds"}, "damaged"),
        "names": ({**content, "predicate_classes": "on"}, "damaged"),
    }
    changed, message = changes[change]
    rewrite(path, metadata={"haystack": json.dumps(changed)} if changed else {"other": "1"})
    with pytest.raises(InputError, match=message):
        read_prediction_parquet(path)


def test_a_missing_column_is_an_error(tmp_path):
    path = tmp_path / "p.parquet"
    write_prediction_parquet(images(), path, PREDICATES)
    pq.write_table(pq.read_table(path).drop_columns("pairs"), path)
    with pytest.raises(InputError, match="expected a column 'pairs'"):
        read_prediction_parquet(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"scores": [[0.1, 0.2, 0.3], [0.1]]}, "image sa_2: expected 3 scores"),
        ({"no_relation": [[0.1], [0.1, 0.2]]}, "image sa_2: expected 3 scores and 1"),
        ({"pairs": [[0, 1], [0]]}, "image sa_2: expected an image id, pairs"),
        ({"pairs": [[0, 1], None]}, "image sa_2: expected an image id, pairs"),
        ({"scores": [[0.1, 0.2, 0.3], [0.1, float("nan"), 0.2]]}, "image sa_2: expected finite"),
        ({"no_relation": [None, [float("inf")]]}, "image sa_2: expected finite"),
    ],
)
def test_lists_that_do_not_fit_are_an_error_that_names_the_image(tmp_path, columns, message):
    path = tmp_path / "p.parquet"
    pair, scores, none = np.array([[0, 1]]), np.ones((1, 3), np.float32), np.ones(1, np.float32)
    write_prediction_parquet(
        [RelationScores(i, pair, scores, none) for i in ("sa_1", "sa_2")], path, PREDICATES
    )
    rewrite(path, **columns)
    reader = iter(read_prediction_parquet(path))
    assert next(reader).image_id == "sa_1"
    with pytest.raises(InputError, match=message):
        next(reader)


def test_files_that_are_no_parquet_are_an_error(tmp_path):
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "text.parquet").write_text("hello")
    for name in ("empty.parquet", "text.parquet", "none.parquet"):
        with pytest.raises(InputError, match=f"{name}.*cannot read it as Parquet"):
            read_prediction_parquet(tmp_path / name)


def with_objects(masks=True, scores=True, boxes=True):
    generator = np.random.default_rng(1)
    made = []
    for image in images(4):
        count = len({*image.pairs.ravel().tolist()})
        runs = MaskRuns.from_masks(generator.random((count, 6, 5)) < 0.4, 6, 5) if masks else None
        found = PredictedObjects(
            labels=generator.integers(0, 133, count),
            scores=generator.random(count, dtype=np.float32) if scores else None,
            boxes=generator.random((count, 4), dtype=np.float32) if boxes else None,
            masks=runs,
        )
        made.append(replace(image, objects=found))
    empty = MaskRuns.from_masks(np.zeros((3, 6, 5), dtype=bool), 6, 5)
    nothing_visible = PredictedObjects(np.array([1, 2, 3]), masks=empty if masks else None)
    return [*made, replace(images()[1], image_id="empty", objects=nothing_visible)]


@pytest.mark.parametrize("kept", [{}, {"masks": False}, {"scores": False}, {"boxes": False}])
def test_objects_are_read_back(tmp_path, kept):
    before = [*with_objects(**kept), replace(images()[3], image_id="without objects")]
    write_prediction_parquet(before, tmp_path / "p", PREDICATES)
    for one, other in zip(before, read_prediction_parquet(tmp_path / "p"), strict=True):
        if one.objects is None:
            assert other.objects is None
            continue
        assert other.objects.labels.dtype == np.int64
        for name in ("labels", "scores", "boxes"):
            np.testing.assert_equal(getattr(other.objects, name), getattr(one.objects, name))
        if one.objects.masks is None:
            assert other.objects.masks is None
        else:
            np.testing.assert_array_equal(other.objects.masks.dense(), one.objects.masks.dense())


def test_a_file_of_the_first_version_has_no_objects(tmp_path):
    path = tmp_path / "p"
    write_prediction_parquet(images(), path, PREDICATES)
    content = json.loads(pq.read_schema(path).metadata[b"haystack"])
    table = pq.read_table(path).drop_columns(["objects"])
    pq.write_table(
        table.replace_schema_metadata({b"haystack": json.dumps({**content, "version": 1})}), path
    )
    assert [image.objects for image in read_prediction_parquet(path)] == [None] * 5


@pytest.mark.parametrize(
    "change",
    [
        {"scores": [0.5]},
        {"boxes": [0.0] * 5},
        {"mask_runs": [1, 1]},
        {"runs": [3]},
        {"runs": [0, 31]},
        {"runs": [-1, 3]},
        {"size": [6]},
        {"labels": None},
    ],
)
def test_objects_that_do_not_fit_each_other_are_refused(tmp_path, change):
    good = {
        "labels": [1, 2],
        "scores": [0.5, 0.5],
        "boxes": [0.0] * 8,
        "size": [6, 5],
        "mask_runs": [1, 0],
        "runs": [2, 3],
    }
    path = tmp_path / "p"
    write_prediction_parquet(images()[:1], path, PREDICATES)
    rewrite(path, objects=[good])
    assert len(next(iter(read_prediction_parquet(path))).objects) == 2
    rewrite(path, objects=[{**good, **change}])
    with pytest.raises(InputError, match=r"image sa_0: the lists of its \d objects do not fit"):
        list(read_prediction_parquet(path))
