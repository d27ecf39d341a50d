"""The picture of a scene graph: what is drawn, where, and that equal drawings are equal files."""

from __future__ import annotations

import io
import itertools
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from PIL import Image

from haystack.drawing import scene
from haystack.drawing.palette import PAPER, colour_of
from haystack.drawing.placement import Box
from haystack.drawing.scene import DrawnTriplet, SceneDrawing, draw_scene
from haystack.errors import InputError

PICTURE = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
NUMBERS = np.full((60, 80), -1, np.int32)
NUMBERS[10:30, 5:25] = 0
NUMBERS[30:50, 5:75] = 1
NUMBERS[5:25, 50:70] = 2
BOXES = np.array([(5, 10, 25, 30), (5, 30, 75, 50), (50, 5, 70, 25)], np.float32)
TRIPLETS = (
    DrawnTriplet(0, 1, "on", 0.9),
    DrawnTriplet(1, 0, "$under_{x}$", 0.25),
    DrawnTriplet(2, 1, "beside", 0.001),
)


def drawing(**changes):
    content = {
        "picture": PICTURE,
        "names": ["cat", "rug", "cat"],
        "boxes": BOXES,
        "numbers": NUMBERS,
        "triplets": TRIPLETS,
        "title": "a.jpg",
        "caption": "all pairs",
    }
    return SceneDrawing(**{**content, **changes})


@pytest.fixture
def labels(monkeypatch):
    """Every label that is drawn: place, text and colour."""
    drawn = []
    label = scene._Canvas.label

    def record(canvas, place, text, height, colour):
        drawn.append((place, text, colour))
        label(canvas, place, text, height, colour)

    monkeypatch.setattr(scene._Canvas, "label", record)
    return drawn


def pixels(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def overlap(one, other):
    width = min(one.right, other.right) - max(one.left, other.left)
    height = min(one.bottom, other.bottom) - max(one.top, other.top)
    return max(0, width) * max(0, height)


def test_segments_and_nodes_have_the_same_names_and_colours(labels):
    content = draw_scene(drawing())
    names = ["cat 1", "rug", "cat 2"]
    of_objects = [(text, colour) for _, text, colour in labels if colour != PAPER]
    assert sorted(of_objects) == sorted(
        2 * [(name, colour_of(number)) for number, name in enumerate(names)]
    )
    of_edges = [text for _, text, colour in labels if colour == PAPER]
    assert of_edges == ["on  0.90", "$under_{x}$  0.25", "beside  1e-03"]
    shown = pixels(content)
    for place, _, colour in labels:
        # The label's own colour lies inside its border, left of the text.
        x, y = round(place.left) + 5, round(place.centre[1])
        assert np.abs(shown[y, x].astype(int) - colour).max() < 8


def test_no_label_covers_another(labels):
    draw_scene(drawing())
    for (one, *_), (other, *_) in itertools.combinations(labels, 2):
        assert overlap(one, other) == 0


def test_the_outline_has_the_colour_of_the_object():
    shown = pixels(draw_scene(drawing()))
    for number in range(3):
        exact = (np.abs(shown.astype(int) - colour_of(number)).max(2) == 0)[:, :940]
        assert exact.sum() > 1000


def test_jpeg_is_smaller_and_looks_the_same():
    smooth = np.linspace(0, 255, 60 * 80 * 3).reshape(60, 80, 3).astype(np.uint8)
    exact, small = (draw_scene(drawing(picture=smooth), kind=kind) for kind in ("png", "jpg"))
    assert Image.open(io.BytesIO(small)).format == "JPEG"
    difference = np.abs(pixels(exact).astype(int) - pixels(small))
    assert difference.mean() < 1.5
    assert np.quantile(difference, 0.999) < 40


@pytest.mark.parametrize("kind", ["jpg", "png", "svg"])
def test_equal_drawings_are_equal_files_whatever_the_users_style(kind):
    first = draw_scene(drawing(), kind=kind)
    with matplotlib.rc_context({"font.size": 3, "axes.facecolor": "red", "savefig.dpi": 30}):
        assert draw_scene(drawing(), kind=kind) == first
    other = draw_scene(drawing(triplets=TRIPLETS[:2]), kind=kind)
    assert other != first
    if kind == "svg":
        root = ElementTree.fromstring(first)
        assert root.tag.endswith("svg")
        assert b"Date" not in first
        assert b"matplotlib" not in first.lower().split(b"<defs>")[0]
    else:
        assert b"matplotlib" not in first.lower()


def test_the_size_follows_the_shape_of_the_photograph():
    wide = pixels(draw_scene(drawing())).shape
    tall = pixels(
        draw_scene(
            drawing(
                picture=PICTURE.transpose(1, 0, 2),
                numbers=NUMBERS.T.copy(),
                boxes=BOXES[:, [1, 0, 3, 2]],
            )
        )
    ).shape
    assert wide[0] < tall[0]
    assert wide[1] > tall[1]


def test_boxes_alone_are_framed(labels):
    shown = pixels(draw_scene(drawing(numbers=None)))
    assert (np.abs(shown.astype(int) - colour_of(0)).max(2) == 0).sum() > 500
    assert {text for _, text, _ in labels} >= {"cat 1", "cat 2", "rug"}


def test_without_triplets_the_segments_are_named(labels):
    draw_scene(drawing(triplets=()))
    assert sorted(text for _, text, _ in labels) == ["cat 1", "cat 2", "rug"]
    labels.clear()
    draw_scene(
        drawing(triplets=(), names=[], boxes=np.empty((0, 4), np.float32), numbers=None, title="")
    )
    assert labels == []


def test_scores_of_zero_and_many_objects_are_drawn():
    count = 30
    numbers = (np.arange(60 * 80).reshape(60, 80) // 160).astype(np.int32)
    boxes = np.array([(0, 2 * i, 80, 2 * i + 2) for i in range(count)], np.float32)
    triplets = [DrawnTriplet(i, (7 * i + 3) % count, "beside", 0.0) for i in range(count)]
    triplets = [row for row in triplets if row.subject != row.object]
    names = ["an object with a rather long name"] * count
    content = draw_scene(
        drawing(numbers=numbers, boxes=boxes, triplets=triplets, names=names, title="x" * 300)
    )
    assert pixels(content).shape[1] > 1000


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="expected a picture of kind jpg, png, svg, got 'gif'"):
        draw_scene(drawing(), kind="gif")
    with pytest.raises(InputError, match="got 1 names for 3 boxes"):
        draw_scene(drawing(names=["cat"]))


def test_a_box_may_be_larger_than_its_bounds():
    assert Box(0, 0, 50, 10).inside(Box(10, 10, 20, 60)) == Box(10, 10, 60, 20)
