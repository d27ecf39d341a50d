"""Letters that matplotlib's font lacks: from another font, or a box and a sentence."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from matplotlib.font_manager import fontManager

from haystack.drawing import fonts
from haystack.drawing.figures import PredicateCounts, positives_figure
from haystack.drawing.scene import PICTURE_KINDS, DrawnTriplet, SceneDrawing, draw_scene
from haystack.reporting import charts

MONO_ONLY = "\N{APL FUNCTIONAL SYMBOL QUAD UPWARDS ARROW}"  # in DejaVu Sans Mono, which lies beside
NOBODYS = "\N{EGYPTIAN HIEROGLYPH A001}\N{LINEAR B SYLLABLE B008 A}"


@pytest.fixture(autouse=True)
def bundled_fonts_alone(monkeypatch):
    """Those that matplotlib brings, whatever else this machine has; nothing told yet."""
    own = [font for font in fontManager.ttflist if "mpl-data" in font.fname]
    monkeypatch.setattr(fontManager, "ttflist", own)
    monkeypatch.setattr(fonts, "_told", set())
    for cached in (fonts._installed, fonts._fallbacks):
        cached.cache_clear()
    yield
    for cached in (fonts._installed, fonts._fallbacks):
        cached.cache_clear()


def scene(name):
    picture = np.full((60, 80, 3), 200, np.uint8)
    boxes = np.array([[0, 0, 30, 50], [40, 10, 75, 55]], np.float32)
    triplets = [DrawnTriplet(0, 1, name, 0.5)]
    return SceneDrawing(picture, [name, "dog"], boxes, None, triplets, name, "caption")


def drawings(name):
    """Every kind of picture that names enter, as functions that draw it."""
    three = {name: np.linspace(0.2, 0.8, 3)}
    predicates = ["on", name, "beside"]
    rows = [PredicateCounts(name, 3, 5, 2), PredicateCounts("on", 1, 2, 2)]
    yield lambda: positives_figure(rows, reference=name, own="own")
    yield lambda: positives_figure(rows, reference=name, own="own", kind="pdf")
    yield lambda: charts.reliability("R@50", predicates, three, three).bytes("svg")
    yield lambda: charts.confusion_matrix("m", predicates, np.eye(3, dtype=np.int64)).bytes("pdf")
    for kind in PICTURE_KINDS:
        yield lambda kind=kind: draw_scene(scene(name), kind=kind)


@pytest.mark.filterwarnings("error")
def test_letters_of_latin_greek_and_cyrillic_need_no_other_font():
    text = "à côté, \N{GREEK SMALL LETTER ALPHA}, на столе, $5 & 50 %_"
    assert fonts.families([text]) == ["DejaVu Sans"]
    assert fonts.legible(text) == text


@pytest.mark.filterwarnings("error")
def test_another_font_lends_a_letter():
    assert fonts.families([f"a {MONO_ONLY}"]) == ["DejaVu Sans", "DejaVu Sans Mono"]
    assert fonts.legible(MONO_ONLY) == MONO_ONLY
    for draw in drawings(f"so {MONO_ONLY}"):
        assert draw() == draw()


def test_letters_that_no_font_has_are_boxes_and_one_warning_says_so():
    assert fonts.legible(f"a{NOBODYS}") == "a" + 2 * "\N{WHITE SQUARE}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for draw in drawings(f"so {NOBODYS}"):
            draw()
    (warning,) = caught  # of matplotlib none, of ours one for all
    assert warning.category is fonts.MissingLettersWarning
    assert all(letter in str(warning.message) for letter in NOBODYS)
    assert "drawn as boxes" in str(warning.message)


@pytest.mark.filterwarnings("error")
def test_whoever_asks_for_the_letters_gets_them_in_place_of_warnings():
    with fonts.boxed_letters() as boxed:
        draw_scene(scene(NOBODYS))
    assert boxed == set(NOBODYS)
    with pytest.raises(fonts.MissingLettersWarning, match="no font of this machine has"):
        fonts.families(NOBODYS)
    many = [chr(0x13000 + number) for number in range(30)]
    assert "and 10 more: drawn as boxes" in fonts.missing_letters(many)
