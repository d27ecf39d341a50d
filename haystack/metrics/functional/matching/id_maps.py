"""Overlaps of segments in panoptic id maps, by one contingency table an image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.functional.matching.pairs import Overlaps, check_images, object_pairs
from haystack.metrics.functional.matching.runs import runs, runs_pay
from haystack.metrics.functional.tensors import count_by

_ID_SPAN = 2**40
"""Distance between the same id of neighbouring images in a key of image and id."""
_LANES = 32
"""Copies of the tables over which an accelerator spreads neighbouring pixels."""


def id_map_overlaps(
    truth_maps: Sequence[Tensor] | Tensor,
    predicted_maps: Sequence[Tensor] | Tensor,
    truth_ids: Sequence[Tensor],
    predicted_ids: Sequence[Tensor],
) -> Overlaps:
    """Pixels of every segment and of every pair of segments of an image.

    A pixel whose id is not listed belongs to no segment (void): 0 in PSG's files, -1 in others.
    On the CPU runs of pixels are counted, see ``runs``; elsewhere pixels, without waiting for the
    device. Images are taken one by one, so that memory does not grow with the batch.

    Args:
        truth_maps: int [H, W] for each image, of whatever sizes, or one tensor [images, H, W].
        predicted_maps: the same for the predictions, of the same sizes.
        truth_ids: for each image int [G_i], the distinct ids of its segments, any integers of 32
            bits; ``torch.arange(G_i)`` where a pixel holds its segment's position.
        predicted_ids: for each image int [P_i].

    Returns:
        The overlaps, on the maps' device.

    Raises:
        InputError: the four do not hold the same images, or two maps of an image differ in shape.

    Example:
        >>> truth = torch.tensor([[7, 7, 7, 9]])
        >>> predicted = torch.tensor([[0, 5, 5, 5]])
        >>> overlaps = id_map_overlaps([truth], [predicted], [torch.tensor([7, 9])],
        ...                            [torch.tensor([5])])
        >>> overlaps.intersections.tolist(), overlaps.truth_areas.tolist()
        ([2, 1], [3, 1])
        >>> overlaps.iou()
        tensor([0.5000, 0.3333], dtype=torch.float64)
    """
    check_images("id maps", truth_maps, predicted_maps)
    if len(truth_maps) != len(truth_ids):
        raise InputError(
            f"expected segment ids for each id map, got {len(truth_ids)} lists of ids "
            f"for {len(truth_maps)} maps"
        )
    check_images("segment ids", truth_ids, predicted_ids)
    device = truth_maps[0].device if len(truth_maps) else torch.device("cpu")
    num_truths, num_predictions = [len(x) for x in truth_ids], [len(x) for x in predicted_ids]
    pairs = object_pairs(num_truths, num_predictions, device)
    # Row 0 and column 0 of each image's table are void.
    tables = object_pairs([n + 1 for n in num_truths], [n + 1 for n in num_predictions], device)
    truth_rows = _SegmentRows(truth_ids, pairs.truth_images)
    predicted_rows = _SegmentRows(predicted_ids, pairs.predicted_images)
    counts = [pairs.truth[:0]]
    begin = 0
    for image, (truth, predicted) in enumerate(zip(truth_maps, predicted_maps, strict=True)):
        if truth.shape != predicted.shape:
            raise InputError(
                f"expected two id maps of one shape, got {list(truth.shape)} for the ground truth "
                f"and {list(predicted.shape)} for the prediction",
                record=f"image {image} of the batch",
            )
        truth, predicted = truth.reshape(-1), predicted.reshape(-1)
        lengths = None
        if runs_pay(device):
            starts, lengths = runs([truth, predicted])
            truth, predicted = truth.index_select(0, starts), predicted.index_select(0, starts)
        rows, columns = truth_rows.find(truth, image), predicted_rows.find(predicted, image)
        size = (num_truths[image] + 1) * (num_predictions[image] + 1)
        counts.append(_histogram(tables.row(rows, columns) - begin, lengths, size))
        begin += size
    table = torch.cat(counts)
    rows, columns = truth_rows.objects, predicted_rows.objects
    return Overlaps(
        pairs,
        table[tables.row(rows[pairs.truth], columns[pairs.predicted])],
        count_by(tables.truth, table, len(tables.truth_images))[rows],
        count_by(tables.predicted, table, len(tables.predicted_images))[columns],
    )


def repeated_ids(ids: Sequence[Tensor], images: Tensor) -> Tensor:
    """Which images list a segment id twice, bool [images].

    Args:
        ids: for each image int [N_i].
        images: int64 [N], the image of each segment.

    Example:
        >>> repeated_ids([torch.tensor([4, 4]), torch.tensor([4])], torch.tensor([0, 0, 1]))
        tensor([ True, False])
    """
    keys, order = torch.sort(_keys(ids, images), stable=True)
    return count_by(images[order[1:]], keys[1:] == keys[:-1], len(ids)) > 0


def _keys(ids: Sequence[Tensor], images: Tensor) -> Tensor:
    """int64 [N], a number for each image and id, ascending in the image."""
    values = [x.to(images.device, torch.int64, non_blocking=True) for x in ids]
    return torch.cat([images[:0], *values]) + images * _ID_SPAN


class _SegmentRows:
    """Finds the row of a segment by its id; each image has a row for void before its segments.

    The ids cut the line of (image, id) into intervals: void, one id, void, one id, ...

    Args:
        ids: of the segments of each image.
        images: int64 [N], the image of each segment.

    Attributes:
        objects: int64 [N], the row of each segment.
    """

    def __init__(self, ids: Sequence[Tensor], images: Tensor) -> None:
        device = images.device
        every_image = torch.arange(len(ids), device=device)
        per_image = count_by(images, torch.ones_like(images), len(ids))
        void = torch.cumsum(per_image + 1, 0) - per_image - 1
        self.objects = torch.arange(len(images), device=device) + images + 1
        keys = _keys(ids, images)
        # Where one id ends and the next begins, the sort keeps this order.
        begins = torch.cat([every_image * _ID_SPAN - _ID_SPAN // 2, keys + 1, keys])
        self.begins, order = torch.sort(begins, stable=True)
        self.rows = torch.cat([void, void[images], self.objects])[order]

    def find(self, ids: Tensor, image: int) -> Tensor:
        """int64 rows of the segments with these ids in an image, of void for any other id."""
        keys = ids.to(torch.int64) + image * _ID_SPAN
        interval = torch.searchsorted(self.begins, keys, right=True) - 1
        return self.rows.index_select(0, interval)


def _histogram(cells: Tensor, lengths: Tensor | None, size: int) -> Tensor:
    """How often each cell occurs, int64 [size]; ``lengths`` times where given."""
    if lengths is not None:
        return count_by(cells, lengths, size)
    # Neighbours lie in the same cell: additions to one address would wait for each other.
    lane = torch.arange(len(cells), device=cells.device) % _LANES
    ones = torch.ones((), dtype=torch.int64, device=cells.device).expand(len(cells))
    return count_by(lane * size + cells, ones, _LANES * size).view(_LANES, size).sum(0)
