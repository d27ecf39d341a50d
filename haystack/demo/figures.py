"""Figures of the report, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Sequence

HAYSTACK_COLOUR = "#0072b2"
RANDOM_COLOUR = "#8a8f98"


def yield_figure(found: Sequence[Sequence[bool]], chance: Sequence[float], positives: int) -> str:
    """Needles found against answers given, all predicates together.

    Args:
        found: for each predicate, whether each answer in turn was a needle.
        chance: for each predicate, the share of needles among all pairs: what one answer in random
            order finds on average.
        positives: known needles of these predicates, drawn as the ceiling.

    Returns:
        An ``<svg>`` element. The predicates are asked in turn, one answer each.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    total, random_total = [0.0], [0.0]
    for turn in range(max(map(len, found), default=0)):
        asked = [number for number, answers in enumerate(found) if turn < len(answers)]
        for number in asked:
            total.append(total[-1] + found[number][turn])
            random_total.append(random_total[-1] + chance[number])
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.axhline(positives, color="#b0b5bd", linewidth=1, linestyle=":")
    axes.text(0, positives, " all known needles", va="bottom", color="#6a7079", fontsize=9)
    axes.plot(total, color=HAYSTACK_COLOUR, linewidth=2.2, label="Haystack")
    axes.plot(random_total, color=RANDOM_COLOUR, linewidth=2.2, label="random order (expected)")
    axes.set(xlabel="answers", ylabel="needles found", xlim=(0, max(1, len(total) - 1)))
    axes.set_ylim(0, positives * 1.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right")
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": "Haystack"})
    text = stream.getvalue()
    return text[text.index("<svg") :]
