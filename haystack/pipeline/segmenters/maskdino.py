"""Segments that a MaskDINO finds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from haystack import weights
from haystack.errors import InputError
from haystack.io.class_numbers import of_contiguous_ids
from haystack.models.maskdino.preprocessing import padded_size_of
from haystack.pipeline.segmenters.model import FoundSegments, ModelSegmenter, found_by
from haystack.vocabulary import Vocabulary

if TYPE_CHECKING:
    from haystack.models.maskdino.panoptic import PanopticSettings
    from haystack.models.maskdino.predictor import MaskDINOPredictor
    from haystack.pipeline.config import SegmentConfig


class MaskDINOSegmenter(ModelSegmenter):
    """A MaskDINO with its official weights; masks have the image's own resolution.

    Args:
        config: weights, device, precision and thresholds.
        vocabulary: must have all of COCO's panoptic classes, in any order.

    Raises:
        InputError: no weights, a class that the vocabulary lacks, or a threshold outside 0..1.
    """

    def __init__(self, config: SegmentConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary, of_contiguous_ids(vocabulary))
        self._weights = weight_file(config)
        self._settings = _settings(config)

    def fingerprint(self) -> dict[str, Any]:
        """Hash of the weights, thresholds, and precision."""
        return {
            "segmenter": "maskdino",
            "weights": weights.checksum(self._weights),
            "precision": self._config.precision,
            "score_threshold": self._settings.score_threshold,
            "overlap_threshold": self._settings.overlap_threshold,
        }

    def shape(self, picture: Image.Image) -> Hashable:
        """The size to which it is padded: the network sees the padding."""
        return padded_size_of(picture)

    def find(self, pictures: Sequence[Image.Image]) -> list[FoundSegments]:
        """See ``ModelSegmenter``; a picture may be too thin to have anything to look at."""
        return found_by(self.model.predict(pictures))

    def load(self) -> MaskDINOPredictor:
        """See ``ModelSegmenter``."""
        from haystack.devices import usable_device
        from haystack.models.checkpoints.maskdino import load_maskdino
        from haystack.models.maskdino.predictor import MaskDINOPredictor

        device = usable_device(self._config.device)
        return MaskDINOPredictor(
            load_maskdino(self._weights),
            settings=self._settings,
            device=device,
            precision=self._config.precision,
            compiled=self._config.compile,
        )


def weight_file(config: SegmentConfig) -> Path:
    """The file of ``segment.weights``.

    Raises:
        InputError: it is not given, or does not exist.
    """
    if not config.weights:
        raise InputError(
            "segment.kind=maskdino needs segment.weights=FILE, which is empty; MaskDINO's own: "
            "haystack weights pull maskdino_r50, then segment.weights=maskdino_r50"
        )
    return weights.resolve(config.weights, "segment.weights")


def _settings(config: SegmentConfig) -> PanopticSettings:
    from haystack.models.maskdino.panoptic import PanopticSettings

    return PanopticSettings(**config.thresholds())
