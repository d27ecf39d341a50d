"""Annotations of a batch, from one dict an image to flat tensors.

They are prepared on the CPU, where a data loader leaves them, so that their counts are known
without asking an accelerator; with NumPy, which starts on arrays this small in less time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.batch import (
    Record,
    class_fields,
    fields,
    gather,
    keys_of,
    lengths,
    record_name,
    shape_error,
)
from haystack.metrics.protocols import Protocol
from haystack.scene_graph import NO_RELATION


@dataclass(frozen=True)
class Targets:
    """Annotations of a batch. A slot is the number of an ordered pair of objects in the batch.

    Args:
        num_objects: objects in each image.
        num_triplets: rows of ``triplet_*`` in each image.
        num_pairs: the most distinct pairs with a triplet that an image has.
        labels: int64 [G], class of each object, objects numbered through the batch.
        triplet_slots, triplet_predicates, triplet_images: int64 [T], the true triplets, ascending.
        triplet_objects: int64 [T, 2], numbers of the subject and the object.
        triplet_classes: int64 [T, 3], (subject class, object class, predicate).
        first_of_pair: bool [T], whether the triplet is the first of its pair.
        label_slots, label_predicates: int64 [A], what is labelled; no -1 is left.
        label_images: int64 [A].
        label_objects: int64 [A, 2], numbers of the subject and the object.
        label_signs: int64 [A], 1 or -1.
        pair_slots, pair_images: int64 [U], distinct annotated pairs.
        pair_objects: int64 [U, 2], numbers of their subject and object.
    """

    num_objects: tuple[int, ...]
    num_triplets: tuple[int, ...]
    num_pairs: int
    labels: Tensor
    triplet_slots: Tensor
    triplet_predicates: Tensor
    triplet_images: Tensor
    triplet_objects: Tensor
    triplet_classes: Tensor
    first_of_pair: Tensor
    label_slots: Tensor
    label_predicates: Tensor
    label_images: Tensor
    label_objects: Tensor
    label_signs: Tensor
    pair_slots: Tensor
    pair_images: Tensor
    pair_objects: Tensor

    def to(self, device: torch.device) -> Targets:
        """The same on another device."""
        if self.labels.device == device:
            return self
        tensors: dict[str, Any] = {
            field.name: value.to(device, non_blocking=True)
            for field in fields_of(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


Numbers = NDArray[np.int64]
_CPU = torch.device("cpu")


class _Slots:
    """Numbers of ordered pairs of objects: image after image, then subject, then object."""

    def __init__(self, num_objects: Sequence[int]) -> None:
        self.sizes = np.array(num_objects, np.int64)
        self.ends = np.cumsum(self.sizes * self.sizes)
        self.begins = self.ends - self.sizes * self.sizes
        self.first_object = np.cumsum(self.sizes) - self.sizes

    def number(self, images: Numbers, subjects: Numbers, objects: Numbers) -> Numbers:
        return self.begins[images] + subjects * self.sizes[images] + objects

    def locate(self, slots: Numbers) -> tuple[Numbers, Numbers]:
        """Image [A], and numbers of subject and object [A, 2]."""
        images = np.searchsorted(self.ends, slots, side="right")
        inside, sizes, first = slots - self.begins[images], self.sizes[images], self.first_object
        objects = np.empty((len(slots), 2), np.int64)
        subjects = inside // sizes
        objects[:, 0] = subjects
        objects[:, 1] = inside - subjects * sizes
        objects += first[images, None]
        return images, objects


def flatten_targets(
    targets: Sequence[Record],
    num_predicates: int,
    protocol: Protocol,
    num_classes: int | None = None,
) -> Targets:
    """Check and flatten annotations.

    Args:
        targets: dicts with ``labels`` [N], ``relations`` [T, 3], optionally ``neg_relations``
            [M, 3]; rows (subject, object, predicate), predicate -1 = no relation at all.
        num_predicates: P.
        protocol: what -1 and repetitions mean.
        num_classes: C, above all labels; None if it is not known.

    Returns:
        The annotations, on the CPU.

    Raises:
        InputError: a key is missing, a shape, a class or an index does not fit, or a triple is
            labelled both ways under a protocol that merges labels.
    """
    labels = class_fields(targets)
    num_objects = lengths(labels)
    parts = _rows(fields(targets, "relations"), targets)
    refused = []
    if "neg_relations" in keys_of(targets):
        refused = [i for i, r in enumerate(targets) if r.get("neg_relations") is not None]
    if refused:
        with_negatives = [targets[i] for i in refused]
        parts += _rows(fields(with_negatives, "neg_relations"), with_negatives)
    table = gather(parts, (3,), torch.int64, _CPU).numpy()
    sizes = np.array(lengths(parts))
    num_positive = sizes[: len(targets)].sum()
    images = np.repeat(np.append(np.arange(len(targets)), refused).astype(np.int64), sizes)
    slots = _Slots(num_objects)
    _check_rows(table, images, slots.sizes, num_predicates, targets)

    number = slots.number(images, table[:, 0], table[:, 1])
    keys = number * num_predicates + table[:, 2]
    whole = table[:, 2] == NO_RELATION
    true, false = keys[:num_positive], keys[num_positive:]
    if whole.any():
        true, false = true[~whole[:num_positive]], false[~whole[num_positive:]]
        if protocol.no_relation_rows == "negative-for-all":
            every = np.arange(num_predicates)
            negatives = number[whole, None] * num_predicates + every
            false = np.concatenate([false, negatives.ravel()])
    ascending = np.sort(true)
    distinct = _distinct(ascending)
    triplets = distinct if protocol.repeated_triplets == "merge" else ascending
    if protocol.repeated_labels == "merge":
        true = distinct
        if len(false):
            false = _distinct(np.sort(false))
            _check_contradictions(true, false, slots, num_predicates, targets)
    classes = gather(labels, (), torch.int64, _CPU).numpy()
    _check_classes(classes, slots, num_classes, targets)
    columns = _triplet_fields(triplets, slots, num_predicates)
    objects, predicates = columns["triplet_objects"], columns["triplet_predicates"]
    columns["triplet_classes"] = np.concatenate([classes[objects], predicates[:, None]], axis=1)
    if true is triplets and not len(false):
        columns |= _labels_of_triplets(columns)
    else:
        columns |= _label_fields(true, false, slots, num_predicates)
    counts = np.bincount(columns["triplet_images"], minlength=len(targets))
    pairs = np.bincount(columns["triplet_images"][columns["first_of_pair"]], minlength=1)
    return Targets(
        num_objects=num_objects,
        num_triplets=tuple(counts.tolist()),
        num_pairs=int(pairs.max()),
        labels=torch.from_numpy(classes),
        **{name: torch.from_numpy(values) for name, values in columns.items()},
    )


def _triplet_fields(keys: Numbers, slots: _Slots, num_predicates: int) -> dict[str, NDArray[Any]]:
    slot = keys // num_predicates
    images, objects = slots.locate(slot)
    return {
        "triplet_slots": slot,
        "triplet_predicates": keys - slot * num_predicates,
        "triplet_images": images,
        "triplet_objects": objects,
        "first_of_pair": _is_new(slot),
    }


def _labels_of_triplets(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The labels where the triplets are all that is labelled."""
    same = ("slots", "predicates", "images", "objects")
    labels = {f"label_{name}": columns[f"triplet_{name}"] for name in same}
    first = columns["first_of_pair"]
    pairs = {f"pair_{name}": columns[f"triplet_{name}"][first] for name in same if name != same[1]}
    return labels | pairs | {"label_signs": np.ones_like(columns["triplet_slots"])}


def _label_fields(
    true: Numbers, false: Numbers, slots: _Slots, num_predicates: int
) -> dict[str, NDArray[Any]]:
    keys = np.concatenate([true, false])
    slot = keys // num_predicates
    signs = np.ones_like(keys)
    signs[len(true) :] = -1
    pair_slots = _distinct(np.sort(slot))
    pair_images, pair_objects = slots.locate(pair_slots)
    label_images, label_objects = slots.locate(slot)
    return {
        "label_slots": slot,
        "label_predicates": keys - slot * num_predicates,
        "label_images": label_images,
        "label_objects": label_objects,
        "label_signs": signs,
        "pair_slots": pair_slots,
        "pair_images": pair_images,
        "pair_objects": pair_objects,
    }


def _is_new(ascending: Numbers) -> NDArray[np.bool_]:
    """Whether a number differs from the one before it."""
    new = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
    return new


def _distinct(ascending: Numbers) -> Numbers:
    return ascending[_is_new(ascending)]


def _rows(parts: Sequence[Tensor], records: Sequence[Record]) -> list[Tensor]:
    if {x.shape[1:] for x in parts} == {(3,)} and not any(x.dtype.is_floating_point for x in parts):
        return list(parts)
    checked = []
    for number, rows in enumerate(parts):
        if 0 in rows.shape:
            rows = rows.reshape(0, 3).to(torch.int64)
        shape = rows.shape
        if len(shape) != 2 or shape[1] != 3 or rows.dtype.is_floating_point:
            raise shape_error(
                "integer rows (subject, object, predicate) [T, 3]", rows, number, records
            )
        checked.append(rows)
    return checked


def _check_rows(
    table: Numbers,
    images: Numbers,
    sizes: Numbers,
    num_predicates: int,
    targets: Sequence[Record],
) -> None:
    pairs = table[:, :2]
    ends = (pairs < 0) | (pairs >= sizes[images, None])
    objects = ends[:, 0] | ends[:, 1]
    predicates = (table[:, 2] < NO_RELATION) | (table[:, 2] >= num_predicates)
    wrong = objects | predicates
    if wrong.any():
        row = int(wrong.argmax())
        image = int(images[row])
        what, high = ("object", sizes[image]) if objects[row] else ("predicate", num_predicates)
        raise InputError(
            f"the index of the {what} in the relation {table[row].tolist()} is out of range; "
            f"there are {high} {what}s",
            record=record_name(image, targets),
        )


def _check_classes(
    classes: Numbers, slots: _Slots, num_classes: int | None, targets: Sequence[Record]
) -> None:
    if not len(classes):
        return
    if classes.min() < 0 or (num_classes is not None and classes.max() >= num_classes):
        outside = (classes < 0) if num_classes is None else (classes < 0) | (classes >= num_classes)
        row = int(outside.argmax())
        image = int(np.searchsorted(slots.first_object + slots.sizes, row, side="right"))
        last = "C-1" if num_classes is None else num_classes - 1
        raise InputError(
            f"expected object classes 0..{last} in the annotations, got {classes[row]} for object "
            f"{row - slots.first_object[image]}; count them from 0",
            record=record_name(image, targets),
        )


def _check_contradictions(
    true: Numbers, false: Numbers, slots: _Slots, num_predicates: int, targets: Sequence[Record]
) -> None:
    both = np.intersect1d(true, false, assume_unique=True)
    if len(both):
        images, objects = slots.locate(both[:1] // num_predicates)
        image = int(images[0])
        subject, target = (objects[0] - slots.first_object[image]).tolist()
        raise InputError(
            f"the triple (subject {subject}, object {target}, predicate "
            f"{int(both[0]) % num_predicates}) is labelled both as true and as false; remove one "
            "of the labels",
            record=record_name(image, targets),
        )
