"""From lists of dicts, one an image, to the flat tensors that the metrics work on.

Annotations are prepared on the device where they lie: on the CPU, where a data loader leaves
them, their counts are known without asking an accelerator. Predictions are only indexed, with
sizes that follow from shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.functional import relation_probabilities
from haystack.metrics.protocols import Protocol
from haystack.scene_graph import NO_RELATION

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Targets:
    """Annotations of a batch. A slot is the number of an ordered pair of objects in the batch.

    Args:
        num_objects: objects in each image.
        triplet_slots, triplet_predicates, triplet_images: int64 [T], distinct true triplets.
        label_slots, label_predicates: int64 [A], what is labelled; no -1 is left.
        label_signs: int64 [A], 1 or -1.
        pair_slots, pair_images: int64 [U], distinct annotated pairs.
    """

    num_objects: tuple[int, ...]
    triplet_slots: Tensor
    triplet_predicates: Tensor
    triplet_images: Tensor
    label_slots: Tensor
    label_predicates: Tensor
    label_signs: Tensor
    pair_slots: Tensor
    pair_images: Tensor

    def to(self, device: torch.device) -> Targets:
        """The same on another device."""
        tensors: dict[str, Any] = {
            field.name: getattr(self, field.name).to(device, non_blocking=True)
            for field in fields(self)
            if field.name != "num_objects"
        }
        return replace(self, **tensors)


@dataclass(frozen=True)
class Predictions:
    """Predicted pairs of a batch.

    Args:
        sizes: pairs in each image.
        images: int64 [R], image of each pair.
        scores: float32 [R, P].
        has_no_relation: bool [R], whether the pair came with a "no relation" score.
        row_of_slot: int64 [slots], row of each pair of objects, -1 where it is not predicted.
        problems: bool [3, images], in the order of ``SceneGraphMetrics.PROBLEMS``.
    """

    sizes: tuple[int, ...]
    images: Tensor
    scores: Tensor
    has_no_relation: Tensor
    row_of_slot: Tensor
    problems: Tensor


def record_names(*batches: Sequence[Record]) -> list[str]:
    """How errors call the images: by ``image_id`` where a dict has one, else by position."""
    return [
        next(
            (f"image {r['image_id']}" for r in records if "image_id" in r),
            f"image {i} of the batch",
        )
        for i, records in enumerate(zip(*batches, strict=True))
    ]


def flatten_targets(targets: Sequence[Record], num_predicates: int, protocol: Protocol) -> Targets:
    """Check and flatten annotations.

    Args:
        targets: dicts with ``labels`` [N], ``relations`` [T, 3], optionally ``neg_relations``
            [M, 3]; rows (subject, object, predicate), predicate -1 = no relation at all.
        num_predicates: P.
        protocol: what -1 and repeated labels mean.

    Returns:
        The annotations, on the device of the dicts' tensors.

    Raises:
        InputError: a key is missing, a shape or an index does not fit, or a triple is labelled
            both ways under a protocol that merges labels.
    """
    names = record_names(targets)
    num_objects = tuple(len(_field(r, "labels", n)) for r, n in zip(targets, names, strict=True))
    positives = [_rows(_field(r, "relations", n), n) for r, n in zip(targets, names, strict=True)]
    negatives = [
        _rows(r["neg_relations"] if r.get("neg_relations") is not None else positive[:0], n)
        for r, n, positive in zip(targets, names, positives, strict=True)
    ]
    device = positives[0].device if positives else torch.device("cpu")
    table = torch.cat([*positives, *negatives, torch.empty(0, 3, dtype=torch.int64, device=device)])
    signs = torch.ones(len(table), dtype=torch.int64, device=device)
    signs[sum(map(len, positives)) :] = -1
    images = _expand([len(rows) for rows in [*positives, *negatives]], device) % max(len(names), 1)
    sizes = torch.tensor(num_objects, dtype=torch.int64).to(device)
    _check_rows(table, images, sizes, num_predicates, names)

    begins = torch.cumsum(sizes * sizes, 0) - sizes * sizes
    slots = begins[images] + table[:, 0] * sizes[images] + table[:, 1]
    keys = slots * num_predicates + table[:, 2]
    whole = table[:, 2] == NO_RELATION
    true = keys[(signs > 0) & ~whole]
    false = keys[(signs < 0) & ~whole]
    if protocol.no_relation_rows == "negative-for-all":
        every = slots[whole, None] * num_predicates + torch.arange(num_predicates, device=device)
        false = torch.cat([false, every.flatten()])
    distinct = torch.unique(true)
    if protocol.repeated_labels == "merge":
        true, false = distinct, torch.unique(false)
        _check_contradictions(true, false, begins, sizes, num_predicates, names)

    labels = torch.cat([true, false])
    pair_slots = torch.unique(labels // num_predicates)

    def image_of(slot: Tensor) -> Tensor:
        return torch.searchsorted(begins + sizes * sizes, slot, right=True)

    return Targets(
        num_objects=num_objects,
        triplet_slots=distinct // num_predicates,
        triplet_predicates=distinct % num_predicates,
        triplet_images=image_of(distinct // num_predicates),
        label_slots=labels // num_predicates,
        label_predicates=labels % num_predicates,
        label_signs=torch.cat([torch.ones_like(true), -torch.ones_like(false)]),
        pair_slots=pair_slots,
        pair_images=image_of(pair_slots),
    )


def flatten_predictions(
    predictions: Sequence[Record],
    num_objects: Sequence[int],
    num_predicates: int,
    *,
    from_logits: bool,
    device: torch.device,
) -> Predictions:
    """Flatten predictions on ``device``, noting what is wrong with their values.

    Args:
        predictions: dicts with ``pairs`` [R, 2], ``scores`` [R, P], optionally ``no_relation`` [R].
        num_objects: objects in each image; pairs index them.
        num_predicates: P.
        from_logits: whether scores and ``no_relation`` are logits.
        device: of the result.

    Raises:
        InputError: a key is missing or a shape does not fit.
    """
    names = record_names(predictions)
    checked = [
        _prediction(record, num_predicates, from_logits, name)
        for record, name in zip(predictions, names, strict=True)
    ]
    sizes = tuple(len(pairs) for pairs, _, _ in checked)
    pairs = _gather([pairs for pairs, _, _ in checked], (2,), torch.int64, device)
    scores = _gather([s for _, s, _ in checked], (num_predicates,), torch.float32, device)
    images = _expand(sizes, device)
    with_none = [n is not None for _, _, n in checked]
    has_no_relation = _host(with_none, torch.bool, device)[images]
    if from_logits:
        none = _gather([n for _, _, n in checked if n is not None], (), torch.float32, device)
        scores = relation_probabilities(scores, none)

    objects = _host(num_objects, torch.int64, device)
    begins = _host([0, *accumulate(n * n for n in num_objects)][:-1], torch.int64, device)
    slots = sum(n * n for n in num_objects)
    outside = ((pairs < 0) | (pairs >= objects[images, None])).any(1)
    # Pairs out of range go to one slot too many, which is cut off.
    slot = begins[images] + pairs[:, 0] * objects[images] + pairs[:, 1]
    slot = slot.masked_fill(outside, slots)
    rows = torch.arange(len(pairs), device=device)
    row_of_slot = torch.full((slots + 1,), -1, dtype=torch.int64, device=device)
    row_of_slot[slot] = rows
    repeated = (row_of_slot[slot] != rows) & ~outside
    # NaN is both the least and the greatest of its row; cheaper than asking every score.
    infinite = ~(torch.isfinite(scores.amin(1)) & torch.isfinite(scores.amax(1)))
    flags = torch.stack([infinite, outside, repeated]).to(torch.int64)
    problems = torch.zeros(3, len(names), dtype=torch.int64, device=device)
    problems.index_add_(1, images, flags)
    return Predictions(sizes, images, scores, has_no_relation, row_of_slot[:-1], problems > 0)


def _field(record: Record, key: str, name: str) -> Any:
    if key not in record:
        raise InputError(f"expected the key {key!r}, got {sorted(record)}", record=name)
    return record[key]


def _rows(value: Any, name: str) -> Tensor:
    rows = torch.as_tensor(value)
    if rows.numel() == 0:
        rows = rows.reshape(0, 3)
    if rows.ndim != 2 or rows.shape[1] != 3 or (len(rows) and rows.is_floating_point()):
        raise InputError(
            "expected integer rows (subject, object, predicate), got "
            f"{list(rows.shape)} of {rows.dtype}",
            record=name,
        )
    return rows.to(torch.int64)


def _prediction(
    record: Record, num_predicates: int, from_logits: bool, name: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    pairs = torch.as_tensor(_field(record, "pairs", name))
    scores = torch.as_tensor(_field(record, "scores", name))
    none = record.get("no_relation")
    none = None if none is None else torch.as_tensor(none)
    if pairs.numel() == 0:
        pairs = pairs.reshape(0, 2).to(torch.int64)
    if scores.numel() == 0:
        scores = scores.reshape(0, num_predicates).float()
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
        raise InputError(
            f"expected integer pairs [R, 2], got {list(pairs.shape)} of {pairs.dtype}", record=name
        )
    if scores.shape != (len(pairs), num_predicates) or not scores.is_floating_point():
        raise InputError(
            f"expected floating-point scores [{len(pairs)}, {num_predicates}], one row for each "
            f"pair, got {list(scores.shape)} of {scores.dtype}",
            record=name,
        )
    if none is not None and none.shape != (len(pairs),):
        raise InputError(
            f"expected no_relation [{len(pairs)}], got {list(none.shape)}", record=name
        )
    if none is None and from_logits and len(pairs):
        raise InputError(
            "logits need the logit of 'no relation' beside them: the softmax is taken over "
            "predicates and 'no relation'; give no_relation [R]",
            record=name,
        )
    return pairs, scores, none


def _check_rows(
    table: Tensor, images: Tensor, sizes: Tensor, num_predicates: int, names: Sequence[str]
) -> None:
    objects = ((table[:, :2] < 0) | (table[:, :2] >= sizes[images, None])).any(1)
    predicates = (table[:, 2] < NO_RELATION) | (table[:, 2] >= num_predicates)
    wrong = objects | predicates
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        image = int(images[row])
        what, high = (
            ("object", int(sizes[image])) if bool(objects[row]) else ("predicate", num_predicates)
        )
        raise InputError(
            f"the index of the {what} in the relation {table[row].tolist()} is out of range; "
            f"there are {high} {what}s",
            record=names[image],
        )


def _check_contradictions(
    true: Tensor,
    false: Tensor,
    begins: Tensor,
    sizes: Tensor,
    num_predicates: int,
    names: Sequence[str],
) -> None:
    both = true[torch.isin(true, false)]
    if len(both):
        slot, predicate = divmod(int(both[0]), num_predicates)
        image = int(torch.searchsorted(begins + sizes * sizes, slot, right=True))
        pair = divmod(slot - int(begins[image]), int(sizes[image]))
        raise InputError(
            f"the triple (subject {pair[0]}, object {pair[1]}, predicate {predicate}) is labelled "
            "both as true and as false; remove one of the labels",
            record=names[image],
        )


def _host(
    values: Sequence[int] | Sequence[bool], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Numbers that the host knows, sent without waiting."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def _expand(sizes: Sequence[int], device: torch.device) -> Tensor:
    """0, 0, ..., 1, 1, ...: index i as often as ``sizes[i]`` says, int64."""
    counts = _host(sizes, torch.int64, device)
    return torch.repeat_interleave(
        torch.arange(len(sizes), device=device), counts, output_size=sum(sizes)
    )


def _gather(
    parts: Sequence[Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Concatenated parts [*, shape], also when there are none."""
    empty = torch.empty(0, *shape, dtype=dtype, device=device)
    return torch.cat(
        [empty, *(part.detach().to(device, dtype, non_blocking=True) for part in parts)]
    )
