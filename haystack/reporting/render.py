"""The report's folder: one page that needs no other file, and every part as a file of its own.

::

    report.html       everything; opens without a network
    report.md         the tables, for a README or an issue
    tables/*.csv, *.tex
    figures/*.svg, *.pdf
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import chain, count
from pathlib import Path
from typing import Any, get_args

import haystack
from haystack import files
from haystack.drawing import fonts
from haystack.drawing.figures import FigureKind
from haystack.errors import MissingDependencyError
from haystack.evaluation.report import Report
from haystack.reporting.charts import Chart
from haystack.reporting.examples import data_uri
from haystack.reporting.runs import Run
from haystack.reporting.sections import Request, Section, make_sections

_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class RenderedReport:
    """What was written.

    Args:
        page: the HTML file.
        files: all files, the page included.
        left_out: why a part of the report is missing, a sentence each.
    """

    page: Path
    files: Sequence[Path]
    left_out: Sequence[str] = field(default_factory=tuple)


def render_report(
    runs: Sequence[Run],
    out: str | Path,
    *,
    recalls: Mapping[str, Report] | None = None,
    training: str | Path | None = None,
    data: Sequence[str | Path] = (),
    reference: str | Path | None = None,
    examples: int = 4,
    title: str = "",
) -> RenderedReport:
    """Write a report of one or more models.

    Args:
        runs: see :func:`~haystack.reporting.runs.read_runs`.
        out: the folder; files of these names in it are replaced, others stay.
        recalls: model -> report of the recalls of Table 1, see
            :func:`~haystack.reporting.models.table_1`.
        training: training annotations, for the long tail; by default those of the benchmark, and
            if it has none the images of its annotation file that are not graded.
        data: annotation files to draw the paper's figures 6, 7 and 8 of.
        reference: the annotation file that they are compared with in figures 6 and 7, its test
            images if it lists any; None leaves these two out.
        examples: best and worst images of each model; 0 = none.
        title: of the page.

    Raises:
        InputError: the folder cannot be written, or ``recalls`` lacks a model.
        MissingDependencyError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependencyError("jinja2", purpose="reports", extra="report") from error
    out = Path(out)
    files.make_folder(out)
    request = Request(runs, recalls, training, data, reference, examples)
    with fonts.boxed_letters() as boxed:
        sections = _named_apart(make_sections(request))
        written = [path for section in sections for path in _write_parts(section, out)]
    left_out = request.left_out
    if boxed:
        left_out.append(f"Letters in figures: {fonts.missing_letters(boxed)}.")
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(
        _TEMPLATE.read_text(encoding="utf-8")
    )
    benchmark = runs[0].result.benchmark if runs[0].result is not None else None
    heading = title or (benchmark.title_and_version if benchmark else "Scene graph models")
    content: dict[str, Any] = {
        "title": heading,
        "source": benchmark.source if benchmark else "",
        "report": runs[0].report,
        "sections": sections,
        "left_out": left_out,
        "version": haystack.__version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "image_of": lambda chart: data_uri(_chart_file(out, chart).read_bytes(), "image/svg+xml"),
    }
    page = out / "report.html"
    files.write_text(page, template.render(content))
    files.write_text(out / "report.md", _markdown(heading, sections, left_out))
    return RenderedReport(page, [page, out / "report.md", *written], left_out)


def _named_apart(sections: Sequence[Section]) -> list[Section]:
    """Charts with files of their own: names of models and data may differ in signs alone."""
    taken: set[str] = set()

    def apart(chart: Chart) -> Chart:
        names = chain([chart.name], (f"{chart.name}-{number}" for number in count(2)))
        name = next(name for name in names if name not in taken)
        taken.add(name)
        return replace(chart, name=name)

    def with_names(section: Section) -> Section:
        charts = [*map(apart, section.charts)]
        return replace(section, charts=charts, parts=[*map(with_names, section.parts)])

    return [*map(with_names, sections)]


def _write_parts(section: Section, out: Path) -> list[Path]:
    written = []
    for part in section.all_parts():
        for table in part.tables:
            for suffix, content in (("csv", table.csv()), ("tex", table.latex())):
                written.append(out / "tables" / f"{table.name}.{suffix}")
                files.write_text(written[-1], content)
        for chart in part.charts:
            for kind in get_args(FigureKind):
                written.append(_chart_file(out, chart, kind))
                files.write_bytes(written[-1], chart.bytes(kind))
    return written


def _chart_file(out: Path, chart: Chart, kind: FigureKind = "svg") -> Path:
    return out / "figures" / f"{chart.name}.{kind}"


def _markdown(title: str, sections: Sequence[Section], left_out: Sequence[str]) -> str:
    lines = [f"# {title}\n"]
    for section in sections:
        for part in section.all_parts():
            lines.append(f"{'##' if part is section else '###'} {part.title}\n")
            lines += [f"{text}\n" for text in part.text]
            lines += [table.markdown() for table in part.tables]
            lines += [f"![{chart.text}](figures/{chart.name}.svg)\n" for chart in part.charts]
            if part.examples:
                lines.append("\n".join(f"- {item.heading}" for item in part.examples) + "\n")
    if left_out:
        lines.append("## Left out\n\n" + "\n".join(f"- {reason}" for reason in left_out) + "\n")
    return "\n".join(lines)
