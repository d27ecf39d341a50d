"""Charts of annotation files: the Haystack paper's figures 6, 7 and 8."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from haystack.drawing.figures import (
    COLUMN_INCHES,
    PredicateCounts,
    positive_share_figure,
    positives_figure,
    relative_size_figure,
)
from haystack.io.psg import read_psg
from haystack.reporting.charts import Chart, file_name
from haystack.scene_graph import SceneGraphDataset
from haystack.statistics import DatasetSummary


def predicate_counts(
    names: Sequence[str], summary: DatasetSummary, reference: Sequence[int] | None
) -> list[PredicateCounts]:
    """Labels of every predicate, in the vocabulary's order; "no relation" belongs to none.

    Args:
        names: of the P predicates.
        summary: of the annotations.
        reference: positives of every predicate in another data set, or None.
    """
    return [
        PredicateCounts(name, positives, positives + negatives, reference[p] if reference else None)
        for p, (name, positives, negatives) in enumerate(
            zip(names, summary.positives.tolist(), summary.negatives.tolist(), strict=True)
        )
    ]


def reference_counts(dataset: SceneGraphDataset, path: str | Path) -> tuple[list[int], str]:
    """Positives of every predicate in the test split, if there is one, and what that is called."""
    split = dataset.split("test")
    summary = DatasetSummary.from_graphs(
        split or dataset.graphs, len(dataset.vocabulary.predicate_classes)
    )
    name = Path(path).stem
    return summary.positives.tolist(), f"{name} test set" if split else name


def data_charts(path: str | Path, reference: str | Path | None) -> list[Chart]:
    """The figures of one annotation file; the first two only where there is a reference.

    Args:
        path: the annotations; all their images.
        reference: those that they are compared with: their test images, or all if none is listed.

    Raises:
        InputError: a file cannot be read, or the two have other predicates.
    """
    dataset = read_psg(path)
    compared, name = None, ""
    if reference is not None:
        other = read_psg(reference, vocabulary=dataset.vocabulary)
        compared, name = reference_counts(other, reference)
    names = dataset.vocabulary.predicate_classes
    summary = DatasetSummary.from_graphs(dataset.graphs, len(names))
    rows = predicate_counts(names, summary, compared)
    rows = [row for row in rows if row.judged or row.reference]
    own = Path(path).stem
    stem = file_name(own)
    charts = [
        Chart(
            f"{stem}-positive-share",
            f"{own}: percentage of labels that are positive (figure 8)",
            "For each predicate, how many of its labels are positive.",
            COLUMN_INCHES,
            lambda kind: positive_share_figure(rows, kind=kind),
        )
    ]
    if reference is None:
        return charts
    size = partial(relative_size_figure, rows, reference=name)
    positives_of = partial(positives_figure, rows, reference=name, own=own)
    return [
        Chart(
            f"{stem}-relative-size",
            f"{own}: size relative to the {name} (figure 6)",
            f"How many times as many positives each predicate has as in the {name}.",
            COLUMN_INCHES,
            lambda kind: size(kind=kind),
        ),
        Chart(
            f"{stem}-positives",
            f"{own}: positives by predicate (figure 7)",
            f"Positives of each predicate in {own} and in the {name}.",
            COLUMN_INCHES,
            lambda kind: positives_of(kind=kind),
        ),
        *charts,
    ]
