"""Tables of models: the paper's Table 1, the leaderboard, and what stands behind the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from haystack.errors import InputError
from haystack.evaluation.report import Report, direction_text, middle_recall
from haystack.metrics.kinds import LABEL_METRICS, LOWER_IS_BETTER
from haystack.reporting.runs import Run
from haystack.reporting.tables import Cell, Estimate, Table


def table_1(runs: Sequence[Run], recalls: Mapping[str, Report] | None = None) -> Table:
    """P-AUC, PDD, PDO and a recall for each predicate and model (Haystack paper, Table 1).

    Predicates without a label are left out; the last row holds the means that reports give. The
    best model of a row and metric stands out where the models differ.

    Args:
        runs: the models.
        recalls: model -> the report that its recall is taken from, as the paper takes R@50 from
            the PSG test set; None takes it from the runs themselves.

    Raises:
        InputError: ``recalls`` lacks a model.
    """
    sources = [_recall_source(run, recalls) for run in runs]
    recall = middle_recall(next(iter(sources[0].per_predicate.values()), {}))
    first = runs[0].report
    asked = [name for name in LABEL_METRICS if name in first.metrics]
    columns = [name for name in asked if _any_defined(runs, name)]
    shown = [*columns, *([recall] if recall else [])]
    names = [
        name
        for name, values in first.per_predicate.items()
        if values["positives"] or values["negatives"]
    ]
    rows: list[list[Cell]] = []
    for name in names:
        values = [
            estimate(source.report if column in columns else recalled, column, name)
            for source, recalled in zip(runs, sources, strict=True)
            for column in shown
        ]
        counts = first.per_predicate[name]
        best = _marked(values, shown)
        rows.append([name, *best, counts["positives"], counts["negatives"]])
    means = [
        estimate(source.report if column in columns else recalled, _mean_of(column))
        for source, recalled in zip(runs, sources, strict=True)
        for column in shown
    ]
    support = first.support
    rows.append(["mean", *_marked(means, shown), support["positives"], support["negatives"]])
    notes = [
        *direction_text(shown),
        "+ and -: positive and negative labels, all of them in the last row; a dash: undefined.",
    ]
    if recall:
        notes.append(f"The mean of {recall} is m{recall}.")
    absent = [name for name in asked if name not in columns]
    if absent:
        reasons = first.why_undefined(absent) or ["no predicate has the labels that they ask for."]
        notes.append(f"Left out, as no model has a value: {', '.join(absent)}. {' '.join(reasons)}")
    if recalls is not None and recall:
        notes.append(f"{recall} is measured on other images, given for reference.")
    return Table(
        name="table1",
        title="Predicates one by one",
        header=["predicate", *(shown * len(runs)), "+", "-"],
        rows=rows,
        groups=[("", 1), *((run.name, len(shown)) for run in runs if shown), ("labels", 2)],
        notes=notes,
        ruled=True,
    )


def best_first(runs: Sequence[Run]) -> list[Run]:
    """The models in the order of :func:`leaderboard_table`; equal ones by name."""
    rank_by = _rank_by(runs)
    return sorted(runs, key=lambda run: (run.report.place_by(rank_by), run.name))


def _rank_by(runs: Sequence[Run]) -> str:
    result = runs[0].result
    return result.benchmark.rank_by if result else _headline(runs)[0]


def leaderboard_table(runs: Sequence[Run]) -> Table:
    """A row for each model, the best first by the benchmark's ``rank_by``."""
    result = runs[0].result
    columns = list(result.benchmark.columns) if result else _headline(runs)
    rank_by = _rank_by(runs)
    ranked = any(not math.isnan(run.report.metrics[rank_by]) for run in runs)
    ordered = best_first(runs)
    values = {run.name: [estimate(run.report, column) for column in columns] for run in ordered}
    for number, column in enumerate(columns):
        cells = [values[run.name][number] for run in ordered]
        for run, cell in zip(ordered, _marked(cells, [column]), strict=True):
            values[run.name][number] = cell
    rows: list[list[Cell]] = [
        [number, run.name, *values[run.name]] for number, run in enumerate(ordered, start=1)
    ]
    return Table(
        name="leaderboard",
        title=result.benchmark.title_and_version if result else "Models, the best first",
        header=["rank", "model", *columns],
        rows=rows,
        notes=[
            f"Ordered by {rank_by}."
            if ranked
            else f"Ordered by name: no model has a value of {rank_by}.",
            *direction_text(columns),
        ],
    )


def provenance_table(runs: Sequence[Run]) -> Table | None:
    """Which files and which machine each number came from; None where no run says."""
    known = [run for run in runs if run.result is not None]
    if not known:
        return None
    rows: list[list[Cell]] = []
    for run in known:
        assert run.result is not None
        where = run.result.environment
        versions = where.get("versions", {})
        rows.append(
            [
                run.name,
                str(run.result.inputs["predictions"]["sha256"])[:12],
                str(run.result.inputs["annotations"]["sha256"])[:12],
                f"haystack {versions.get('haystack', '?')}, torch {versions.get('torch', '?')}",
                str(where.get("commit") or "-")[:12],
                str(where.get("image_digest") or "-")[:19],
                str((where.get("gpu") or {}).get("name") or where.get("device", "-")),
            ]
        )
    header = ["model", "predictions", "annotations", "versions", "commit", "image", "device"]
    return Table(
        name="provenance",
        title="What was measured, and with what",
        header=header,
        rows=rows,
        notes=["Files by the beginning of their SHA-256."],
    )


def support_notes(runs: Sequence[Run]) -> list[str]:
    """What the reports say of missing predictions, a line a model that lacks something."""
    notes = []
    for run in runs:
        support = run.report.support
        if support["missing_pairs"] or support["missing_images"]:
            notes.append(
                f"{run.name} lacks {support['missing_pairs']} annotated pairs "
                f"({support['missing_images']} of {run.report.images} images have no prediction); "
                "they count as the worst."
            )
    return notes


def _recall_source(run: Run, recalls: Mapping[str, Report] | None) -> Report:
    if recalls is None:
        return run.report
    if run.name not in recalls:
        raise InputError(
            f"no run with recalls is of the model {run.name}; there are "
            f"{', '.join(sorted(recalls))} (haystack bench --name names a model)"
        )
    return recalls[run.name]


def _headline(runs: Sequence[Run]) -> list[str]:
    """Columns for reports that no benchmark defines: those with values, if any has one."""
    names = runs[0].report.metrics
    recalls = [middle_recall(names, kind) for kind in ("R", "mR", "ngR", "ng-mR")]
    known = [name for name in (*LABEL_METRICS, *recalls, "PQ") if name is not None]
    wanted = [name for name in known if name in names] or list(names)[:6]
    return [
        name for name in wanted if any(not math.isnan(run.report.metrics[name]) for run in runs)
    ] or wanted


def _any_defined(runs: Sequence[Run], metric: str) -> bool:
    """Whether any model has a value of the metric for any predicate."""
    return any(
        not math.isnan(values.get(metric, math.nan))
        for run in runs
        for values in run.report.per_predicate.values()
    )


def _mean_of(column: str) -> str:
    return column if column in LABEL_METRICS else f"m{column}"


def estimate(report: Report, column: str, predicate: str | None = None) -> Estimate:
    """A value of a report with its interval, NaN where it has none.

    Args:
        report: the numbers.
        column: name of the metric.
        predicate: the value of this predicate; None = the scalar.
    """
    values = report.metrics if predicate is None else report.per_predicate.get(predicate, {})
    value = float(values.get(column, math.nan))
    if report.uncertainty is None:
        return Estimate(value)
    intervals = (
        report.uncertainty.metrics
        if predicate is None
        else report.uncertainty.per_predicate.get(predicate, {})
    )
    interval = intervals.get(column)
    if interval is None or math.isnan(value):
        return Estimate(value)
    return Estimate(value, interval.low, interval.high)


def _marked(values: Sequence[Estimate], columns: Sequence[str]) -> list[Estimate]:
    """The best of each column over the models marked, where they differ."""
    marked = list(values)
    for place, column in enumerate(columns):
        group = range(place, len(values), len(columns))
        known = [values[i].value for i in group if not math.isnan(values[i].value)]
        if len(known) < 2 or min(known) == max(known):
            continue
        lower = column.partition("@")[0] in LOWER_IS_BETTER
        best = min(known) if lower else max(known)
        for i in group:
            marked[i] = values[i]._replace(best=values[i].value == best)
    return marked
