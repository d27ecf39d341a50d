"""Labels apart from each other, nodes apart and inside, whatever the graph."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.drawing.layout import Edge, edge_curve, outside, place_nodes
from haystack.drawing.palette import COLOURS, DARK, PAPER, colour_of, hexadecimal, ink_on
from haystack.drawing.placement import Box, _largest_part, deepest_point, place_labels, shared_area

BOUNDS = Box(100, 50, 900, 650)


def overlap(one, other):
    width = min(one.right, other.right) - max(one.left, other.left)
    height = min(one.bottom, other.bottom) - max(one.top, other.top)
    return max(0, width) * max(0, height)


def inside(box, bounds):
    return (
        box.left >= bounds.left - 1e-6
        and box.top >= bounds.top - 1e-6
        and box.right <= bounds.right + 1e-6
        and box.bottom <= bounds.bottom + 1e-6
    )


def test_shared_area_by_hand():
    box = Box(0, 0, 10, 10)
    rivals = np.array([[8.0, 8, 20, 20], [14, 0, 20, 10], [13, 0, 20, 10]])
    assert shared_area(box, rivals).tolist() == [36, 0, 10]  # others are grown by 4


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(30, 150)), min_size=1, max_size=14
    )
)
@settings(max_examples=40)
def test_labels_do_not_overlap_and_stay_inside(wanted):
    anchors = [(100 + 800 * x, 50 + 600 * y) for x, y, _ in wanted]
    sizes = [(width, 26.0) for _, _, width in wanted]
    places = place_labels(anchors, sizes, BOUNDS)
    assert all(inside(place, BOUNDS) for place in places)
    assert all(overlap(*two) == 0 for two in itertools.combinations(places, 2))
    for place, (width, height) in zip(places, sizes, strict=True):
        assert place.right - place.left == pytest.approx(width)
        assert place.bottom - place.top == pytest.approx(height)


def test_a_label_stays_at_its_anchor_where_it_can():
    (place,) = place_labels([(300, 300)], [(60, 20)], BOUNDS)
    assert place.centre == (300, 300)
    (moved,) = place_labels([(300, 300)], [(60, 20)], BOUNDS, [Box.around(300, 300, 60, 20)])
    assert moved.centre != (300, 300)


def test_the_deepest_point_lies_inside_the_mask():
    ring = np.zeros((60, 90), bool)
    ring[10:50, 10:80] = True
    ring[22:38, 22:68] = False  # the middle is a hole
    x, y = deepest_point(ring)
    assert ring[int(y * 60), int(x * 90)]
    disc = np.hypot(*np.mgrid[-50:50, -50:50]) < 30
    assert deepest_point(disc) == pytest.approx((0.5, 0.5), abs=0.03)
    speck = np.zeros((500, 500), bool)
    speck[101, 203] = True
    assert deepest_point(speck) == pytest.approx((203.5 / 500, 101.5 / 500))
    assert deepest_point(np.zeros((5, 5), bool)) is None


def test_of_several_parts_the_largest_is_named():
    parts = np.zeros((400, 600), bool)
    parts[40:46, 50:60] = True  # small, but as thick as any
    parts[40:46, 300:304] = True
    parts[200:206, 100:180] = True
    x, y = deepest_point(parts)
    assert 100 <= x * 600 < 180
    assert 200 <= y * 400 < 206


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 0.9))
@settings(max_examples=30)
def test_parts_are_those_of_scipy(seed, share):
    ndimage = pytest.importorskip("scipy.ndimage")
    mask = np.random.default_rng(seed).random((23, 31)) < share
    mask[0, 0] = True
    numbers, _ = ndimage.label(mask, structure=np.ones((3, 3)))
    areas = np.bincount(numbers[mask])
    found = _largest_part(mask)
    (number,) = np.unique(numbers[found])
    assert found.sum() == areas[number] == areas[1:].max()


graphs = st.integers(1, 14).flatmap(
    lambda n: st.lists(
        st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] != e[1]),
        max_size=12,
    ).map(lambda edges: (n, edges))
)


@given(graphs)
@settings(max_examples=30)
def test_nodes_are_apart_and_inside(graph):
    count, pairs = graph
    generator = np.random.default_rng(count)
    sizes = np.stack([generator.uniform(50, 140, count), np.full(count, 30.0)], axis=1)
    edges = [Edge(*pair, 0.06, (90, 24)) for pair in pairs]
    wanted = generator.random((count, 2))
    places = place_nodes(wanted, sizes, edges, BOUNDS)
    np.testing.assert_array_equal(places, place_nodes(wanted, sizes, edges, BOUNDS))
    nodes = [Box.around(*place, *size) for place, size in zip(places, sizes, strict=True)]
    assert all(inside(node, BOUNDS) for node in nodes)
    assert all(overlap(*two) == 0 for two in itertools.combinations(nodes, 2))


def test_linked_nodes_leave_room_for_the_label():
    sizes = np.full((2, 2), (80.0, 30.0))
    places = place_nodes(np.full((2, 2), 0.5), sizes, [Edge(0, 1, 0.06, (120, 24))], BOUNDS)
    assert (np.abs(places[0] - places[1]) - (80, 30) >= (120, 24)).any()


@pytest.mark.parametrize("seed", range(4, 12))
def test_labels_leave_the_arrows_of_a_tree_visible(seed):
    generator = np.random.default_rng(seed)
    sizes = np.stack([generator.uniform(60, 110, 6), np.full(6, 30.0)], axis=1)
    edges = [Edge(int(generator.integers(node)), node, 0.06, (120, 24)) for node in range(1, 6)]
    places = place_nodes(generator.random((6, 2)), sizes, edges, Box(100, 50, 700, 470))
    for begin, end, _, label in edges:
        free = np.abs(places[begin] - places[end]) - (sizes[begin] + sizes[end]) / 2
        assert (free >= np.array(label) + 27).any()


def test_a_square_is_drawn_without_crossings():
    edges = [Edge(a, b, 0.0, (60, 24)) for a, b in ((0, 1), (1, 2), (2, 3), (3, 0))]
    wanted = np.array([(0.1, 0.1), (0.9, 0.9), (0.9, 0.1), (0.1, 0.9)])  # 0-1 and 2-3 cross here
    places = place_nodes(wanted, np.full((4, 2), 40.0), edges, BOUNDS)

    def side(p, q, r):
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    for (a, b), (c, d) in (((0, 1), (2, 3)), ((1, 2), (3, 0))):
        first, second = (places[a], places[b]), (places[c], places[d])
        apart = side(*first, second[0]) * side(*first, second[1])
        assert apart > 0 or side(*second, first[0]) * side(*second, first[1]) > 0


def test_curves_are_cut_at_the_nodes():
    curve = edge_curve(np.array([0.0, 0]), np.array([100.0, 0]), 0.1)
    assert curve[16].tolist() == pytest.approx([50, -10])  # a tenth of the length, beside the line
    cut = outside(curve, Box.around(0, 0, 20, 20), Box.around(100, 0, 40, 20))
    assert cut[0, 0] == pytest.approx(10, abs=0.5)
    assert cut[-1, 0] == pytest.approx(80, abs=0.5)
    straight = edge_curve(np.array([0.0, 0]), np.array([10.0, 0]), 0)
    assert len(outside(straight, Box(-5, -5, 20, 5), Box(0, -5, 30, 5))) == 2


def contrast(one, other):
    def luminance(colour):
        values = [c / 255 for c in colour]
        values = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
        return 0.2126 * values[0] + 0.7152 * values[1] + 0.0722 * values[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_is_legible_on_every_colour():
    for colour in (*COLOURS, PAPER):
        ink = ink_on(colour)
        assert ink in (DARK, PAPER)
        assert contrast(colour, ink) >= 4
        assert contrast(colour, ink) >= max(contrast(colour, DARK), contrast(colour, PAPER)) - 0.3
    assert len(set(COLOURS)) == len(COLOURS)
    assert colour_of(len(COLOURS)) == colour_of(0)
    assert hexadecimal((0, 114, 178)) == "#0072b2"
