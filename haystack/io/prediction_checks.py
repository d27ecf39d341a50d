"""What the readers of foreign predictions check alike: arrays, objects, pairs and their scores.

Errors carry no path: a reader knows it and adds it with :func:`located`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.scene_graph import MaskRuns, PredictedObjects, RelationScores

RepeatedPairs = Literal["refuse", "first", "keep"]
"""What becomes of a pair that an image gives again: it is an error; its first row counts, as in the
SingleMPO evaluator; or every row is a candidate of its own, as in OpenPSG's evaluator."""


@contextmanager
def located(path: Path, record: str) -> Iterator[None]:
    """Add the file and the record to an ``InputError`` that names none."""
    try:
        yield
    except InputError as error:
        raise InputError(
            error.message, path=error.path or path, record=error.record or record
        ) from error


def integers(value: Any, name: str, columns: int | None = None) -> npt.NDArray[np.int64]:
    """An array or list of integers as int64 [N], or [N, columns].

    Raises:
        InputError: it is something else.
    """
    return _array(value, name, columns, "iu", "integers").astype(np.int64)


def numbers(value: Any, name: str, columns: int | None = None) -> npt.NDArray[np.float32]:
    """An array or list of finite real numbers as float32 [N], or [N, columns].

    Raises:
        InputError: it is something else, or a number is not finite.
    """
    array = _array(value, name, columns, "fiu", "numbers").astype(np.float32)
    wrong = ~np.isfinite(array)
    if wrong.any():
        place = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"expected finite numbers under {name!r}, got {array[tuple(place)]} at {place}"
        )
    return array


def predicted_objects(
    labels: npt.NDArray[np.int64], boxes: Any, masks: MaskRuns | None, num_classes: int
) -> PredictedObjects:
    """Objects with boxes [N, 4], or [N, 5] where the fifth column is the object's score.

    Args:
        labels: [N], should lie in 0..num_classes - 1.
        boxes: an array or a list, or None.
        masks: N masks, or None.
        num_classes: C.

    Raises:
        InputError: a class is unknown, or the numbers of objects differ.
    """
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        position = int(wrong.argmax())
        raise InputError(
            f"expected object classes 0..{num_classes - 1}, got {int(labels[position])} for "
            f"object {position}"
        )
    scores = None
    if boxes is not None:
        first = boxes[0] if isinstance(boxes, (list, np.ndarray)) and len(boxes) else ()
        with_score = np.size(first) == 5
        boxes = numbers(boxes, "boxes", 5 if with_score else 4)
        if with_score:
            boxes, scores = boxes[:, :4], boxes[:, 4]
    for found, what in ((boxes, "boxes"), (masks, "masks")):
        if found is not None and len(found) != len(labels):
            raise InputError(f"expected {len(labels)} {what}, one an object, got {len(found)}")
    return PredictedObjects(labels, scores, boxes, masks)


def relation_scores(
    image_id: str,
    pairs: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float32],
    objects: PredictedObjects,
    *,
    repeated_pairs: RepeatedPairs,
    pair_ranking: npt.NDArray[np.float32] | None = None,
) -> RelationScores:
    """Predictions of an image from scores [R, 1 + P] whose first column is "no relation".

    Raises:
        InputError: the numbers of pairs differ, a pair is none of the objects, or it comes twice.
    """
    found = {len(scores), len(pairs) if pair_ranking is None else len(pair_ranking)} - {len(pairs)}
    if found:
        raise InputError(
            f"expected scores for {len(pairs)} pairs, one row a pair, got {min(found)} rows"
        )
    refuse_unknown(pairs, len(objects), "object")
    first = first_rows(pairs)
    if len(first) < len(pairs) and repeated_pairs != "keep":
        if repeated_pairs == "refuse":
            row = int(np.setdiff1d(np.arange(len(pairs)), first)[0])
            raise InputError(
                f"the pair {tuple(pairs[row].tolist())} is given twice, the second time in row "
                f"{row}; have the first or every row count with repeated_pairs='first' or 'keep'"
            )
        pairs, scores = pairs[first], scores[first]
        pair_ranking = None if pair_ranking is None else pair_ranking[first]
    return RelationScores(
        image_id=image_id,
        pairs=pairs,
        scores=scores[:, 1:],
        no_relation=scores[:, 0],
        objects=objects,
        pair_ranking=pair_ranking,
    )


def refuse_unknown(indices: npt.NDArray[np.int64], count: int, what: str) -> None:
    """Raise ``InputError`` where an index [..] lies outside 0..count - 1."""
    wrong = (indices < 0) | (indices >= count)
    if wrong.any():
        row = int(np.argwhere(wrong)[0, 0])
        raise InputError(
            f"expected {what}s 0..{count - 1}, got {int(indices[wrong][0])} in row {row}"
            if count
            else f"there is no {what}, yet row {row} refers to one"
        )


def first_rows(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each distinct row of non-negative numbers [N, K] first stands, ascending."""
    keys = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        # Numbering the keys anew after each column keeps them from overflowing.
        keys = np.unique(keys * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1]
    return np.sort(np.unique(keys, return_index=True)[1])


def _array(value: Any, name: str, columns: int | None, kinds: str, what: str) -> npt.NDArray[Any]:
    shape = "[N]" if columns is None else f"[N, {columns}]"
    if isinstance(value, (list, tuple)):
        try:
            value = np.array(value)
        except (ValueError, OverflowError):
            raise InputError(f"expected {what} {shape} under {name!r}, got uneven rows") from None
    if not isinstance(value, np.ndarray):
        found = "none" if value is None else f"a value of type {type(value).__name__}"
        raise InputError(f"expected {what} {shape} under {name!r}, got {found}")
    if value.ndim and not len(value):
        # Nothing has many shapes and types: [0], [0, 0], a list that became floating-point.
        return np.empty((0,) if columns is None else (0, columns), dtype=np.int64)
    fits = value.ndim == 1 if columns is None else value.ndim == 2 and value.shape[1] == columns
    if not fits or value.dtype.kind not in kinds:
        raise InputError(
            f"expected {what} {shape} under {name!r}, got {list(value.shape)} of {value.dtype}"
        )
    return value
