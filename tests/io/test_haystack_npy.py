from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from haystack.errors import InputError
from haystack.io.haystack_npy import read_haystack_npy, write_haystack_npy
from haystack.scene_graph import RelationScores

ORACLES = Path(__file__).parents[1] / "data" / "haystack"


def save(path, rows, dtype=np.float64):
    np.save(path, np.array(rows, dtype=dtype))
    return path


def row(image, subject, target, *scores):
    return [image, subject, target, *scores]


ROWS = [
    row(7, 0, 1, 0.1, 0.2, 0.3),
    row(3, 1, 0, 0.4, 0.5, 0.6),
    row(7, 1, 0, 0.7, 0.8, 0.9),
    row(3, 0, 0, 0.0, 0.1, 0.2),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_rows_are_grouped_by_image_and_stay_in_order(tmp_path, dtype):
    images = read_haystack_npy(save(tmp_path / "p.npy", ROWS, dtype), 3)
    assert [image.image_id for image in images] == ["3", "7"]
    assert images[0].pairs.tolist() == [[1, 0], [0, 0]]
    assert images[-1].pairs.tolist() == [[0, 1], [1, 0]]
    assert images[1].scores.dtype == np.float32
    np.testing.assert_allclose(images[1].scores, [[0.1, 0.2, 0.3], [0.7, 0.8, 0.9]], rtol=1e-3)
    assert images[0].no_relation is None
    assert [image.image_id for image in images[::-1]] == ["7", "3"]
    with pytest.raises(IndexError):
        images[2]


@pytest.mark.parametrize(("where", "column"), [("last", 3), ("first", 0)])
def test_one_score_more_is_no_relation(tmp_path, where, column):
    scores = [[0.1, 0.2, 0.3, 0.4]]
    path = save(tmp_path / "p.npy", [row(1, 0, 1, *scores[0])])
    (image,) = read_haystack_npy(path, 3, no_relation=where)
    assert image.no_relation.tolist() == pytest.approx([scores[0][column]])
    assert image.scores.tolist() == [pytest.approx(scores[0][:column] + scores[0][column + 1 :])]


def test_the_oracle_file_is_read():
    images = read_haystack_npy(ORACLES / "random.scores.npy")
    assert len(images) == 90
    assert images[1].image_id == "1003"
    assert sum(len(image.pairs) for image in images) == 4482


@pytest.mark.parametrize("columns", [55, 58])
def test_another_number_of_score_columns_is_an_error(tmp_path, columns):
    path = save(tmp_path / "p.npy", np.zeros((2, 3 + columns)))
    with pytest.raises(InputError, match=rf"expected 56 score columns.*got {columns}") as caught:
        read_haystack_npy(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [*ROWS, row(3, 1, 0, 0, 0, 0)],
            r"pair \(1, 0\) of image 3 is given twice, in rows 1 and 4",
        ),
        ([ROWS[0], row(1.5, 0, 1, 0, 0, 0)], r"row 1: expected an image id as an integer.*1\.5"),
        ([ROWS[0], row(np.nan, 0, 1, 0, 0, 0)], "row 1: expected an image id"),
        ([ROWS[0], row(1, -1, 1, 0, 0, 0)], "row 1: expected a subject as an integer"),
        ([ROWS[0], row(1, 0, np.inf, 0, 0, 0)], "row 1: expected an object as an integer"),
    ],
)
def test_bad_rows_are_named(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        read_haystack_npy(save(tmp_path / "p.npy", rows), 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_names_its_row_in_the_file(tmp_path, value):
    rows = [list(r) for r in ROWS]
    rows[2][4] = value
    images = read_haystack_npy(save(tmp_path / "p.npy", rows), 3)
    assert images[0].image_id == "3"
    with pytest.raises(InputError, match=r"row 2: expected finite scores.*column 4"):
        images[1]


def test_float32_ids_beyond_its_exact_range_are_an_error(tmp_path):
    rows = [row(2**24 + 2, 0, 1, 0, 0, 0)]
    with pytest.raises(InputError, match="all that float32 holds exactly"):
        read_haystack_npy(save(tmp_path / "p.npy", rows, np.float32), 3)
    assert read_haystack_npy(save(tmp_path / "q.npy", rows), 3)[0].image_id == str(2**24 + 2)


@pytest.mark.parametrize("array", [np.zeros(5), np.zeros((2, 6), np.int64), np.zeros((1, 2, 6))])
def test_other_arrays_are_an_error(tmp_path, array):
    np.save(tmp_path / "p.npy", array)
    with pytest.raises(InputError, match="expected a two-dimensional floating-point array"):
        read_haystack_npy(tmp_path / "p.npy", 3)


def test_files_that_are_no_array_are_an_error(tmp_path):
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "cut.npy", np.zeros((50, 6)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:500])
    np.save(tmp_path / "objects.npy", np.array([[{}]]), allow_pickle=True)
    np.savez(tmp_path / "archive.npz", a=np.zeros((2, 6)))
    names = ("empty.npy", "text.npy", "cut.npy", "objects.npy", "archive.npz", "none.npy")
    for name in names:
        with pytest.raises(InputError, match=name):
            read_haystack_npy(tmp_path / name, 3)


def test_no_rows_are_no_images(tmp_path):
    np.save(tmp_path / "p.npy", np.zeros((0, 6)))
    assert list(read_haystack_npy(tmp_path / "p.npy", 3)) == []


def test_no_relation_must_be_first_or_last(tmp_path):
    with pytest.raises(InputError, match="'last' or 'first'"):
        read_haystack_npy(save(tmp_path / "p.npy", ROWS), 3, no_relation="middle")


@pytest.mark.parametrize("where", ["last", "first", None])
def test_written_predictions_are_read_back(tmp_path, where):
    generator = np.random.default_rng(0)
    images = [
        RelationScores(
            image_id,
            np.array([[0, 1], [1, 0]]),
            generator.random((2, 3), dtype=np.float32),
            generator.random(2, dtype=np.float32),
        )
        for image_id in ("5", "16777217")
    ]
    write_haystack_npy(images, tmp_path / "p.npy", no_relation=where)
    found = read_haystack_npy(tmp_path / "p.npy", 3, no_relation=where or "last")
    for before, after in zip(images, found, strict=True):
        assert after.image_id == before.image_id
        np.testing.assert_array_equal(after.pairs, before.pairs)
        np.testing.assert_array_equal(after.scores, before.scores)
        if where is None:
            assert after.no_relation is None
        else:
            np.testing.assert_array_equal(after.no_relation, before.no_relation)
    assert [file.name for file in tmp_path.iterdir()] == ["p.npy"]


def test_what_the_format_cannot_hold_is_an_error(tmp_path):
    pair, scores = np.array([[0, 1]]), np.zeros((1, 3), np.float32)
    for image_id in ("sa_1", "007", "-3", ""):
        with pytest.raises(InputError, match="plain integers"):
            write_haystack_npy([RelationScores(image_id, pair, scores)], tmp_path / "p.npy")
    mixed = [
        RelationScores("1", pair, scores),
        RelationScores("2", pair, scores, np.zeros(1, np.float32)),
    ]
    with pytest.raises(InputError, match="missing in some images"):
        write_haystack_npy(mixed, tmp_path / "p.npy")
    with pytest.raises(InputError, match="got none"):
        write_haystack_npy([], tmp_path / "p.npy")
    assert list(tmp_path.iterdir()) == []
