"""Figures of the report, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import accumulate, zip_longest

HAYSTACK_COLOUR = "#0072b2"
COUNTING_COLOUR = "#d55e00"
RANDOM_COLOUR = "#8a8f98"


def yield_figure(
    found: Sequence[Sequence[bool]],
    counting: Sequence[Sequence[bool]],
    chance: Sequence[float],
    positives: int,
) -> str:
    """Needles found against answers given, all predicates together.

    Args:
        found: for each predicate, whether each answer in turn was a needle.
        counting: the same for the queue of the frequency baseline.
        chance: for each predicate, the share of needles among all pairs: what one answer in random
            order finds on average.
        positives: known needles of these predicates, drawn as the ceiling.

    Returns:
        An ``<svg>`` element. The predicates are asked in turn, one answer each.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    turns = max(map(len, found), default=0)
    asked = [
        number for turn in range(turns) for number in range(len(found)) if turn < len(found[number])
    ]
    random_total = [0.0, *accumulate(chance[number] for number in asked)]
    total, counted = _in_turn(found), _in_turn(counting)
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.axhline(positives, color="#b0b5bd", linewidth=1, linestyle=":")
    axes.text(0, positives, " all known needles", va="bottom", color="#6a7079", fontsize=9)
    axes.plot(total, color=HAYSTACK_COLOUR, linewidth=2.2, label="Haystack")
    axes.plot(counted, color=COUNTING_COLOUR, linewidth=2.2, label="frequency baseline")
    axes.plot(random_total, color=RANDOM_COLOUR, linewidth=2.2, label="random order (expected)")
    axes.set(xlabel="answers", ylabel="needles found", xlim=(0, max(1, len(total) - 1)))
    axes.set_ylim(0, positives * 1.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right")
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": "Haystack"})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _in_turn(found: Sequence[Sequence[bool]]) -> list[int]:
    """Needles found after each answer, one answer a predicate in turn."""
    turns = zip_longest(*found)  # None where a predicate's queue has ended
    return [0, *accumulate(int(hit) for turn in turns for hit in turn if hit is not None)]
