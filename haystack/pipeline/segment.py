"""The segment stage: the panoptic segments of images, whatever finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import cast

from PIL import Image

from haystack.errors import InputError
from haystack.io.images import Content, decode_image
from haystack.io.panoptic_png import IdMap, encode_panoptic_png
from haystack.pipeline.segmenters.base import (
    BatchSegmenter,
    Segmentation,
    Segmenter,
    as_shown,
    check_segmentation,
    check_segments,
)
from haystack.pipeline.segmenters.precomputed import shared_record
from haystack.pipeline.tables import SegmentedImage
from haystack.vocabulary import Vocabulary


def segment_images(
    images: Iterable[tuple[str, bytes]],
    segmenter: Segmenter,
    vocabulary: Vocabulary,
    *,
    set_aside: Callable[[str, str], None],
) -> Iterator[SegmentedImage]:
    """Segment a shard's images, in their order.

    Masks that overlap are kept as the id map shows them; a segment that others hide is left out.

    Args:
        images: image key and encoded bytes.
        segmenter: gives the segments.
        vocabulary: class indices must lie in it.
        set_aside: called with image key and reason for every image that cannot be used.
    """
    taken: dict[str, str] = {}
    for key, image, result in segment_each(images, segmenter, vocabulary, set_aside):
        if taken.setdefault(result.image_id, key) != key:
            set_aside(key, shared_record(result.image_id, taken[result.image_id]))
            continue
        result = as_shown(result)
        yield SegmentedImage(
            image_key=key,
            image_id=result.image_id,
            height=image.height,
            width=image.width,
            panoptic=encode_panoptic_png(cast(IdMap, result.id_map)),  # as boxes do not suffice
            segments=result.segments,
            faulty=result.faulty,
        )


def segment_each(
    images: Iterable[tuple[str, Content]],
    segmenter: Segmenter,
    vocabulary: Vocabulary,
    set_aside: Callable[[str, str], None],
    *,
    boxes_suffice: bool = False,
) -> Iterator[tuple[str, Image.Image, Segmentation]]:
    """Decode, segment and check images, in their order.

    One image is in memory at a time, or a window of them where the segmenter takes batches.

    Args:
        images: image key and encoded bytes, or why there are none.
        segmenter: gives the segments.
        vocabulary: class indices must lie in it.
        set_aside: called with image key and reason for every image that cannot be used.
        boxes_suffice: whether segments may come without an id map.
    """
    batches = segmenter if isinstance(segmenter, BatchSegmenter) else _OneByOne(segmenter)
    waiting = iter(images)
    while window := list(islice(waiting, batches.window)):
        decoded = [(key, _decoded(key, content)) for key, content in window]
        found = iter(
            batches.segment_many([(key, i) for key, i in decoded if not isinstance(i, InputError)])
        )
        for key, image in decoded:
            if isinstance(image, InputError):
                set_aside(key, image.message)
                continue
            result = next(found)
            try:
                if isinstance(result, InputError):
                    raise result
                if boxes_suffice and result.id_map is None:
                    check_segments(result.segments, vocabulary, f"image {result.image_id}")
                else:
                    check_segmentation(result, (image.height, image.width), vocabulary)
            except InputError as error:
                set_aside(key, str(error))
                continue
            yield key, image, result


class _OneByOne:
    """Hands images to a segmenter that takes one."""

    window = 1

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter

    def segment_many(
        self, images: Sequence[tuple[str, Image.Image]]
    ) -> list[Segmentation | InputError]:
        return [self._one(key, image) for key, image in images]

    def _one(self, key: str, image: Image.Image) -> Segmentation | InputError:
        try:
            return self._segmenter.segment(key, image)
        except InputError as error:
            return error


def _decoded(key: str, content: Content) -> Image.Image | InputError:
    try:
        return content if isinstance(content, InputError) else decode_image(content, key)
    except InputError as error:
        return error
