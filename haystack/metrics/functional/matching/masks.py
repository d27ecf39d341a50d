"""Overlaps of masks that may overlap each other, and of COCO's run-length encoded masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from haystack.errors import InputError, MissingDependencyError
from haystack.metrics.functional.matching.pairs import (
    Overlaps,
    check_images,
    check_tensors,
    object_pairs,
)
from haystack.metrics.functional.matching.runs import runs, runs_pay

_TILE = 2**18
"""Pixels (on the CPU runs of pixels) whose products are taken at once; bounds the memory."""


def mask_overlaps(truth_masks: Sequence[Tensor], predicted_masks: Sequence[Tensor]) -> Overlaps:
    """Pixels of every mask and of every pair of masks of an image, by matrix products.

    On the CPU a product runs over runs of pixels, see ``runs``; elsewhere over pixels. Products
    are taken tile by tile and are exact: whole numbers that a float holds.

    Args:
        truth_masks: for each image bool [G_i, H, W], of whatever sizes.
        predicted_masks: for each image bool [P_i, H, W].

    Returns:
        The overlaps, on the masks' device.

    Raises:
        InputError: not the same images, or masks that are not bool or differ in size.

    Example:
        >>> truth = torch.tensor([[[True, True, False]]])
        >>> predicted = torch.tensor([[[True, True, True]], [[False, False, True]]])
        >>> mask_overlaps([truth], [predicted]).iou()
        tensor([0.6667, 0.0000], dtype=torch.float64)
    """
    check_tensors("masks", truth_masks, predicted_masks)
    device = truth_masks[0].device if len(truth_masks) else torch.device("cpu")
    pairs = object_pairs([len(x) for x in truth_masks], [len(x) for x in predicted_masks], device)
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    common, truth_areas, predicted_areas = [nothing], [nothing], [nothing]
    for image, (truth, predicted) in enumerate(zip(truth_masks, predicted_masks, strict=True)):
        _check_masks(truth, predicted, f"image {image} of the batch")
        products = torch.zeros(len(truth), len(predicted), dtype=torch.int64, device=device)
        areas = torch.zeros(len(truth) + len(predicted), dtype=torch.int64, device=device)
        for left, right, lengths in mask_tiles(truth.flatten(1), predicted.flatten(1)):
            products += (left @ (right * lengths).T).to(torch.int64)
            areas += torch.cat([left @ lengths, right @ lengths]).to(torch.int64)
        common.append(products.flatten())
        truth_areas.append(areas[: len(truth)])
        predicted_areas.append(areas[len(truth) :])
    return Overlaps(pairs, torch.cat(common), torch.cat(truth_areas), torch.cat(predicted_areas))


def mask_tiles(truth: Tensor, predicted: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Columns of two mask tables [N, pixels] as floats, and how many pixels each stands for.

    Args:
        truth: bool [G, pixels].
        predicted: bool [P, pixels].

    Yields:
        float [G, columns], float [P, columns], and float [columns], the pixels of each column.
    """
    masks = [*truth, *predicted]
    if masks and runs_pay(truth.device):
        for values, lengths in runs(masks):
            # Lengths make sums as large as the image: float64 holds them.
            table = torch.stack(values).double()
            yield table[: len(truth)], table[len(truth) :], lengths.double()
        return
    for begin in range(0, truth.shape[1], _TILE):
        left, right = (x[:, begin : begin + _TILE].float() for x in (truth, predicted))
        yield left, right, left.new_ones(left.shape[1])


def _check_masks(truth: Tensor, predicted: Tensor, record: str) -> None:
    for masks in (truth, predicted):
        if masks.ndim != 3 or masks.dtype != torch.bool:
            raise InputError(
                f"expected masks bool [objects, height, width], got {masks.dtype} "
                f"{list(masks.shape)}",
                record=record,
            )
    if truth.shape[1:] != predicted.shape[1:]:
        raise InputError(
            f"expected masks of one size, got {list(truth.shape[1:])} for the ground truth and "
            f"{list(predicted.shape[1:])} for the prediction",
            record=record,
        )


def rle_iou(
    truth: Sequence[Sequence[Mapping[str, Any]]], predicted: Sequence[Sequence[Mapping[str, Any]]]
) -> Tensor:
    """Intersection over union of run-length encoded masks, by pycocotools, never decoded.

    Args:
        truth: for each image the G_i masks, COCO's dicts ``{"size": [height, width], "counts":
            ...}`` with counts compressed (bytes or text) or as a list of integers.
        predicted: for each image the P_i masks.

    Returns:
        float64 [Q] on the CPU, in the order of ``object_pairs``; 0 where both are empty.

    Raises:
        InputError: not the same images, a mask is no such dict, or sizes of an image differ.
        MissingDependencyError: pycocotools is not installed.

    Example:
        >>> half = {"size": [2, 2], "counts": [0, 2, 2]}
        >>> whole = {"size": [2, 2], "counts": [0, 4]}
        >>> rle_iou([[half, whole]], [[whole]])
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    check_images("masks", truth, predicted)
    coco = _coco_mask()
    tables = [torch.empty(0, dtype=torch.float64)]
    for image, sides in enumerate(zip(truth, predicted, strict=True)):
        record = f"image {image} of the batch"
        left, right = ([_compressed(coco, mask, record) for mask in masks] for masks in sides)
        sizes = {tuple(mask["size"]) for mask in left + right}
        if len(sizes) > 1:
            raise InputError(f"expected masks of one size, got {sorted(sizes)}", record=record)
        if left and right:
            # pycocotools gives [first, second] of (detections, ground truth, crowd).
            iou = coco.iou(left, right, np.zeros(len(right), dtype=np.uint8))
            tables.append(torch.from_numpy(np.ascontiguousarray(iou)).flatten())
    return torch.cat(tables)


def decode_rle(masks: Sequence[Mapping[str, Any]], record: str) -> Tensor:
    """Run-length encoded masks of one image as bool [N, H, W], by pycocotools; N at least 1.

    Raises:
        InputError: a mask is no such dict.
        MissingDependencyError: pycocotools is not installed.
    """
    coco = _coco_mask()
    decoded = coco.decode([_compressed(coco, mask, record) for mask in masks])
    return torch.from_numpy(np.ascontiguousarray(decoded.transpose(2, 0, 1))).bool()


def _coco_mask() -> ModuleType:
    try:
        return import_module("pycocotools.mask")
    except ImportError as error:
        raise MissingDependencyError(
            "pycocotools", purpose="reading run-length encoded masks", extra="coco"
        ) from error


def _compressed(coco: ModuleType, mask: Mapping[str, Any], record: str) -> dict[str, Any]:
    """The mask as pycocotools takes it."""
    size, counts = mask.get("size"), mask.get("counts")
    if size is None or len(size) != 2 or not isinstance(counts, bytes | str | list | tuple):
        raise InputError(
            "expected a mask {'size': [height, width], 'counts': bytes, text or a list}, "
            f"got the keys {sorted(mask)}",
            record=record,
        )
    height, width = (int(x) for x in size)
    if isinstance(counts, list | tuple):
        if sum(counts) != height * width:
            raise InputError(
                f"expected run lengths that sum to {height} x {width} pixels, got {sum(counts)}",
                record=record,
            )
        encoded: dict[str, Any] = coco.frPyObjects(
            {"size": [height, width], "counts": list(counts)}, height, width
        )
        return encoded
    return {"size": [height, width], "counts": counts}
