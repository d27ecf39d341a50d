"""What segmenters that run a model have in common: batches, classes, and one way to a record."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from haystack.errors import InputError
from haystack.io.panoptic_png import IdMap, segment_geometry, segment_positions
from haystack.pipeline.segmenters.base import Segmentation
from haystack.scene_graph import Segment
from haystack.vocabulary import Vocabulary

if TYPE_CHECKING:
    from haystack.models.maskdino.panoptic import PanopticResult
    from haystack.pipeline.config import SegmentConfig
    from haystack.pipeline.memory import InHalves

logger = logging.getLogger(__name__)

_BATCHES = 4  # from which a window is made up


@dataclass(frozen=True)
class FoundSegment:
    """A segment as a model names it.

    Args:
        id: in the model's id map.
        number: of its class, as the model counts; whatever ``classes`` is asked for.
        score: its confidence, 0..1; None where the model gives none.
    """

    id: int
    number: Hashable
    score: float | None


@dataclass(frozen=True)
class FoundSegments:
    """What a model finds in a picture.

    Args:
        id_map: integers [H, W] at the picture's resolution; ids that no segment has are void.
        segments: in any order; several may be regions of one kind of stuff.
    """

    id_map: Any
    segments: Sequence[FoundSegment]


def found_by(results: Sequence[PanopticResult]) -> list[FoundSegments]:
    """What Haystack's own models find."""
    return [
        FoundSegments(
            result.id_map, [FoundSegment(s.id, s.category, s.score) for s in result.segments]
        )
        for result in results
    ]


class ModelSegmenter(ABC):
    """Runs a model on batches of pictures that look alike to it.

    Args:
        config: the settings; the device is tried when the first picture comes.
        vocabulary: numbers the classes.
        classes: class of each of the model's numbers.
    """

    def __init__(
        self, config: SegmentConfig, vocabulary: Vocabulary, classes: Mapping[Any, int]
    ) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._classes = classes

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What determines the segments; device and batch size are left out, as for features."""

    @abstractmethod
    def load(self) -> Any:
        """The model, on its device.

        Raises:
            InputError: the device or the weights cannot be used.
        """

    @cached_property
    def model(self) -> Any:
        """What ``load`` gave, once."""
        return self.load()

    @abstractmethod
    def shape(self, picture: Image.Image) -> Hashable:
        """Equal for pictures that may go through the model together."""

    @abstractmethod
    def find(self, pictures: Sequence[Image.Image]) -> Sequence[FoundSegments]:
        """Segments of RGB pictures of one shape.

        Raises:
            InputError: pictures of this shape cannot be segmented.
        """

    @property
    def window(self) -> int:
        """Some batches' worth, so that pictures of a shape find each other."""
        size = self._config.batch_size
        return size if size == 1 else _BATCHES * size

    def segment(self, image_key: str, image: Image.Image) -> Segmentation:
        """Segments of one RGB image; its key becomes its id.

        Raises:
            InputError: it cannot be segmented.
        """
        (result,) = self.segment_many([(image_key, image)])
        if isinstance(result, InputError):
            raise result
        return result

    def segment_many(
        self, images: Sequence[tuple[str, Image.Image]]
    ) -> list[Segmentation | InputError]:
        """Segments of several RGB images, batch by batch; see ``BatchSegmenter``.

        Raises:
            InputError: the device or the weights cannot be used: no image's fault.
            HaystackError: there is no memory for three single images in a row.
        """
        _ = self.model  # not in a batch, where an error would count as the images'
        buckets: dict[Hashable, list[int]] = defaultdict(list)
        for place, (_, picture) in enumerate(images):
            buckets[self.shape(picture)].append(place)
        results: dict[int, Segmentation | InputError] = {}
        size = self._config.batch_size
        for places in buckets.values():
            for start in range(0, len(places), size):
                batch = places[start : start + size]
                for place, found in zip(
                    batch, self._batch([images[place][1] for place in batch]), strict=True
                ):
                    results[place] = self._record(images[place][0], found)
        return [results[place] for place in range(len(images))]

    def _batch(self, pictures: Sequence[Image.Image]) -> list[FoundSegments | InputError]:
        found: list[FoundSegments | InputError] = []
        try:
            for part in self._in_halves(pictures):
                found.extend(part)
        except InputError as error:
            found.extend([error] * (len(pictures) - len(found)))
        return found

    @cached_property
    def _in_halves(self) -> InHalves[Image.Image, Sequence[FoundSegments | InputError]]:
        from haystack.pipeline.memory import InHalves

        return InHalves(
            self.find,
            what="image",
            lower="segment.precision",
            notify=logger.warning,
            unfit=lambda _, said: [InputError(said)],
        )

    def _record(
        self, image_key: str, found: FoundSegments | InputError
    ) -> Segmentation | InputError:
        if isinstance(found, InputError):
            return found
        unknown = [s.number for s in found.segments if s.number not in self._classes]
        if unknown:
            return InputError(f"the model found its class {unknown[0]}, which has no name")
        return panoptic_record(
            image_key,
            found.id_map,
            [(s.id, self._classes[s.number], s.score) for s in found.segments],
            self._vocabulary,
        )


def panoptic_record(
    image_id: str,
    id_map: Any,
    segments: Sequence[tuple[int, int, float | None]],
    vocabulary: Vocabulary,
) -> Segmentation:
    """A model's id map as a ``Segmentation``: ids from 1 on, one segment a kind of stuff.

    Args:
        image_id: of the image.
        id_map: integers [H, W]; ids that are not listed are void.
        segments: id, class and score each, in the model's order. Those without a pixel are left
            out; regions of a kind of stuff are joined and have the best of their scores.
        vocabulary: says which classes are stuff.
    """
    numbers: list[int] = []
    classes: list[int] = []
    scores: list[float | None] = []
    stuff: dict[int, int] = {}
    for _, category, score in segments:
        if category in stuff:
            place = stuff[category]
            known = [value for value in (scores[place], score) if value is not None]
            scores[place] = max(known, default=None)
            numbers.append(place + 1)
            continue
        if not vocabulary.is_thing(category):
            stuff[category] = len(classes)
        classes.append(category)
        scores.append(score)
        numbers.append(len(classes))
    ids = np.array([number for number, _, _ in segments], dtype=np.int64)
    positions = segment_positions(np.asarray(id_map), ids)
    renumbered: IdMap = np.array([*numbers, 0], dtype=np.int32)[positions]  # -1: the last, void
    geometry = segment_geometry(renumbered)
    return Segmentation(
        image_id,
        renumbered,
        tuple(
            Segment(
                id=number,
                category=classes[number - 1],
                area=int(area),
                box=(float(box[0]), float(box[1]), float(box[2]), float(box[3])),
                score=scores[number - 1],
            )
            for number, area, box in zip(
                geometry.ids.tolist(), geometry.areas, geometry.boxes, strict=True
            )
        ),
    )
