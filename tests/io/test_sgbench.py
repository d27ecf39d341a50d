from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from haystack.errors import InputError
from haystack.io import json_stream
from haystack.io.sgbench import read_sgbench
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("person", "dog"), ("sky",), ("on", "beside", "eating"))
DATA = Path(__file__).parent.parent / "data" / "sgbench"


def record(**changes):
    content = {
        "id": "12",
        "categories": [2, 0],
        "bboxes": [[0, 1, 2, 3.5], [1, 1, 4, 4]],
        "triplets": [[1, 0, 2], [0, 1, 1], [1, 0, 0]],
        "ng_triplets": [[1, 0, 2], [1, 0, 0], [0, 1, 1], [0, 1, 0]],
    }
    return {key: value for key, value in {**content, **changes}.items() if value != "left out"}


def as_version_1(content):
    """The same record as SGBench 1.0.0 reads it."""
    content = dict(content)
    labels, boxes = content.pop("categories"), content.pop("bboxes")
    content["annotation"] = [
        {"bbox": box, "category": label} for box, label in zip(boxes, labels, strict=True)
    ]
    return content


def write(path, images, version=2):
    path.write_text(json.dumps({"version": version, "images": images}))
    return path


def tiff(masks, mode="L"):
    pages = [Image.fromarray(np.asarray(mask, dtype=np.uint8)).convert(mode) for mask in masks]
    stream = io.BytesIO()
    pages[0].save(
        stream, "TIFF", save_all=True, append_images=pages[1:], compression="tiff_adobe_deflate"
    )
    return stream.getvalue()


def write_zip(path, images, members, version=1, triplets="triplets.json"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(triplets, json.dumps({"version": version, "images": images}))
        for name, content in members.items():
            archive.writestr(name, content)
    return path


MASKS = np.zeros((2, 5, 7), dtype=bool)
MASKS[0, :3], MASKS[1, 2:, 1:4] = True, True


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("form", [record, lambda **changes: as_version_1(record(**changes))])
def test_boxes_in_json(tmp_path, version, form):
    images = [form(), form(id=7, ng_triplets="left out"), form(id="x", triplets=[])]
    found = read_sgbench(write(tmp_path / "p.json", images, version), VOCABULARY)
    assert not found.has_masks
    for _ in range(2):
        first, second, third = found
        assert [image.image_id for image in (first, second, third)] == ["12", "7", "x"]
        assert first.triplets.tolist() == record()["triplets"]
        assert first.ng_triplets.tolist() == record()["ng_triplets"]
        assert first.triplets.dtype == np.int64
        assert first.objects.labels.tolist() == [2, 0]
        assert first.objects.boxes.tolist() == record()["bboxes"]
        assert first.objects.scores is None
        assert first.objects.masks is None
        assert second.ng_triplets is None
        assert third.triplets.shape == (0, 3)


def test_a_fifth_number_of_a_box_is_its_score(tmp_path):
    boxes = [[0, 1, 2, 3, 0.5], [1, 1, 4, 4, 0.25]]
    (image,) = read_sgbench(
        write(tmp_path / "p.json", [as_version_1(record(bboxes=boxes))]), VOCABULARY
    )
    assert image.objects.boxes.tolist() == [[0, 1, 2, 3], [1, 1, 4, 4]]
    assert image.objects.scores.tolist() == [0.5, 0.25]


def test_of_equal_triplets_the_first_counts(tmp_path):
    rows = [[1, 0, 2], [0, 1, 1], [1, 0, 2], [1, 0, 1], [0, 1, 1]]
    (image,) = read_sgbench(
        write(tmp_path / "p.json", [record(triplets=rows, ng_triplets=rows[::-1])]), VOCABULARY
    )
    assert image.triplets.tolist() == [[1, 0, 2], [0, 1, 1], [1, 0, 1]]
    assert image.ng_triplets.tolist() == [[0, 1, 1], [1, 0, 1], [1, 0, 2]]


@pytest.mark.parametrize("mode", ["L", "1"])
def test_masks_in_a_zip(tmp_path, mode):
    images = [
        as_version_1(record(seg_filename="a.tiff")),
        record(id=7, seg_filename="deep/b.tiff", bboxes="left out"),
        record(id=8, categories=[], bboxes=[], triplets=[], ng_triplets=[]),
    ]
    members = {"a.tiff": tiff(MASKS * 255, mode), "deep/b.tiff": tiff(~MASKS)}
    found = read_sgbench(write_zip(tmp_path / "p.zip", images, members), VOCABULARY)
    assert found.has_masks
    for _ in range(2):
        first, second, third = found
        np.testing.assert_array_equal(first.objects.masks.dense(), MASKS)
        np.testing.assert_array_equal(second.objects.masks.dense(), ~MASKS)
        assert first.objects.masks.id_map() is None  # they overlap
        assert first.objects.boxes is not None
        assert second.objects.boxes is None
        assert third.objects.masks is None


@pytest.mark.parametrize("count", [3, 4])
def test_three_and_four_masks_are_channels_of_one_page(tmp_path, count):
    wanted = np.zeros((count, 6, 9), dtype=bool)
    for number in range(count):
        wanted[number, number : number + 2, number : number + 4] = True
    members = {"a.tiff": (DATA / f"{count}_masks.tiff").read_bytes()}
    images = [record(categories=[0] * count, bboxes="left out", seg_filename="a.tiff")]
    (image,) = read_sgbench(write_zip(tmp_path / "p.zip", images, members), VOCABULARY)
    np.testing.assert_array_equal(image.objects.masks.dense(), wanted)


def test_a_file_is_known_by_its_content(tmp_path):
    images = [record(seg_filename="a.tiff")]
    path = write_zip(tmp_path / "p.json", images, {"a.tiff": tiff(MASKS)})
    assert read_sgbench(path, VOCABULARY).has_masks


def test_keys_in_any_order_and_others_beside(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(
        '\n {"x": {"images": [1]}, "images" : [ \n'
        + json.dumps(record(note={"deep": [[1]]}), indent=2)
        + ' ] , "version": 1, "y": -12e3}\n'
    )
    assert len(list(read_sgbench(path, VOCABULARY))) == 1


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_pieces_of_any_size(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(json_stream, "_CHUNK", chunk)
    images = [record(id=number, note='ü}]\\"') for number in range(5)]
    path = tmp_path / "p.json"
    path.write_text(
        json.dumps({"a": 12345, "images": images, "version": 1}, ensure_ascii=False),
        encoding="utf-8",
    )
    found = list(read_sgbench(path, VOCABULARY))
    assert [image.image_id for image in found] == ["0", "1", "2", "3", "4"]
    path.write_text('{"images": []}')
    assert list(read_sgbench(path, VOCABULARY)) == []


def test_memory_holds_one_image(tmp_path):
    rows = [[s, t, p] for s in range(2) for t in range(2) for p in range(3)] * 2000

    def peak(count):
        images = [record(id=number, ng_triplets=rows) for number in range(count)]
        path = write(tmp_path / "p.json", images)
        del images
        tracemalloc.start()
        assert sum(1 for _ in read_sgbench(path, VOCABULARY)) == count
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    assert peak(40) < 1.5 * peak(10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"categories": [0, 3]}, "expected object classes 0..2, got 3 for object 1"),
        ({"categories": [0, -1]}, "expected object classes 0..2, got -1 for object 1"),
        ({"categories": [0, 1, 2]}, "expected 3 boxes, one an object, got 2"),
        ({"categories": "0"}, "under 'categories', got a value of type str"),
        ({"categories": [0, 1.5]}, "under 'categories', got .2. of float64"),
        ({"categories": "left out"}, "expected 'categories', or objects under 'annotation'"),
        ({"bboxes": "left out"}, "expected boxes under 'bboxes', or a ZIP with masks; got neither"),
        ({"bboxes": [[0, 1, 2], [0, 1, 2]]}, r"numbers \[N, 4\] under 'boxes', got \[2, 3\]"),
        ({"bboxes": [[0, 1, 2, 3], [0, 1]]}, "under 'boxes', got uneven rows"),
        ({"bboxes": [[0, 1, 2, float("nan")]] * 2}, "finite numbers under 'boxes', got nan"),
        ({"triplets": "left out"}, "expected rows under 'triplets', got none"),
        ({"triplets": [[0, 1]]}, r"integers \[N, 3\] under 'triplets', got \[1, 2\]"),
        ({"triplets": [[0, 1, 0.5]]}, "under 'triplets', got .1, 3. of float64"),
        ({"triplets": [[0, 2, 0]]}, "expected objects 0..1, got 2 in row 0"),
        ({"triplets": [[0, 1, 0], [-1, 0, 0]]}, "expected objects 0..1, got -1 in row 1"),
        ({"triplets": [[0, 1, 3]]}, "expected predicates 0..2, got 3 in row 0"),
        ({"triplets": [[0, 1, -1]]}, "expected predicates 0..2, got -1 in row 0"),
        ({"ng_triplets": [[0, 1, 3]]}, "expected predicates 0..2, got 3 in row 0"),
        ({"triplets": [[0, 1, 10**30]]}, "under 'triplets', got .1, 3. of object"),
        ({"categories": [], "bboxes": []}, "there is no object, yet row 0 refers to one"),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path, changes, message):
    images = read_sgbench(write(tmp_path / "p.json", [record(**changes)]), VOCABULARY)
    with pytest.raises(InputError, match=rf"p\.json, image 12: .*{message}"):
        list(images)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a JSON object or a ZIP"),
        ("[1]", "expected a JSON object or a ZIP"),
        ("\x93NUMPY", "expected a JSON object or a ZIP"),
        ('{"version": 3, "images": []}', "expected version 1 or 2 of SGBench's format, got 3"),
        ('{"version": [1], "images": []}', "expected version 1 or 2"),
        ('{"version": 1}', "expected a list under 'images', got no such key"),
        ("{}", "expected a list under 'images', got no such key"),
        ('{"images": {}}', "expected a list under 'images', got '{'"),
        ('{"images": [], "images": []}', "'images' once"),
        ('{"images": [3]}', r"images\[0\]: expected an object with an 'id'"),
        ('{"images": [{"categories": []}]}', r"images\[0\]: expected an object with an 'id'"),
        ('{"images": [{"id": null}]}', r"images\[0\]: expected an image id"),
        ('{"images": [], 3: 4}', "not valid JSON|expected keys as text"),
        ('{"images": [] "a": 1}', "expected ',' or '}', got '\"'"),
        ('{"images": []} x', "something follows"),
        ('{"images": [{"id": "1"', "not valid JSON"),
        ('{"images": [', "not valid JSON"),
        ('{"images": [' + "[" * 100_000, "not valid JSON"),
        ('{"a": ' + "1" * 5000 + "}", "not valid JSON|got no such key"),
    ],
)
def test_what_is_no_sgbench_file_is_an_error(tmp_path, text, message):
    path = tmp_path / "p.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=rf"p\.json.*({message})") as caught:
        list(read_sgbench(path, VOCABULARY))
    assert "\n" not in str(caught.value)


def test_text_in_another_encoding_is_an_error(tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(b'{"version": 1, "images": [{"id": "' + b"x" * 5000 + b'\xff"}]}')
    with pytest.raises(InputError, match=r"p\.json.*: cannot read it: 'utf-8' codec"):
        list(read_sgbench(path, VOCABULARY))
    with pytest.raises(InputError, match="cannot read it"):
        read_sgbench(tmp_path / "none.json", VOCABULARY)


def test_a_value_longer_than_plausible_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "_LONGEST", 1000)
    monkeypatch.setattr(json_stream, "_CHUNK", 100)
    path = write(tmp_path / "p.json", [record(note="x" * 5000)])
    with pytest.raises(InputError, match="a value takes more than 1000 characters"):
        list(read_sgbench(path, VOCABULARY))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow, of what is cut off
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tiff(np.ones((3, 5, 7))), "with 2 masks, one an object, got 3 pages of 1 channels"),
        (tiff(np.ones((1, 5, 7))), "with 2 masks, one an object, got 1 pages of 1 channels"),
        (tiff([np.ones((5, 7)), np.ones((5, 6))]), "masks of 5 x 7 pixels, got 5 x 6 for mask 1"),
        (tiff(np.ones((2, 5, 7)), "RGB"), "with 2 masks, one an object, got 2 pages of 3 channels"),
        (tiff(np.ones((2, 5, 7)), "I;16"), "expected masks of 8 bits a pixel, got mode I;16"),
        (tiff(np.ones((2, 5, 7)), "P"), "expected masks of 8 bits a pixel, got mode P"),
        (tiff(MASKS)[:60], "cannot read it|not a readable TIFF"),
        (tiff(MASKS)[:200], "cannot read it|not a readable TIFF|expected a TIFF"),
        (b"", "not a readable TIFF: no TIFF, or broken at its beginning; write the masks again"),
        (b"no TIFF at all", "not a readable TIFF: no TIFF, or broken at its beginning"),
    ],
)
def test_tiffs_that_do_not_fit_are_errors(tmp_path, content, message):
    images = [record(seg_filename="a.tiff")]
    path = write_zip(tmp_path / "p.zip", images, {"a.tiff": content})
    with pytest.raises(InputError, match=rf"p\.zip, a\.tiff: .*({message})") as caught:
        list(read_sgbench(path, VOCABULARY))
    assert "\n" not in str(caught.value)
    assert "BytesIO" not in str(caught.value)


def test_a_picture_in_colours_is_no_stack_of_masks(tmp_path):
    images = [record(categories=[0, 0, 0], bboxes="left out", seg_filename="a.tiff")]
    members = {"a.tiff": tiff(np.ones((1, 5, 7)), "RGB")}  # interleaved channels
    path = write_zip(tmp_path / "p.zip", images, members)
    with pytest.raises(InputError, match="3 masks, one an object, got 1 pages of 3 channels"):
        list(read_sgbench(path, VOCABULARY))


@pytest.mark.parametrize("name", ["../outside.tiff", "/etc/passwd", "missing.tiff", 3, None])
def test_names_outside_the_archive_are_errors(tmp_path, name):
    (tmp_path / "outside.tiff").write_bytes(tiff(MASKS))
    folder = tmp_path / "folder"
    folder.mkdir()
    path = write_zip(folder / "p.zip", [record(seg_filename=name)], {"a.tiff": tiff(MASKS)})
    with pytest.raises(InputError, match=r"the archive has no member|expected the name of a TIFF"):
        list(read_sgbench(path, VOCABULARY))


def test_nothing_is_unpacked(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = write_zip(
        folder / "p.zip",
        [record(seg_filename="../a.tiff")],
        {"../a.tiff": tiff(MASKS), "../b": b"b", "/c": b"c"},
    )
    assert len(list(read_sgbench(path, VOCABULARY))) == 1
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["folder", "p.zip"]


def test_damaged_archives_are_errors(tmp_path):
    images = [record(seg_filename="a.tiff")]
    path = write_zip(tmp_path / "p.zip", images, {}, triplets="other.json")
    with pytest.raises(InputError, match=r"p\.zip: the archive has no member 'triplets\.json'"):
        read_sgbench(path, VOCABULARY)
    with pytest.raises(InputError, match="version 1 or 2"):
        list(read_sgbench(write_zip(path, images, {"a.tiff": tiff(MASKS)}, 7), VOCABULARY))
    good = write_zip(path, images, {"a.tiff": tiff(MASKS)}).read_bytes()
    middle = good.index(b"a.tiff") + 20
    path.write_bytes(good[:middle] + bytes(8) + good[middle + 8 :])
    with pytest.raises(InputError, match=r"p\.zip, a\.tiff: "):
        list(read_sgbench(path, VOCABULARY))
    path.write_bytes(good[:-30])
    with pytest.raises(InputError, match="expected a JSON object or a ZIP"):
        read_sgbench(path, VOCABULARY)


def test_a_tiff_too_large_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("haystack.io.sgbench._LARGEST_TIFF", 100)
    path = write_zip(tmp_path / "p.zip", [record(seg_filename="a.tiff")], {"a.tiff": bytes(101)})
    with pytest.raises(InputError, match="expected a TIFF of at most 100 bytes, got 101"):
        list(read_sgbench(path, VOCABULARY))
