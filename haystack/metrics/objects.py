"""Annotated and predicted objects of a batch, matched as the protocol says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.batch import (
    Record,
    as_map,
    as_tensor,
    class_fields,
    expand,
    gather,
    lengths,
    move,
    naming,
    record_name,
)
from haystack.metrics.functional.matching import (
    Matches,
    ObjectPairs,
    box_iou,
    decode_rle,
    id_map_overlaps,
    improper_boxes,
    mask_overlaps,
    match_objects,
    object_pairs,
    rle_iou,
    same_class,
)
from haystack.metrics.functional.tensors import count_by, on_host, result_dtype, where_true
from haystack.metrics.phrases import ImageMasks, Phrases
from haystack.metrics.protocols import Protocol

_BOXES_WANTED = "expected finite boxes x1, y1, x2, y2 with x1 <= x2 and y1 <= y2 in the "
OBJECT_PROBLEMS = (
    "expected object classes 0..C-1 in the predictions, got another number; count them from 0",
    _BOXES_WANTED + "annotations; convert x, y, width, height to corners",
    _BOXES_WANTED + "predictions; convert x, y, width, height to corners",
)
"""What may be wrong with values, in the order of ``ObjectMatch.problems``."""


@dataclass(frozen=True)
class ObjectMatch:
    """Which predicted objects stand for which annotated ones; numbered through the batch.

    Args:
        matches: the table of all pairs of an annotated and a predicted object.
        prediction: int64 [G], the matching prediction that overlaps each annotated object most,
            -1 for none.
        phrases: what decides instead which pairs stand for a triplet; None where the match of
            their objects does.
        problems: bool [3, images], in the order of ``OBJECT_PROBLEMS``; None if nothing is wrong.
    """

    matches: Matches
    prediction: Tensor
    phrases: Phrases | None = None
    problems: Tensor | None = None

    @property
    def found(self) -> Tensor:
        """Whether a prediction matches, bool [G]."""
        return self.prediction >= 0


def match_batch(
    predictions: Sequence[Record | None],
    targets: Sequence[Record],
    protocol: Protocol,
    device: torch.device,
    num_classes: int | None = None,
) -> ObjectMatch:
    """Match the objects of a batch; on an accelerator note what is wrong with their values.

    Args:
        predictions: dicts with ``labels`` [N] and regions: ``boxes`` [N, 4], ``masks`` bool
            [N, H, W] or a list of COCO's run-length dicts, or ``id_map`` int [H, W] with the
            position of the object that a pixel belongs to, -1 for none. None: no prediction.
        targets: the same; an ``id_map`` may hold other ids, given in ``segment_ids`` [N].
        protocol: what is compared, how, and which rule decides.
        device: of the result.
        num_classes: C, above all predicted labels; None if it is not known.

    Raises:
        InputError: labels or regions are missing or do not fit each other; on the CPU also for
            values that ``OBJECT_PROBLEMS`` describe.
    """
    labels = class_fields(targets)
    known = [_EMPTY if record is None else record for record in predictions]
    predicted_labels = class_fields(known)
    sizes = lengths(labels), lengths(predicted_labels)
    pairs = object_pairs(*sizes, device=device)
    classes = [gather(side, (), torch.int64, device) for side in (labels, predicted_labels)]
    problems = _Problems(
        [record_name(i, targets, predictions) for i in range(len(targets))], device
    )
    problems.note(0, _outside(classes[1], num_classes), pairs.predicted_images)
    same = same_class(pairs, *classes)
    regions = _Regions(known, targets, pairs, sizes, problems)
    iou = regions.iou(protocol, where_true(same))
    matches = match_objects(
        iou,
        pairs,
        *classes,
        rule=protocol.match,
        threshold=protocol.iou_threshold,
        inclusive=protocol.inclusive,
    )
    phrases = None
    if protocol.compares == "phrases":
        phrases = regions.phrases(Matches(pairs, same, None), protocol)
    return ObjectMatch(matches, _best_prediction(iou, matches), phrases, problems.flags)


def match_to_itself(num_objects: Sequence[int], device: torch.device) -> ObjectMatch:
    """The match of annotated objects with themselves, each with itself alone."""
    pairs = object_pairs(num_objects, num_objects, device)
    matches = Matches(pairs, pairs.truth == pairs.predicted, None)
    return ObjectMatch(matches, torch.arange(len(pairs.truth_images), device=device))


_EMPTY: Record = {"labels": torch.empty(0, dtype=torch.int64)}
_MASKS = ("id_map", "masks")
_BOXES = ("boxes",)


class _Problems:
    """What is wrong with the objects of a batch: raised at once on the CPU, else noted.

    Args:
        names: of the images.
        device: where the objects are.

    Attributes:
        flags: bool [problems, images], in the order of ``OBJECT_PROBLEMS``; None so far.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.names = names
        self.device = device
        self.flags: Tensor | None = None

    def note(self, problem: int, wrong: Tensor | None, images: Tensor) -> None:
        """Add ``wrong``, bool [N], of objects in ``images`` [N]; None where nothing is wrong."""
        if wrong is None:
            return
        if on_host(wrong):
            first = int(images[wrong.nonzero()[0]])
            raise InputError(OBJECT_PROBLEMS[problem], record=self.names[first])
        if self.flags is None:
            size = len(OBJECT_PROBLEMS), len(self.names)
            self.flags = torch.zeros(size, dtype=torch.bool, device=self.device)
        self.flags[problem] |= count_by(images, wrong, len(self.names)) > 0


def _outside(labels: Tensor, num_classes: int | None) -> Tensor | None:
    """Which labels [N] are not 0..num_classes - 1; None where, on the CPU, all are."""
    if len(labels) == 0:
        return None
    if on_host(labels):
        low, high = torch.aminmax(labels)
        if bool(low >= 0) and (num_classes is None or bool(high < num_classes)):
            return None
    outside = labels < 0
    return outside if num_classes is None else outside | (labels >= num_classes)


class _Regions:
    """Where objects are, on both sides; images that have none on one side are left out."""

    def __init__(
        self,
        predictions: Sequence[Record],
        targets: Sequence[Record],
        pairs: ObjectPairs,
        sizes: tuple[tuple[int, ...], tuple[int, ...]],
        problems: _Problems,
    ) -> None:
        self.pairs = pairs
        self.problems = problems
        self.device = problems.device
        self.sizes = sizes
        self.compared = [i for i, (n, m) in enumerate(zip(*sizes, strict=True)) if n and m]
        self.images = [
            _Image(
                i,
                problems.names[i],
                (targets[i], predictions[i]),
                (sizes[0][i], sizes[1][i]),
            )
            for i in self.compared
        ]

    def iou(self, protocol: Protocol, same: Tensor) -> Tensor:
        """Intersection over union of each pair, [Q]; of different classes it may be 0.

        Args:
            protocol: what is compared, and how.
            same: int64 [S], the pairs of one class, at least.
        """
        chosen = [self._by_masks(image, protocol) for image in self.images]
        by_masks = [i for i, masks in zip(self.images, chosen, strict=True) if masks]
        by_boxes = [i for i, masks in zip(self.images, chosen, strict=True) if not masks]
        if not by_masks:
            return self._box_iou(by_boxes, same, plus_one=protocol.plus_one)
        if not by_boxes:
            return self._mask_iou(by_masks)
        masks = self._mask_iou(by_masks).split([image.pairs for image in by_masks])
        boxes = self._box_iou(by_boxes, None, plus_one=protocol.plus_one)
        of_masks, of_boxes = iter(masks), iter(boxes.split([image.pairs for image in by_boxes]))
        return torch.cat([next(of_masks) if masks else next(of_boxes) for masks in chosen])

    def phrases(self, classes: Matches, protocol: Protocol) -> Phrases:
        """What compares the unions of two regions.

        Args:
            classes: all pairs of objects of one class.
            protocol: compares masks, or boxes.
        """
        images: dict[int, _Image] = dict(zip(self.compared, self.images, strict=True))
        by_masks = protocol.regions == "masks"
        boxes, masks = None, []
        if by_masks:
            for number in range(len(self.sizes[0])):
                image = images.get(number)
                sides = () if image is None else (self._dense(image, side) for side in (0, 1))
                masks.append(None if image is None else ImageMasks(*sides))
        else:
            truth, predicted = (
                gather(
                    [
                        images[i].boxes(side) if i in images else torch.zeros(size, 4)
                        for i, size in enumerate(self.sizes[side])
                    ],
                    (4,),
                    torch.float32,
                    self.device,
                )
                for side in (0, 1)
            )
            boxes = truth, predicted
        return Phrases(
            classes,
            boxes,
            masks,
            self.sizes,
            protocol.plus_one,
            protocol.iou_threshold,
            protocol.inclusive,
        )

    def _by_masks(self, image: _Image, protocol: Protocol) -> bool:
        """Whether masks of the image are compared; the alternative is boxes."""
        masks = protocol.regions == "masks"
        if protocol.regions == "either" and image.has(_MASKS):
            return True
        keys = _MASKS if masks else _BOXES
        if not image.has(keys):
            wanted = {"masks": "masks or id maps", "boxes": "boxes"}.get(
                protocol.regions, "masks on both sides, or boxes,"
            )
            raise InputError(
                f"the protocol {protocol.name!r} compares {wanted} of objects, which the "
                f"{image.lacking(keys)} lack",
                record=image.name,
            )
        return masks

    def _box_iou(self, images: Sequence[_Image], some: Tensor | None, *, plus_one: bool) -> Tensor:
        """Of all pairs, or of some and 0 of the others."""
        truth, predicted = (
            gather([image.boxes(side) for image in images], (4,), torch.float32, self.device)
            for side in (0, 1)
        )
        pairs = self._pairs(images)
        for side, boxes in enumerate((truth, predicted)):
            self._check_boxes(side, boxes, images)
        if some is None:
            return box_iou(truth, predicted, pairs, plus_one=plus_one)
        few = replace(pairs, truth=pairs.truth[some], predicted=pairs.predicted[some])
        values = box_iou(truth, predicted, few, plus_one=plus_one)
        return values.new_zeros(len(pairs.truth)).index_copy_(0, some, values)

    def _check_boxes(self, side: int, boxes: Tensor, images: Sequence[_Image]) -> None:
        wrong = improper_boxes(boxes)
        if wrong is not None:
            sizes, numbers = zip(*((i.sizes[side], i.number) for i in images), strict=True)
            self.problems.note(1 + side, wrong, expand(sizes, self.device, numbers))

    def _mask_iou(self, images: Sequence[_Image]) -> Tensor:
        with naming([image.name for image in images]):
            return self._iou_of_masks(images)

    def _iou_of_masks(self, images: Sequence[_Image]) -> Tensor:
        sides = (0, 1)
        if all(image.sides[side].get("id_map") is not None for image in images for side in sides):
            maps, ids = [], []
            for side in sides:
                maps.append([self._to(image.id_map(side)) for image in images])
                ids.append([image.segment_ids(side) for image in images])
            return id_map_overlaps(*maps, *ids).iou()
        if all(_is_rle(image.sides[side].get("masks")) for image in images for side in sides):
            encoded = [[image.sides[side]["masks"] for image in images] for side in sides]
            return rle_iou(*encoded).to(self.device, result_dtype(self.device))
        dense = [[self._dense(image, side) for image in images] for side in sides]
        return mask_overlaps(*dense).iou()

    def _dense(self, image: _Image, side: int) -> Tensor:
        """Masks bool [N, H, W]."""
        record, size = image.sides[side], image.sizes[side]
        if record.get("masks") is None:
            ids, pixels = self._to(image.segment_ids(side)), self._to(image.id_map(side))
            # PyTorch compares no unsigned integers of several bytes with others.
            return pixels.to(torch.int64) == ids.to(torch.int64)[:, None, None]
        if _is_rle(record["masks"]):
            return self._to(decode_rle(record["masks"], image.name))
        masks = self._to(as_tensor(record["masks"], "masks", image.name))
        if masks.ndim != 3 or len(masks) != size:
            raise image.error(f"masks [{size}, height, width]", masks)
        return masks if masks.dtype == torch.bool else masks != 0

    def _pairs(self, images: Sequence[_Image]) -> ObjectPairs:
        if len(images) == len(self.sizes[0]):
            return self.pairs
        truths, predictions = ([image.sizes[side] for image in images] for side in (0, 1))
        return object_pairs(truths, predictions, self.device)

    def _to(self, value: Tensor) -> Tensor:
        return move(value, self.device)


@dataclass(frozen=True, eq=False)
class _Image:
    """Objects of one image: of the annotations (side 0) and of the predictions (side 1)."""

    number: int
    name: str
    sides: tuple[Record, Record]
    sizes: tuple[int, int]

    @property
    def pairs(self) -> int:
        return self.sizes[0] * self.sizes[1]

    def has(self, keys: Sequence[str]) -> bool:
        """Whether both sides have one of the keys."""
        return all(any(side.get(key) is not None for key in keys) for side in self.sides)

    def lacking(self, keys: Sequence[str]) -> str:
        """Which sides have none of the keys."""
        names = ("annotations", "predictions")
        return " and ".join(
            name
            for name, side in zip(names, self.sides, strict=True)
            if all(side.get(key) is None for key in keys)
        )

    def boxes(self, side: int) -> Tensor:
        boxes, size = as_tensor(self.sides[side]["boxes"], "boxes", self.name), self.sizes[side]
        if boxes.shape != (size, 4):
            raise self.error(f"boxes [{size}, 4]", boxes)
        return boxes

    def segment_ids(self, side: int) -> Tensor:
        """What the pixels of each object hold."""
        ids, size = self.sides[side].get("segment_ids"), self.sizes[side]
        ids = torch.arange(size) if ids is None else as_tensor(ids, "segment_ids", self.name)
        if ids.shape != (size,):
            raise self.error(f"segment_ids [{size}], one for each object", ids)
        return ids

    def id_map(self, side: int) -> Tensor:
        """Which object each pixel belongs to, [H, W]."""
        return as_map(self.sides[side]["id_map"], self.name)

    def error(self, expected: str, value: Tensor) -> InputError:
        return InputError(
            f"expected {expected}, got {list(value.shape)} of {value.dtype}", record=self.name
        )


def _is_rle(masks: Any) -> bool:
    return isinstance(masks, list | tuple) and len(masks) > 0 and isinstance(masks[0], dict)


def _best_prediction(iou: Tensor, matches: Matches) -> Tensor:
    """Of each annotated object the matching prediction of the highest IoU, then the first."""
    some = where_true(matches.matched)
    matched, truth, predicted = (
        column.index_select(0, some)
        for column in (matches.matched, matches.pairs.truth, matches.pairs.predicted)
    )
    size = len(matches.pairs.truth_images)
    values = iou.index_select(0, some).where(matched, -1)
    best = values.new_full((size,), -1).scatter_reduce(0, truth, values, "amax")
    never = len(matches.pairs.predicted)
    candidate = predicted.where(matched & (values == best[truth]), never)
    first = torch.full((size,), never, dtype=torch.int64, device=iou.device)
    first = first.scatter_reduce(0, truth, candidate, "amin")
    return torch.where(first == never, -1, first)
