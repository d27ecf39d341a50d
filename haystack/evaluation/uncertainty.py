"""How far metrics would move with other images: bootstrap intervals for all values of a report."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.functional.bootstrap import (
    Bounds,
    ImageSums,
    WeightedAUROC,
    accelerated_interval,
    draw_images,
    percentile_interval,
)
from haystack.metrics.predicates import unpack_samples
from haystack.metrics.scene_graph import PER_CLASS, PER_PREDICATE, SUPPORT, SceneGraphMetrics

Method = Literal["bca", "percentile"]
_BLOCK = 64
"""Replicates at a time. Draws do not depend on the device, but they do on this."""
_JACKKNIFE_GROUPS = 200
_FEWEST_REPLICATES = 20


@dataclass(frozen=True)
class Interval:
    """Where a value lies with the confidence of the :class:`Uncertainty` that holds it.

    Args:
        low, high: NaN where the value is undefined, and where all resamples agree: a predicate
            that is right in its two images is not known to be right in all.
        replicates: how many replicates define the value. Where a predicate is in few images many
            resamples lack it, and then the interval speaks of the others only.
    """

    low: float
    high: float
    replicates: int


@dataclass(frozen=True)
class Uncertainty:
    """Intervals of a report's values, by resampling its images.

    Args:
        confidence: how often such an interval is to cover the value of all images that the
            evaluated ones stand for.
        method: ``bca`` or ``percentile``.
        replicates: resamples drawn.
        seed: of the draws.
        metrics: metric -> interval, as in ``Report.metrics``.
        per_predicate: predicate -> metric -> interval.
    """

    confidence: float
    method: Method
    replicates: int
    seed: int
    metrics: Mapping[str, Interval]
    per_predicate: Mapping[str, Mapping[str, Interval]]


class ResampledMetrics(SceneGraphMetrics):
    """:class:`SceneGraphMetrics` that remember what each image added to each state.

    The states are sums over images, so that those of any resample are weighted sums, and its
    metrics are computed from them by the same code, for many resamples at once. In one process;
    by ``update``, not ``forward``.

    Args:
        *args: as for :class:`SceneGraphMetrics`; P-AUC must be exact.
        **kwargs: the same.

    Attributes:
        image_ids: of the images added, in order; their ``image_id``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.auroc_bits is not None:
            raise InputError("images are resampled with exact P-AUC; leave auroc_bits out")
        self._forget()

    def _forget(self) -> None:
        self.image_ids: list[str] = []
        self._entries: dict[str, list[Tensor]] = {}
        self._sample_images: list[Tensor] = []
        self._given_auroc: Tensor | None = None

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._forget()

    def update(
        self,
        preds: Sequence[Mapping[str, Any] | None],
        targets: Sequence[Mapping[str, Any]],
    ) -> None:
        """Add images, each wholly in one call; every target has an ``image_id``."""
        super().update(preds, targets)
        self.image_ids += [str(target["image_id"]) for target in targets]

    def _add(self, name: str, rows: Tensor, images: Tensor, cells: Tensor | None = None) -> None:
        super()._add(name, rows, images, cells)
        flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
        row, column = flat.nonzero().unbind(1)
        places = column if cells is None else cells[row] * flat.shape[1] + column
        owners = images[row] + len(self.image_ids)
        entries = torch.stack([places, owners, flat[row, column]])
        self._entries.setdefault(name, []).append(entries)

    def _add_samples(
        self, scores: Tensor, labels: Tensor, predicates: Tensor, images: Tensor
    ) -> None:
        super()._add_samples(scores, labels, predicates, images)
        self._sample_images.append(images + len(self.image_ids))

    def _auroc(self) -> Tensor:
        return super()._auroc() if self._given_auroc is None else self._given_auroc

    def resampler(self) -> Resampler:
        """What computes the metrics of resamples of the images added so far."""
        return Resampler(self)


class Resampler:
    """Metrics of resamples.

    Args:
        metrics: with at least one image.
    """

    def __init__(self, metrics: ResampledMetrics) -> None:
        self._metrics = metrics
        self.image_ids = tuple(metrics.image_ids)
        self.device = metrics.device
        self._sums = {
            name: _sums(entries, getattr(metrics, name).shape, len(self.image_ids))
            for name, entries in metrics._entries.items()
        }
        scores, labels, predicates = unpack_samples(metrics.samples, metrics.device)
        images = torch.cat([*metrics._sample_images, predicates[:0]])
        self._auroc = WeightedAUROC(scores, labels, predicates, images, metrics.num_predicates)

    def __call__(self, weights: Tensor) -> dict[str, Tensor]:
        """Values of resamples, as ``compute`` names them, without ``support/`` and ``per_class/``.

        Args:
            weights: int64 [B, I], how often each image counts, in the order of ``image_ids``.

        Returns:
            float64 [B], or [B, P] for a vector.
        """
        states = {name: sums.weighted(weights) for name, sums in self._sums.items()}
        return dict(torch.func.vmap(self._results)(states, self._auroc(weights)))

    def _results(self, states: Mapping[str, Tensor], auroc: Tensor) -> dict[str, Tensor]:
        """The metrics of one resample."""
        stand_in = copy.copy(self._metrics)
        for name, value in states.items():
            setattr(stand_in, name, value)
        stand_in._given_auroc = auroc
        results = stand_in._results()
        return {n: v for n, v in results.items() if not n.startswith((SUPPORT, PER_CLASS))}

    def images_behind(self) -> dict[str, Tensor]:
        """How many images carry a predicate's value, int64 [P] for each vector.

        P-AUC needs positives and negatives: the fewer of the images with the one and with the
        other. PDD: with positives. PDO: the more of the two. Recalls: that hold the predicate.
        """
        negative, positive = self._behind("label_counts")
        behind = {
            "P-AUC": torch.minimum(negative, positive),
            "PDD": positive,
            "PDO": torch.maximum(negative, positive),
        }
        metrics = self._metrics
        held = self._behind("predicate_counts")
        for recall in metrics.recalls:
            if recall.vector:
                column = metrics.predicate_columns.index(metrics._column(recall))
                for k in metrics.ks.tolist():
                    at = recall.vector if recall.order == "reachable" else f"{recall.vector}@{k}"
                    behind[at] = held[:, column]
        return behind

    def _behind(self, state: str) -> Tensor:
        if state in self._sums:
            return self._sums[state].images()
        return torch.zeros_like(getattr(self._metrics, state))


def check_resampling(
    replicates: int, confidence: float, seed: int, device: str | torch.device
) -> None:
    """Raise InputError unless intervals can be made so."""
    if str(device).partition(":")[0] == "mps":
        raise InputError(
            "resampling adds in float64, which the device 'mps' lacks; choose 'cpu' for intervals"
        )
    if replicates < _FEWEST_REPLICATES:
        raise InputError(
            f"expected at least {_FEWEST_REPLICATES} replicates for intervals, got {replicates}"
        )
    if not 0 <= seed < 2**63:
        raise InputError(f"expected a seed of 0 to 2^63 - 1, got {seed}")
    if not 0 < confidence < 1:
        raise InputError(f"expected a confidence between 0 and 1, got {confidence}")


def resample(resamplers: Sequence[Resampler], replicates: int, seed: int) -> list[Values]:
    """Values of ``replicates`` resamples under each model, all from the same draws.

    The draws are made over the image ids in ascending order, so that they depend on the set of
    images alone, not on the order of a file.
    """
    return _values_of(resamplers, _draws(resamplers, replicates, seed))


def uncertainty_of(
    metrics: ResampledMetrics,
    predicates: Sequence[str],
    *,
    replicates: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    method: Method = "bca",
) -> Uncertainty:
    """Intervals of all values.

    Args:
        metrics: fed with all images.
        predicates: their names.
        replicates: resamples to draw.
        confidence: see :class:`Uncertainty`.
        seed: the same seed and images give the same draws.
        method: ``bca``: percentiles corrected for bias and skewness, which cover better where
            images are few (:func:`~haystack.metrics.functional.bootstrap.accelerated_interval`;
            the skewness from a jackknife over at most 200 groups of images). ``percentile``: plain.

    Raises:
        InputError: too few replicates, no such method, a confidence outside of 0..1.
    """
    check_resampling(replicates, confidence, seed, metrics.device)
    if method not in get_args(Method):
        raise InputError(f"expected the method 'bca' or 'percentile', got {method!r}")
    resampler = metrics.resampler()
    [values] = resample([resampler], replicates, seed)
    [own] = _values_of([resampler], _all_once(resampler))
    jackknife = _values_of([resampler], _groups_left_out(resampler))[0] if method == "bca" else own
    found = {}
    for name, drawn in values.items():
        table = drawn.reshape(replicates, -1)
        if method == "bca":
            left_out = jackknife[name].reshape(-1, table.shape[1])
            bounds = accelerated_interval(own[name].reshape(-1), table, left_out, confidence)
        else:
            bounds = percentile_interval(table, confidence)
        found[name] = _intervals(bounds)
    return Uncertainty(
        confidence=confidence,
        method=method,
        replicates=replicates,
        seed=seed,
        metrics={name: found[name][0] for name in found if "/" not in name},
        per_predicate=by_predicate(found, predicates),
    )


Values = dict[str, Tensor]


def by_predicate(found: Mapping[str, Sequence[Any]], predicates: Sequence[str]) -> dict[str, Any]:
    """Predicate -> metric -> what ``found`` holds under ``per_predicate/``."""
    vectors = {n.removeprefix(PER_PREDICATE): v for n, v in found.items() if "/" in n}
    return {
        predicate: {name: column[number] for name, column in vectors.items()}
        for number, predicate in enumerate(predicates)
    }


def _values_of(resamplers: Sequence[Resampler], draws: Iterator[Tensor]) -> list[Values]:
    ids = sorted(resamplers[0].image_ids)
    place = {image_id: number for number, image_id in enumerate(ids)}
    orders = [torch.tensor([place[i] for i in r.image_ids]) for r in resamplers]
    parts: list[list[Values]] = [[] for _ in resamplers]
    for weights in draws:
        for resampler, order, own in zip(resamplers, orders, parts, strict=True):
            values = resampler(weights[:, order].to(resampler.device))
            own.append({name: value.cpu() for name, value in values.items()})
    return [{name: torch.cat([p[name] for p in own]) for name in own[0]} for own in parts]


def _draws(resamplers: Sequence[Resampler], replicates: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for begin in range(0, replicates, _BLOCK):
        size = min(_BLOCK, replicates - begin)
        yield draw_images(len(resamplers[0].image_ids), size, generator)


def _sums(entries: Sequence[Tensor], shape: Sequence[int], num_images: int) -> ImageSums:
    cells, images, values = torch.cat(list(entries), dim=1)
    return ImageSums(cells, images, values, tuple(shape), num_images)


def _all_once(resampler: Resampler) -> Iterator[Tensor]:
    yield torch.ones(1, len(resampler.image_ids), dtype=torch.int64)


def _groups_left_out(resampler: Resampler) -> Iterator[Tensor]:
    count = len(resampler.image_ids)
    groups = min(count, _JACKKNIFE_GROUPS)
    group = torch.arange(count) % groups
    for part in torch.arange(groups).split(_BLOCK):
        yield (group != part[:, None]).to(torch.int64)


def _intervals(bounds: Bounds) -> list[Interval]:
    rows = zip(bounds.low.tolist(), bounds.high.tolist(), bounds.replicates.tolist(), strict=True)
    return [Interval(*row) for row in rows]
