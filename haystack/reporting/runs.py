"""What a report is about: models that were measured alike."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from haystack.errors import InputError
from haystack.evaluation.benchmark import RESULT, BenchmarkResult, read_result, same_benchmark
from haystack.evaluation.report import Report


@dataclass(frozen=True)
class Run:
    """One model's numbers.

    Args:
        name: for tables and legends; no two runs share one.
        report: the numbers.
        result: the benchmark's result that they come from; None for a report that ``haystack
            evaluate --out`` wrote, which names no files.
    """

    name: str
    report: Report
    result: BenchmarkResult | None = None


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Runs that may be put side by side, in the order given.

    Args:
        paths: folders of ``haystack bench``, or JSON that ``haystack evaluate --out`` wrote.

    Raises:
        InputError: none is given, one cannot be read, or they were not measured alike.
    """
    if not paths:
        raise InputError("expected at least one run: a folder of haystack bench, or a report")
    runs = [_read(Path(path)) for path in paths]
    results = [run.result for run in runs if run.result is not None]
    if results:
        same_benchmark(results)
    for other in runs[1:]:
        _require_alike(runs[0], other)
    return _renamed(runs, paths)


def _read(path: Path) -> Run:
    if path.is_dir() or path.name == RESULT:
        result = read_result(path)
        return Run(result.model, result.report, result)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            f"expected the folder of a benchmark run, or a report's JSON: {error}", path=path
        ) from error
    if isinstance(content, dict) and "benchmark" in content:
        result = read_result(path)
        return Run(result.model, result.report, result)
    try:
        return Run(path.stem, Report.from_dict(content))
    except InputError as error:
        raise InputError(error.message, path=path) from error


def _require_alike(first: Run, other: Run) -> None:
    a, b = first.report, other.report
    for what, one, two in (
        ("protocol", a.protocol, b.protocol),
        ("split", a.split, b.split),
        ("number of images", a.images, b.images),
        ("list of predicates", tuple(a.per_predicate), tuple(b.per_predicate)),
        ("number of positive labels", a.support["positives"], b.support["positives"]),
        ("number of negative labels", a.support["negatives"], b.support["negatives"]),
    ):
        if one != two:
            shown = "" if isinstance(one, tuple) else f" ({one} and {two})"
            raise InputError(
                f"{first.name} and {other.name} were not measured alike: the {what} "
                f"differs{shown}; measure both on the same images under one protocol"
            )


def _renamed(runs: Sequence[Run], paths: Sequence[str | Path]) -> list[Run]:
    """Names made unique by the run's place."""
    counts = Counter(run.name for run in runs)
    named = [
        run if counts[run.name] == 1 else replace(run, name=f"{run.name} ({Path(path)})")
        for run, path in zip(runs, paths, strict=True)
    ]
    twice = [name for name, count in Counter(run.name for run in named).items() if count > 1]
    if twice:
        raise InputError(f"the run {twice[0]} is given twice")
    return named
