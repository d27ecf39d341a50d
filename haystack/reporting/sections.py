"""The parts of a report, made of runs: what each shows, and why a part is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from haystack.errors import InputError
from haystack.evaluation.benchmark import SAME
from haystack.evaluation.report import Report, middle_recall
from haystack.io.psg import read_psg
from haystack.metrics.kinds import LABEL_METRICS, LOWER_IS_BETTER
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
from haystack.reporting.examples import Example, example
from haystack.reporting.models import (
    best_first,
    estimate,
    leaderboard_table,
    provenance_table,
    support_notes,
    table_1,
)
from haystack.reporting.outcomes import Outcomes, model_outcomes
from haystack.reporting.runs import Run
from haystack.reporting.tables import Table
from haystack.scene_graph import SceneGraphDataset
from haystack.statistics import DatasetSummary

_MOST_ROWS = 15
"""Predicates up to which a part of the page that has a row for each is open."""
_MOST_BARS = 60
_MOST_NAMES = 40


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Args:
        title: its heading.
        text: paragraphs below it.
        tables: shown as tables.
        charts: shown as charts.
        examples: pictures of images.
        parts: shown below, each under its own title.
        folded: of a part, whether the page shows its title alone until a reader opens it.
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    examples: Sequence[Example] = ()
    parts: Sequence[Section] = ()
    folded: bool = False

    def all_parts(self) -> Iterator[Section]:
        """This section, and the parts in it."""
        yield self
        for part in self.parts:
            yield from part.all_parts()


@dataclass
class Request:
    """What a report is asked to show; see :func:`~haystack.reporting.render.render_report`."""

    runs: Sequence[Run]
    recalls: Mapping[str, Report] | None = None
    training: str | Path | None = None
    data: Sequence[str | Path] = ()
    reference: str | Path | None = None
    examples: int = 4
    left_out: list[str] = field(default_factory=list)


def make_sections(request: Request) -> list[Section]:
    """All sections that can be made; why others cannot is added to ``request.left_out``.

    Raises:
        InputError: ``recalls`` lacks a model, or ``data`` cannot be read.
    """
    outcomes = _outcomes(request)
    found = (
        _models(request),
        _predicates(request),
        _tail(request),
        _data(request),
        _confusion(request, outcomes),
        _examples(outcomes),
    )
    return [section for section in found if section is not None]


def _models(request: Request) -> Section:
    single = table_1(request.runs, request.recalls)
    parts = [
        Section(
            f"{single.title} ({len(single.rows) - 1})",
            tables=[single],
            folded=len(single.rows) > _MOST_ROWS,
        )
    ]
    provenance = provenance_table(request.runs)
    if provenance is not None:
        parts.append(Section(provenance.title, tables=[provenance], folded=True))
    return Section(
        "Models",
        text=support_notes(request.runs),
        tables=[leaderboard_table(request.runs)],
        parts=parts,
    )


def _predicates(request: Request) -> Section | None:
    runs = request.runs
    report = runs[0].report
    predicates = list(report.per_predicate)
    known = next(iter(report.per_predicate.values()), {})
    recall = middle_recall(known)
    charts = []
    if {"PDD", "PDO"} <= known.keys():
        pdd, pdo = ({r.name: _vector(r.report, m) for r in runs} for m in ("PDD", "PDO"))
        if _meet(pdd, pdo):
            charts.append(displacement(predicates, pdd, pdo))
        else:
            request.left_out.append("PDO against PDD: no predicate has both.")
    if recall is not None and "P-AUC" in known:
        pairs = [{r.name: _vector(r.report, m) for r in runs} for m in (recall, "P-AUC")]
        if _meet(*pairs):
            charts.append(reliability(recall, predicates, *pairs))
        else:
            request.left_out.append(f"{recall} against P-AUC: no predicate has both.")
    metrics = [m for m in (*LABEL_METRICS, recall) if m is not None and m in known]
    bars = {metric: _bars(runs, metric) for metric in metrics}
    drawn = [chart for _, chart in bars.values() if chart is not None]
    text = [sentence for sentences, _ in bars.values() for sentence in sentences]
    parts = []
    if drawn or text:
        told = [metric for metric, (sentences, chart) in bars.items() if sentences or chart]
        title = f"{', '.join(told)} of each predicate"
        folded = len(predicates) > _MOST_ROWS
        parts.append(Section(title, text=text, charts=drawn, folded=folded))
    return Section("Predicates", charts=charts, parts=parts) if charts or parts else None


def _bars(runs: Sequence[Run], metric: str) -> tuple[list[str], Chart | None]:
    """A chart of the predicates for which any model has more than zero, and who the others are."""
    counts = runs[0].report.per_predicate
    names = list(counts)
    values = {run.name: _with_intervals(run.report, metric) for run in runs}
    stacked = np.stack([value for value, _, _ in values.values()])
    defined = ~np.isnan(stacked).all(axis=0)
    zero = defined & (np.nan_to_num(stacked) == 0).all(axis=0)
    text = []
    if zero.any():
        whose = "" if len(runs) == 1 else " for all models"
        text.append(
            f"{metric} is 0{whose} for {zero.sum()} of {defined.sum()} predicates: "
            f"{_listed([names[place] for place in np.flatnonzero(zero)])}."
        )
    shown = np.flatnonzero(defined & ~zero)
    if len(shown) > _MOST_BARS:
        text.append(
            f"{metric}: bars show the {_MOST_BARS} predicates with most positives of {len(shown)}; "
            "the table has all."
        )
        positives = np.array([counts[names[place]]["positives"] for place in shown])
        shown = shown[np.sort(np.argsort(-positives, kind="stable")[:_MOST_BARS])]
    if not len(shown):
        return text, None
    lower = metric in LOWER_IS_BETTER
    first = np.nan_to_num(stacked[0][shown])
    order = shown[np.argsort(first if lower else -first, kind="stable")]
    chosen = {m: (v[order], lo[order], hi[order]) for m, (v, lo, hi) in values.items()}
    chart = predicate_bars(metric, [names[p] for p in order], chosen, lower_is_better=lower)
    return text, chart


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _tail(request: Request) -> Section | None:
    runs, left_out = request.runs, request.left_out
    predicates = list(runs[0].report.per_predicate)
    recall = middle_recall(next(iter(runs[0].report.per_predicate.values()), {}))
    shown = {}
    for metric in ("P-AUC", recall):
        values = {} if metric is None else {r.name: _vector(r.report, metric) for r in runs}
        if metric is not None and not all(np.isnan(vector).all() for vector in values.values()):
            shown[metric] = values
    if not shown:
        return None
    try:
        dataset = _training(request)
    except InputError as error:
        left_out.append(f"The long tail: {error}")
        return None
    if dataset is None:
        left_out.append("The long tail needs --training: reports alone name no annotations.")
        return None
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
    charts = [long_tail(metric, predicates, counts, values) for metric, values in shown.items()]
    text = [f"Counted on {len(graphs)} training images with {counts.sum()} relations."]
    return Section("The long tail", text=text, charts=charts)


def _training(request: Request) -> SceneGraphDataset | None:
    """The annotations of the long tail; None where nothing names any."""
    if request.training is not None:
        return read_psg(request.training)
    result = request.runs[0].result
    if result is None:
        return None
    named = result.benchmark.training not in (None, SAME)
    file = result.input_file("training" if named else "annotations")
    return read_psg(file, allow_contradictions=True)


def _data(request: Request) -> Section | None:
    charts = [chart for path in request.data for chart in data_charts(path, request.reference)]
    if request.data and request.reference is None:
        request.left_out.append(
            "The paper's figures 6 and 7 compare with another data set: --reference."
        )
    return Section("Data sets", charts=charts) if charts else None


def _outcomes(request: Request) -> dict[str, Outcomes]:
    """Image by image what each model said, the best model first."""
    found: dict[str, Outcomes] = {}
    lacking: dict[str, list[str]] = {}
    dataset = None  # of the first that is read: all were measured on the same
    for run in best_first(request.runs):
        if run.result is None:
            reason = "a report alone names no predictions; make the run with haystack bench."
            lacking.setdefault(reason, []).append(run.name)
            continue
        try:
            found[run.name] = model_outcomes(run.result, dataset, examples=request.examples)
            dataset = found[run.name].dataset
        except InputError as error:
            lacking.setdefault(str(error), []).append(run.name)
    for reason, names in lacking.items():
        request.left_out.append(f"Confusion and examples of {', '.join(names)}: {reason}")
    return found


def _confusion(request: Request, outcomes: Mapping[str, Outcomes]) -> Section | None:
    if len(request.runs[0].report.per_predicate) < 2:
        return None
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
    parts = [
        Section(chart.title, charts=[chart], folded=number > 0)
        for number, chart in enumerate(charts)
    ]
    return Section("Confusion between predicates", text=text, parts=parts)


def _examples(outcomes: Mapping[str, Outcomes]) -> Section | None:
    parts: list[Section] = []
    for name, found in outcomes.items():
        for which, images in (("best", found.best), ("worst", found.worst)):
            if images:
                pictures = [example(image, found.dataset) for image in images]
                title = f"{name}: {which} images ({len(images)})"
                parts.append(Section(title, examples=pictures, folded=bool(parts)))
    text = [
        "Below each picture, where the model's list has each annotated triplet. A pair stands in "
        "the list once, with its best predicate: “another predicate” says that this is not the "
        "annotated one, or that the list lacks the pair."
    ]
    return Section("Examples", text=text, parts=parts) if parts else None


def _meet(a: Mapping[str, Floats], b: Mapping[str, Floats]) -> bool:
    """Whether any model has both numbers of any predicate."""
    return any((~np.isnan(a[name]) & ~np.isnan(b[name])).any() for name in a)


def _with_intervals(report: Report, metric: str) -> tuple[Floats, Floats, Floats]:
    rows = [estimate(report, metric, name)[:3] for name in report.per_predicate]
    value, low, high = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return value, low, high


def _vector(report: Report, metric: str) -> Floats:
    return _with_intervals(report, metric)[0]
