"""From classes and masks of queries to one map of segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from haystack.errors import InputError
from haystack.models.maskdino.network import MaskDINOOutput

_INSIDE = 0.5  # a pixel with at least this mask probability belongs to the mask
_VOID = 0


@dataclass(frozen=True)
class PanopticSettings:
    """When a query becomes a segment; the defaults are those of the official configurations.

    Args:
        score_threshold: a query counts if its best class has a probability above this. Lower finds
            more objects, and more that are none.
        overlap_threshold: a mask is dropped if less than this share of its pixels remains once
            every pixel went to the query that claims it most. Lower keeps objects that others
            hide in part.
        temperature: queries compete for pixels with the softmax of their class probabilities over
            this, which is near 1 for every clear class. None: with the probabilities themselves.

    Raises:
        InputError: a threshold outside 0..1, or a temperature that is not positive.
    """

    score_threshold: float = 0.25
    overlap_threshold: float = 0.8
    temperature: float | None = 0.06

    def __post_init__(self) -> None:
        for key in ("score_threshold", "overlap_threshold"):
            if not 0 <= getattr(self, key) <= 1:
                raise InputError(f"{key} must be in 0..1, got {getattr(self, key)}")
        if self.temperature is not None and not self.temperature > 0:
            raise InputError(f"temperature must be positive or null, got {self.temperature}")


@dataclass(frozen=True)
class PanopticSegment:
    """A thing, or all regions of a kind of stuff.

    Args:
        id: in the map, from 1 on.
        category: class, as the network numbers it.
        is_thing: whether it is countable.
        score: probability of the class, 0..1; of merged stuff, its best query's.
    """

    id: int
    category: int
    is_thing: bool
    score: float


@dataclass(frozen=True)
class PanopticResult:
    """The segments of one picture.

    Args:
        id_map: int32 [H, W], a segment's id or 0 = void.
        segments: by id; each has pixels.
    """

    id_map: npt.NDArray[np.int32]
    segments: tuple[PanopticSegment, ...]


def segment_picture(
    output: MaskDINOOutput,
    image: int,
    *,
    padded: tuple[int, int],
    size: tuple[int, int],
    output_size: tuple[int, int],
    things: int,
    settings: PanopticSettings,
) -> PanopticResult:
    """Segments of one picture of a batch.

    Masks are enlarged to the padded input, cut to the picture and resized to the output, one query
    after the other: 300 masks at once would be 4 GB for a picture of 1500 x 2250 pixels.

    Args:
        output: of the network.
        image: which picture of it.
        padded: height and width of the network's input.
        size: of the picture inside it.
        output_size: of the map that is wanted.
        things: classes below this are things.
        settings: the thresholds.
    """
    queries = kept_queries(output.logits[image], settings)
    masks = output.mask_logits(image, queries)
    height, width = size

    def enlarged(number: int) -> Tensor:
        mask = _interpolated(masks[number], padded)[:height, :width]
        # Quirk: a second interpolation of the first one's result, even to a size below it.
        return _interpolated(mask, output_size)

    return merge(
        output.logits[image, queries],
        enlarged,
        output_size,
        things=things,
        settings=settings,
    )


def kept_queries(logits: Tensor, settings: PanopticSettings) -> Tensor:
    """Which queries are sure of some class: int64 [K], ascending, from logits [Q, classes]."""
    return (logits.sigmoid().amax(-1) > settings.score_threshold).nonzero()[:, 0]


def merge(
    logits: Tensor,
    mask_logits: Callable[[int], Tensor],
    size: tuple[int, int],
    *,
    things: int,
    settings: PanopticSettings,
) -> PanopticResult:
    """Let queries compete for pixels, and keep the segments that remain mostly whole.

    Args:
        logits: float32 [K, classes], of the queries that were kept.
        mask_logits: gives the float32 [H, W] of one of them.
        size: H and W.
        things: classes below this are things.
        settings: the thresholds.
    """
    device = logits.device
    probabilities = logits.sigmoid()
    # Quirk: the threshold before looked at the probabilities; what competes is sharper.
    sharp = probabilities
    if settings.temperature is not None:
        sharp = (probabilities / settings.temperature).softmax(-1)
    scores, labels = sharp.max(-1)
    count = len(logits)

    best = torch.full(size, -1.0, device=device)
    owner = torch.zeros(size, dtype=torch.int64, device=device)
    inside = torch.zeros(size, dtype=torch.bool, device=device)
    whole = torch.zeros(count, dtype=torch.int64, device=device)
    for number in range(count):
        mask = mask_logits(number).sigmoid()
        of_mask = mask >= _INSIDE
        whole[number] = of_mask.sum()
        claim = mask * scores[number]
        wins = claim > best  # of equal claims the first wins
        best = torch.maximum(best, claim)
        owner.masked_fill_(wins, number)
        inside = torch.where(wins, of_mask, inside)
    # Quirk: the share that decides is of the pixels won, also those outside the mask.
    won = owner.flatten().bincount(minlength=count)
    shown = owner.where(inside, count).flatten().bincount(minlength=count)

    ids, segments = _segments(
        labels.tolist(),
        probabilities.take_along_dim(labels[:, None], -1)[:, 0].tolist(),
        np.stack([part.cpu().numpy()[:count] for part in (won, whole, shown)], -1).tolist(),
        things,
        settings.overlap_threshold,
    )
    table = torch.tensor([*ids, _VOID], dtype=torch.int32, device=device)
    id_map = torch.where(inside, table[owner], _VOID)
    return PanopticResult(id_map.cpu().numpy(), segments)


def _segments(
    labels: list[int],
    scores: list[float],
    areas: list[list[int]],
    things: int,
    overlap_threshold: float,
) -> tuple[list[int], tuple[PanopticSegment, ...]]:
    """The id of each query, 0 for none, and the segments."""
    ids = []
    segments: list[PanopticSegment] = []
    stuff: dict[int, int] = {}  # class -> its segment's id
    for label, score, (won, whole, shown) in zip(labels, scores, areas, strict=True):
        if not (won and whole and shown) or won / whole < overlap_threshold:
            ids.append(_VOID)
            continue
        is_thing = label < things
        if label in stuff:
            earlier = segments[stuff[label] - 1]
            best = max(earlier.score, score)
            segments[earlier.id - 1] = PanopticSegment(earlier.id, label, is_thing, best)
            ids.append(earlier.id)
            continue
        new = PanopticSegment(len(segments) + 1, label, is_thing, score)
        segments.append(new)
        ids.append(new.id)
        if not is_thing:
            stuff[label] = new.id
    return ids, tuple(segments)


def _interpolated(mask: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(mask[None, None], size, mode="bilinear", align_corners=False)[0, 0]
