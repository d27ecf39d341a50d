"""Segments that a MaskDINO finds."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack import files
from haystack.errors import InputError
from haystack.io.panoptic_png import segment_geometry
from haystack.pipeline.segmenters.base import Segmentation
from haystack.scene_graph import Segment
from haystack.vocabulary import Vocabulary, psg_vocabulary

if TYPE_CHECKING:
    from PIL.Image import Image

    from haystack.models.maskdino.predictor import MaskDINOPredictor
    from haystack.pipeline.config import SegmentConfig


class MaskDINOSegmenter:
    """A MaskDINO with its official weights; masks have the image's own resolution.

    Args:
        config: weights, device, precision and thresholds.
        vocabulary: must have all of COCO's panoptic classes, in any order.

    Raises:
        InputError: no weights, a class that the vocabulary lacks, or a threshold outside 0..1.
    """

    def __init__(self, config: SegmentConfig, vocabulary: Vocabulary) -> None:
        from haystack.models.maskdino.panoptic import PanopticSettings

        self._weights = Path(config.weights)
        if not self._weights.is_file():
            raise InputError("segment.weights names a file that does not exist", path=self._weights)
        self._config = config
        self._classes = coco_classes(vocabulary)
        self._settings = PanopticSettings(
            score_threshold=config.score_threshold, overlap_threshold=config.overlap_threshold
        )

    def fingerprint(self) -> dict[str, Any]:
        """Hash of the weights, thresholds, and precision; not the device, as for features."""
        return {
            "segmenter": "maskdino",
            "weights": files.sha256_file(self._weights),
            "precision": self._config.precision,
            "score_threshold": self._config.score_threshold,
            "overlap_threshold": self._config.overlap_threshold,
        }

    def segment(self, image_key: str, image: Image) -> Segmentation:
        """Segments of one RGB image; its key becomes its id.

        Raises:
            InputError: a picture so thin that there is next to nothing of it to look at.
        """
        (found,) = self._predictor.predict([image])
        geometry = segment_geometry(found.id_map)
        return Segmentation(
            image_key,
            found.id_map,
            tuple(
                Segment(
                    id=segment.id,
                    category=self._classes[segment.category],
                    area=int(area),
                    box=(float(box[0]), float(box[1]), float(box[2]), float(box[3])),
                    score=segment.score,
                )
                # Both are in the order of ids, and every segment has pixels.
                for segment, area, box in zip(
                    found.segments, geometry.areas, geometry.boxes, strict=True
                )
            ),
        )

    @cached_property
    def _predictor(self) -> MaskDINOPredictor:
        from haystack.models.checkpoints.maskdino import load_maskdino
        from haystack.models.maskdino.predictor import MaskDINOPredictor
        from haystack.pipeline.encoders import usable_device

        return MaskDINOPredictor(
            load_maskdino(self._weights),
            settings=self._settings,
            device=usable_device(self._config.device),
            precision=self._config.precision,
        )


def coco_classes(vocabulary: Vocabulary) -> list[int]:
    """The vocabulary's number of each of COCO's panoptic classes, as models number these.

    Detectors count things by COCO's ids, then stuff: PSG's own order. Other vocabularies are
    matched by name.

    Raises:
        InputError: the vocabulary lacks one of them.
    """
    return [vocabulary.object_index(name) for name in psg_vocabulary().object_classes]
