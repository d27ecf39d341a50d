"""Tables once, in four notations: HTML, Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from haystack.reporting.latex import beyond_pdflatex, escape


class Estimate(NamedTuple):
    """A number and its interval; NaN where there is none. ``best`` stands out in its row."""

    value: float
    low: float = math.nan
    high: float = math.nan
    best: bool = False


Cell = str | int | float | Estimate


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Args:
        name: of its files.
        title: above it.
        header: names of the columns.
        rows: cells; floats are shown with three decimals, NaN as a dash.
        groups: (title, columns) of headings above the header, left to right; () for none.
        notes: lines below it.
        ruled: whether the last row is a mean of those above.
    """

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()
    ruled: bool = False

    def csv(self) -> str:
        """Numbers in full; an estimate takes three columns, NaN is left empty."""
        estimated = [
            any(isinstance(row[place], Estimate) for row in self.rows)
            for place in range(len(self.header))
        ]
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        header: list[str] = []
        for name, group, is_estimate in zip(
            self.header, self._group_of_columns(), estimated, strict=True
        ):
            full = f"{group} {name}".strip()
            header += [full, f"{full} low", f"{full} high"] if is_estimate else [full]
        writer.writerow(header)
        for row in self.rows:
            cells: list[object] = []
            for cell, is_estimate in zip(row, estimated, strict=True):
                if isinstance(cell, Estimate):
                    cells += [_number(v) for v in (cell.value, cell.low, cell.high)]
                else:
                    cells += [_number(cell), *(["", ""] if is_estimate else [])]
            writer.writerow(cells)
        return stream.getvalue()

    def markdown(self) -> str:
        """A pipe table; groups are spelled out in the header."""
        header = [
            f"{group} {name}".strip()
            for group, name in zip(self._group_of_columns(), self.header, strict=True)
        ]
        aligned = ["---:" if right else "---" for right in self._numeric()]
        lines = [f"**{self.title}**", "", _pipes(header), _pipes(aligned)]
        for row in self.rows:
            lines.append(_pipes([_shown(c, bold="**{}**") for c in row]))
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]) + "\n"

    def latex(self) -> str:
        """A ``table*`` for the packages booktabs and graphicx, no wider than the page.

        Intervals are small. pdfLaTeX sets Latin and Greek letters; where there are others, the
        first lines say that they need XeLaTeX or LuaLaTeX.
        """
        columns = "".join("r" if right else "l" for right in self._numeric())
        lines = [
            r"\begin{table*}",
            r"\centering",
            rf"\caption{{{escape(self.title)}}}",
            rf"\label{{tab:{self.name}}}",
            r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
        ]
        if self.groups:
            spans, rules, place = [], [], 1
            for title, count in self.groups:
                spans.append(rf"\multicolumn{{{count}}}{{c}}{{{escape(title)}}}" if title else "")
                if title:
                    rules.append(rf"\cmidrule(lr){{{place}-{place + count - 1}}}")
                place += count
            lines += [" & ".join(spans) + r" \\", " ".join(rules)]
        lines += [" & ".join(map(escape, self.header)) + r" \\", r"\midrule"]
        for number, row in enumerate(self.rows):
            if self.ruled and number == len(self.rows) - 1:
                lines.append(r"\midrule")
            # A bracket behind a rule or a line's end would be its option, a star behind it as well.
            start = "{}" if str(row[0])[:1] in ("[", "*") else ""
            lines.append(start + " & ".join(map(_latex_cell, row)) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}}"]
        if self.notes:
            lines.append(rf"\\[2pt] {{\footnotesize {escape(' '.join(self.notes))}}}")
        text = "\n".join([*lines, r"\end{table*}", ""])
        head = ["% \\usepackage{booktabs,graphicx}"]
        others = beyond_pdflatex(text)
        if others:
            head.append(
                "% pdfLaTeX does not know these letters; take XeLaTeX or LuaLaTeX and a font with "
                f"them: {others}"
            )
        return "\n".join([*head, text])

    def html(self) -> str:
        """A ``<table>`` with a caption and header cells that screen readers follow."""
        numeric = self._numeric()
        parts = [f"<table><caption>{html.escape(self.title)}</caption><thead>"]
        if self.groups:
            parts.append("<tr>")
            for title, count in self.groups:
                kind = f'<th scope="colgroup" colspan="{count}">{html.escape(title)}</th>'
                parts.append(kind if title else f'<td colspan="{count}"></td>')
            parts.append("</tr>")
        heads = (
            f'<th scope="col"{"" if right else _TEXT}>{html.escape(name)}</th>'
            for name, right in zip(self.header, numeric, strict=True)
        )
        parts += ["<tr>", *heads, "</tr></thead><tbody>"]
        for number, row in enumerate(self.rows):
            last = self.ruled and number == len(self.rows) - 1
            parts.append('<tr class="mean">' if last else "<tr>")
            for place, (cell, right) in enumerate(zip(row, numeric, strict=True)):
                tag = "th" if place == 0 else "td"
                scope = ' scope="row"' if place == 0 else ""
                parts.append(f"<{tag}{scope}{'' if right else _TEXT}>{_html_cell(cell)}</{tag}>")
            parts.append("</tr>")
        parts.append("</tbody></table>")
        if self.notes:
            parts.append(f'<p class="soft">{html.escape(" ".join(self.notes))}</p>')
        return "".join(parts)

    def _group_of_columns(self) -> list[str]:
        if not self.groups:
            return [""] * len(self.header)
        return [title for title, count in self.groups for _ in range(count)]

    def _numeric(self) -> list[bool]:
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return [all(not isinstance(cell, str) for cell in column) for column in columns]


_TEXT = ' class="text"'
_DASH = "\N{EN DASH}"


def _pipes(cells: Sequence[str]) -> str:
    escaped = (" ".join(cell.split()).replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _number(cell: Cell) -> object:
    return "" if isinstance(cell, float) and math.isnan(cell) else cell


def _plain(value: float | int | str) -> str:
    if isinstance(value, float):
        return _DASH if math.isnan(value) else f"{value:.3f}"
    return str(value)


def _shown(cell: Cell, *, bold: str) -> str:
    if not isinstance(cell, Estimate):
        return _plain(cell)
    value = bold.format(_plain(cell.value)) if cell.best else _plain(cell.value)
    if math.isnan(cell.low):
        return value
    return f"{value} [{_plain(cell.low)}, {_plain(cell.high)}]"


def _html_cell(cell: Cell) -> str:
    if not isinstance(cell, Estimate):
        return html.escape(_plain(cell))
    value = f"<b>{_plain(cell.value)}</b>" if cell.best else _plain(cell.value)
    if math.isnan(cell.low):
        return value
    return f"{value} <small>{_plain(cell.low)}{_DASH}{_plain(cell.high)}</small>"


def _latex_cell(cell: Cell) -> str:
    if not isinstance(cell, Estimate):
        return escape(_plain(cell))
    value = escape(_plain(cell.value))
    value = rf"\textbf{{{value}}}" if cell.best else value
    if math.isnan(cell.low):
        return value
    return rf"{value} {{\scriptsize [{_plain(cell.low)}, {_plain(cell.high)}]}}"
