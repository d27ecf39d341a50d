"""Panoptic quality as a torchmetrics class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.base import HaystackMetric, check_average, mean_of_defined
from haystack.metrics.batch import (
    Record,
    as_map,
    as_tensor,
    expand,
    fields,
    gather,
    lengths,
    move,
    naming,
    record_name,
    shape_error,
)
from haystack.metrics.functional import (
    PanopticCounts,
    id_map_overlaps,
    panoptic_counts,
    panoptic_rows,
)
from haystack.metrics.functional import panoptic_quality as qualities_of
from haystack.metrics.functional.matching import repeated_ids
from haystack.metrics.functional.recall import UNIT
from haystack.metrics.functional.tensors import count_by
from haystack.metrics.predicates import Average


class PanopticQuality(HaystackMetric):
    """PQ, SQ and RQ of panoptic segmentations, for things, stuff and all classes.

    See :func:`haystack.metrics.functional.panoptic_counts`: COCO's definition, with void and
    crowd. The states are whole numbers, so that any split into batches and processes gives the
    same result bit for bit. ``torchmetrics.detection.PanopticQuality`` agrees where nothing is
    void in the predictions and no ground truth is a crowd, if the instances of a stuff class in
    an image are one segment; a class that does not occur is NaN here and 0 there. A segment that is
    listed and has no pixel counts as missed or, in a prediction, as a false positive.

    As input to ``update``: for each image a dict of the prediction and one of the ground truth:

    - ``id_map`` int [H, W], any integers; a pixel whose id is not listed is void.
    - ``segment_ids`` int [N], the distinct ids of the segments.
    - ``labels`` int [N], their classes: things first, as in ``Vocabulary``.
    - ``iscrowd`` bool or int [N], of the ground truth only, optional.

    As output of ``compute``: a dict with ``PQ``, ``SQ``, ``RQ``, means over the classes that
    occur, and ``PQ_th`` ... over things, ``PQ_st`` ... over stuff (NaN where none occurs); with
    ``average=None`` the vectors ``PQ``, ``SQ``, ``RQ`` [C], NaN for a class that does not occur.

    Args:
        num_things: number of thing classes, 0..num_things-1.
        num_stuff: number of stuff classes, numbered after the things.
        average: ``"macro"`` or None.
        **kwargs: see :class:`HaystackMetric`.

    Example:
        >>> from haystack.metrics import PanopticQuality
        >>> ids, labels = torch.tensor([1, 2]), torch.tensor([0, 1])
        >>> truth = {"id_map": torch.tensor([[1, 1, 1, 2]]), "segment_ids": ids, "labels": labels}
        >>> metric = PanopticQuality(num_things=1, num_stuff=1)
        >>> metric.update([{**truth, "id_map": torch.tensor([[1, 1, 2, 2]])}], [truth])
        >>> {name: round(value.item(), 3) for name, value in metric.compute().items()}
        ... # doctest: +NORMALIZE_WHITESPACE
        {'PQ': 0.333, 'SQ': 0.333, 'RQ': 0.5, 'PQ_th': 0.667, 'SQ_th': 0.667, 'RQ_th': 1.0,
         'PQ_st': 0.0, 'SQ_st': 0.0, 'RQ_st': 0.0}
    """

    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    PROBLEMS: ClassVar[tuple[str, ...]] = (
        "expected every segment to have a class in 0..C-1, got another number",
        "expected every segment id of an image once, got one twice",
    )
    iou_sum: Tensor
    true_positives: Tensor
    false_positives: Tensor
    false_negatives: Tensor

    def __init__(
        self, num_things: int = 80, num_stuff: int = 53, average: Average = "macro", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if num_things < 0 or num_stuff < 0 or num_things + num_stuff == 0:
            raise InputError(
                f"expected numbers of thing and stuff classes, got {num_things} and {num_stuff}"
            )
        check_average(average)
        self.num_things = num_things
        self.num_classes = num_things + num_stuff
        self.average = average
        for name in PanopticCounts._fields:
            self._add_counts(name, self.num_classes)

    def update(self, preds: Sequence[Record], target: Sequence[Record]) -> None:
        """Add images; the maps of a batch lie on the metric's device or all on the CPU."""
        if len(preds) != len(target):
            raise InputError(
                f"expected as many predictions as targets, got {len(preds)} and {len(target)}"
            )
        truth_maps, truth_ids, truth_labels = _columns(target)
        predicted_maps, predicted_ids, predicted_labels = _columns(preds)
        names = [record_name(i, target, preds) for i in range(len(target))]
        with naming(names):
            overlaps = id_map_overlaps(truth_maps, predicted_maps, truth_ids, predicted_ids)
        pairs, device = overlaps.pairs, overlaps.intersections.device
        truth, predicted, crowd = (
            gather(column, (), torch.int64, device)
            for column in (truth_labels, predicted_labels, _crowds(target, truth_labels))
        )
        self._check_segments(
            (truth, pairs.truth_images, truth_ids),
            (predicted, pairs.predicted_images, predicted_ids),
            names=names,
        )
        last = self.num_classes - 1
        counts = panoptic_counts(
            overlaps, truth.clamp(0, last), predicted.clamp(0, last), crowd != 0, last + 1
        )
        for name, value in counts._asdict().items():
            setattr(self, name, getattr(self, name) + value.to(self.device))

    def _check_segments(
        self, *sides: tuple[Tensor, Tensor, Sequence[Tensor]], names: Sequence[str]
    ) -> None:
        """Sides are labels, their images, and the ids of each image."""
        flags = torch.zeros(2, len(names), dtype=torch.bool, device=sides[0][0].device)
        for labels, images, ids in sides:
            outside = (labels < 0) | (labels >= self.num_classes)
            flags[0] |= count_by(images, outside, len(names)) > 0
            flags[1] |= repeated_ids(ids, images)
        self._check(flags, names)

    def compute(self) -> dict[str, Tensor]:
        """The qualities by name."""
        self._raise_problems()
        counts = PanopticCounts(*(getattr(self, name) for name in PanopticCounts._fields))
        by_class = qualities_by_class(counts)
        return by_class if self.average is None else mean_qualities(by_class, self.num_things)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Figure and axes with the values of ``val``, or of ``compute()``; needs matplotlib."""
        return self._plot(val, ax)


def qualities_by_class(counts: PanopticCounts) -> dict[str, Tensor]:
    """``PQ``, ``SQ`` and ``RQ`` of each class, [C]."""
    return {name.upper(): value for name, value in qualities_of(counts)._asdict().items()}


def mean_qualities(by_class: Mapping[str, Tensor], num_things: int) -> dict[str, Tensor]:
    """``PQ`` over all classes that occur, ``PQ_th`` over things, ``PQ_st`` over stuff, ..."""
    parts = {"": slice(None), "_th": slice(num_things), "_st": slice(num_things, None)}
    return {
        name + suffix: mean_of_defined(value[part])
        for suffix, part in parts.items()
        for name, value in by_class.items()
    }


class SegmentRows(NamedTuple):
    """What the segments of a batch add to the counts of their classes.

    Args:
        rows: int64 [S, 4], columns as the fields of ``PanopticCounts``.
        classes: int64 [S].
        images: int64 [S].
    """

    rows: Tensor
    classes: Tensor
    images: Tensor


def segment_rows(
    preds: Sequence[Record | None],
    targets: Sequence[Record],
    num_classes: int,
    device: torch.device,
) -> SegmentRows:
    """The segments of a batch as :class:`~haystack.metrics.SceneGraphMetrics` takes it.

    Of an image without a predicted object every segment is missed. A prediction whose pairs are of
    the annotated objects (PredCls) has found them all.

    Args:
        preds: dicts with ``labels`` [N] and an ``id_map`` of positions, or without labels; None.
        targets: dicts with ``labels``, optionally ``iscrowd``, and, where the prediction has
            objects, an ``id_map`` and optionally ``segment_ids``.
        num_classes: C; labels beyond it are noted where objects are matched.
        device: of the result.

    Raises:
        InputError: an ``id_map`` is missing, or a shape does not fit.
    """
    crowds = _crowds(targets, fields(targets, "labels"))
    images = range(len(targets))
    compared = [i for i in images if len((preds[i] or {}).get("labels", ()))]
    parts = [_uncompared(preds, targets, crowds, sorted({*images} - {*compared}), device)]
    if compared:
        parts.append(_compared(preds, targets, crowds, compared, device))
    rows, classes, owners = (torch.cat(column) for column in zip(*parts, strict=True))
    return SegmentRows(rows, classes.clamp(0, num_classes - 1), owners)


def _uncompared(
    preds: Sequence[Record | None],
    targets: Sequence[Record],
    crowds: Sequence[Tensor],
    images: Sequence[int],
    device: torch.device,
) -> SegmentRows:
    """Of images without predicted objects: all segments found, or none."""
    labels = fields([targets[i] for i in images], "labels")
    predcls = ["labels" not in (preds[i] or {"labels": None}) for i in images]
    found = expand(lengths(labels), device, predcls)
    counted = gather([crowds[i] for i in images], (), torch.int64, device) == 0
    hit, missed = found * counted, (1 - found) * counted
    return SegmentRows(
        torch.stack([hit * UNIT, hit, torch.zeros_like(hit), missed], dim=1),
        gather(labels, (), torch.int64, device),
        expand(lengths(labels), device, images),
    )


def _compared(
    preds: Sequence[Record | None],
    targets: Sequence[Record],
    crowds: Sequence[Tensor],
    images: Sequence[int],
    device: torch.device,
) -> SegmentRows:
    """Of images whose maps are compared."""
    truth = _segmentations([targets[i] for i in images], "annotations", device)
    predicted = _segmentations([preds[i] or {} for i in images], "predictions", device)
    with naming([record_name(i, targets, preds) for i in images]):
        overlaps = id_map_overlaps(truth.maps, predicted.maps, truth.ids, predicted.ids)
    crowd = gather([crowds[i] for i in images], (), torch.int64, device) != 0
    return SegmentRows(
        panoptic_rows(overlaps, truth.labels, predicted.labels, crowd),
        torch.cat([truth.labels, predicted.labels]),
        torch.cat([expand(side.sizes, device, images) for side in (truth, predicted)]),
    )


class _Segmentations(NamedTuple):
    """One side of the images whose maps are compared; labels are those of all, [N]."""

    maps: list[Tensor]
    ids: list[Tensor]
    labels: Tensor
    sizes: tuple[int, ...]


def _segmentations(records: Sequence[Record], side: str, device: torch.device) -> _Segmentations:
    labels = fields(records, "labels")
    maps, ids = [], []
    for number, (record, own) in enumerate(zip(records, labels, strict=True)):
        name = record_name(number, records)
        if record.get("id_map") is None:
            raise InputError(
                "PQ, SQ and RQ compare segmentations, in which a pixel belongs to one segment at "
                f"most; the {side} have no id_map here (in files: no masks, or masks that "
                "overlap); leave these metrics out",
                record=name,
            )
        maps.append(move(as_map(record["id_map"], name), device))
        given = record.get("segment_ids")
        if given is None:
            given = torch.arange(len(own))
        ids.append(as_tensor(given, "segment_ids", name))
        if ids[-1].shape != own.shape:
            raise shape_error(f"segment_ids {list(own.shape)}", ids[-1], number, records)
    return _Segmentations(maps, ids, gather(labels, (), torch.int64, device), lengths(labels))


def _columns(records: Sequence[Record]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The maps, the ids and the labels of all images."""
    maps, ids, labels = (fields(records, key) for key in ("id_map", "segment_ids", "labels"))
    for number, (own_map, own_ids, own_labels) in enumerate(zip(maps, ids, labels, strict=True)):
        if own_map.ndim != 2:
            raise shape_error("an id_map int [H, W]", own_map, number, records)
        if own_ids.ndim != 1:
            raise shape_error("segment_ids [N]", own_ids, number, records)
        if own_labels.shape != own_ids.shape:
            raise shape_error(f"labels {list(own_ids.shape)}", own_labels, number, records)
    return maps, ids, labels


def _crowds(records: Sequence[Record], labels: Sequence[Tensor]) -> list[Tensor]:
    """What segments are crowd regions; none where a record does not say."""
    crowds = []
    for number, (record, own_labels) in enumerate(zip(records, labels, strict=True)):
        crowd = record.get("iscrowd")
        if crowd is None:
            crowds.append(torch.zeros_like(own_labels))
            continue
        crowds.append(as_tensor(crowd, "iscrowd", record_name(number, records)))
        if crowds[-1].shape != own_labels.shape:
            expected = f"iscrowd {list(own_labels.shape)}"
            raise shape_error(expected, crowds[-1], number, records)
    return crowds
