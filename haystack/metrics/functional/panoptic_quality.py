"""Panoptic quality, segmentation quality and recognition quality.

Kirillov et al., "Panoptic Segmentation", CVPR 2019, section 4.1, with void and crowd regions as in
COCO's evaluation. Everything is read off the overlaps of id maps. The IoUs of matched segments are
kept as integers in units of 2^-38, see ``recall``: sums of them do not depend on the order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from haystack.metrics.functional.matching import Overlaps
from haystack.metrics.functional.recall import UNIT
from haystack.metrics.functional.tensors import count_by, ratio, result_dtype

_HALF_UNIT = 2**19
"""The square root of ``UNIT``: two divisions by parts hold where one would overflow."""


class PanopticCounts(NamedTuple):
    """What panoptic quality is made of; adds up over images.

    Args:
        iou_sum: int64 [C], sum of the matched segments' IoUs in units of ``1 / UNIT``.
        true_positives: int64 [C], matched segments.
        false_positives: int64 [C], predicted segments without a match.
        false_negatives: int64 [C], ground-truth segments without a match.
    """

    iou_sum: Tensor
    true_positives: Tensor
    false_positives: Tensor
    false_negatives: Tensor


class Qualities(NamedTuple):
    """Qualities by class, 0..1, NaN for a class that has no segment on either side.

    Args:
        pq: float64 [C] (float32 on MPS), sum of IoUs / (TP + FP / 2 + FN / 2).
        sq: the same, sum of IoUs / TP; 0 where nothing is matched, as in COCO's means.
        rq: the same, TP / (TP + FP / 2 + FN / 2).
    """

    pq: Tensor
    sq: Tensor
    rq: Tensor


def panoptic_counts(
    overlaps: Overlaps,
    truth_labels: Tensor,
    predicted_labels: Tensor,
    crowd: Tensor,
    num_classes: int,
) -> PanopticCounts:
    """Matched and unmatched segments by class: the sums over :func:`panoptic_rows`.

    Args:
        overlaps: of id maps, void being what no id of the ground truth names.
        truth_labels: int64 [G], classes 0..C-1.
        predicted_labels: int64 [P].
        crowd: bool [G], which ground-truth segments are crowd regions.
        num_classes: C.

    Example:
        >>> from haystack.metrics.functional import id_map_overlaps
        >>> truth, predicted = torch.tensor([[1, 1, 1, 2]]), torch.tensor([[1, 1, 2, 2]])
        >>> ids = [torch.tensor([1, 2])]
        >>> labels = torch.tensor([0, 1])
        >>> overlaps = id_map_overlaps([truth], [predicted], ids, ids)
        >>> counts = panoptic_counts(overlaps, labels, labels, torch.zeros(2, dtype=bool), 2)
        >>> counts.true_positives.tolist(), counts.false_positives.tolist()
        ([1, 0], [0, 1])
        >>> panoptic_quality(counts).pq
        tensor([0.6667, 0.0000], dtype=torch.float64)
    """
    rows = panoptic_rows(overlaps, truth_labels, predicted_labels, crowd)
    sums = torch.zeros(num_classes, rows.shape[1], dtype=torch.int64, device=rows.device)
    sums.index_add_(0, torch.cat([truth_labels, predicted_labels]), rows)
    return PanopticCounts(*sums.unbind(1))


def panoptic_rows(
    overlaps: Overlaps, truth_labels: Tensor, predicted_labels: Tensor, crowd: Tensor
) -> Tensor:
    """What each segment adds to the :class:`PanopticCounts` of its class.

    Two segments of a class match if their IoU is above one half, where pixels of the prediction
    that no ground-truth segment holds (void) do not count; so a segment has at most one match. A
    crowd segment never matches and is never missed. An unmatched prediction is no false positive
    if void and the crowd segments of its class hold more than half of it. (Of several crowd
    segments of one class COCO's script looks at the last only; here all of them count.)

    A listed segment without a pixel matches nothing: of the ground truth it is missed, as in COCO's
    script; of the prediction it is a false positive, where COCO's script refuses the file.
    torchmetrics, which is given pixels alone, cannot know of either.

    Args:
        overlaps: of id maps, void being what no id of the ground truth names.
        truth_labels: int64 [G].
        predicted_labels: int64 [P].
        crowd: bool [G], which ground-truth segments are crowd regions.

    Returns:
        int64 [G + P, 4], the ground truth first; columns are the fields of ``PanopticCounts``.

    Example:
        >>> from haystack.metrics.functional import id_map_overlaps
        >>> maps, ids = [torch.tensor([[1, 1, 2]])], [torch.tensor([1, 2])]
        >>> labels, other = torch.tensor([0, 1]), torch.tensor([0, 0])
        >>> overlaps = id_map_overlaps(maps, maps, ids, ids)
        >>> rows = panoptic_rows(overlaps, labels, other, torch.zeros(2, dtype=bool))
        >>> rows[:, 1:].tolist()
        [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0]]
    """
    pairs, common = overlaps.pairs, overlaps.intersections
    num_truths, num_predictions = len(truth_labels), len(predicted_labels)
    void = overlaps.predicted_areas - count_by(pairs.predicted, common, num_predictions)
    areas = overlaps.truth_areas[pairs.truth] + (overlaps.predicted_areas - void)[pairs.predicted]
    union = areas - common
    same = truth_labels[pairs.truth] == predicted_labels[pairs.predicted]
    crowded = crowd[pairs.truth]
    matched = same & ~crowded & (2 * common > union)

    found = count_by(pairs.truth, matched, num_truths)
    right = count_by(pairs.predicted, matched, num_predictions) > 0
    in_crowd = count_by(pairs.predicted, common * (same & crowded), num_predictions)
    ignored = 2 * (void + in_crowd) > overlaps.predicted_areas
    rows = found.new_zeros(num_truths + num_predictions, len(PanopticCounts._fields))
    rows[:num_truths, 0] = count_by(pairs.truth, _units(common, union) * matched, num_truths)
    rows[:num_truths, 1] = found > 0
    rows[num_truths:, 2] = ~right & ~ignored
    rows[:num_truths, 3] = (found == 0) & ~crowd
    return rows


def panoptic_quality(counts: PanopticCounts) -> Qualities:
    """PQ, SQ and RQ by class, float64 [C] (float32 on MPS); NaN for a class that does not occur.

    Args:
        counts: what :func:`panoptic_counts` gives, or a sum of such.

    Example:
        >>> one = torch.tensor([1])
        >>> panoptic_quality(PanopticCounts(one * UNIT, one, one, 0 * one)).pq
        tensor([0.6667], dtype=torch.float64)
    """
    iou_sum, hits, wrong, missed = counts
    double = 2 * hits + wrong + missed
    pq = 2 * ratio(iou_sum, double) / UNIT
    rq = 2 * ratio(hits, double)
    # A class that occurs and is never matched counts with 0, one that does not occur not at all.
    zero = torch.zeros((), dtype=result_dtype(hits.device), device=hits.device)
    sq = torch.where((hits == 0) & (double > 0), zero, ratio(iou_sum, hits) / UNIT)
    return Qualities(pq, sq, rq)


def _units(part: Tensor, whole: Tensor) -> Tensor:
    """``part / whole`` (at most 1) in units of ``1 / UNIT``, rounded, in integers throughout."""
    whole = whole.clamp(min=1)
    scaled = part * _HALF_UNIT
    quotient = scaled.div(whole, rounding_mode="floor")
    rest = (scaled - quotient * whole) * _HALF_UNIT
    return quotient * _HALF_UNIT + (rest + whole // 2).div(whole, rounding_mode="floor")
