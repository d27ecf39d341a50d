"""Predictions of a batch, from one dict an image to flat tensors on the metric's device.

They are only indexed, with sizes that follow from shapes, so that nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.batch import (
    Buffer,
    Record,
    adjoining,
    as_tensor,
    expand,
    fields,
    keys_of,
    lengths,
    move,
    record_name,
    send,
    shape_error,
    view_or_gather,
)
from haystack.metrics.functional import relation_probabilities
from haystack.metrics.functional.tensors import look_over, on_host

_BLOCK = 2**12
"""Rows of scores that are read at once on the CPU."""

PROBLEMS = (
    "expected finite scores, got NaN or an infinity",
    "a pair refers to an object that the image does not have",
    "a pair is given twice; give each ordered pair of an image once",
)
"""What may be wrong with values, in the order of ``Predictions.problems``."""


@dataclass(frozen=True)
class Predictions:
    """Predicted pairs of a batch.

    Args:
        sizes: pairs in each image.
        recorded: bool [images], whether the predictions mention the image at all.
        images: int64 [R], image of each pair, ascending.
        subjects, objects: int64 [R], numbers among all objects of the batch.
        scores: float32 [R, P].
        best: float32 [R], the largest of each row of scores.
        object_scores: float32 [N], of all objects of the batch; or None if there are none.
        pair_scores: float32 [R], by which the model orders its pairs; or None.
        no_relation: float32 [R]; or None where not all images have it.
        has_no_relation: bool [images].
        first_slots: int64 [N + 1]; the slot of a pair of objects is that of the subject, plus the
            number of the object.
        row_of_slot: int64 [slots], row of each pair of objects, -1 where it is not predicted.
        num_objects: objects that the pairs of each image refer to.
        problems: bool [3, images], in the order of ``PROBLEMS``; None if nothing is wrong.
    """

    sizes: tuple[int, ...]
    recorded: Tensor
    images: Tensor
    subjects: Tensor
    objects: Tensor
    scores: Tensor
    best: Tensor
    object_scores: Tensor | None
    pair_scores: Tensor | None
    no_relation: Tensor | None
    has_no_relation: Tensor
    first_slots: Tensor
    row_of_slot: Tensor
    num_objects: tuple[int, ...]
    problems: Tensor | None

    def rows_of(self, subjects: Tensor, objects: Tensor) -> Tensor:
        """Rows of pairs of objects, -1 where not predicted, or where an object is -1.

        Args:
            subjects: int64 [A], numbers among all objects of the batch, or -1.
            objects: int64 [A], the same; of the same image.
        """
        if len(self.row_of_slot) == 0:
            return torch.full_like(subjects, -1)
        known = (subjects >= 0) & (objects >= 0)
        slot = self.first_slots[subjects] + objects
        return self.row_of_slot[slot.where(known, 0)].where(known, -1)


def flatten_predictions(
    predictions: Sequence[Record | None],
    num_objects: Sequence[int],
    num_predicates: int,
    *,
    from_logits: bool,
    device: torch.device,
    keep_repeated: bool = False,
    buffer: Buffer | None = None,
) -> Predictions:
    """Flatten predictions on ``device``, noting what is wrong with their values.

    Args:
        predictions: dicts with ``pairs`` [R, 2], ``scores`` [R, P], optionally ``no_relation``
            [R], ``object_scores`` [N], ``pair_scores`` [R]; None for an image without prediction.
        num_objects: objects in each image; pairs index them.
        num_predicates: P.
        from_logits: whether scores and ``no_relation`` are logits.
        device: of the result.
        keep_repeated: a pair given again is no problem; where one row is asked for, the first is.
        buffer: where the scores are put; the result holds until it is used again.

    Raises:
        InputError: a key is missing or a shape does not fit.
    """
    recorded = [record is not None for record in predictions]
    records = [_NOTHING if record is None else record for record in predictions]
    keys = keys_of(records)
    pairs, scores = _pairs_and_scores(records, num_predicates)
    sizes = lengths(pairs)
    images = expand(sizes, device)
    none, ranking = (
        _optional(records, key, sizes, f"{key} [{{}}], one for each pair")
        if key in keys
        else [None] * len(records)
        for key in ("no_relation", "pair_scores")
    )
    read = _read_scores(scores, sizes, num_predicates, device, buffer or Buffer())
    no_relation = _column(none, sizes, device)
    if from_logits:
        if no_relation is None:
            number = next(i for i, part in enumerate(none) if part is None and sizes[i])
            raise InputError(
                "logits need the logit of 'no relation' beside them: the softmax is taken over "
                "predicates and 'no relation'; give no_relation [R]",
                record=record_name(number, predictions),
            )
        read = _looked_over(relation_probabilities(read.values, no_relation))
        no_relation = 1 - read.values.sum(1)
    numbered = _numbered(
        view_or_gather(pairs, (2,), torch.int64, device),
        sizes,
        num_objects,
        keep_repeated=keep_repeated,
    )
    pair_scores = _column(ranking, sizes, device)
    object_scores = (
        _object_scores(records, num_objects, device) if "object_scores" in keys else None
    )
    factors = [(images, no_relation), (images, pair_scores)]
    if object_scores is not None:
        factors.append((expand(num_objects, device), object_scores))
    return Predictions(
        sizes=sizes,
        recorded=send(recorded, torch.bool, device),
        images=images,
        subjects=numbered.subjects,
        objects=numbered.objects,
        scores=read.values,
        best=read.best,
        object_scores=object_scores,
        pair_scores=pair_scores,
        no_relation=no_relation,
        has_no_relation=send([part is not None for part in none], torch.bool, device),
        first_slots=numbered.first_slots,
        row_of_slot=numbered.row_of_slot,
        num_objects=tuple(num_objects),
        problems=_problems(
            read, factors, numbered.outside, numbered.repeated, images, len(records)
        ),
    )


_NOTHING: Record = {"pairs": torch.empty(0, 2, dtype=torch.int64), "scores": torch.empty(0)}


def _pairs_and_scores(
    records: Sequence[Record], num_predicates: int
) -> tuple[list[Tensor], list[Tensor]]:
    pairs, scores = fields(records, "pairs"), fields(records, "scores")
    kinds = [{x.dtype.is_floating_point for x in parts} for parts in (pairs, scores)]
    shapes = [(*x.shape, *y.shape) for x, y in zip(pairs, scores, strict=True)]
    if kinds == [{False}, {True}] and all(x == (*x[:1], 2, *x[:1], num_predicates) for x in shapes):
        return pairs, scores
    for number, (rows, values) in enumerate(zip(pairs, scores, strict=True)):
        if 0 in rows.shape:
            rows = pairs[number] = rows.reshape(0, 2).to(torch.int64)
        if 0 in values.shape:
            values = scores[number] = values.reshape(0, num_predicates).float()
        shape = rows.shape
        if len(shape) != 2 or shape[1] != 2 or rows.dtype.is_floating_point:
            raise shape_error("integer pairs [R, 2]", rows, number, records)
        if values.shape != (shape[0], num_predicates) or not values.dtype.is_floating_point:
            expected = (
                f"floating-point scores [{shape[0]}, {num_predicates}], one row for each pair"
            )
            if values.shape == (shape[0], num_predicates + 1):
                expected += " (drop the no-relation column and pass it as no_relation)"
            raise shape_error(expected, values, number, records)
    return pairs, scores


class _Scores(NamedTuple):
    """Scores of a batch, and what was read off them while they were at hand.

    Args:
        values: float32 [R, P].
        best: float32 [R], the largest of each row.
        finite: whether all are surely finite; False where that was not looked at.
    """

    values: Tensor
    best: Tensor
    finite: bool


def _read_scores(
    parts: Sequence[Tensor],
    sizes: Sequence[int],
    num_predicates: int,
    device: torch.device,
    buffer: Buffer,
) -> _Scores:
    kinds = {(device, torch.float32), *((x.device, x.dtype) for x in parts)}
    if len(kinds) > 1 or not on_host(parts[0]):
        return _looked_over(view_or_gather(parts, (num_predicates,), torch.float32, device))
    values = adjoining(parts)
    if values is not None:
        return _looked_over(values)
    gathered = buffer.take(sum(sizes), num_predicates)
    seen = []
    with torch.no_grad():
        # A few thousand rows at a time stay in the cache while they are copied and looked at.
        for first, last, begin, end in _blocks(sizes):
            torch.cat(list(parts[first:last]), out=gathered[begin:end])
            seen.append(look_over(gathered[begin:end]))
    best, finite = zip(*seen, strict=True)
    return _Scores(gathered, torch.cat(best), all(finite))


def _looked_over(values: Tensor) -> _Scores:
    if on_host(values):
        return _Scores(values, *look_over(values))
    return _Scores(values, values.amax(1), False)


def _blocks(sizes: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """First and last image, first and last row, of neighbours with a few thousand rows."""
    first = begin = end = 0
    for number, size in enumerate(sizes, 1):
        end += size
        if end - begin >= _BLOCK or number == len(sizes):
            yield first, number, begin, end
            first, begin = number, end


def _optional(
    records: Sequence[Record], key: str, sizes: Sequence[int], expected: str
) -> list[Tensor | None]:
    parts = [record.get(key) for record in records]
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        if part is not None and type(part) is not Tensor:
            part = parts[number] = as_tensor(part, key, record_name(number, records))
        if part is not None and part.shape != (size,):
            raise shape_error(expected.format(size), part, number, records)
    return parts


def _column(
    parts: Sequence[Tensor | None], sizes: Sequence[int], device: torch.device
) -> Tensor | None:
    """All parts, or None if an image that has pairs lacks its part."""
    if any(part is None and size for part, size in zip(parts, sizes, strict=True)):
        return None
    given = [part for part in parts if part is not None]
    return view_or_gather(given, (), torch.float32, device)


def _object_scores(
    records: Sequence[Record], num_objects: Sequence[int], device: torch.device
) -> Tensor | None:
    parts = _optional(records, "object_scores", num_objects, "object_scores [{}]")
    scores = _column(parts, num_objects, device)
    if scores is None:
        number = next(i for i, part in enumerate(parts) if part is None and num_objects[i])
        raise InputError(
            "expected object_scores for every image or for none; this one lacks them",
            record=record_name(number, records),
        )
    return scores


class _Pairs(NamedTuple):
    """Pairs by the numbers of their objects in the batch.

    Args:
        subjects, objects: int64 [R]; those of the first object where one is not there.
        first_slots: int64 [N + 1], see ``Predictions.first_slots``.
        row_of_slot: int64 [slots].
        outside: bool [R], which pairs name an object that is not there; None if surely none does.
        repeated: bool [R], which pairs come again; the same.
    """

    subjects: Tensor
    objects: Tensor
    first_slots: Tensor
    row_of_slot: Tensor
    outside: Tensor | None
    repeated: Tensor | None


def _numbered(
    pairs: Tensor, sizes: Sequence[int], num_objects: Sequence[int], *, keep_repeated: bool
) -> _Pairs:
    device = pairs.device
    first_slots, slots = _first_slots(num_objects)
    first_slots = move(first_slots, device)
    outside = None
    if not on_host(pairs) or not _all_inside(pairs, sizes, num_objects):
        outside = ((pairs < 0) | (pairs >= expand(sizes, device, num_objects)[:, None])).any(1)
        pairs = pairs.masked_fill(outside[:, None], 0)
    first = expand(sizes, device, [0, *accumulate(num_objects)][:-1])
    subjects, objects = (first + column for column in pairs.unbind(1))
    slot = first_slots.index_select(0, subjects).add_(objects)
    if outside is not None:  # to one slot too many, which is cut off
        slot.masked_fill_(outside, slots)
    rows = torch.arange(len(pairs), device=device)
    row_of_slot = torch.full((slots + 1,), -1, dtype=torch.int64, device=device)
    repeated = None
    if keep_repeated:
        row_of_slot = row_of_slot.scatter_reduce(0, slot, rows, "amin", include_self=False)
    else:
        row_of_slot.scatter_(0, slot, rows)
        if outside is not None or np.count_nonzero(row_of_slot.numpy() >= 0) < len(rows):
            repeated = row_of_slot.index_select(0, slot) != rows
            repeated = repeated if outside is None else repeated & ~outside
    return _Pairs(subjects, objects, first_slots, row_of_slot[:-1], outside, repeated)


def _first_slots(num_objects: Sequence[int]) -> tuple[Tensor, int]:
    """``Predictions.first_slots``, with one too many so that it is never empty, and all slots."""
    counts = np.array(num_objects, np.int64)
    size = np.repeat(counts, counts)
    ends = np.cumsum(size)
    first_object = np.repeat(np.cumsum(counts) - counts, counts)
    return torch.from_numpy(np.append(ends - size - first_object, 0)), int(size.sum())


def _all_inside(pairs: Tensor, sizes: Sequence[int], num_objects: Sequence[int]) -> bool:
    """Whether pairs on the CPU name objects that are there."""
    counts = np.array(sizes)
    given = counts > 0
    if not given.any():
        return True
    begins = 2 * (np.cumsum(counts) - counts)[given]
    # As unsigned numbers, negative ones are the largest.
    largest = np.maximum.reduceat(pairs.numpy().view(np.uint64).ravel(), begins)
    return bool((largest < np.array(num_objects, np.uint64)[given]).all())


def _problems(
    read: _Scores,
    factors: Sequence[tuple[Tensor, Tensor | None]],
    outside: Tensor | None,
    repeated: Tensor | None,
    images: Tensor,
    num_images: int,
) -> Tensor | None:
    """Which problems each image has; ``factors``: (image, value) columns that scores meet."""
    scores = read.values
    beside = [(owners, values) for owners, values in factors if values is not None]
    # A sum of finite values may overflow, but one with a NaN or an infinity is not finite.
    if read.finite and outside is None and repeated is None and _finite_sums(beside):
        return None
    # NaN is both the least and the greatest of its row; cheaper than asking every score.
    infinite = ~(torch.isfinite(scores.amin(1)) & torch.isfinite(scores.amax(1)))
    none = torch.zeros_like(infinite)
    flags = torch.stack([infinite, *(none if x is None else x for x in (outside, repeated))])
    problems = torch.zeros(len(PROBLEMS), num_images, dtype=torch.int64, device=scores.device)
    problems.index_add_(1, images, flags.to(torch.int64))
    for owners, values in beside:
        problems[0].index_add_(0, owners, (~torch.isfinite(values)).to(torch.int64))
    return problems > 0


def _finite_sums(columns: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether the values of (owners, values), on the CPU, are surely finite."""
    return all(math.isfinite(values.sum()) for _, values in columns)
