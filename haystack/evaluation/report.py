"""The result of an evaluation: for people a table, for programs JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack import files
from haystack.errors import InputError
from haystack.metrics.kinds import LABEL_METRICS, LOWER_IS_BETTER, PANOPTIC_METRICS
from haystack.metrics.protocols import get_protocol
from haystack.text import table

if TYPE_CHECKING:
    from haystack.evaluation.uncertainty import Interval, Uncertainty

Values = Mapping[str, float | int]


@dataclass(frozen=True)
class Report:
    """Metrics of one model on one set of annotations. All are fractions of 0..1, NaN = undefined.

    Args:
        protocol: the protocol's name; numbers compare under one protocol only.
        split: the images that were evaluated: ``test``, ``train`` or ``all``.
        images: their number.
        metrics: the scalars: ``P-AUC``, ``PDD``, ``PDO``, ``R@20``, ``mR@20``, ...; see
            :data:`haystack.metrics.RECALLS` for what each is.
        support: what stands behind them: ``images_with_relations``, ``positives``, ``negatives``
            (labels), ``predicates`` (metric -> how many predicates entered its mean),
            ``missing_images`` (annotated, without a prediction), ``missing_pairs`` (annotated,
            not predicted, those of missing images included; counted as the worst),
            ``ignored_images`` (predicted, but not among the evaluated images), ``own_objects``
            (images whose predicted objects are not the annotated ones: 0 in PredCls), and where
            training annotations were compared with, ``training``: their ``relations``,
            ``distinct_triplets`` and ``sha256``.
        per_predicate: predicate -> its metrics, and its ``positives`` and ``negatives``.
        per_class: object class -> its ``PQ``, ``SQ`` and ``RQ``, if asked for.
        uncertainty: intervals of all values but those of classes, if asked for.
    """

    protocol: str
    split: str
    images: int
    metrics: Values
    support: Mapping[str, Any]
    per_predicate: Mapping[str, Values]
    per_class: Mapping[str, Values] = field(default_factory=dict)
    uncertainty: Uncertainty | None = None

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types, NaN as None."""
        content = dict(without_nan(asdict(self)))
        for optional in ("per_class", "uncertainty"):
            if not content[optional]:
                del content[optional]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Report:
        """The report that :meth:`to_dict` gave, None as NaN.

        Raises:
            InputError: something is missing, or of another kind.
        """
        try:
            uncertainty = content.get("uncertainty")
            return cls(
                protocol=content["protocol"],
                split=content["split"],
                images=content["images"],
                metrics=_with_nan(content["metrics"]),
                support=content["support"],
                per_predicate={n: _with_nan(v) for n, v in content["per_predicate"].items()},
                per_class={n: _with_nan(v) for n, v in content.get("per_class", {}).items()},
                uncertainty=None if uncertainty is None else _uncertainty(uncertainty),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"expected the JSON of a report ({type(error).__name__}: {error})"
            ) from error

    def save(self, path: str | Path, *, run: Mapping[str, Any] | None = None) -> None:
        """Write :meth:`to_dict` as JSON, atomically; ``run`` says there how it was computed."""
        files.write_json(path, self.to_dict() | ({} if run is None else {"run": dict(run)}))

    def place_by(self, name: str) -> tuple[bool, float]:
        """A key that sorts reports by one of their metrics, the best first, undefined ones last."""
        value = self.metrics[name]
        if math.isnan(value):
            return True, 0.0
        return False, value if name.partition("@")[0] in LOWER_IS_BETTER else -value

    def __str__(self) -> str:
        missing = [
            f"{self.support[key]} {what}"
            for key, what in (
                ("missing_images", "annotated images have no prediction"),
                ("missing_pairs", "annotated pairs have none (they count as the worst)"),
                (
                    "ignored_images",
                    f"predicted images are not of the split '{self.split}': not graded",
                ),
                ("own_objects", "images have predicted objects, not the annotated ones"),
            )
            if self.support[key]
        ]
        lines = [
            f"Protocol {self.protocol}, split {self.split}: {self.images} images, "
            f"{self.support['positives']} positive and {self.support['negatives']} negative labels",
            *("Note: " + "; ".join(missing) for _ in missing[:1]),
            *self._predicate_table(),
            *self._recall_table(),
            *self._other_table(),
            *self._panoptic_table(),
            *self._interval_table(),
        ]
        return "\n".join(lines)

    def _predicate_table(self) -> list[str]:
        """Predicates that are labelled at all, and the means: the layout of the paper's Table 1."""
        recall = middle_recall(self.metrics, "mR")
        shown = (*LABEL_METRICS, recall)
        means = [name for name in shown if name is not None and name in self.metrics]
        if not means:
            return []
        columns = [name.removeprefix("m") for name in means]
        counts = ("positives", "negatives")
        labelled = [n for n, v in self.per_predicate.items() if any(v[c] for c in counts)]
        rows = [
            [name, *(values[c] for c in (*columns, *counts))]
            for name, values in ((name, self.per_predicate[name]) for name in labelled)
        ]
        totals = (self.support[c] for c in counts)
        rows.append(["mean", *(self.metrics[name] for name in means), *totals])
        header = ["predicate", *columns, "+", "-"]
        if self.uncertainty is not None:
            header.append(f"interval of {columns[0]}")
            for name, row in zip(labelled, rows[:-1], strict=True):
                row.append(interval_text(self.uncertainty.per_predicate[name][columns[0]]))
            rows[-1].append(interval_text(self.uncertainty.metrics[means[0]]))
        return [
            "",
            *table(header, rows),
            *self._footnotes(means),
        ]

    def _footnotes(self, means: Sequence[str]) -> list[str]:
        """Of the table of predicates: over what its means are, and which way is better."""
        notes = []
        counted = dict(self.support["predicates"])
        every = self.per_predicate.values()
        for name in means:
            if name not in counted:  # recalls
                counted[name] = sum(not math.isnan(v[name.removeprefix("m")]) for v in every)
        defined = [name for name in means if not math.isnan(self.metrics[name])]
        notes += entered_text(counted, defined)
        held = sum(values["positives"] > 0 for values in every)
        absent = {
            "zero": "mR divides by all of them: an absent one counts as 0.",
            "undefined": "mR is undefined: it asks for all of them.",
        }.get(get_protocol(self.protocol).absent_predicates)
        if absent is not None and held < len(every) and any(n not in LABEL_METRICS for n in means):
            notes.append(
                f"Under this protocol, where {held} of {len(every)} predicates occur, {absent}"
            )
        notes += self.why_undefined(means)
        notes += direction_text(means)
        meaning = ""
        if get_protocol(self.protocol).no_relation_rows == "negative-for-all":
            meaning = " A pair labelled 'no relation' is a negative for every predicate."
        return [*notes, f"+ and -: positive and negative labels.{meaning}"]

    def why_undefined(self, means: Sequence[str]) -> list[str]:
        """Why a column of P-AUC, PDD or PDO has gaps that the counts beside it do not explain.

        Args:
            means: the scalars that are shown.

        Returns:
            Sentences, none where all is explained.
        """
        fewest = get_protocol(self.protocol).min_positives
        labels = [name for name in means if name in LABEL_METRICS]
        held = [v for v in self.per_predicate.values() if v["positives"] >= max(fewest, 1)]
        notes = []
        if labels and fewest and len(held) < len(self.per_predicate):
            notes.append(
                f"Under this protocol a predicate with fewer than {fewest} positives has no "
                f"{', '.join(labels)}."
            )
        alone = [name for name in labels if name in ("PDD", "PDO")]
        if alone and len(self.per_predicate) == 1:
            notes.append(f"{' and '.join(alone)} rank predicates: a single one has none.")
        if "P-AUC" in labels and held and math.isnan(self.metrics["P-AUC"]):
            if not any(v["negatives"] for v in held):
                notes.append("P-AUC asks for explicit negatives; the annotations have none here.")
            elif all(math.isnan(v[name]) for v in held for name in labels):
                notes.append(
                    f"{', '.join(labels)}: no value, since the predictions rank triplets and give "
                    "no scores."
                )
        return notes

    def _recall_table(self) -> list[str]:
        """A row for each recall, a column for each K."""
        kinds: dict[str, dict[str, float]] = {}
        for name, value in self.metrics.items():
            kind, _, k = name.partition("@")
            if k.isdigit():
                kinds.setdefault(kind, {})["@" + k] = value
        if not kinds:
            return []
        cutoffs = list(next(iter(kinds.values())))
        rows = [[kind, *values.values()] for kind, values in kinds.items()]
        return ["", *table(["recall", *cutoffs], rows)]

    def _other_table(self) -> list[str]:
        """What knows neither predicates nor K."""
        rows = [
            [name, value]
            for name, value in self.metrics.items()
            if name not in LABEL_METRICS
            and name.partition("_")[0] not in PANOPTIC_METRICS
            and not name.partition("@")[2].isdigit()
        ]
        if not rows:
            return []
        return ["", *table(["metric", "value"], rows), *direction_text([str(n) for n, _ in rows])]

    def _panoptic_table(self) -> list[str]:
        """A row for all classes, one for things, one for stuff."""
        names = [name for name in PANOPTIC_METRICS if name in self.metrics]
        kinds = {"all": "", "things": "_th", "stuff": "_st"}
        rows = [[k, *(self.metrics[n + suffix] for n in names)] for k, suffix in kinds.items()]
        if not names:
            return []
        lines = ["", *table(["classes", *names], rows)]
        if all(math.isnan(self.metrics[name]) for name in names):
            lines.append(
                f"{', '.join(names)}: no value, since no prediction has a segmentation of its own: "
                "they refer to the annotated objects."
            )
        return lines

    def _interval_table(self) -> list[str]:
        if self.uncertainty is None:
            return []
        title = (
            f"{self.uncertainty.confidence:.0%} intervals, from {self.uncertainty.replicates} "
            "resamples of the images"
        )
        rows = [
            [name, self.metrics[name], interval_text(interval)]
            for name, interval in self.uncertainty.metrics.items()
            if not math.isnan(self.metrics[name])
        ]
        lines = ["", title, *table(["metric", "value", "interval"], rows)]
        tables = [(self.metrics, self.uncertainty.metrics)]
        tables += [(v, self.uncertainty.per_predicate[n]) for n, v in self.per_predicate.items()]
        if any(
            math.isnan(interval.low) and not math.isnan(values[name])
            for values, intervals in tables
            for name, interval in intervals.items()
        ):
            lines.append("-: all resamples agree, which tells nothing of other images.")
        return lines


def middle_recall(names: Iterable[str], kind: str = "R") -> str | None:
    """The recall that tables show: that of the middle K; None where there is none.

    Args:
        names: of metrics, lower K first.
        kind: ``R``, ``mR``, ``ngR``, ...
    """
    recalls = [name for name in names if re.fullmatch(rf"{kind}@\d+", name)]
    return recalls[len(recalls) // 2] if recalls else None


def entered_text(counted: Mapping[str, int], defined: Sequence[str]) -> list[str]:
    """A line that says how many predicates entered the mean of each metric; none without one."""
    if not defined:
        return []
    entered = ", ".join(f"{name} {counted[name]}" for name in defined)
    return [f"Means are over the predicates that have a value ({entered})."]


def direction_text(names: Sequence[str]) -> list[str]:
    """A line that says of which of these metrics less is better; none where it is of none."""
    lower = [name for name in names if name in LOWER_IS_BETTER]
    if not lower:
        return []
    others = ", higher for the others" if len(lower) < len(names) else ""
    named = " and ".join(filter(None, (", ".join(lower[:-1]), lower[-1])))
    return [f"Lower is better for {named}{others}."]


def interval_text(interval: Interval) -> str:
    """``low .. high``; a dash where there is none."""
    if math.isnan(interval.low):
        return "-"
    return f"{interval.low:.3f} .. {interval.high:.3f}"


def _with_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in values.items()}


def _uncertainty(content: Mapping[str, Any]) -> Uncertainty:
    from haystack.evaluation.uncertainty import Interval, Uncertainty

    def intervals(values: Mapping[str, Mapping[str, Any]]) -> dict[str, Interval]:
        return {name: Interval(**_with_nan(value)) for name, value in values.items()}

    return Uncertainty(
        confidence=content["confidence"],
        method=content["method"],
        replicates=content["replicates"],
        seed=content["seed"],
        metrics=intervals(content["metrics"]),
        per_predicate={name: intervals(v) for name, v in content["per_predicate"].items()},
    )


def without_nan(value: Any) -> Any:
    """The value with None in the place of NaN, at any depth."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
