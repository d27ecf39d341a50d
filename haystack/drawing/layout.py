"""Places for the nodes of a small graph: apart, edges short, few of them crossing. Pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from haystack.drawing.placement import Box

Floats = npt.NDArray[np.float64]

_STARTS = 16
_STEPS = 150
_GAP = 24.0  # least space between two nodes, pixels
_ARROW = 54.0  # of an edge that shows beside its label, pixels
_STRETCH = 245.0  # of an edge where there is room for more, pixels
_CURVE = 33  # points of a drawn edge


class Edge(NamedTuple):
    """From one node to another: how far it bends (see ``edge_curve``), and its label's size."""

    begin: int
    end: int
    bend: float
    label: tuple[float, float]


def place_nodes(wanted: Floats, sizes: Floats, edges: Sequence[Edge], bounds: Box) -> Floats:
    """Centres of nodes, float [N, 2].

    Each connected part gets a share of the room by its size; in it, forces as of Fruchterman and
    Reingold (1991) work from several starts: the wanted places and seeded variations of them. The
    layout with the fewest crossings is kept, so that equal graphs give equal pictures.

    Args:
        wanted: float [N, 2], shares of width and height: where the objects lie in the photograph.
        sizes: float [N, 2], width and height of each node.
        edges: of the graph.
        bounds: where nodes may lie.
    """
    places = np.empty((len(wanted), 2))
    parts = _parts(len(wanted), edges)
    rooms = _rooms([len(part) for part in parts], bounds)
    for part, room in zip(parts, rooms, strict=True):
        number = {node: i for i, node in enumerate(part)}
        inside = [
            edge._replace(begin=number[edge.begin], end=number[edge.end])
            for edge in edges
            if edge.begin in number
        ]
        places[part] = _place_part(wanted[part], sizes[part], inside, room)
    # Many parts make rooms narrower than their nodes.
    apart = np.full((len(wanted), len(wanted), 2), 8.0)
    return _separated(places, sizes, apart, bounds)


def _parts(count: int, edges: Sequence[Edge]) -> list[list[int]]:
    """Connected parts, the largest first; nodes ascending."""
    part = np.arange(count)
    for edge in edges:
        one, other = part[edge.begin], part[edge.end]
        part[part == max(one, other)] = min(one, other)
    groups = [np.flatnonzero(part == name).tolist() for name in np.unique(part)]
    return sorted(groups, key=lambda nodes: (-len(nodes), nodes))


def _rooms(weights: Sequence[int], bounds: Box) -> list[Box]:
    """The bounds cut into rectangles, by weight, always across the longer side."""
    if len(weights) < 2:
        return [bounds] * len(weights)
    total, head = sum(weights), 1
    while head < len(weights) - 1 and sum(weights[: head + 1]) <= total / 2:
        head += 1
    share = min(max(sum(weights[:head]) / total, 0.25), 0.75)
    left, top, right, bottom = bounds
    # Nodes and labels are wider than high, so that width is scarcer.
    if right - left > 1.2 * (bottom - top):
        cut = left + share * (right - left)
        first, rest = Box(left, top, cut - 15, bottom), Box(cut + 15, top, right, bottom)
    else:
        cut = top + share * (bottom - top)
        first, rest = Box(left, top, right, cut - 15), Box(left, cut + 15, right, bottom)
    return [*_rooms(weights[:head], first), *_rooms(weights[head:], rest)]


def _place_part(wanted: Floats, sizes: Floats, edges: Sequence[Edge], bounds: Box) -> Floats:
    low = np.array([bounds.left, bounds.top])
    span = np.array([bounds.right, bounds.bottom]) - low
    count = len(wanted)
    if count == 1:
        return np.asarray(low + span / 2)[None]
    generator = np.random.default_rng(0)
    links = np.array(sorted({tuple(sorted(edge[:2])) for edge in edges}), dtype=np.int64)
    links = links.reshape(-1, 2)
    gaps = np.full((count, count, 2), _GAP)
    for begin, end, _, label in edges:
        need = np.maximum(gaps[begin, end], np.array(label) + _ARROW)
        gaps[begin, end] = gaps[end, begin] = need
    # A small part does not fill a large room: its edges would be longer than they need to be.
    side = sizes.max(0) + (np.sqrt(count) if count > 2 else 1) * _STRETCH
    used = np.minimum(span, side * (1.3, 1.0))
    best: tuple[float, Floats] | None = None
    firsts = np.stack(
        [wanted + generator.normal(0, 0.02 + 0.05 * n, wanted.shape) for n in range(_STARTS)]
    )
    for relaxed in _relaxed(firsts, links):
        spread = _spread(relaxed, sizes / used)
        places = _separated(low + (span - used) / 2 + spread * used, sizes, gaps, bounds)
        cost = _cost(places, sizes, edges)
        if best is None or cost < best[0]:
            best = cost, places
    return best[1]  # type: ignore[index]  # there is at least one start


def edge_curve(begin: Floats, end: Floats, bend: float) -> Floats:
    """A quadratic Bezier curve from one centre to another, float [33, 2].

    Args:
        begin: x, y.
        end: x, y.
        bend: how far the curve's middle lies beside the straight line, as a share of its length.
    """
    way = end - begin
    control = (begin + end) / 2 + 2 * bend * np.array([way[1], -way[0]])
    t = np.linspace(0, 1, _CURVE)[:, None]
    curve: Floats = (1 - t) ** 2 * begin + 2 * t * (1 - t) * control + t**2 * end
    return curve


def outside(curve: Floats, first: Box, last: Box) -> Floats:
    """The part of a curve between two rectangles, cut exactly at their borders."""
    fine = np.stack(
        [np.interp(np.linspace(0, 1, 513), np.linspace(0, 1, len(curve)), c) for c in curve.T],
        axis=1,
    )
    free = ~(_within(fine, first) | _within(fine, last))
    if free.sum() < 2:
        return curve[[0, -1]]
    places = np.flatnonzero(free)
    return fine[places[0] : places[-1] + 1]


def _within(points: Floats, box: Box) -> npt.NDArray[np.bool_]:
    x, y = points.T
    return (x > box.left) & (x < box.right) & (y > box.top) & (y < box.bottom)


def _relaxed(places: Floats, links: npt.NDArray[np.int64]) -> Floats:
    """Spring layouts in a unit square, float [S, N, 2]; linked nodes attract, all repel."""
    places = places.copy()
    count = places.shape[1]
    ideal = 1 / np.sqrt(count)
    itself = np.arange(count)
    every: Any = slice(None)  # NumPy takes it; its types do not know that
    for step in range(_STEPS):
        apart = places[:, :, None] - places[:, None]
        distance = np.hypot(apart[..., 0], apart[..., 1])
        distance[:, itself, itself] = 1
        distance = distance.clip(1e-3)
        force = (apart / distance[..., None] * (ideal**2 / distance)[..., None]).sum(2)
        if len(links):
            way = places[:, links[:, 1]] - places[:, links[:, 0]]
            pull = way * (np.hypot(way[..., 0], way[..., 1]) / ideal)[..., None]
            np.add.at(force, (every, links[:, 0]), pull)
            np.add.at(force, (every, links[:, 1]), -pull)
        force -= 0.3 * (places - places.mean(1, keepdims=True))  # parts must not drift apart
        length = np.hypot(force[..., 0], force[..., 1]).clip(1e-9)
        heat = 0.1 * (1 - step / _STEPS)
        places += force / length[..., None] * np.minimum(length, heat)[..., None]
    return places


def _spread(places: Floats, sizes: Floats) -> Floats:
    """The layout stretched to fill the unit square, whole nodes inside it."""
    low, high = places.min(0), places.max(0)
    margin = sizes.max(0) / 2
    share = (places - low) / np.where(high > low, high - low, 1)
    share = np.where(high > low, share, 0.5)
    filled: Floats = margin + share * (1 - 2 * margin).clip(0)
    return filled


def _separated(places: Floats, sizes: Floats, gaps: Floats, bounds: Box) -> Floats:
    """Nodes pushed apart, along the shorter way, until each keeps its gap to the others.

    Args:
        places: float [N, 2].
        sizes: float [N, 2].
        gaps: float [N, N, 2], least space sideways or up and down; one of the two is enough.
        bounds: where nodes may lie.
    """
    low = np.array([bounds.left, bounds.top]) + sizes / 2
    high = (np.array([bounds.right, bounds.bottom]) - sizes / 2).clip(low)
    places = np.minimum(np.maximum(places, low), high)
    need = (sizes[:, None] + sizes[None]) / 2 + gaps
    order = np.sign(np.subtract.outer(np.arange(len(places)), np.arange(len(places))))
    for _ in range(80):
        way = places[:, None] - places[None]
        missing = need - np.abs(way)
        hit = np.asarray((missing > 0).all(2))
        np.fill_diagonal(hit, False)
        if not hit.any():
            break
        first, second = np.nonzero(hit)
        axis = missing.argmin(2)[first, second]
        side = np.sign(way[first, second, axis])
        side = np.where(side == 0, order[first, second], side)
        push = np.zeros_like(places)
        np.add.at(push, (first, axis), side * missing[first, second, axis] / 2)
        places = np.minimum(np.maximum(places + push, low), high)
    return places


def _cost(places: Floats, sizes: Floats, edges: Sequence[Edge]) -> float:
    """Overlaps weigh most, then edges through nodes or under their labels, crossings, length."""
    count = len(places)
    gap = np.abs(places[:, None] - places[None]) - (sizes[:, None] + sizes[None]) / 2
    overlaps = ((gap < 8).all(2).sum() - count) / 2
    curves = [edge_curve(places[edge.begin], places[edge.end], edge.bend) for edge in edges]
    through = crossings = hidden = 0
    for edge, curve in zip(edges, curves, strict=True):
        inside = np.all(np.abs(curve[:, None] - places[None]) < sizes / 2 + 8, axis=2)
        near = np.any(inside, axis=0)
        near[[edge.begin, edge.end]] = False
        through += int(near.sum())
        # Half of what shows beside a label is the least that tells which way the arrow points.
        room = np.array(edge.label) + _ARROW / 2
        hidden += bool((gap[edge.begin, edge.end] < room).all())
    for i, one in enumerate(edges):
        for j in range(i):
            if not {one.begin, one.end} & {edges[j].begin, edges[j].end}:
                crossings += _cross(curves[i], curves[j])
    length = sum(float(np.hypot(*(curve[-1] - curve[0]))) for curve in curves)
    return 100.0 * float(overlaps) + 12.0 * (through + hidden) + 4.0 * crossings + length / 300


def _cross(one: Floats, other: Floats) -> bool:
    """Whether two curves cross, looked at as eight straight pieces each."""
    a, c = one[::4], other[::4]
    p, q = (a[:-1, None], a[1:, None]), (c[None, :-1], c[None, 1:])

    def side(begin: Floats, end: Floats, point: Floats) -> Floats:
        way, to = end - begin, point - begin
        return np.asarray(way[..., 0] * to[..., 1] - way[..., 1] * to[..., 0])

    apart = (side(*p, q[0]) * side(*p, q[1]) < 0) & (side(*q, p[0]) * side(*q, p[1]) < 0)
    return bool(apart.any())
