"""Figures hold the numbers that they are given, in files that are well formed and repeatable."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from haystack.drawing.figures import (
    PredicateCounts,
    positive_share_figure,
    positives_figure,
    relative_size_figure,
)
from haystack.errors import InputError

TIMES = "\N{MULTIPLICATION SIGN}"
ROWS = (
    PredicateCounts("cooking", 120, 800, 12),
    PredicateCounts("pushing", 5, 640, 10),
    PredicateCounts("exiting", 24, 100, 0),
    PredicateCounts("guiding", 0, 90, 3),
    PredicateCounts("slicing", 7, 7, 7),
)


def words(svg):
    """What is written in the figure, from the comments that matplotlib puts beside outlines."""
    ElementTree.fromstring(svg)  # well formed
    return re.findall(r"<!-- (.*?) -->", svg.decode())


def description(svg):
    (found,) = re.findall(r"<dc:description>(.*?)</dc:description>", svg.decode())
    return found


def test_relative_size_divides_and_sorts():
    svg = relative_size_figure(ROWS, reference="PSG test set")
    said = words(svg)
    assert [name for name in said if name in {row.name for row in ROWS}] == [
        *("exiting", "cooking", "slicing", "pushing")
    ]
    for value in (f"10{TIMES}", f"1{TIMES}", f"0.5{TIMES}", "24, none there"):
        assert value in said
    assert "times as many positives as in the PSG test set" in said
    assert "cooking: 120 to 12" in description(svg)
    assert "guiding" not in said  # nothing of it was found


def test_both_counts_stand_beside_their_points():
    said = words(positives_figure(ROWS, reference="PSG test set", own="Haystack"))
    assert {"120", "12", "24", "5", "10", "3", "7", "PSG test set", "Haystack"} <= set(said)
    names = [name for name in said if name in {row.name for row in ROWS}]
    assert names == ["cooking", "pushing", "slicing", "guiding", "exiting"]


def test_shares_are_percentages_of_what_was_judged():
    svg = positive_share_figure(ROWS)
    said = words(svg)
    assert "15.0 %  (120/800)" in said
    assert "0.78 %  (5/640)" in said
    assert "0.0 %  (0/90)" in said
    assert "100.0 %  (7/7)" in said
    together = 100 * (120 + 5 + 24 + 0 + 7) / (800 + 640 + 100 + 90 + 7)
    assert f"(line: all together, {together:.1f} %)" in " ".join(said)
    names = [name for name in said if name in {row.name for row in ROWS}]
    assert names == ["slicing", "exiting", "cooking", "pushing", "guiding"]


def test_bars_are_as_long_as_they_say():
    """Widths of the filled rectangles, against the distance of two ticks."""
    svg = positive_share_figure(ROWS).decode()
    bars = [
        (float(x0), float(x1))
        for x0, x1 in re.findall(
            r'd="M ([\d.]+) [\d.]+ \nL [\d.]+ [\d.]+ \nL ([\d.]+) [\d.]+ \nL [\d.]+ [\d.]+ \nz\n" '
            r'clip-path="[^"]+" style="fill: #0072b2"',
            svg,
        )
    ]
    widths = [x1 - x0 for x0, x1 in bars]
    assert len(widths) == 5
    assert widths[1] / widths[0] == pytest.approx(0.24, abs=1e-3)
    assert widths[2] / widths[0] == pytest.approx(0.15, abs=1e-3)


@pytest.mark.parametrize("rows", [ROWS, (), ROWS[2:3], ROWS[3:4]])
def test_equal_figures_are_equal_files(rows):
    import matplotlib

    for draw in (
        lambda: relative_size_figure(rows, reference="R"),
        lambda: positives_figure(rows, reference="R"),
        lambda: positive_share_figure(rows),
    ):
        first = draw()
        with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
            assert draw() == first
        words(first)


def test_names_are_text_and_not_markup():
    rows = [PredicateCounts("<b>&$x^2$--> kicking", 3, 9, 1)]
    for svg in (
        relative_size_figure(rows, reference="A & B"),
        positives_figure(rows, reference="A & B"),
        positive_share_figure(rows),
    ):
        assert any("$x^2$" in text for text in words(svg))


def test_impossible_counts_are_refused():
    with pytest.raises(InputError, match="got 3 of 2"):
        PredicateCounts("cooking", 3, 2)
    with pytest.raises(InputError, match="compares with another data set"):
        positives_figure([PredicateCounts("cooking", 1, 2)], reference="R")
