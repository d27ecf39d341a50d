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

import numpy as np

import haystack
from haystack import files
from haystack.drawing.figures import FigureKind
from haystack.errors import InputError, MissingDependencyError
from haystack.evaluation.benchmark import SAME
from haystack.evaluation.report import Report, middle_recall
from haystack.io.psg import read_psg
from haystack.metrics.kinds import LOWER_IS_BETTER
from haystack.reporting.charts import (
    Chart,
    Floats,
    confusion_matrix,
    displacement,
    long_tail,
    predicate_bars,
    reliability,
)
from haystack.reporting.data_sets import data_charts
from haystack.reporting.examples import Example, data_uri, example
from haystack.reporting.models import (
    estimate,
    leaderboard_table,
    provenance_table,
    support_notes,
    table_1,
)
from haystack.reporting.outcomes import Outcomes, model_outcomes
from haystack.reporting.runs import Run
from haystack.reporting.tables import Table
from haystack.statistics import DatasetSummary

_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Args:
        title: its heading.
        text: paragraphs below it.
        tables: shown as tables.
        charts: shown as charts.
        examples: (title, pictures).
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    examples: Sequence[tuple[str, Sequence[Example]]] = ()


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
    left_out: list[str] = []
    outcomes = _outcomes(runs, examples, left_out)
    parts = (
        _models_section(runs, recalls),
        _predicates_section(runs),
        _tail_section(runs, training, left_out),
        _data_section(data, reference, left_out),
        _confusion_section(outcomes),
        _examples_section(outcomes),
    )
    sections = _named_apart([section for section in parts if section is not None])
    written = [path for section in sections for path in _write_parts(section, out)]
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


def _models_section(runs: Sequence[Run], recalls: Mapping[str, Report] | None) -> Section:
    provenance = provenance_table(runs)
    tables = [leaderboard_table(runs), table_1(runs, recalls)]
    return Section(
        "Models",
        text=support_notes(runs),
        tables=[*tables, *([provenance] if provenance else [])],
    )


def _predicates_section(runs: Sequence[Run]) -> Section | None:
    report = runs[0].report
    known = next(iter(report.per_predicate.values()), {})
    recall = middle_recall(known)
    charts = []
    for metric in ("P-AUC", "PDD", "PDO", recall):
        if metric is None or metric not in known:
            continue
        values = {run.name: _with_intervals(run.report, metric) for run in runs}
        stacked = np.stack([value for value, _, _ in values.values()])
        shown = np.flatnonzero(~np.isnan(stacked).all(axis=0))
        if not len(shown):
            continue
        sign = 1 if metric in LOWER_IS_BETTER else -1
        order = shown[np.argsort(sign * np.nan_to_num(stacked[0][shown]), kind="stable")]
        names = [list(report.per_predicate)[place] for place in order]
        chosen = {m: (v[order], lo[order], hi[order]) for m, (v, lo, hi) in values.items()}
        lower = metric in LOWER_IS_BETTER
        charts.append(predicate_bars(metric, names, chosen, lower_is_better=lower))
    predicates = list(report.per_predicate)
    if {"PDD", "PDO"} <= known.keys():
        pdd, pdo = ({r.name: _vector(r.report, m) for r in runs} for m in ("PDD", "PDO"))
        charts.append(displacement(predicates, pdd, pdo))
    if recall is not None and "P-AUC" in known:
        pairs = ({r.name: _vector(r.report, m) for r in runs} for m in (recall, "P-AUC"))
        charts.append(reliability(recall, predicates, *pairs))
    return Section("Predicates", charts=charts) if charts else None


def _tail_section(
    runs: Sequence[Run], training: str | Path | None, left_out: list[str]
) -> Section | None:
    result = runs[0].result
    try:
        if training is not None:
            dataset = read_psg(training)
        elif result is None:
            left_out.append("The long tail needs --training: reports alone name no annotations.")
            return None
        else:
            named = result.benchmark.training not in (None, SAME)
            dataset = read_psg(
                result.input_file("training" if named else "annotations"), allow_contradictions=True
            )
    except InputError as error:
        left_out.append(f"The long tail: {error}")
        return None
    predicates = list(runs[0].report.per_predicate)
    if dataset.vocabulary.predicate_classes != tuple(predicates):
        left_out.append("The long tail: the training annotations have other predicates.")
        return None
    graphs = dataset.split("train")
    if not graphs:
        left_out.append(
            "The long tail needs --training: the benchmark names no training annotations, and all "
            "images of its own are graded."
        )
        return None
    counts = DatasetSummary.from_graphs(graphs, len(predicates)).positives
    charts = []
    for metric in ("P-AUC", "R@50"):
        values = {run.name: _vector(run.report, metric) for run in runs}
        if not all(np.isnan(vector).all() for vector in values.values()):
            charts.append(long_tail(metric, predicates, counts, values))
    text = [f"Counted on {len(graphs)} training images with {counts.sum()} relations."]
    return Section("The long tail", text=text, charts=charts) if charts else None


def _data_section(
    data: Sequence[str | Path], reference: str | Path | None, left_out: list[str]
) -> Section | None:
    charts = [chart for path in data for chart in data_charts(path, reference)]
    if data and reference is None:
        left_out.append("The paper's figures 6 and 7 compare with another data set: --reference.")
    return Section("Data sets", charts=charts) if charts else None


def _outcomes(runs: Sequence[Run], examples: int, left_out: list[str]) -> dict[str, Outcomes]:
    found: dict[str, Outcomes] = {}
    dataset = None  # of the first run: all were measured on the same
    for run in runs:
        if run.result is None:
            left_out.append(
                f"Confusion and examples of {run.name}: a report alone names no predictions; make "
                "the run with haystack bench."
            )
            continue
        try:
            found[run.name] = model_outcomes(run.result, dataset, examples=examples)
            dataset = found[run.name].dataset
        except InputError as error:
            left_out.append(f"Confusion and examples of {run.name}: {error}")
    return found


def _confusion_section(outcomes: Mapping[str, Outcomes]) -> Section | None:
    charts = [
        confusion_matrix(name, found.dataset.vocabulary.predicate_classes, found.confusion)
        for name, found in outcomes.items()
        if found.confusion.any()
    ]
    if not charts:
        return None
    text = [
        "For each annotated triplet, which predicate the model ranks first for its pair. A pair "
        "may carry several predicates, so that not all of what lies off the diagonal is wrong."
    ]
    return Section("Confusion between predicates", text=text, charts=charts)


def _examples_section(outcomes: Mapping[str, Outcomes]) -> Section | None:
    groups = []
    for name, found in outcomes.items():
        for which, images in (("best", found.best), ("worst", found.worst)):
            if images:
                pictures = [example(image, found.dataset) for image in images]
                groups.append((f"{name}: {which} images", pictures))
    return Section("Examples", examples=groups) if groups else None


def _named_apart(sections: Sequence[Section]) -> list[Section]:
    """Charts with files of their own: names of models and data may differ in signs alone."""
    taken: set[str] = set()

    def apart(chart: Chart) -> Chart:
        names = chain([chart.name], (f"{chart.name}-{number}" for number in count(2)))
        name = next(name for name in names if name not in taken)
        taken.add(name)
        return replace(chart, name=name)

    return [replace(section, charts=[*map(apart, section.charts)]) for section in sections]


def _write_parts(section: Section, out: Path) -> list[Path]:
    written = []
    for table in section.tables:
        for suffix, content in (("csv", table.csv()), ("tex", table.latex())):
            written.append(out / "tables" / f"{table.name}.{suffix}")
            files.write_text(written[-1], content)
    for chart in section.charts:
        for kind in get_args(FigureKind):
            written.append(_chart_file(out, chart, kind))
            files.write_bytes(written[-1], chart.bytes(kind))
    return written


def _chart_file(out: Path, chart: Chart, kind: FigureKind = "svg") -> Path:
    return out / "figures" / f"{chart.name}.{kind}"


def _markdown(title: str, sections: Sequence[Section], left_out: Sequence[str]) -> str:
    parts = [f"# {title}\n"]
    for section in sections:
        parts.append(f"## {section.title}\n")
        parts += [f"{text}\n" for text in section.text]
        parts += [table.markdown() for table in section.tables]
        parts += [f"![{chart.text}](figures/{chart.name}.svg)\n" for chart in section.charts]
        for heading, pictures in section.examples:
            parts.append(f"### {heading}\n")
            parts.append("\n".join(f"- {item.heading}" for item in pictures) + "\n")
    if left_out:
        parts.append("## Left out\n\n" + "\n".join(f"- {reason}" for reason in left_out) + "\n")
    return "\n".join(parts)


def _with_intervals(report: Report, metric: str) -> tuple[Floats, Floats, Floats]:
    rows = [estimate(report, metric, name)[:3] for name in report.per_predicate]
    value, low, high = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return value, low, high


def _vector(report: Report, metric: str) -> Floats:
    return _with_intervals(report, metric)[0]
