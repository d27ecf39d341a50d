"""One picture of an image's scene graph: its segments outlined and named, the graph beside it."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from haystack.drawing import fonts
from haystack.drawing.layout import Edge, edge_curve, outside, place_nodes
from haystack.drawing.palette import (
    DARK,
    LINE,
    PAPER,
    SOFT,
    Colour,
    colour_of,
    hexadecimal,
    ink_on,
)
from haystack.drawing.placement import Box, deepest_point, place_labels, shared_area
from haystack.errors import InputError

PictureKind = Literal["jpg", "png", "svg"]
PICTURE_KINDS: tuple[PictureKind, ...] = get_args(PictureKind)

_DPI = 150
_QUALITY = 90  # of JPEG
_PICTURE = (940, 860)  # largest width and height of the photograph, pixels
_LEAST_HEIGHT = 600
_GRAPH_WIDTH = 900
_PAD, _HEADER = 28, 62
_FILL = 0.3
_OUTLINE = 4
_NAMED = 20  # objects that get a label where there are no triplets


class DrawnTriplet(NamedTuple):
    """A triplet of the graph: positions of subject and object, the predicate's name, its score."""

    subject: int
    object: int
    predicate: str
    score: float


@dataclass(frozen=True)
class SceneDrawing:
    """What is to be drawn.

    Args:
        picture: uint8 [H, W, 3], the photograph.
        names: of the N objects.
        boxes: float32 [N, 4], x1, y1, x2, y2 in pixels.
        numbers: int32 [H, W], position of the object that each pixel belongs to, -1 = none; None
            where there are only boxes.
        triplets: the most certain first. Objects in none of them are outlined only faintly.
        title: text above the photograph.
        caption: text above the graph.
    """

    picture: npt.NDArray[np.uint8]
    names: Sequence[str]
    boxes: npt.NDArray[np.float32]
    numbers: npt.NDArray[np.int32] | None
    triplets: Sequence[DrawnTriplet]
    title: str = ""
    caption: str = ""


def draw_scene(drawing: SceneDrawing, *, kind: PictureKind = "png") -> bytes:
    """Bytes of the picture; equal drawings give equal bytes.

    Args:
        drawing: what to draw.
        kind: ``jpg``, a third as large as ``png``, which is lossless; or ``svg``.

    Raises:
        InputError: an unknown kind, or names and boxes are not of the same number.
    """
    if kind not in PICTURE_KINDS:
        raise InputError(f"expected a picture of kind {', '.join(PICTURE_KINDS)}, got {kind!r}")
    if len(drawing.names) != len(drawing.boxes):
        raise InputError(f"got {len(drawing.names)} names for {len(drawing.boxes)} boxes")
    texts = [
        *drawing.names,
        *(t.predicate for t in drawing.triplets),
        drawing.title,
        drawing.caption,
    ]
    drawing = _legible(drawing)
    height, width = drawing.picture.shape[:2]
    scale = min(_PICTURE[0] / width, _PICTURE[1] / height)
    shown = (max(1, round(width * scale)), max(1, round(height * scale)))
    body = max(shown[1], _LEAST_HEIGHT)
    size = (shown[0] + _GRAPH_WIDTH + 3 * _PAD, body + _HEADER + _PAD)
    photograph = Box(_PAD, _HEADER, _PAD + shown[0], _HEADER + shown[1])
    graph = Box(photograph.right + _PAD, _HEADER, size[0] - _PAD, _HEADER + body)
    chosen = _chosen(drawing)
    colours = {number: colour_of(order) for order, number in enumerate(chosen)}
    labels = _labels([drawing.names[number] for number in chosen])
    with _canvas(size, fonts.families(texts)) as canvas:
        canvas.text(_PAD, _HEADER / 2, drawing.title, 19, DARK, weight="bold", fit=shown[0])
        canvas.text(graph.left, _HEADER / 2, drawing.caption, 17, SOFT, fit=_GRAPH_WIDTH)
        canvas.image(_coloured(drawing, shown, colours), photograph)
        _name_segments(canvas, drawing, photograph, colours, labels)
        canvas.frame(graph)
        _draw_graph(canvas, drawing, graph, colours, labels)
        return canvas.bytes(kind)


def _legible(drawing: SceneDrawing) -> SceneDrawing:
    """With boxes for letters that no font has."""
    return replace(
        drawing,
        names=[*map(fonts.legible, drawing.names)],
        triplets=[t._replace(predicate=fonts.legible(t.predicate)) for t in drawing.triplets],
        title=fonts.legible(drawing.title),
        caption=fonts.legible(drawing.caption),
    )


def _chosen(drawing: SceneDrawing) -> list[int]:
    """Objects with a colour and a name: those of the triplets, else the largest."""
    used = dict.fromkeys(n for row in drawing.triplets for n in (row.subject, row.object))
    if used:
        return list(used)
    areas = (drawing.boxes[:, 2] - drawing.boxes[:, 0]) * (
        drawing.boxes[:, 3] - drawing.boxes[:, 1]
    )
    return np.argsort(-areas, kind="stable")[:_NAMED].tolist()


def _labels(names: Sequence[str]) -> list[str]:
    """Names, numbered where several objects have the same one."""
    seen: dict[str, int] = defaultdict(int)
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(f"{name} {seen[name]}" if names.count(name) > 1 else name)
    return labels


def _coloured(
    drawing: SceneDrawing, size: tuple[int, int], colours: dict[int, Colour]
) -> npt.NDArray[np.uint8]:
    """The photograph at its final size, its segments filled lightly and outlined."""
    photograph = Image.fromarray(drawing.picture).resize(size, Image.Resampling.LANCZOS)
    pixels = np.asarray(photograph).astype(np.float32)
    numbers = _numbers_at(drawing, size)
    # Position -1, of pixels that are nobody's, is the last row.
    paint = np.full((len(drawing.names) + 1, 3), 235, dtype=np.float32)
    share = np.full((len(paint), 1), 0.28, dtype=np.float32)
    coloured = np.zeros(len(paint), dtype=np.bool_)
    for number, colour in colours.items():
        paint[number], share[number], coloured[number] = colour, _FILL, True
    chosen = coloured[numbers]
    seam = _border(numbers, 1)
    outline = _border(numbers, _OUTLINE) & chosen
    pixels += share[numbers] * (paint[numbers] - pixels)
    grey = seam & ~chosen
    pixels[grey] = 0.4 * pixels[grey] + 0.6 * 120
    pixels[outline] = paint[numbers[outline]]
    pixels[seam & chosen] = PAPER
    return pixels.clip(0, 255).astype(np.uint8)


def _numbers_at(drawing: SceneDrawing, size: tuple[int, int]) -> npt.NDArray[np.int32]:
    if drawing.numbers is not None:
        return _smooth(drawing.numbers, size)
    # Boxes alone: only their frames are painted, the smallest last.
    numbers = np.full((size[1], size[0]), -1, dtype=np.int32)
    height, width = drawing.picture.shape[:2]
    boxes = drawing.boxes * (np.array(size * 2) / np.array((width, height) * 2))
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for number in np.argsort(-areas, kind="stable").tolist():
        x1, y1, x2, y2 = boxes[number].round().astype(int).tolist()
        frame = np.zeros_like(numbers, dtype=np.bool_)
        frame[max(y1, 0) : y2, max(x1, 0) : x2] = True
        frame[max(y1, 0) + 4 : max(y2 - 4, 0), max(x1, 0) + 4 : max(x2 - 4, 0)] = False
        numbers[frame] = number
    return numbers


def _smooth(numbers: npt.NDArray[np.int32], size: tuple[int, int]) -> npt.NDArray[np.int32]:
    """An id map at another size without stairs: each pixel goes to the mask that covers it most."""
    best = np.full((size[1], size[0]), -1.0, dtype=np.float32)
    result = np.full((size[1], size[0]), -1, dtype=np.int32)
    for number in np.unique(numbers).tolist():
        mask = Image.fromarray((numbers == number).astype(np.float32))
        share = np.asarray(mask.resize(size, Image.Resampling.BICUBIC))
        more = share > best
        best[more] = share[more]
        result[more] = number
    return result


def _border(values: npt.NDArray[Any], width: int) -> npt.NDArray[np.bool_]:
    """Pixels within ``width`` of a pixel with another value."""
    border = np.zeros(values.shape, dtype=np.bool_)
    for step in range(1, width + 1):
        across, down = values[:, step:] != values[:, :-step], values[step:] != values[:-step]
        border[:, step:] |= across
        border[:, :-step] |= across
        border[step:] |= down
        border[:-step] |= down
    return border


def _name_segments(
    canvas: _Canvas,
    drawing: SceneDrawing,
    photograph: Box,
    colours: dict[int, Colour],
    labels: Sequence[str],
) -> None:
    anchors, sizes, areas = [], [], []
    span = (photograph.right - photograph.left, photograph.bottom - photograph.top)
    height, width = drawing.picture.shape[:2]
    for number, label in zip(colours, labels, strict=True):
        x1, y1, x2, y2 = (drawing.boxes[number] / (width, height, width, height)).tolist()
        point, area = None, (x2 - x1) * (y2 - y1)
        if drawing.numbers is not None:
            mask = drawing.numbers == number
            point, area = deepest_point(mask), float(mask.mean())
        # Boxes are named at their upper edge, which is where their frame is.
        x, y = point or ((x1 + x2) / 2, y1)
        anchors.append((photograph.left + x * span[0], photograph.top + y * span[1]))
        sizes.append(canvas.label_size(label, 16))
        areas.append(area)
    order = np.argsort(areas, kind="stable").tolist()  # small segments have the least choice
    places = place_labels([anchors[i] for i in order], [sizes[i] for i in order], photograph)
    numbers = list(colours)
    for place, i in zip(places, order, strict=True):
        canvas.label(place, labels[i], 16, colours[numbers[i]])


def _draw_graph(
    canvas: _Canvas,
    drawing: SceneDrawing,
    bounds: Box,
    colours: dict[int, Colour],
    labels: Sequence[str],
) -> None:
    if not drawing.triplets:
        x, y = bounds.centre
        canvas.text(x, y, "no triplet to show", 19, SOFT, align="center")
        return
    numbers = list(colours)
    node_of = {number: node for node, number in enumerate(numbers)}
    texts = [f"{row.predicate}  {_score(row.score)}" for row in drawing.triplets]
    ends = [(node_of[row.subject], node_of[row.object]) for row in drawing.triplets]
    edges = [
        Edge(*pair, bend, canvas.label_size(text, 15))
        for pair, bend, text in zip(ends, _bends(ends), texts, strict=True)
    ]
    sizes = np.array([canvas.label_size(label, 19) for label in labels])
    height, width = drawing.picture.shape[:2]
    boxes = drawing.boxes[numbers]
    wanted = (boxes[:, :2] + boxes[:, 2:]).astype(np.float64) / 2 / (width, height)
    inner = Box(bounds.left + 18, bounds.top + 18, bounds.right - 18, bounds.bottom - 18)
    places = place_nodes(wanted, sizes, edges, inner)
    nodes = [Box.around(*place, *size) for place, size in zip(places, sizes, strict=True)]
    curves = [
        outside(edge_curve(places[a], places[b], bend), nodes[a], nodes[b])
        for a, b, bend, _ in edges
    ]
    best = max(row.score for row in drawing.triplets)
    for row, curve in zip(drawing.triplets, curves, strict=True):
        canvas.arrow(curve, 0.9 + 1.1 * max(row.score, 0) / best if best > 0 else 1.0)
    for node, label, number in zip(nodes, labels, numbers, strict=True):
        canvas.label(node, label, 19, colours[number])
    taken = list(nodes)
    for i, (text, edge) in enumerate(zip(texts, edges, strict=True)):
        others = [np.empty((0, 2)), *(curve[::8] for j, curve in enumerate(curves) if j != i)]
        place = _on_curve(curves[i], edge.label, taken, np.concatenate(others), inner)
        taken.append(place)
        canvas.label(place, text, 15, PAPER)


def _score(score: float) -> str:
    return f"{score:.2f}" if score >= 0.005 else f"{score:.0e}"


def _bends(edges: Sequence[tuple[int, int]]) -> list[float]:
    """Edges between the same two nodes fan out; a lone one is nearly straight."""
    total: dict[frozenset[int], int] = defaultdict(int)
    for edge in edges:
        total[frozenset(edge)] += 1
    seen: dict[frozenset[int], int] = defaultdict(int)
    bends = []
    for edge in edges:
        key = frozenset(edge)
        rank, count = seen[key], total[key]
        seen[key] += 1
        if count == 1:
            bends.append(0.06)
            continue
        # Spread around the straight line; the sign follows the direction from the lower node.
        bend = 0.18 * (2 * rank - (count - 1))
        bends.append(bend if edge[0] < edge[1] else -bend)
    return bends


def _on_curve(
    curve: npt.NDArray[np.float64],
    size: tuple[float, float],
    taken: Sequence[Box],
    others: npt.NDArray[np.float64],
    bounds: Box,
) -> Box:
    """A place for an edge's label on its curve: the nearest to its middle that hides nothing.

    Args:
        curve: float [M, 2], the edge.
        size: of the label.
        taken: nodes and labels that are placed already.
        others: float [L, 2], points of the other edges.
        bounds: where the label may lie.
    """
    shares = sorted(np.linspace(0.12, 0.88, 39).tolist(), key=lambda share: abs(share - 0.48))
    rivals = np.array(taken, dtype=np.float64).reshape(-1, 4)
    best: tuple[float, Box] | None = None
    for share in shares:
        x, y = curve[round(share * (len(curve) - 1))].tolist()
        box = Box.around(x, y, *size).inside(bounds)
        hidden = (others > box[:2]).all(1) & (others < box[2:]).all(1)
        cost = float(shared_area(box, rivals).sum()) + 12.0 * int(hidden.sum())
        if best is None or cost < best[0]:
            best = cost, box
        if cost == 0:
            break
    return best[1]  # type: ignore[index]  # there is a share


class _Canvas:
    """A matplotlib figure measured in pixels, y downwards."""

    def __init__(self, figure: Any, axes: Any, size: tuple[int, int]) -> None:
        self._figure, self._axes, self._size = figure, axes, size
        self._renderer = figure.canvas.get_renderer()

    def text(
        self,
        x: float,
        y: float,
        text: str,
        height: float,
        colour: Colour,
        *,
        align: str = "left",
        weight: str = "normal",
        fit: float = float("inf"),
    ) -> None:
        """Text of a height in pixels, shortened at its beginning to a width."""
        while text and self._width(text, height, weight) > fit:
            text = f"…{text[2:]}" if len(text) > 2 else ""
        self._axes.text(
            x,
            y,
            text,
            fontsize=_points(height),
            color=hexadecimal(colour),
            ha=align,
            va="center_baseline" if align == "center" else "center",
            weight=weight,
            parse_math=False,
        )

    def label_size(self, text: str, height: float) -> tuple[float, float]:
        """Width and height of a label."""
        return self._width(text, height, "normal") + 0.9 * height, 1.62 * height

    def label(self, place: Box, text: str, height: float, colour: Colour) -> None:
        """A rounded rectangle with text."""
        from matplotlib.patches import FancyBboxPatch

        radius = (place.bottom - place.top) * 0.28
        plain = colour == PAPER
        self._axes.add_patch(
            FancyBboxPatch(
                (place.left + radius, place.top + radius),
                place.right - place.left - 2 * radius,
                place.bottom - place.top - 2 * radius,
                boxstyle=f"round,pad={radius:.3f},rounding_size={radius:.3f}",
                facecolor=hexadecimal(colour),
                edgecolor=hexadecimal(LINE if plain else PAPER),
                linewidth=0.6 if plain else 0.9,
                zorder=3,
            )
        )
        x, y = place.centre
        self._axes.text(
            x,
            y + 0.03 * height,
            text,
            fontsize=_points(height),
            color=hexadecimal(ink_on(colour)),
            ha="center",
            va="center_baseline",
            zorder=4,
            parse_math=False,
        )

    def image(self, pixels: npt.NDArray[np.uint8], place: Box) -> None:
        """Pixels, one to one."""
        self._axes.imshow(
            pixels,
            extent=(place.left, place.right, place.bottom, place.top),
            interpolation="nearest",
            aspect="auto",
        )

    def frame(self, place: Box) -> None:
        """A thin rectangle."""
        from matplotlib.patches import Rectangle

        self._axes.add_patch(
            Rectangle(
                (place.left, place.top),
                place.right - place.left,
                place.bottom - place.top,
                facecolor="#f8f9fb",
                edgecolor=hexadecimal(LINE),
                linewidth=0.8,
                zorder=0,
            )
        )

    def arrow(self, curve: npt.NDArray[np.float64], width: float) -> None:
        """A curve with a head at its end."""
        from matplotlib.patches import Polygon

        length = 13.0 + 3 * width
        distances = np.hypot(*(curve - curve[-1]).T)
        far = np.flatnonzero(distances >= length)
        neck = int(far[-1]) if len(far) else 0
        way = curve[-1] - curve[neck]
        way = way / max(float(np.hypot(*way)), 1e-9)
        base = curve[-1] - length * way
        side = 0.36 * length * np.array([-way[1], way[0]])
        line = np.concatenate([curve[: neck + 1], base[None]])
        colour = hexadecimal(SOFT)
        self._axes.plot(*line.T, color=colour, linewidth=width, solid_capstyle="round", zorder=1)
        self._axes.add_patch(
            Polygon(
                np.stack([curve[-1], base + side, base - side]),
                facecolor=colour,
                edgecolor="none",
                zorder=2,
            )
        )

    def bytes(self, kind: PictureKind) -> bytes:
        """The finished file."""
        stream = io.BytesIO()
        # No software's version and no date: equal drawings are equal files.
        settings: dict[str, dict[str, Any]] = {
            # Thin coloured lines need their colour in every pixel.
            "jpg": {"pil_kwargs": {"quality": _QUALITY, "subsampling": 0}},
            "png": {"metadata": {"Software": None}},
            "svg": {"metadata": {"Date": None, "Creator": "Haystack"}},
        }
        self._figure.savefig(stream, format=kind, dpi=_DPI, **settings[kind])
        return stream.getvalue()

    def _width(self, text: str, height: float, weight: str) -> float:
        from matplotlib.font_manager import FontProperties

        font = FontProperties(size=_points(height), weight=weight)
        width, _, _ = self._renderer.get_text_width_height_descent(text, font, ismath=False)
        return float(width)


def _points(pixels: float) -> float:
    return pixels * 72 / _DPI


@contextmanager
def _canvas(size: tuple[int, int], families: Sequence[str]) -> Iterator[_Canvas]:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A user's own style must not reach the pictures; the salt makes ids in SVGs repeatable.
    settings: Any = {**_plain(matplotlib), "font.family": families, "svg.hashsalt": "haystack"}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(size[0] / _DPI, size[1] / _DPI), dpi=_DPI, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        canvas = _Canvas(figure, axes, size)
        axes.set_xlim(0, size[0])
        axes.set_ylim(size[1], 0)
        axes.set_autoscale_on(False)
        yield canvas


def _plain(matplotlib: Any) -> dict[str, Any]:
    """Matplotlib's own defaults for what is drawn here."""
    names = ("font", "text", "axes", "patch", "lines", "path", "image", "savefig", "svg", "figure")
    return {
        key: value
        for key, value in matplotlib.rcParamsDefault.items()
        if key.split(".")[0] in names
    }
