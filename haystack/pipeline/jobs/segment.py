"""The segment stage as a job: which files it writes, and what its output depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from haystack.executors.base import Counts, Outputs
from haystack.io.images import ImageSource
from haystack.pipeline import tables
from haystack.pipeline.jobs.upstream import counts_of, shard_images
from haystack.pipeline.segment import segment_images
from haystack.pipeline.segmenters.base import Segmenter
from haystack.pipeline.workspace import SEGMENTED, Workspace


class SegmentJob:
    """Panoptic segments of every image, by shard.

    Args:
        workspace: where to write; its vocabulary numbers the classes.
        source: the images.
        segmenter: gives the segments.
    """

    name: ClassVar[str] = "segment"

    def __init__(self, workspace: Workspace, source: ImageSource, segmenter: Segmenter) -> None:
        self._vocabulary = workspace.vocabulary
        self._source = source
        self._segmenter = segmenter

    @cached_property
    def _segmenter_fingerprint(self) -> dict[str, Any]:
        return self._segmenter.fingerprint()

    def shards(self) -> Sequence[str]:
        """The source's shards."""
        return self._source.shards()

    def inputs(self, shard: str) -> Mapping[str, str]:
        """None: it reads the source."""
        return {}

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """The segmenter, the class lists (regions of stuff are joined), and the shard's images."""
        return {
            "segmenter": self._segmenter_fingerprint,
            "classes": list(self._vocabulary.object_classes),
            "things": len(self._vocabulary.thing_classes),
            "images": self._source.signature(shard),
        }

    def run(self, shard: str, out: Outputs) -> Counts:
        """Segment the shard's images; those that cannot be used are quarantined."""
        ok = 0

        def counted(images: Iterator[tables.SegmentedImage]) -> Iterator[tables.SegmentedImage]:
            nonlocal ok
            for image in images:
                ok += 1
                yield image

        images = segment_images(
            shard_images(self._source, shard, out),
            self._segmenter,
            self._vocabulary,
            set_aside=out.quarantine,
        )
        tables.write_segmented(out.path(SEGMENTED.format(shard=shard)), counted(images))
        return counts_of(ok, out)
