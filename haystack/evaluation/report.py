"""The result of an evaluation: for people a table, for programs JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from haystack import files

Values = Mapping[str, float | int]


@dataclass(frozen=True)
class Report:
    """Metrics of one model on one set of annotations. All are fractions of 0..1, NaN = undefined.

    Args:
        protocol: the protocol's name; numbers compare under one protocol only.
        split: the images that were evaluated: ``test``, ``train`` or ``all``.
        images: their number.
        metrics: the scalars: ``P-AUC``, ``PDD``, ``PDO``, ``R@20``, ``mR@20``, ...
        support: what stands behind them: ``images_with_relations``, ``positives``, ``negatives``
            (labels), ``predicates`` (metric -> how many predicates entered its mean),
            ``missing_images`` (annotated, without a prediction), ``missing_pairs`` (annotated,
            not predicted, those of missing images included; counted as the worst),
            ``ignored_images`` (predicted, but not among the evaluated images).
        per_predicate: predicate -> its metrics, and its ``positives`` and ``negatives``.
    """

    protocol: str
    split: str
    images: int
    metrics: Values
    support: Mapping[str, Any]
    per_predicate: Mapping[str, Values]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types, NaN as None."""
        content = _without_nan(asdict(self))
        return dict(content)

    def save(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON, atomically."""
        files.write_json(path, self.to_dict())

    def __str__(self) -> str:
        missing = [
            f"{self.support[key]} {what}"
            for key, what in (
                ("missing_images", "annotated images have no prediction"),
                ("missing_pairs", "annotated pairs have none (they count as the worst)"),
                ("ignored_images", "predicted images were not asked for"),
            )
            if self.support[key]
        ]
        lines = [
            f"Protocol {self.protocol}, split {self.split}: {self.images} images, "
            f"{self.support['positives']} positive and {self.support['negatives']} negative labels",
            *("Note: " + "; ".join(missing) for _ in missing[:1]),
            "",
            *self._predicate_table(),
            "",
            *self._recall_table(),
        ]
        return "\n".join(lines)

    def _predicate_table(self) -> list[str]:
        """Predicates that are labelled at all, and the means: the layout of the paper's Table 1."""
        recalls = [name for name in self.metrics if name.startswith("R@")]
        recall = recalls[len(recalls) // 2]
        columns = ("P-AUC", "PDD", "PDO", recall)
        rows = [
            [name, *(_cell(values[c]) for c in columns), values["positives"], values["negatives"]]
            for name, values in self.per_predicate.items()
            if values["positives"] or values["negatives"]
        ]
        means = [self.metrics[name] for name in ("P-AUC", "PDD", "PDO", "m" + recall)]
        totals = (self.support["positives"], self.support["negatives"])
        rows.append(["mean", *map(_cell, means), *totals])
        return _aligned(["predicate", *columns, "+", "-"], rows)

    def _recall_table(self) -> list[str]:
        kinds: dict[str, dict[str, float]] = {}
        for name, value in self.metrics.items():
            kind, at, k = name.partition("@")
            if at:
                kinds.setdefault(kind, {})[at + k] = value
        cutoffs = list(next(iter(kinds.values())))
        rows = [[kind, *map(_cell, values.values())] for kind, values in kinds.items()]
        return _aligned(["recall", *cutoffs], rows)


def _cell(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _aligned(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a table: names to the left, numbers to the right."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if position == 0 else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
