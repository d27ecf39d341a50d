"""Overlaps of segments in panoptic id maps, by one contingency table an image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.functional.matching.pairs import Overlaps, check_tensors, object_pairs
from haystack.metrics.functional.matching.runs import runs, runs_pay
from haystack.metrics.functional.tensors import count_by, on_host

_ID_SPAN = 2**40
"""Distance between the same id of neighbouring images in a key of image and id."""
_LISTED = 2**16
"""Ids that lie this close to each other are looked up in a list, others by a search."""
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
    check_tensors("id maps", truth_maps, predicted_maps)
    if len(truth_maps) != len(truth_ids):
        raise InputError(
            f"expected segment ids for each id map, got {len(truth_ids)} lists of ids "
            f"for {len(truth_maps)} maps"
        )
    check_tensors("segment ids", truth_ids, predicted_ids)
    device = truth_maps[0].device if len(truth_maps) else torch.device("cpu")
    pairs = object_pairs([len(x) for x in truth_ids], [len(x) for x in predicted_ids], device)
    nothing = pairs.truth[:0]
    common, truth_areas, predicted_areas = [nothing], [nothing], [nothing]
    images = zip(truth_maps, predicted_maps, truth_ids, predicted_ids, strict=True)
    for image, (truth, predicted, rows, columns) in enumerate(images):
        if truth.shape != predicted.shape:
            raise InputError(
                f"expected two id maps of one shape, got {list(truth.shape)} for the ground truth "
                f"and {list(predicted.shape)} for the prediction",
                record=f"image {image} of the batch",
            )
        table = _contingency(truth.reshape(-1), predicted.reshape(-1), rows, columns)
        common.append(table[1:, 1:].flatten())
        truth_areas.append(table[1:].sum(1))
        predicted_areas.append(table[:, 1:].sum(0))
    return Overlaps(pairs, torch.cat(common), torch.cat(truth_areas), torch.cat(predicted_areas))


def repeated_ids(ids: Sequence[Tensor], images: Tensor) -> Tensor:
    """Which images list a segment id twice, bool [images].

    Args:
        ids: for each image int [N_i].
        images: int64 [N], the image of each segment.

    Example:
        >>> repeated_ids([torch.tensor([4, 4]), torch.tensor([4])], torch.tensor([0, 0, 1]))
        tensor([ True, False])
    """
    values = [x.to(images.device, torch.int64, non_blocking=True) for x in ids]
    keys = torch.cat([images[:0], *values]) + images * _ID_SPAN
    keys, order = torch.sort(keys, stable=True)
    return count_by(images[order[1:]], keys[1:] == keys[:-1], len(ids)) > 0


def _contingency(
    truth: Tensor, predicted: Tensor, truth_ids: Tensor, predicted_ids: Tensor
) -> Tensor:
    """Pixels that hold each pair of ids, int64 [G + 1, P + 1]; the first of either is for void."""
    lengths = None
    if runs_pay(truth.device):
        values, parts = zip(*runs([truth, predicted]), strict=True)
        truth, predicted = map(torch.cat, zip(*values, strict=True))
        lengths = torch.cat(parts)
    height, width = len(truth_ids) + 1, len(predicted_ids) + 1
    cells = _places(truth, truth_ids) * width + _places(predicted, predicted_ids)
    return _histogram(cells, lengths, height * width).view(height, width)


def _places(values: Tensor, ids: Tensor) -> Tensor:
    """Where each value stands in ``ids`` [N], counted from 1; 0 where it does not. int64."""
    values = values.to(torch.int64)
    ids = ids.to(values.device, torch.int64, non_blocking=True)
    numbers = torch.arange(1, len(ids) + 1, device=values.device)
    if on_host(ids) and len(ids):
        low, high = (int(x) for x in torch.aminmax(ids))
        last = high - low + 2
        if last < _LISTED:  # a list of all values between, with one of void at either end
            places = torch.zeros(last + 1, dtype=torch.int64)
            places[ids - low + 1] = numbers
            return places.index_select(0, (values - (low - 1)).clamp_(0, last))
    # The ids cut the line of values into intervals: void, one id, void, one id, ... Where one ends
    # and the next begins, the sort keeps this order.
    begins, order = torch.sort(torch.cat([ids + 1, ids]), stable=True)
    places = torch.cat([torch.zeros_like(ids), numbers])[order]
    interval = torch.searchsorted(begins, values, right=True)
    return torch.cat([numbers.new_zeros(1), places]).index_select(0, interval)


def _histogram(cells: Tensor, lengths: Tensor | None, size: int) -> Tensor:
    """How often each cell occurs, int64 [size]; ``lengths`` times where given."""
    if lengths is not None:
        return count_by(cells, lengths, size)
    # Neighbours lie in the same cell: additions to one address would wait for each other.
    lane = torch.arange(len(cells), device=cells.device) % _LANES
    ones = torch.ones((), dtype=torch.int64, device=cells.device).expand(len(cells))
    return count_by(lane * size + cells, ones, _LANES * size).view(_LANES, size).sum(0)
