"""Figures of a data set by predicate, for a column of print: figures 6, 7 and 8 of Haystack.

Bars and points are told apart by lightness and shape as well as by colour, every value is written
beside its mark, and equal values give equal bytes.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from haystack.drawing import fonts
from haystack.drawing.palette import COLOURS, DARK, LINE, SOFT, hexadecimal
from haystack.errors import InputError
from haystack.proportion import Proportion

Floats = npt.NDArray[np.float64]
FigureKind = Literal["svg", "pdf"]

COLUMN_INCHES = 3.33
"""Width of a column in a two-column paper (CVPR: 3.25 in, ACM: 3.33 in)."""

_BLUE, _ORANGE = hexadecimal(COLOURS[0]), hexadecimal(COLOURS[1])
_DARK, _SOFT, _LINE = hexadecimal(DARK), hexadecimal(SOFT), hexadecimal(LINE)
_ROW_INCHES = 0.152
_MARGIN_INCHES = 0.7
_POINTS = 7.0
_TIMES = "\N{MULTIPLICATION SIGN}"
_DRAWING = threading.Lock()  # matplotlib's settings belong to the process


@dataclass(frozen=True)
class PredicateCounts:
    """What figures show of one predicate.

    Args:
        name: of the predicate.
        positives: labels that say it holds.
        judged: labels that say whether it holds.
        reference: positives in the data set that is compared with; None where there is none.
    """

    name: str
    positives: int
    judged: int
    reference: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.positives <= self.judged or (self.reference or 0) < 0:
            raise InputError(
                f"expected 0 to judged positives, got {self.positives} of {self.judged} "
                f"(reference {self.reference})",
                record=f"predicate {self.name}",
            )


def relative_size_figure(
    rows: Sequence[PredicateCounts], *, reference: str, kind: FigureKind = "svg"
) -> bytes:
    """How many times as many positives as another data set has (figure 6), logarithmic.

    The largest gain stands first. Predicates without any positive are left out; those that the
    other data set lacks have no ratio: they stand on top, hatched, with their number of positives.

    Args:
        rows: predicates, with ``reference``.
        reference: what the other data set is called.
        kind: ``svg`` or ``pdf``.

    Returns:
        The file.
    """
    kept = [row for row in _compared(rows) if row.positives]
    new = sorted((row for row in kept if not row.reference), key=lambda row: -row.positives)
    old = sorted((row for row in kept if row.reference), key=lambda row: (-_ratio(row), row.name))
    shown = [*new, *old]
    ratios = [_ratio(row) for row in old]
    # From a power of ten to one, the hatched bars beyond what can be divided.
    low = 10.0 ** math.floor(math.log10(min([1.0, *ratios])) - 0.01) if ratios else 1.0
    high = 10.0 ** math.ceil(math.log10(max([10.0, *ratios])) + 0.2)
    names = [row.name for row in shown]
    empty = f"Positive annotations relative to the {reference}"
    with _rows(names, empty, reference) as (figure, axes):
        places = range(len(shown))
        axes.set_xscale("log")
        axes.set_xlim(low if min([1.0, *ratios]) < 1 else 0.8, high)
        axes.axvline(1, color=_DARK, linewidth=0.8, zorder=3)
        for place, row in zip(places, shown, strict=True):
            if row.reference:
                ratio = _ratio(row)
                axes.barh(place, ratio - 1, left=1, height=0.68, color=_BLUE)
                _beside(axes, max(ratio, 1), place, f"{_times(ratio)}{_TIMES}")
            else:
                axes.barh(
                    place,
                    high - 1,
                    left=1,
                    height=0.68,
                    color="white",
                    edgecolor=_BLUE,
                    hatch="////",
                )
                _beside(axes, 1.15, place, f"{row.positives}, none there")
        axes.set_xlabel(f"times as many positives as in the {fonts.legible(reference)}")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}{_TIMES}")
        description = "; ".join(f"{row.name}: {row.positives} to {row.reference}" for row in shown)
        return _file(figure, kind, f"Size relative to the {reference}", description)


def positives_figure(
    rows: Sequence[PredicateCounts],
    *,
    reference: str,
    own: str = "this data set",
    kind: FigureKind = "svg",
) -> bytes:
    """All positives by predicate beside those of another data set (figure 7), logarithmic.

    A logarithmic bar has no foot, so each predicate has two points: what the other data set has,
    and what this one has. The predicate that is most frequent in the other stands first.

    Args:
        rows: predicates, with ``reference``.
        reference: what the other data set is called.
        own: what this one is called.
        kind: ``svg`` or ``pdf``.

    Returns:
        The file.
    """
    kept = [row for row in _compared(rows) if row.positives or row.reference]
    shown = sorted(kept, key=lambda row: (-(row.reference or 0), -row.positives, row.name))
    ours = np.array([row.positives for row in shown], dtype=np.float64)
    theirs = np.array([row.reference for row in shown], dtype=np.float64)
    nothing = 0.4  # where zero stands, left of one
    names = [row.name for row in shown]
    with _rows(names, "Positive annotations", reference, own) as (figure, axes):
        places = range(len(shown))
        axes.set_xscale("log")
        axes.set_xlim(0.28, 10 ** math.ceil(math.log10(max([10.0, *ours, *theirs])) + 0.05))
        axes.axvline(0.63, color=_LINE, linewidth=0.8, linestyle=(0, (2, 2)))
        at = [np.where(values > 0, values, nothing) for values in (theirs, ours)]
        axes.hlines(places, at[0], at[1], color=_LINE, linewidth=2.2, zorder=1)
        for values, marker, colour, label in (
            (at[0], "D", _ORANGE, fonts.legible(reference)),
            (at[1], "o", _BLUE, fonts.legible(own)),
        ):
            axes.plot(
                values,
                places,
                marker,
                color=colour,
                label=label,
                markersize=4.2,
                markeredgecolor=_DARK,
                markeredgewidth=0.4,
                zorder=2,
                linestyle="none",
            )
            for place, value, row_values in zip(places, values, zip(*at, strict=True), strict=True):
                _value_beside(axes, value, place, row_values)
        decades = [10.0**power for power in range(math.ceil(math.log10(axes.get_xlim()[1])) + 1)]
        axes.set_xticks([nothing, *decades], ["0", *(f"{value:,.0f}" for value in decades)])
        axes.minorticks_off()
        axes.set_xlabel("positive annotations")
        _legend(axes)
        description = "; ".join(
            f"{row.name}: {row.positives}, {reference} {row.reference}" for row in shown
        )
        return _file(figure, kind, f"Positive annotations, {own} and {reference}", description)


def positive_share_figure(rows: Sequence[PredicateCounts], *, kind: FigureKind = "svg") -> bytes:
    """Percentage of labels that are positive, by predicate (figure 8), with 95 % intervals.

    The largest percentage stands first. The intervals are Wilson's score intervals. The line is
    the percentage of all labels together. Predicates without labels are left out.

    Args:
        rows: predicates.
        kind: ``svg`` or ``pdf``.

    Returns:
        The file.
    """
    shown = sorted(
        (row for row in rows if row.judged),
        key=lambda row: (-row.positives / row.judged, -row.judged, row.name),
    )
    shares = [100 * row.positives / row.judged for row in shown]
    with _rows([row.name for row in shown], "Positive share") as (figure, axes):
        places = range(len(shown))
        intervals = [Proportion(row.positives, row.judged).interval() for row in shown]
        ends = 100 * np.array(intervals).reshape(-1, 2)
        axes.barh(places, shares, height=0.68, color=_BLUE)
        axes.hlines(places, ends[:, 0], ends[:, 1], color=_DARK, linewidth=0.8)
        top = max([5.0, *ends[:, 1]])
        axes.set_xlim(0, top * 1.3)
        axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= min(100, top * 1.3)])
        for place, row, share, end in zip(places, shown, shares, ends[:, 1], strict=True):
            _beside(axes, end, place, f"{_percent(share)} %  ({row.positives}/{row.judged})")
        judged = sum(row.judged for row in shown)
        total = 100 * sum(row.positives for row in shown) / judged if judged else math.nan
        if judged:
            axes.axvline(total, color=_ORANGE, linewidth=1.2, zorder=0)
        axes.set_xlabel(
            f"positive annotations, percent\n(line: all together, {_percent(total)} %)"
            if judged
            else "percent"
        )
        description = "; ".join(f"{row.name}: {row.positives} of {row.judged}" for row in shown)
        return _file(figure, kind, "Percentage of positive annotations", description)


def _compared(rows: Sequence[PredicateCounts]) -> Sequence[PredicateCounts]:
    for row in rows:
        if row.reference is None:
            raise InputError(
                "this figure compares with another data set; give its positives",
                record=f"predicate {row.name}",
            )
    return rows


def _ratio(row: PredicateCounts) -> float:
    return row.positives / (row.reference or math.nan)


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _percent(value: float) -> str:
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.2g}"


# ---------------------------------------------------------------------- matplotlib


@contextmanager
def _rows(names: Sequence[str], empty: str, *texts: str) -> Iterator[tuple[Any, Any]]:
    """Figure and axes with one row a name, the first on top, in fonts that have ``texts`` too."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # A user's own style must not reach the figures; the salt makes ids repeatable. Text is drawn
    # as outlines, so that it looks the same where the font is missing.
    style: Any = {
        **dict(matplotlib.rcParamsDefault),
        "svg.hashsalt": "haystack",
        "svg.fonttype": "path",
        "pdf.fonttype": 42,  # embedded type, as publishers ask for
        "text.parse_math": False,  # names are names
        "font.family": fonts.families([*names, *texts]),
        "font.size": _POINTS,
        "axes.labelsize": _POINTS,
        "xtick.labelsize": _POINTS - 0.5,
        "ytick.labelsize": _POINTS,
        "text.color": _DARK,
        "axes.labelcolor": _DARK,
        "axes.edgecolor": _SOFT,
        "axes.linewidth": 0.6,
        "xtick.color": _SOFT,
        "ytick.color": _DARK,
        "hatch.linewidth": 0.5,
        "hatch.color": _BLUE,
    }
    style.pop("backend", None)
    with _DRAWING, matplotlib.rc_context(style):
        height = _MARGIN_INCHES + _ROW_INCHES * max(len(names), 3)
        figure = Figure(
            figsize=(COLUMN_INCHES, height),
            layout=ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02),
        )
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
        axes.set_yticks(range(len(names)), [*map(fonts.legible, names)])
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", length=2, width=0.5)
        axes.tick_params(axis="x", which="minor", length=1, width=0.4)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.grid(axis="x", which="major", color=_LINE, linewidth=0.5)
        if not names:
            axes.text(
                0.5,
                0.5,
                f"{fonts.legible(empty)}: nothing yet",
                transform=axes.transAxes,
                ha="center",
                color=_SOFT,
            )
        yield figure, axes


def _beside(axes: Any, value: float, place: float, text: str, *, left: bool = False) -> None:
    axes.annotate(
        text,
        (value, place),
        xytext=(-3.5, 0) if left else (3.5, 0),
        textcoords="offset points",
        va="center",
        ha="right" if left else "left",
        fontsize=_POINTS - 1,
        color=_DARK,
        annotation_clip=False,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
    )


def _value_beside(axes: Any, value: float, place: float, both: tuple[float, float]) -> None:
    """Outside of the two points, so that neither hides it; none is at the axis, which says so."""
    if value >= 1:
        _beside(axes, value, place, f"{value:,.0f}", left=value < max(both))


def _legend(axes: Any) -> None:
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=2,
        frameon=False,
        handletextpad=0.3,
        columnspacing=1.2,
        borderaxespad=0.1,
    )


def _file(figure: Any, kind: FigureKind, title: str, description: str) -> bytes:
    stream = io.BytesIO()
    metadata: dict[str, Any] = {"Title": title, "Creator": "Haystack"}
    if kind == "svg":
        metadata |= {"Description": description, "Date": None}
    else:
        metadata |= {"Subject": description, "CreationDate": None}
    figure.savefig(stream, format=kind, metadata=metadata)
    return stream.getvalue()
