"""Two models on the same images: differences, their intervals, and which of them are real."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from haystack import files
from haystack.devices import usable_device
from haystack.errors import InputError
from haystack.evaluation.evaluator import Measured, measure, prepare
from haystack.evaluation.report import direction_text, entered_text, middle_recall, without_nan
from haystack.evaluation.uncertainty import (
    ResampledMetrics,
    by_predicate,
    check_resampling,
    resample,
)
from haystack.io.haystack_npy import NoRelationColumn
from haystack.metrics.functional.bootstrap import paired_tests
from haystack.metrics.kinds import LABEL_METRICS, LOWER_IS_BETTER
from haystack.metrics.scene_graph import PER_PREDICATE, SUPPORT
from haystack.scene_graph import Prediction, SceneGraphDataset, Split
from haystack.text import table

Verdict = Literal["a", "b", "not told apart", "too few images", "undefined"]


@dataclass(frozen=True)
class Difference:
    """One value of two models.

    Args:
        a, b: the values; NaN = undefined.
        difference: b - a.
        low, high: its interval.
        p_value: two-sided, of this difference alone; at most 1 - confidence exactly where the
            interval leaves 0 out.
        adjusted_p: of a predicate among all those with enough images: the chance that even one of
            them shows so much without a real difference; of a scalar the ``p_value``.
        replicates: how many resamples define the difference.
        images: how many images carry the value; of a predicate those that hold it, for P-AUC the
            fewer of the images with positives and with negatives.
        verdict: the better model, ``"a"`` or ``"b"``, where ``adjusted_p`` is at most
            1 - confidence, else ``"not told apart"``; ``"too few images"`` where fewer than
            ``min_images`` carry the value; ``"undefined"``.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    adjusted_p: float
    replicates: int
    images: int
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """Two models on the same images, by a paired bootstrap.

    Args:
        protocol: the protocol's name.
        split: the images.
        images: their number.
        names: of the models: their files, or "A" and "B".
        confidence: of intervals and verdicts.
        replicates: resamples drawn, the same for both models.
        seed: of the draws.
        min_images: what fewer images carry is not judged.
        support: ``"a"`` and ``"b"`` -> ``missing_images``, ``missing_pairs``, ``ignored_images``,
            as in a report.
        metrics: metric -> difference. Each is judged for itself.
        per_predicate: predicate -> metric -> difference. For each metric the predicates are judged
            together: over all of them the chance of even one false verdict is 1 - confidence
            (see :func:`~haystack.metrics.functional.bootstrap.paired_tests`).
    """

    protocol: str
    split: str
    images: int
    names: tuple[str, str]
    confidence: float
    replicates: int
    seed: int
    min_images: int
    support: Mapping[str, Mapping[str, int]]
    metrics: Mapping[str, Difference]
    per_predicate: Mapping[str, Mapping[str, Difference]]

    def predicates(self, metric: str) -> dict[Verdict, tuple[str, ...]]:
        """Which predicates have which verdict under a metric of predicates."""
        found: dict[Verdict, tuple[str, ...]] = {}
        for predicate, values in self.per_predicate.items():
            verdict = values[metric].verdict
            found[verdict] = (*found.get(verdict, ()), predicate)
        return found

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain JSON types, NaN as None."""
        return dict(without_nan({**asdict(self), "names": list(self.names)}))

    def save(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON, atomically."""
        files.write_json(path, self.to_dict())

    def __str__(self) -> str:
        lines = [
            f"Protocol {self.protocol}, split {self.split}: {self.images} images, "
            f"{self.replicates} paired resamples of them, {self.confidence:.0%} intervals",
            *(self._model(key, name) for key, name in zip("ab", self.names, strict=True)),
            "",
            *self._table(),
        ]
        shown = self._shown()
        for metric in shown:
            lines += ["", *self._judged(metric)]
        lines += self._unjudged(shown)
        if any(self._is_judged(metric) for metric in shown):
            lines += [
                "",
                "adjusted p: of all judged predicates of a metric together, by the step-down max-T "
                "procedure of Westfall and Young. The chance that even one verdict among them is "
                f"wrong is at most {1 - self.confidence:.2g}.",
            ]
        return "\n".join(lines)

    def _model(self, key: str, name: str) -> str:
        lacking = self.support[key]["missing_pairs"]
        note = f" ({lacking} annotated pairs have no prediction)" if lacking else ""
        return f"{key.upper()}: {name}{note}"

    def _table(self) -> list[str]:
        rows = [
            [
                name,
                d.a,
                d.b,
                _signed(d.difference),
                f"{_signed(d.low)} .. {_signed(d.high)}",
                d.p_value,
                _winner(d),
            ]
            for name, d in self.metrics.items()
            if d.verdict != "undefined"
        ]
        if not rows:
            return ["No value is defined for both models."]
        names = [str(row[0]) for row in rows]
        counted = {
            f"m{name}" if name.startswith("R@") else name: sum(
                not math.isnan(v[name].a + v[name].b) for v in self.per_predicate.values()
            )
            for name in self._shown()
        }
        return [
            *table(["metric", "A", "B", "B - A", "interval", "p", "better"], rows),
            *direction_text(names),
            *entered_text(counted, [name for name in counted if name in names]),
            "p: two-sided, of each line for itself.",
            *([self._few()] if self.images < self.min_images else []),
        ]

    def _few(self) -> str:
        return (
            f"{self.images} images are too few to say which model is better; at least "
            f"{self.min_images} are asked for."
        )

    def _shown(self) -> list[str]:
        """P-AUC, PDD, PDO and the recall at the middle K."""
        known = next(iter(self.per_predicate.values()), {})
        shown = (*LABEL_METRICS, middle_recall(known))
        return [name for name in shown if name is not None and name in known]

    def _is_judged(self, metric: str) -> bool:
        return bool({"a", "b", "not told apart"} & self.predicates(metric).keys())

    def _judged(self, metric: str) -> list[str]:
        found = self.predicates(metric)
        few, same = found.get("too few images", ()), found.get("not told apart", ())
        undefined = len(found.get("undefined", ()))
        judged = len(same) + sum(len(found.get(key, ())) for key in ("a", "b"))
        way = "lower" if metric in LOWER_IS_BETTER else "higher"
        lines = [
            f"{metric} ({way} is better), {judged} of {len(self.per_predicate)} predicates judged, "
            f"those {_carried(metric)} in at least {self.min_images} images:"
        ]
        for key in ("a", "b"):
            for predicate in found.get(key, ()):
                d = self.per_predicate[predicate][metric]
                near, far = sorted((abs(d.low), abs(d.high)))
                lines.append(
                    f"  {key.upper()} is better for {predicate}, by {abs(d.difference):.3f} "
                    f"[{near:.3f}, {far:.3f}], adjusted p = {_number(d.adjusted_p)}"
                )
        if judged and judged == len(same):
            lines.append("  the models differ for no predicate beyond what chance gives")
        elif same:
            lines.append(f"  not told apart: {len(same)} of {judged}")
        if few:
            lines.append(f"  too few images to say: {len(few)} of {len(self.per_predicate)}")
        if undefined:
            lines.append(f"  undefined for a model: {undefined} of {len(self.per_predicate)}")
        return lines

    def _unjudged(self, metrics: Sequence[str]) -> list[str]:
        """The predicates with too few images, each once, beside the metrics that it lacks."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for predicate, values in self.per_predicate.items():
            lacking = tuple(name for name in metrics if values[name].verdict == "too few images")
            if lacking:
                groups.setdefault(lacking, []).append(predicate)
        if not groups:
            return []
        rows = [f"  under {', '.join(names)}: {', '.join(few)}" for names, few in groups.items()]
        return ["", "Predicates with too few images to say:", *rows]


def _winner(d: Difference) -> str:
    return f"{d.verdict.upper()} by {abs(d.difference):.3f}" if d.verdict in ("a", "b") else "-"


def _carried(metric: str) -> str:
    """What an image must hold of a predicate to count for its value."""
    words = {
        "P-AUC": "with positive and with negative labels",
        "PDO": "with labels, positive or negative,",
    }
    return words.get(metric, "with positive labels")


def compare(
    annotations: str | Path | SceneGraphDataset,
    predictions_a: str | Path | Iterable[Prediction],
    predictions_b: str | Path | Iterable[Prediction],
    protocol: str = "paper",
    *,
    replicates: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    min_images: int = 10,
    ks: Sequence[int] = (20, 50, 100),
    metrics: Collection[str] | None = None,
    training: str | Path | SceneGraphDataset | None = None,
    split: Split | None = None,
    no_relation: NoRelationColumn = "last",
    from_logits: bool | None = None,
    device: str | torch.device = "cpu",
) -> Comparison:
    """Which of two models is better at what, and which differences are no accident of the images.

    Both models are graded on the same images, and on the same resamples of them: images are drawn
    with replacement, and what is hard in an image is hard for both.

    Args:
        annotations: as for :func:`~haystack.evaluation.evaluate`.
        predictions_a: of model A.
        predictions_b: of model B.
        protocol: as for ``evaluate``.
        replicates: resamples; p-values are no smaller than 1 / (replicates + 1).
        confidence: of intervals and verdicts.
        seed: the same seed and images give the same draws.
        min_images: what fewer images carry is not judged: resamples of few images hardly vary, and
            those of one not at all. With 5 images, a difference that
            is none was called real in 7 % of trials instead of 5 %; with 10 in 6 %.
        ks: as for ``evaluate``, like everything below.
        metrics: names of metrics.
        training: training annotations.
        split: the images.
        no_relation: where a ``.npy`` has "no relation", of both models.
        from_logits: whether scores are logits, of both models.
        device: where the metrics run.

    Returns:
        The differences, B - A, in fractions of 0..1 (PRank in ranks).

    Raises:
        InputError: as ``evaluate``, and for too few replicates.

    Example:
        >>> import numpy as np
        >>> from haystack.scene_graph import RelationScores, SceneGraph, SceneGraphDataset, Segment
        >>> from haystack.vocabulary import Vocabulary
        >>> objects = tuple(Segment(number, 0, 4, (0, 0, 2, 2)) for number in (1, 2))
        >>> triplets = np.array([[0, 1, 0]])
        >>> image = SceneGraph("17", 4, 4, "17.jpg", segments=objects, relations=triplets)
        >>> data = SceneGraphDataset(Vocabulary(("person",), (), ("on", "beside")), (image,))
        >>> pairs = np.array([[0, 1], [1, 0]])
        >>> worse, better = (
        ...     [RelationScores("17", pairs, np.array([[x, 0.3], [0.1, 0.2]], np.float32))]
        ...     for x in (0.2, 0.4)
        ... )
        >>> found = compare(data, worse, better, ks=(1,), metrics=("R",), replicates=100)
        >>> found.metrics["R@1"].difference  # of B above A
        1.0
    """
    check_resampling(replicates, confidence, seed, device)
    device = usable_device(device)
    if min_images < 2:
        raise InputError(f"expected min_images of at least 2, got {min_images}")
    prepared = prepare(annotations, protocol, split=split, training=training)
    measured = [
        measure(
            prepared,
            predictions,
            ResampledMetrics,
            ks=ks,
            metrics=metrics,
            no_relation=no_relation,
            from_logits=from_logits,
            device=device,
        )
        for predictions in (predictions_a, predictions_b)
    ]
    values = [m.states.compute() for m in measured]
    resamplers = [m.states.resampler() for m in measured]
    drawn = resample(resamplers, replicates, seed)
    behind = [resampler.images_behind() for resampler in resamplers]
    images = int(values[0][SUPPORT + "images"])
    found = {}
    for name in drawn[0]:
        own = torch.stack([v[name].reshape(-1).double().cpu() for v in values])
        carried = (
            torch.minimum(*(b[name.removeprefix(PER_PREDICATE)].cpu() for b in behind))
            if name.startswith(PER_PREDICATE)
            else torch.full((1,), images)
        )
        replicated = (drawn[1][name] - drawn[0][name]).reshape(replicates, -1)
        enough = carried >= min_images
        found[name] = _differences(name, own, replicated, carried, enough, confidence)
    return Comparison(
        protocol=protocol,
        split=prepared.split,
        images=images,
        names=(_name(predictions_a, "A"), _name(predictions_b, "B")),
        confidence=confidence,
        replicates=replicates,
        seed=seed,
        min_images=min_images,
        support={k: _support(m, v) for k, m, v in zip("ab", measured, values, strict=True)},
        metrics={name: found[name][0] for name in found if "/" not in name},
        per_predicate=by_predicate(found, prepared.dataset.vocabulary.predicate_classes),
    )


def _differences(
    name: str, own: Tensor, drawn: Tensor, images: Tensor, enough: Tensor, confidence: float
) -> list[Difference]:
    """Of values ``own`` [2, M] with replicated differences ``drawn`` [B, M]."""
    difference = own[1] - own[0]
    tests = paired_tests(difference, drawn, enough, confidence)
    alone = tests.p_values if "/" not in name else tests.adjusted
    lower = name.removeprefix(PER_PREDICATE) in LOWER_IS_BETTER
    columns = (own[0], own[1], difference, tests.low, tests.high, tests.p_values, alone)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    counts = zip(tests.replicates.tolist(), images.tolist(), strict=True)
    found = []
    for row, (defined, carried), judged in zip(rows, counts, enough.tolist(), strict=True):
        a, b, change, low, high, p_value, adjusted = row
        verdict: Verdict = "not told apart"
        if math.isnan(change) or math.isnan(p_value):
            verdict = "undefined"
        elif not judged:
            verdict = "too few images"
        elif adjusted <= 1 - confidence + 1e-9:
            verdict = "b" if (change > 0) != lower else "a"
        found.append(
            Difference(a, b, change, low, high, p_value, adjusted, defined, carried, verdict)
        )
    return found


def _support(measured: Measured, values: Mapping[str, Tensor]) -> dict[str, int]:
    names = ("missing_images", "missing_pairs")
    found = {name: int(values[SUPPORT + name]) for name in names}
    return {**found, "ignored_images": measured.ignored}


def _name(predictions: object, default: str) -> str:
    return str(predictions) if isinstance(predictions, str | Path) else default


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _signed(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.3f}"
