"""The verb ``progress``, and what the annotation service shows on its progress page."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack.cli.outcome import Outcome
from haystack.cli.stages import add_database_argument, database_of
from haystack.errors import HaystackError, InputError
from haystack.text import duration, table

if TYPE_CHECKING:
    from fastapi import FastAPI

    from haystack.annotate.store.store import AnnotationStore
    from haystack.annotate.summary import Agreement, Summary
    from haystack.drawing.figures import PredicateCounts
    from haystack.pipeline.workspace import Workspace

_FACTS = "progress.json"  # in the workspace: counts that take long to make
_TITLES = {
    "relative-size": "Positives relative to the reference (figure 6)",
    "positives": "Positives by predicate (figure 7)",
    "positive-share": "Share of positives by predicate (figure 8)",
}
_log = logging.getLogger(__name__)


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    progress = verbs.add_parser(
        "progress",
        help="how annotation goes: yield, agreement, pace, when to stop",
        description=_progress.__doc__,
    )
    progress.add_argument(
        "workspace", type=Path, help="folder of the campaign, or a PSG or Haystack annotation file"
    )
    add_database_argument(progress)
    progress.add_argument(
        "--figures", type=Path, metavar="DIR", help="write the paper's figures 6 to 8 there as SVG"
    )
    progress.add_argument(
        "--reference",
        metavar="A.json",
        help="annotations to compare with, their test split if they have one (default: the "
        "workspace's score.statistics)",
    )
    progress.add_argument(
        "--stop-below",
        type=float,
        default=1.0,
        metavar="N",
        help="needles per 100 answers that are worth asking for (default: 1)",
    )
    progress.set_defaults(run=_progress)


def _progress(args: argparse.Namespace) -> Outcome:
    """Show what a campaign's answers, or an annotation file, come to by predicate."""
    if args.workspace.is_dir():
        return _of_campaign(args)
    return _of_annotations(args)


# ---------------------------------------------------------------------- a campaign


def progress_part(workspace: Workspace, store: AnnotationStore) -> Callable[[FastAPI], None]:
    """What adds the progress page of a campaign to its service.

    Args:
        workspace: the campaign's folder.
        store: its answers.
    """
    from haystack.annotate.live import LiveSummary
    from haystack.annotate.service.progress import Figure, add_progress
    from haystack.annotate.store.wordings import PredicateNames

    vocabulary = workspace.vocabulary
    originals = [vocabulary.annotator_name(p) for p in range(vocabulary.num_predicates)]
    wordings = PredicateNames(store.database, originals)
    facts = _Facts(workspace)

    def drawing(name: str) -> Callable[[Summary], bytes]:
        return lambda summary: _drawings(_rows(summary, facts.reference), facts.title)[name]()

    def add(app: FastAPI) -> None:
        live = LiveSummary(store, _summarizer(workspace, facts))
        names = list(_TITLES) if facts.known else ["positive-share"]
        figures = {name: Figure(_TITLES[name], drawing(name)) for name in names}
        add_progress(app, live, wordings.name, figures)

    return add


def _summarizer(workspace: Workspace, facts: _Facts, stop_below: float = 1.0) -> Any:
    from haystack.annotate.summary import Summarizer
    from haystack.annotate.yields import StopRule

    names = workspace.vocabulary.predicate_classes
    rule = StopRule(target=stop_below / 100)
    return Summarizer(names.__getitem__, baseline=lambda: facts.baseline, rule=rule)


class _Facts:
    """What training annotations say of a campaign: random yields, and counts to compare with.

    They are counted when they are first asked for, and kept in the workspace: reading all of PSG
    takes a while.

    Args:
        workspace: the campaign's folder.
        reference: other annotations to compare with; None for ``score.statistics``.
    """

    def __init__(self, workspace: Workspace, reference: str | None = None) -> None:
        self._workspace = workspace
        self._reference = reference

    @property
    def known(self) -> bool:
        """Whether there is anything to compare with."""
        return bool(self._reference or self._workspace.config.score.statistics)

    @property
    def baseline(self) -> dict[int, float]:
        """Predicate -> needles per question at random; without those that are not known."""
        shares = self._counted.get("random_yield", [])
        return {p: share for p, share in enumerate(shares) if share is not None}

    @property
    def reference(self) -> list[int] | None:
        """Positives of every predicate; None where there is nothing to compare with."""
        if self._reference is not None:
            return self._of_reference[0]
        counts: list[int] | None = self._counted.get("positives")
        return counts

    @property
    def title(self) -> str:
        """What the reference is called."""
        if self._reference is not None:
            return self._of_reference[1]
        return str(self._counted.get("title", "reference"))

    @cached_property
    def _of_reference(self) -> tuple[list[int], str]:
        from haystack.io import read_psg
        from haystack.reporting.data_sets import reference_counts

        path = str(self._reference)
        return reference_counts(read_psg(path, vocabulary=self._workspace.vocabulary), path)

    @cached_property
    def _counted(self) -> dict[str, Any]:
        from haystack.files import write_json
        from haystack.io.datasets import find_annotations

        config = self._workspace.config.score
        if not config.statistics:
            return {}
        kept = self._workspace.root / _FACTS
        try:
            status = find_annotations(config.statistics).stat()
            made_of = [config.statistics, status.st_size, status.st_mtime_ns]
            made_of += [config.split, config.min_count]
            content: dict[str, Any] = {}
            if kept.is_file():
                content = json.loads(kept.read_text(encoding="utf-8"))
            if content.get("made_of") != made_of:
                content = {"made_of": made_of, **self._count()}
                write_json(kept, content)
        except (OSError, ValueError, HaystackError) as error:
            _log.warning("no random baseline: %s", error)
            return {}
        return content

    def _count(self) -> dict[str, Any]:
        from haystack.cli.parser import jsonable
        from haystack.io import read_psg
        from haystack.reporting.data_sets import reference_counts
        from haystack.statistics import TripletStatistics, random_yield

        config, vocabulary = self._workspace.config.score, self._workspace.vocabulary
        dataset = read_psg(config.statistics, vocabulary=vocabulary)
        graphs = dataset.split(config.split)  # type: ignore[arg-type]  # checked by ScoreConfig
        statistics = TripletStatistics.from_graphs(
            graphs, vocabulary.num_objects, vocabulary.num_predicates
        )
        shares = random_yield(graphs, statistics, min_count=config.min_count)
        positives, title = reference_counts(dataset, config.statistics)
        return {"random_yield": jsonable(shares), "positives": positives, "title": title}


def _of_campaign(args: argparse.Namespace) -> Outcome:
    from haystack.annotate.live import LiveSummary
    from haystack.annotate.store.store import AnnotationStore
    from haystack.pipeline.workspace import Workspace

    workspace = Workspace.configured(args.workspace)
    database = database_of(args)
    if "://" not in database and not Path(database).is_file():
        raise InputError(f"no answers yet; run: haystack annotate {args.workspace}", path=database)
    facts = _Facts(workspace, args.reference)
    with AnnotationStore(database) as store:
        summary = LiveSummary(store, _summarizer(workspace, facts, args.stop_below)).get()
    written = _write(args.figures, _rows(summary, facts.reference), facts.title)
    lines = [*_table(summary), "", *_totals(summary), *_written(written)]
    return Outcome("\n".join(lines), {**asdict(summary), "figures": written})


def _table(summary: Summary) -> list[str]:
    header = (
        "predicate",
        "judged",
        "needles",
        "per 100",
        "random",
        "alpha",
        "needed",
        "time needed",
    )
    rows = []
    for row in summary.predicates:
        per_100, random = row.share.value, row.baseline
        cells: tuple[Any, ...] = (
            row.name,
            row.judged,
            row.needles,
            "-" if per_100 is None else f"{100 * per_100:7.1f}",
            "-" if random is None else f"{100 * random:6.2f}",
            _number(row.agreement["two"].alpha),
            row.to_ask,
            "-" if row.hours_to_go is None else duration(3600 * row.hours_to_go),
            "stop" if row.advice.stop else "go on" if row.judged else "-",
        )
        rows.append(cells)
    return table((*header, "advice"), rows)


def _totals(summary: Summary) -> list[str]:
    two = summary.agreement["two"]
    lines = [
        f"{summary.answers} answers in {duration(3600 * summary.hours)} of work, {summary.needles} "
        f"needles in {summary.judged} judged questions",
        f"agreement, 'no relation' as incorrect: {_agreement(two)}",
        f"agreement, 'no relation' apart: {_agreement(summary.agreement['three'])}",
    ]
    for person in summary.people:
        gold, repeats = person.gold["two"], person.repeats["two"]
        pace = "" if person.pace is None else f", {person.pace:.0f} an hour"
        lines.append(
            f"{person.name}: {person.answers} answers{pace}; gold {gold.hits} of {gold.trials}, "
            f"repeats {repeats.hits} of {repeats.trials}"
        )
    stopped = [row.name for row in summary.predicates if row.advice.stop]
    if stopped:
        lines.append(
            f"worth stopping, or a new round of proposals: {', '.join(stopped)} (fewer needles "
            "than worth asking for)"
        )
    return lines


def _agreement(found: Agreement) -> str:
    if not found.items:
        return "no question was answered by two"
    return (
        f"{_number(found.observed)} of pairs equal, Krippendorff's alpha {_number(found.alpha)}, "
        f"Fleiss' kappa {_number(found.fleiss)} ({found.items} questions)"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _rows(summary: Summary, reference: list[int] | None) -> list[PredicateCounts]:
    from haystack.drawing.figures import PredicateCounts

    return [
        PredicateCounts(
            row.name, row.needles, row.judged, reference[row.predicate] if reference else None
        )
        for row in summary.predicates
    ]


# ---------------------------------------------------------------------- annotation files


def _of_annotations(args: argparse.Namespace) -> Outcome:
    from haystack.io import read_psg
    from haystack.reporting.data_sets import predicate_counts, reference_counts
    from haystack.statistics import DatasetSummary

    dataset = read_psg(str(args.workspace))
    reference, title = None, "reference"
    if args.reference is not None:
        other = read_psg(args.reference, vocabulary=dataset.vocabulary)
        reference, title = reference_counts(other, args.reference)
    names = dataset.vocabulary.predicate_classes
    summary = DatasetSummary.from_graphs(dataset.graphs, len(names))
    rows = [row for row in predicate_counts(names, summary, reference) if row.judged]
    written = _write(args.figures, rows, title)
    header = ("predicate", "judged", "positives", "percent")
    lines = table(
        header,
        [
            (row.name, row.judged, row.positives, f"{100 * row.positives / row.judged:7.1f}")
            for row in rows
        ],
    )
    if summary.no_relation_pairs:
        lines.append(
            f"{summary.no_relation_pairs} pairs with no relation at all belong to no predicate, "
            "and are not counted"
        )
    data = {
        "predicates": [asdict(row) for row in rows],
        "no_relation_pairs": summary.no_relation_pairs,
        "figures": written,
    }
    return Outcome("\n".join([*lines, *_written(written)]), data)


# ---------------------------------------------------------------------- figures


def _drawings(rows: list[PredicateCounts], reference: str) -> Mapping[str, Callable[[], bytes]]:
    from haystack.drawing.figures import (
        positive_share_figure,
        positives_figure,
        relative_size_figure,
    )

    drawings: dict[str, Callable[[], bytes]] = {
        "positive-share": lambda: positive_share_figure(rows)
    }
    if all(row.reference is not None for row in rows):
        drawings["relative-size"] = lambda: relative_size_figure(rows, reference=reference)
        drawings["positives"] = lambda: positives_figure(rows, reference=reference)
    return drawings


def _write(folder: Path | None, rows: list[PredicateCounts], reference: str) -> list[Path]:
    from haystack.files import make_folder, write_bytes

    if folder is None:
        return []
    make_folder(folder)
    written = []
    for name, draw in sorted(_drawings(rows, reference).items()):
        path = folder / f"{name}.svg"
        write_bytes(path, draw())
        written.append(path)
    return written


def _written(paths: list[Path]) -> list[str]:
    if not paths:
        return []
    lines = [f"wrote {path}" for path in paths]
    if len(paths) < len(_TITLES):
        lines.append("figures 6 and 7 compare with other annotations: give --reference A.json")
    return lines
