"""The three rules by which the field decides which prediction is which annotated object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.functional.matching.pairs import ObjectPairs
from haystack.metrics.functional.tensors import on_host, where_true

MatchRule = Literal["many-to-many", "many-to-one", "one-to-one"]
"""How many predicted objects may stand for how many annotated ones."""
RULES: tuple[str, ...] = get_args(MatchRule)
"""The names of the match rules."""


@dataclass(frozen=True)
class Matches:
    """Which predicted objects stand for which ground-truth objects.

    Args:
        pairs: the layout.
        matched: bool [Q], whether the objects of a pair match.
        truth_of_prediction: int64 [P], the one ground-truth object of each prediction, -1 where
            it has none; None under ``many-to-many``, where it may have several.
    """

    pairs: ObjectPairs
    matched: Tensor
    truth_of_prediction: Tensor | None


def match_objects(
    iou: Tensor,
    pairs: ObjectPairs,
    truth_labels: Tensor,
    predicted_labels: Tensor,
    *,
    rule: MatchRule,
    threshold: float = 0.5,
    inclusive: bool = True,
) -> Matches:
    """Match objects of equal class that overlap enough.

    - ``many-to-many``: every such pair matches. OpenPSG (masks, boxes) and KaihuaTang (boxes
      with ``plus_one``) do so for the subject and the object of a triplet; both inclusive.
    - ``many-to-one``: each prediction goes to the ground truth of its class that it overlaps
      most, the first one if several tie; a ground truth may get many predictions. SGBench 1.0,
      inclusive.
    - ``one-to-one``: as ``many-to-one``, then each ground truth keeps the prediction that
      overlaps it most, the first one if several tie; the others stay without a match and are
      tried nowhere else. SingleMPO (fair-psgg), not inclusive. It means one mask for an object
      where predictions do not overlap each other, as in an id map.

    For matching whatever the class, as fair-psgg can, give labels that are all 0.

    Args:
        iou: float [Q], finite.
        pairs: the layout.
        truth_labels: int [G], classes.
        predicted_labels: int [P].
        rule: see above.
        threshold: the IoU that is enough, above 0.
        inclusive: whether an IoU of exactly the threshold is enough.

    Raises:
        InputError: an unknown rule, a threshold outside (0, 1], or lengths that do not fit; on the
            CPU also for a negative class.

    Example:
        >>> from haystack.metrics.functional import object_pairs
        >>> pairs, labels = object_pairs([1], [2]), torch.tensor([3])
        >>> iou = torch.tensor([0.5, 0.8])
        >>> match_objects(iou, pairs, labels, labels.expand(2), rule="many-to-one").matched
        tensor([True, True])
        >>> found = match_objects(iou, pairs, labels, labels.expand(2), rule="one-to-one")
        >>> found.truth_of_prediction
        tensor([-1,  0])
    """
    if rule not in RULES:
        raise InputError(f"expected a match rule out of {', '.join(RULES)}, got {rule!r}")
    if not 0 < threshold <= 1:
        raise InputError(f"expected an IoU threshold above 0 and at most 1, got {threshold}")
    if iou.shape != pairs.truth.shape:
        raise InputError(
            f"expected an IoU for every pair, [{len(pairs.truth)}], got {list(iou.shape)}"
        )
    for labels, name in ((truth_labels, "annotated"), (predicted_labels, "predicted")):
        if on_host(labels) and len(labels) and bool(labels.amin() < 0):
            row = int((labels < 0).nonzero()[0])
            raise InputError(
                f"expected object classes from 0 on, got {int(labels[row])} for the {name} object "
                f"{row}"
            )
    enough = iou >= threshold if inclusive else iou > threshold
    matched = enough & same_class(pairs, truth_labels, predicted_labels)
    if rule == "many-to-many":
        return Matches(pairs, matched, None)
    some = where_true(matched)
    kept, value, truth, predicted = (
        column.index_select(0, some) for column in (matched, iou, pairs.truth, pairs.predicted)
    )
    kept = _keep_best(value, kept, predicted, len(predicted_labels), first=truth)
    if rule == "one-to-one":
        kept = _keep_best(value, kept, truth, len(truth_labels), first=predicted)
    # At most one pair of a prediction is left: the largest entry is that one's ground truth.
    own = torch.full_like(pairs.predicted_images, -1)
    own = own.scatter_reduce(0, predicted, torch.where(kept, truth, -1), reduce="amax")
    return Matches(pairs, torch.zeros_like(matched).index_copy_(0, some, kept), own)


def same_class(pairs: ObjectPairs, truth_labels: Tensor, predicted_labels: Tensor) -> Tensor:
    """Whether the objects of each pair have one class, bool [Q].

    Raises:
        InputError: not one label for every object.
    """
    for name, labels, images in (
        ("ground-truth", truth_labels, pairs.truth_images),
        ("predicted", predicted_labels, pairs.predicted_images),
    ):
        if labels.shape != images.shape:
            raise InputError(
                f"expected a label for every {name} object, [{len(images)}], "
                f"got {list(labels.shape)}"
            )
    truth = truth_labels.index_select(0, pairs.truth)
    return truth == predicted_labels.index_select(0, pairs.predicted)


def _keep_best(iou: Tensor, matched: Tensor, group: Tensor, size: int, *, first: Tensor) -> Tensor:
    """Of each group's matched pairs only the one of the highest IoU, then the lowest ``first``."""
    value = torch.where(matched, iou, -1)
    best = torch.full((size,), -1, dtype=value.dtype, device=value.device)
    best = best.scatter_reduce(0, group, value, reduce="amax")
    matched = matched & (value == best[group])
    never = torch.iinfo(first.dtype).max
    rank = torch.where(matched, first, never)
    lowest = torch.full((size,), never, dtype=first.dtype, device=first.device)
    lowest = lowest.scatter_reduce(0, group, rank, reduce="amin")
    return matched & (first == lowest[group])
