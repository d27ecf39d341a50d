"""Charts of annotation files: the Haystack paper's figures 6, 7 and 8."""

from __future__ import annotations

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
from haystack.statistics import DatasetSummary


def data_charts(path: str | Path, reference: str | Path | None) -> list[Chart]:
    """The figures of one annotation file; the first two only where there is a reference.

    Args:
        path: the annotations; all their images.
        reference: those that they are compared with: their test images, or all if none is listed.

    Raises:
        InputError: a file cannot be read, or the two have other predicates.
    """
    dataset = read_psg(path)
    names = dataset.vocabulary.predicate_classes
    summary = DatasetSummary.from_graphs(dataset.graphs, len(names))
    compared = None
    if reference is not None:
        other = read_psg(reference, vocabulary=dataset.vocabulary)
        graphs = other.split("test") if other.test_image_ids else other.graphs
        compared = DatasetSummary.from_graphs(graphs, len(names)).positives.tolist()
    rows = [
        PredicateCounts(name, positives, positives + negatives, compared[p] if compared else None)
        for p, (name, positives, negatives) in enumerate(
            zip(names, summary.positives.tolist(), summary.negatives.tolist(), strict=True)
        )
        if positives + negatives or (compared and compared[p])
    ]
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
    name = f"{Path(reference).stem} test set" if other.test_image_ids else Path(reference).stem
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
