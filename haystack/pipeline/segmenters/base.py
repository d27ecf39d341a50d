"""What a segmenter is, what it gives, and what is asked of that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from haystack.errors import InputError
from haystack.io.panoptic_png import IdMap, segment_geometry
from haystack.scene_graph import MaskRuns, SceneGraph, Segment
from haystack.vocabulary import Vocabulary


@dataclass(frozen=True)
class Segmentation:
    """The panoptic segments of one image.

    Args:
        image_id: the image's id in annotations.
        id_map: int32 [H, W], segment id of every pixel, 0 = void; None where only boxes are known.
        segments: every one of them is in ``id_map``, unless others of ``masks`` hide it.
        faulty: positions of segments whose mask or class is known wrong, ascending.
        masks: the masks as a detector found them, where they may overlap; None = as ``id_map``.
    """

    image_id: str
    id_map: IdMap | None
    segments: tuple[Segment, ...]
    faulty: tuple[int, ...] = ()
    masks: MaskRuns | None = None

    def graph(self, image_key: str, size: tuple[int, int]) -> SceneGraph:
        """The segments as a scene graph without relations; ``size`` is height and width."""
        return SceneGraph(self.image_id, *size, image_key, segments=self.segments)


class Segmenter(Protocol):
    """Anything that gives an image its panoptic segments."""

    def fingerprint(self) -> dict[str, Any]:
        """What determines the segments, as JSON-able values."""
        ...

    def segment(self, image_key: str, image: Image.Image) -> Segmentation:
        """Segments of one RGB image.

        Raises:
            InputError: this image cannot be segmented; it is set aside with this reason.
        """
        ...


@runtime_checkable
class BatchSegmenter(Segmenter, Protocol):
    """A segmenter that is quicker with several images at a time."""

    @property
    def window(self) -> int:
        """How many images it wants to choose its batches from; they are in memory together."""
        ...

    def segment_many(
        self, images: Sequence[tuple[str, Image.Image]]
    ) -> Sequence[Segmentation | InputError]:
        """Segments of several images, in their order, or why one of them cannot be segmented.

        Args:
            images: image key and RGB image each.
        """
        ...


def check_segmentation(
    result: Segmentation, size: tuple[int, int], vocabulary: Vocabulary
) -> IdMap:
    """The id map of a segmentation, once size, ids, classes and scores are found to fit.

    Raises:
        InputError: they do not, or there is no map.
    """
    where = f"image {result.image_id}"
    check_segments(result.segments, vocabulary, where)
    if result.id_map is None:
        raise InputError("expected masks, got boxes alone", record=where)
    if result.id_map.shape != size:
        height, width = result.id_map.shape
        raise InputError(
            f"expected masks of {size[1]}x{size[0]} pixels, got {width}x{height}",
            record=where,
        )
    present = set(np.unique(result.id_map).tolist())
    for position, segment in enumerate(result.segments):
        if segment.id not in present and result.masks is None:
            raise InputError(
                f"segment {position} has the id {segment.id}, which the panoptic PNG does not hold",
                record=where,
            )
    return result.id_map


def check_segments(segments: Sequence[Segment], vocabulary: Vocabulary, where: str) -> None:
    """Raise ``InputError`` where a segment's id, class or score cannot be one."""
    first: dict[int, int] = {}
    for position, segment in enumerate(segments):
        if not 0 <= segment.category < vocabulary.num_objects:
            raise InputError(
                f"segment {position} has the unknown category {segment.category}; the vocabulary "
                f"has classes 0..{vocabulary.num_objects - 1}",
                record=where,
            )
        if segment.id == 0:
            raise InputError(
                f"segment {position} has the id 0, which stands for pixels of no segment",
                record=where,
            )
        other = first.setdefault(segment.id, position)
        if other != position:
            raise InputError(
                f"segments {other} and {position} have one id, {segment.id}; expected an id each",
                record=where,
            )
        if segment.score is not None and not math.isfinite(segment.score):
            raise InputError(
                f"segment {position} has the score {segment.score}, expected a finite number",
                record=where,
            )


def complete(segments: tuple[Segment, ...], id_map: IdMap) -> tuple[Segment, ...]:
    """Segments with the box and area of their mask, where a file left them out (zero)."""
    if all(segment.area and segment.box[2] > segment.box[0] for segment in segments):
        return segments
    found = segment_geometry(id_map)
    rows = {int(number): row for row, number in enumerate(found.ids)}
    return tuple(
        replace(
            segment,
            area=segment.area or int(found.areas[rows[segment.id]]),
            box=segment.box
            if segment.box[2] > segment.box[0]
            else tuple(found.boxes[rows[segment.id]].tolist()),
        )
        if segment.id in rows
        else segment
        for segment in segments
    )


def as_shown(result: Segmentation) -> Segmentation:
    """The segmentation with its masks as the id map shows them, where they overlap.

    Segments that others hide are left out; areas and boxes are those of what is seen.
    """
    if result.masks is None or result.id_map is None:
        return result
    present = set(np.unique(result.id_map).tolist())
    seen = [place for place, segment in enumerate(result.segments) if segment.id in present]
    bare = tuple(replace(result.segments[place], area=0, box=(0, 0, 0, 0)) for place in seen)
    faulty = tuple(seen.index(place) for place in result.faulty if place in seen)
    segments = complete(bare, result.id_map)
    return Segmentation(result.image_id, result.id_map, segments, faulty)
