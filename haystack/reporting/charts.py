"""Charts of a report, ready for print: vector graphics, equal bytes for equal numbers.

Every chart is a function of names and arrays; none knows what a run is.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from haystack.drawing import fonts
from haystack.drawing.figures import FigureKind
from haystack.drawing.palette import DARK, LINE, SOFT, colour_of, hexadecimal

Floats = npt.NDArray[np.float64]
_COLUMN, _PAGE = 3.4, 7.0
"""Widths of a column and of a page of two columns, inches."""
_MARKERS = "osD^vPX*"
_NAME_SIZE = 5.5
_LONGEST_NAME = 40
"""Characters of a name in a chart; tables give it in full."""
_SHORT_NAME = 20
"""Characters for which charts have room anyway, those of the longest PSG predicates."""
_LONGEST_FILE = 80
"""Characters of a chart's file name: file systems take 255 bytes."""


@dataclass(frozen=True)
class Chart:
    """A chart, in whatever file format is asked for.

    Args:
        name: of its files.
        title: above it in the report; the chart itself has none, as print wants it.
        text: what it shows, for those who cannot see it.
        width: inches.
        bytes: format -> the file; letters are outlines in SVG and embedded type in PDF.
    """

    name: str
    title: str
    text: str
    width: float
    bytes: Callable[[FigureKind], bytes]


def _chart(
    name: str,
    title: str,
    text: str,
    draw: Callable[[Any], None],
    size: tuple[float, float],
    names: Iterable[str],
) -> Chart:
    """A chart that ``draw`` draws on a matplotlib figure of that size in inches, with ``names``."""
    written = [*map(_shortened, names)]

    def file(kind: FigureKind) -> bytes:
        with _style(fonts.families(written)):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure

            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure)
            stream = io.BytesIO()
            undated = {"Date": None} if kind == "svg" else {"CreationDate": None}
            figure.savefig(stream, format=kind, metadata={"Creator": "Haystack", **undated})
            return stream.getvalue()

    return Chart(name, title, text, size[0], file)


def predicate_bars(
    metric: str,
    predicates: Sequence[str],
    values: Mapping[str, tuple[Floats, Floats, Floats]],
    *,
    lower_is_better: bool = False,
) -> Chart:
    """A bar for each predicate and model, with intervals.

    Args:
        metric: its name.
        predicates: P names, first at the top.
        values: model -> values, lows and highs, [P] each; NaN = undefined.
        lower_is_better: said on the axis.
    """
    models = list(values)
    thick = 0.8 / len(models)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        places = np.arange(len(predicates))
        for number, model in enumerate(models):
            value, low, high = values[model]
            offset = (number - (len(models) - 1) / 2) * thick
            axes.barh(
                places + offset,
                np.nan_to_num(value),
                height=thick * 0.92,
                color=hexadecimal(colour_of(number)),
                label=str(number),
            )
            known = ~np.isnan(low)
            axes.hlines(
                places[known] + offset, low[known], high[known], color=_hex(DARK), linewidth=0.7
            )
        axes.set_yticks(places, [_written(name) for name in predicates])
        axes.set_ylim(len(predicates) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.set_xlabel(f"{metric} ({'lower' if lower_is_better else 'higher'} is better)")
        axes.grid(axis="x")
        if len(models) > 1:
            corner: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
            columns = 1 if max(map(len, models)) > _SHORT_NAME else 2
            _legend(axes, models, ncols=columns, borderaxespad=0.2, **corner)

    height = 0.6 + len(predicates) * max(0.16, 0.11 * len(models))
    return _chart(
        f"predicates-{file_name(metric)}",
        f"{metric} of each predicate",
        f"Bars of {metric} for {len(predicates)} predicates and {', '.join(models)}.",
        draw,
        (_PAGE * 0.6, height),
        [*predicates, *models],
    )


def long_tail(
    metric: str,
    predicates: Sequence[str],
    counts: npt.NDArray[np.int64],
    values: Mapping[str, Floats],
) -> Chart:
    """A metric against how often a predicate was seen in training.

    Args:
        metric: its name.
        predicates: P names.
        counts: [P], positive triplets in training.
        values: model -> [P]; NaN = undefined.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_xscale("symlog", linthresh=1)
        _scatter(axes, counts.astype(np.float64), values)
        axes.set(xlabel="relations in training", ylabel=metric, ylim=(-0.03, 1.03))
        axes.set_xlim(-0.3, 1.5 * max(1, counts.max()))
        _name_points(axes, predicates, counts.astype(np.float64), next(iter(values.values())))

    return _chart(
        f"long-tail-{file_name(metric)}",
        f"{metric} along the long tail",
        f"{metric} of each predicate against the number of its relations in training.",
        draw,
        (_COLUMN, 2.6),
        [*predicates, *values],
    )


def displacement(
    predicates: Sequence[str], pdd: Mapping[str, Floats], pdo: Mapping[str, Floats]
) -> Chart:
    """PDO against PDD: who displaces, and who is displaced (Haystack paper, section 3.3).

    Args:
        predicates: P names.
        pdd: model -> [P].
        pdo: model -> [P].
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for number, model in enumerate(pdd):
            _points(axes, number, pdd[model], pdo[model])
        axes.set(xlabel="PDD (is displaced)", ylabel="PDO (displaces others)")
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        first = next(iter(pdd))
        _name_points(axes, predicates, pdd[first], pdo[first])
        axes.grid(visible=True)
        if len(pdd) > 1:
            _legend(axes, list(pdd))

    return _chart(
        "pdo-against-pdd",
        "Who displaces, and who is displaced",
        "Predicate Dominance Overestimation against Predicate Discrimination Disadvantage.",
        draw,
        (_COLUMN, 2.8),
        [*predicates, *pdd],
    )


def reliability(
    recall: str,
    predicates: Sequence[str],
    recalls: Mapping[str, Floats],
    aucs: Mapping[str, Floats],
) -> Chart:
    """A recall against P-AUC: how much of what a model knows its recall shows (paper, section 4).

    Args:
        recall: its name, e.g. ``R@50``.
        predicates: P names.
        recalls: model -> [P].
        aucs: model -> [P]. The legend gives Pearson's correlation over predicates with both.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        known = []
        for number, model in enumerate(aucs):
            r = correlation(aucs[model], recalls[model])
            known.append("" if np.isnan(r) else f" (r = {r:.2f})")
            _points(axes, number, aucs[model], recalls[model])
        axes.axvline(0.5, color=_hex(LINE), linewidth=1, zorder=0)
        axes.set(xlabel="P-AUC (0.5 is chance)", ylabel=recall)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        first = next(iter(aucs))
        _name_points(axes, predicates, aucs[first], recalls[first])
        axes.grid(visible=True)
        _legend(axes, list(aucs), known, loc="upper left")

    return _chart(
        f"reliability-{file_name(recall)}",
        f"What {recall} shows of what a model knows",
        f"{recall} of each predicate against its P-AUC.",
        draw,
        (_COLUMN, 2.8),
        [*predicates, *aucs],
    )


def confusion_matrix(
    model: str, predicates: Sequence[str], counts: npt.NDArray[np.int64], *, shown: int = 25
) -> Chart:
    """Which predicate a model takes for which; rows add up to one.

    Args:
        model: its name.
        predicates: P names.
        counts: [P, P], row: annotated, column: predicted.
        shown: the annotated predicates with most examples are shown, and the predicted ones.
    """
    rows = np.argsort(-counts.sum(axis=1), kind="stable")
    rows = rows[counts[rows].sum(axis=1) > 0][:shown]
    common = np.argsort(-counts.sum(axis=0), kind="stable")
    taken = set(rows.tolist())
    others = [c for c in common.tolist() if counts[:, c].any() and c not in taken]
    columns = np.array([*(c for c in rows.tolist() if counts[:, c].any()), *others][:shown])
    longest = max((len(_written(predicates[c])) for c in columns), default=0)
    share = counts[np.ix_(rows, columns)] / np.maximum(counts[rows].sum(axis=1, keepdims=True), 1)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(
            range(len(columns)), [_written(predicates[c]) for c in columns], rotation=90
        )
        totals = counts[rows].sum(axis=1)
        names = [f"{_written(predicates[r])} ({n})" for r, n in zip(rows, totals, strict=True)]
        axes.set_yticks(range(len(rows)), names)
        axes.set(xlabel="best predicate of the pair", ylabel="annotated (examples)")
        axes.tick_params(length=0)
        figure.colorbar(image, ax=axes, shrink=0.6, label="share of the row")

    return _chart(
        f"confusion-{file_name(model)}",
        f"What {model} takes for what",
        f"For each annotated predicate, which predicate {model} ranks first for its pair.",
        draw,
        (_PAGE, 1.6 + 0.17 * len(rows) + 0.06 * max(0, longest - _SHORT_NAME)),
        [predicates[place] for place in {*rows.tolist(), *columns.tolist()}],
    )


def correlation(x: Floats, y: Floats) -> float:
    """Pearson's correlation over the places where both are defined; NaN if fewer than three."""
    known = ~np.isnan(x) & ~np.isnan(y)
    if known.sum() < 3 or np.ptp(x[known]) == 0 or np.ptp(y[known]) == 0:
        return float("nan")
    return float(np.corrcoef(x[known], y[known])[0, 1])


def _scatter(axes: Any, x: Floats, values: Mapping[str, Floats]) -> None:
    for number, y in enumerate(values.values()):
        _points(axes, number, x, y)
    axes.grid(visible=True)
    if len(values) > 1:
        _legend(axes, list(values))


def _legend(axes: Any, names: Sequence[str], ends: Sequence[str] = (), **options: Any) -> None:
    """A legend of what is labelled with its number.

    Names are written afterwards: matplotlib leaves out labels that begin with an underscore.
    """
    legend = axes.legend(**options)
    endings = ends or [""] * len(names)
    for text, name, end in zip(legend.get_texts(), names, endings, strict=True):
        text.set_text(_written(name) + end)


def _written(name: str) -> str:
    """A name as a chart shows it: no formula, whatever its dollar signs, and of bounded length."""
    return fonts.legible(_shortened(name)).replace("$", r"\$")


def _shortened(name: str) -> str:
    words = " ".join(name.split())
    if len(words) <= _LONGEST_NAME:
        return words
    return f"{words[: _LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"


def _points(axes: Any, number: int, x: Floats, y: Floats) -> None:
    axes.scatter(
        x,
        y,
        s=14,
        marker=_MARKERS[number % len(_MARKERS)],
        color=hexadecimal(colour_of(number)),
        alpha=0.85,
        linewidths=0,
        label=str(number),
    )


def _name_points(axes: Any, names: Sequence[str], x: Floats, y: Floats) -> None:
    """Names beside points where there is room: none lies on another point or on another name.

    Called when the limits of the axes are set. What has most room around it is named first.
    """
    known = np.flatnonzero(~np.isnan(x) & ~np.isnan(y))
    width, height = axes.figure.get_size_inches() * 72 * 0.8  # of the axes, about, in points
    to_axes = axes.transData + axes.transAxes.inverted()
    places = to_axes.transform(np.stack([x, y], axis=1)) * (width, height)
    points = places[known]
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(gaps, np.inf)
    taken: list[tuple[float, float, float, float]] = []
    for place in np.argsort(-gaps.min(axis=1, initial=np.inf), kind="stable"):
        index = known[place]
        px, py = points[place]
        right = px < 0.72 * width
        written = _written(names[index])
        length = 0.55 * _NAME_SIZE * len(written)
        left = px + 3 if right else px - 3 - length
        box = (left, py + 1, left + length, py + 1 + _NAME_SIZE)
        others = np.delete(points, place, axis=0)
        if any(_meet(box, other) for other in taken) or _covers(box, others):
            continue
        taken.append(box)
        axes.annotate(
            written,
            (x[index], y[index]),
            xytext=(3 if right else -3, 2),
            textcoords="offset points",
            ha="left" if right else "right",
            fontsize=_NAME_SIZE,
            color=_hex(SOFT),
        )


def _meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _covers(box: tuple[float, float, float, float], points: Floats) -> bool:
    inside = (points > np.array(box[:2]) - 1.5) & (points < np.array(box[2:]) + 1.5)
    return bool(inside.all(axis=1).any())


def _hex(colour: tuple[int, int, int]) -> str:
    return hexadecimal(colour)


def file_name(name: str) -> str:
    """A name in lower-case letters, digits and hyphens, cut where it is too long for a file."""
    kept = "".join(c if c.isalnum() else "-" for c in name.lower())
    return "-".join(filter(None, kept.split("-")))[:_LONGEST_FILE].strip("-")


@contextmanager
def _style(families: Sequence[str]) -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(
        {
            "font.family": families,
            "font.size": 7,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": _hex(SOFT),
            "axes.labelcolor": _hex(DARK),
            "axes.axisbelow": True,
            "axes.linewidth": 0.6,
            "grid.color": _hex(LINE),
            "grid.linewidth": 0.5,
            "xtick.color": _hex(SOFT),
            "ytick.color": _hex(SOFT),
            "legend.frameon": False,
            "legend.fontsize": 6.5,
            "svg.hashsalt": "haystack",
            "pdf.fonttype": 42,
            "path.simplify": False,
        }
    ):
        yield
