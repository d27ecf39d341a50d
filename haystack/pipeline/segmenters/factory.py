"""The segmenter that the settings name."""

from __future__ import annotations

from collections.abc import Iterable

from haystack.errors import InputError
from haystack.pipeline.config import SegmentConfig
from haystack.pipeline.segmenters.base import Segmenter
from haystack.vocabulary import Vocabulary


def open_segmenter(
    config: SegmentConfig, vocabulary: Vocabulary, image_keys: Iterable[str] | None = None
) -> Segmenter:
    """The segmenter of ``config.kind``; its model is loaded when the first image comes.

    Args:
        config: the settings.
        vocabulary: numbers the classes.
        image_keys: all images of the source, or None; see ``PrecomputedSegmenter``.

    Raises:
        InputError: a setting that this kind needs is missing or wrong, or a class is not in the
            vocabulary.
        MissingDependencyError: its package is not installed.
    """
    if config.kind == "precomputed":
        from haystack.pipeline.segmenters.given import open_segments

        if not config.annotations:
            raise InputError(
                "segment.kind=precomputed needs segment.annotations=FILE, which is empty; or "
                "choose a segmenter with segment.kind"
            )
        return open_segments(config.annotations, vocabulary, image_keys)
    if config.kind == "yolo-seg":
        from haystack.pipeline.segmenters.yolo import YOLOSegmenter

        return YOLOSegmenter(config, vocabulary)
    if config.kind == "detectron2":
        from haystack.pipeline.segmenters.detectron2 import Detectron2Segmenter

        return Detectron2Segmenter(config, vocabulary)
    if config.kind == "transformers":
        from haystack.pipeline.segmenters.transformers import TransformersSegmenter

        return TransformersSegmenter(config, vocabulary)
    from haystack.pipeline.segmenters.maskdino import MaskDINOSegmenter

    return MaskDINOSegmenter(config, vocabulary)
