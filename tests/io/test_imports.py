from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.cli import main
from haystack.errors import InputError
from haystack.io import read_psg
from haystack.io.label_studio import decode_brush
from haystack.io.panoptic_png import read_panoptic_png

HEIGHT, WIDTH = 20, 40


class Bits:
    """Writes numbers as bits, the highest first."""

    def __init__(self):
        self.text = ""

    def put(self, number, width):
        self.text += format(number, f"0{width}b")
        return self

    def bytes(self):
        padded = self.text + "0" * (-len(self.text) % 8)
        return [int(padded[i : i + 8], 2) for i in range(0, len(padded), 8)]


def encode_brush(values, widths=(3, 4, 8, 16), literal_below=3):
    """A brush's code by its definition, one run at a time: an encoder of the tests' own."""
    bits = Bits().put(len(values), 32).put(8 - 1, 5)
    for width in widths:
        bits.put(width - 1, 4)
    at = 0
    while at < len(values):
        end = at
        while end < len(values) and values[end] == values[at]:
            end += 1
        repeats = end - at >= literal_below
        if not repeats:  # as many values as the smallest length can say
            end = min(len(values), at + 2 ** widths[0])
        length = min(end - at, 2 ** widths[-1])
        place = next(i for i, width in enumerate(widths) if length <= 2**width)
        bits.put(int(repeats), 1).put(place, 2).put(length - 1, widths[place])
        for value in [values[at]] if repeats else values[at : at + length]:
            bits.put(int(value), 8)
        at += length
    return bits.bytes()


@given(st.lists(st.integers(0, 255), max_size=80), st.integers(1, 9), st.integers(1, 40))
@settings(max_examples=150)
def test_brushes_are_decoded_by_their_definition(values, repeat, literal_below):
    values = [value for value in values for _ in range(repeat)]
    code = encode_brush(values, literal_below=literal_below)
    assert decode_brush(code, len(values)).tolist() == values


def test_the_beginning_of_a_published_code_is_understood():
    # 3332 x 2527 pixels with four channels; runs of up to 8, 16, 256 and 65,536 values.
    published = [2, 1, 233, 240, 57, 27, 255, 255, 255, 0, 255, 255, 224, 31]
    bits = Bits().put(3332 * 2527 * 4, 32).put(7, 5)
    for width in (3, 4, 8, 16):
        bits.put(width - 1, 4)
    for _ in range(2):
        bits.put(1, 1).put(3, 2).put(65_535, 16).put(0, 8)
    assert bits.bytes()[:13] == published[:13]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ([0, 0, 0], "breaks off"),
        (encode_brush([1] * 50)[:-1], "breaks off"),
        (encode_brush([1] * 49), "expected a brush of 50 values, .* got 49"),
        (Bits().put(2**32 - 1, 32).put(7, 5).put(0, 16).bytes(), "50 values, .* got 4294967295"),
        ([0, 0, 0, 1, 256], "numbers 0..255"),
        (Bits().put(1, 32).put(31, 5).put(0, 16).bytes(), "at most 8 bits, got 32"),
    ],
)
def test_broken_codes_are_refused(code, message):
    with pytest.raises(InputError, match=message):
        decode_brush(code, 50)


def disc():
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    return (rows - 10) ** 2 + (columns - 12) ** 2 < 36


def brush(mask):
    pixels = np.zeros((HEIGHT, WIDTH, 4), dtype=np.uint8)
    pixels[mask] = (200, 10, 10, 255)
    return encode_brush(pixels.ravel().tolist())


def region(identifier, kind, label, **value):
    return {
        **{"id": identifier, "type": kind, "original_width": WIDTH, "original_height": HEIGHT},
        **{"image_rotation": 0, "value": {**value, kind: [label]}},
    }


def tasks():
    """A cup (brush) on a table (polygon), beside a lamp (rectangle)."""
    table = [[0, 25], [50, 25], [50, 100], [0, 100]]
    result = [
        region("t", "polygonlabels", "table", points=table),
        region("c", "brushlabels", "cup", format="rle", rle=brush(disc())),
        region("l", "rectanglelabels", "lamp", x=75, y=10, width=10, height=50, rotation=0),
        {"type": "relation", "from_id": "c", "to_id": "t", "direction": "right", "labels": ["on"]},
        {
            **{"type": "relation", "from_id": "l", "to_id": "c", "direction": "left"},
            "labels": ["beside", "near"],
        },
        {"type": "relation", "from_id": "t", "to_id": "l", "direction": "bi", "labels": ["near"]},
    ]
    return [
        {
            "id": 7,
            "data": {"image": "/data/local-files/?d=photos/kitchen%201.jpg"},
            "annotations": [{"result": result}, {"result": [], "was_cancelled": True}],
        },
        {"id": 8, "data": {"image": "/data/upload/1/b.jpg"}, "annotations": []},
    ]


def run(tmp_path, content, *words, kind="label-studio"):
    path = tmp_path / "export.json"
    path.write_text(json.dumps(content))
    out = tmp_path / "out" / "annotation.json"
    code = main(["import", str(path), "--format", kind, "--out", str(out), *words])
    return code, out


def rows_of(dataset, graph):
    vocabulary = dataset.vocabulary
    names = [vocabulary.object_classes[label] for label in graph.labels]
    return {
        (names[s], vocabulary.predicate_classes[p], names[o])
        for s, o, p in graph.relations.tolist()
    }


def test_label_studio(tmp_path, capsys):
    code, out = run(tmp_path, tasks(), "--boxes-as-masks")
    assert code == 0
    said = capsys.readouterr().err
    assert "1 images with 3 segments and 5 relations" in said
    assert "1 images without a finished annotation are left out" in said
    dataset = read_psg(out)
    (graph,) = dataset.graphs
    assert dataset.vocabulary.predicate_classes == ("beside", "near", "on")
    assert (graph.image_id, graph.file_name) == ("7", "photos/kitchen 1.jpg")
    assert rows_of(dataset, graph) == {
        *(("cup", "on", "table"), ("cup", "beside", "lamp"), ("cup", "near", "lamp")),
        *(("table", "near", "lamp"), ("lamp", "near", "table")),
    }
    ids = read_panoptic_png(dataset.path_of(graph.pan_seg_file_name))
    table, cup, lamp = (ids == segment.id for segment in graph.segments)
    assert (cup == disc()).all()  # drawn over the table, since it is smaller
    assert (table == (ids_of_table() & ~disc())).all()
    expected = np.zeros((HEIGHT, WIDTH), dtype=bool)
    expected[2:12, 30:34] = True
    assert (lamp == expected).all()
    assert [segment.area for segment in graph.segments] == [
        int(m.sum()) for m in (table, cup, lamp)
    ]
    assert graph.segments[2].box == (30, 2, 34, 12)


def ids_of_table():
    mask = np.zeros((HEIGHT, WIDTH), dtype=bool)
    mask[5:, :20] = True
    return mask


def test_a_region_and_its_label_may_be_two_results(tmp_path):
    content = tasks()
    result = content[0]["annotations"][0]["result"]
    result[1]["type"] = "brush"
    del result[1]["value"]["brushlabels"]
    result.insert(2, {"id": "c", "type": "labels", "value": {"labels": ["cup"]}})
    code, out = run(tmp_path, content, "--boxes-as-masks")
    assert code == 0
    assert len(read_psg(out).graphs[0].segments) == 3


def edited(change):
    content = copy.deepcopy(tasks())
    change(content[0], content[0]["annotations"][0]["result"])
    return content


REFUSED = {
    "a rectangle": (lambda t, r: None, "give --boxes-as-masks"),
    "two annotators": (
        lambda t, r: t["annotations"].append({"result": r}),
        "task 7: several people annotated this task",
    ),
    "an unknown kind": (
        lambda t, r: r[0].update(type="keypointlabels"),
        "'keypointlabels' has no mask",
    ),
    "two labels": (
        lambda t, r: r[0]["value"].update(polygonlabels=["table", "desk"]),
        "expected one label for the region 't'",
    ),
    "no label of a relation": (
        lambda t, r: r[3].update(labels=[]),
        "expected a relation with labels",
    ),
    "an unknown region": (lambda t, r: r[3].update(to_id="z"), "names the region 'z'"),
    "an unknown direction": (lambda t, r: r[3].update(direction="up"), "got 'up'"),
    "a vast picture": (
        lambda t, r: [e.update(original_width=10**9, original_height=10**9) for e in r[:3]],
        "at most 178956970 pixels, which is what a panoptic PNG can hold, got 1000000000 x 10000",
    ),
    "half a pixel": (lambda t, r: r[0].update(original_height=20.5), "pixels, 1 or more, got 20.5"),
    "a picture elsewhere": (
        lambda t, r: t["data"].update(image="/data/local-files/?d=../../etc/a.jpg"),
        "task 7: expected a file's name below the folder of the pictures, without '..' and not "
        "absolute, got '../../etc/a.jpg'",
    ),
    "another size": (lambda t, r: r[0].update(original_width=9), "different sizes"),
    "a rotated image": (lambda t, r: r[0].update(image_rotation=90), "was rotated"),
    "two points": (
        lambda t, r: r[0]["value"].update(points=[[0, 0], [1, 1]]),
        "three or more points",
    ),
    "a short brush": (lambda t, r: r[1]["value"].update(rle=encode_brush([0] * 8)), "got 8 values"),
    "no brush": (lambda t, r: r[1]["value"].update(rle=[1, 2]), "breaks off"),
    "no picture": (lambda t, r: t.update(data={}), "the picture's address under 'image'"),
    "no list": (lambda t, r: t.update(annotations=3), "expected a list under 'annotations'"),
    "itself": (lambda t, r: r[3].update(to_id="c"), "relation 'on' with itself"),
    "covered": (
        lambda t, r: r.append(region("d", "brushlabels", "cup", format="rle", rle=brush(disc()))),
        "has no pixel of its own",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_label_studio_refuses(case, tmp_path, capsys):
    change, message = REFUSED[case]
    words = [] if case == "a rectangle" else ["--boxes-as-masks"]
    code, out = run(tmp_path, edited(change), *words)
    said = capsys.readouterr().err
    assert code == 2
    assert message in said
    assert str(tmp_path / "export.json") in said
    assert not [path for path in out.parent.rglob("*") if path.is_file()]


def test_names_must_be_of_a_given_vocabulary(tmp_path, capsys):
    code, _ = run(tmp_path, tasks(), "--boxes-as-masks", "--vocabulary", "psg")
    assert code == 2
    assert (
        "'lamp', 'table' are not among the vocabulary's object classes" in capsys.readouterr().err
    )


def coco():
    polygon = [0, 5, 20, 5, 20, 20, 0, 20]
    return {
        "images": [
            {"id": 3, "file_name": "a.jpg", "height": HEIGHT, "width": WIDTH},
            {"id": 4, "file_name": "b.jpg", "height": HEIGHT, "width": WIDTH},
        ],
        "categories": [{"id": 9, "name": "table"}, {"id": 2, "name": "cup"}],
        "rel_categories": [{"id": 1, "name": "under"}, {"id": 0, "name": "on"}],
        "annotations": [
            {
                "id": 5,
                "image_id": 3,
                "category_id": 9,
                "bbox": [0, 5, 20, 15],
                "segmentation": [polygon],
            },
            {"id": 6, "image_id": 3, "category_id": 2, "bbox": [8, 7, 5, 4]},
        ],
        "rel_annotations": [
            {"id": 0, "image_id": 3, "subject_id": 6, "predicate_id": 0, "object_id": 5},
            {"id": 1, "image_id": 3, "subject_id": 6, "predicate_id": 0, "object_id": 5},
        ],
    }


def test_coco_relations(tmp_path, capsys):
    code, out = run(tmp_path, coco(), "--boxes-as-masks", kind="coco-relations")
    assert code == 0
    said = capsys.readouterr().err
    assert "1 relations were given more than once" in said
    assert "20 pixels are of several shapes" in said
    dataset = read_psg(out)
    (graph,) = dataset.graphs
    assert dataset.vocabulary.object_classes == ("cup", "table")
    assert dataset.vocabulary.predicate_classes == ("on", "under")
    assert (graph.image_id, graph.file_name) == ("3", "a.jpg")
    assert rows_of(dataset, graph) == {("cup", "on", "table")}
    ids = read_panoptic_png(dataset.path_of(graph.pan_seg_file_name))
    expected = np.where(ids_of_table(), 1, 0)
    expected[7:11, 8:13] = 2
    assert (ids == expected).all()


COCO_REFUSED = {
    "a box": (lambda c: None, "annotations[1]: it has a box and no segmentation"),
    "an unknown category": (
        lambda c: c["annotations"][0].update(category_id=1),
        "category_id 1 is not among the categories",
    ),
    "an unknown object": (
        lambda c: c["rel_annotations"][0].update(object_id=77),
        "rel_annotations[0]: object_id 77 is not among the annotations",
    ),
    "another image": (lambda c: c["rel_annotations"][0].update(image_id=4), "are not of one image"),
    "an id twice": (lambda c: c["annotations"][1].update(id=5), "the id 5 is given twice"),
    "no relations": (lambda c: c.pop("rel_annotations"), "expected a list under 'rel_annotations'"),
    "a bad mask": (
        lambda c: c["annotations"][0].update(segmentation="x"),
        "annotations[0]: not a run-length code or polygons",
    ),
    **{
        f"a size of {size}": (
            lambda c, size=size: c["images"][0].update(height=size, width=size),
            f"image 3: expected {said}",
        )
        for size, said in (
            (10**9, "an image of at most 178956970 pixels"),
            (0, "its height to be a whole number of pixels, 1 or more, got 0"),
            (-20, "its height to be a whole number of pixels, 1 or more, got -20"),
            (20.0, "its height to be a whole number of pixels, 1 or more, got 20.0"),
            (True, "its height to be a whole number of pixels, 1 or more, got True"),
            (None, "its height to be a whole number of pixels, 1 or more, got None"),
            ("20", "its height to be a whole number of pixels, 1 or more, got 20"),
        )
    },
    **{
        f"a picture named {name!r}": (
            lambda c, name=name: c["images"][0].update(file_name=name),
            "image 3: expected a file's name below the folder of the pictures",
        )
        for name in (
            "/etc/a.jpg",
            "../a.jpg",
            "b/../../a.jpg",
            "..",
            "",
            "b\\..\\a.jpg",
            "C:\\a.jpg",
        )
    },
    "a mask's size": (
        lambda c: c["annotations"][0].update(
            segmentation={"size": [10**9, 10**9], "counts": [1, 2]}
        ),
        f"annotations[0]: expected masks of {HEIGHT} x {WIDTH} pixels, got 1000000000 x 1000000000",
    ),
    "a far polygon": (
        lambda c: c["annotations"][0].update(segmentation=[[0, 0, 1e9, 0, 1e9, 1e9]]),
        "annotations[0]: expected polygons inside a picture",
    ),
    "a bad box": (lambda c: c["annotations"][1].update(bbox=[1, 2, 3]), "a bbox of four numbers"),
}


@pytest.mark.parametrize("case", COCO_REFUSED)
def test_coco_relations_refuses(case, tmp_path, capsys):
    content = coco()
    change, message = COCO_REFUSED[case]
    change(content)
    words = [] if case == "a box" else ["--boxes-as-masks"]
    code, out = run(tmp_path, content, *words, kind="coco-relations")
    said = capsys.readouterr().err
    assert code == 2
    assert message in said
    assert not [path for path in out.parent.rglob("*") if path.is_file()]


def test_out_is_needed(tmp_path, capsys):
    (tmp_path / "a.json").write_text("[]")
    assert main(["import", str(tmp_path / "a.json"), "--format", "label-studio"]) == 2
    assert "needs --out A.json" in capsys.readouterr().err
