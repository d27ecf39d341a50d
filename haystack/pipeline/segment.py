"""Panoptic segments of images, behind one protocol; here from existing annotations."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

import numpy as np
from PIL import Image

from haystack import files
from haystack.errors import InputError
from haystack.io.images import decode_image
from haystack.io.panoptic_png import IdMap, encode_panoptic_png, read_panoptic_png
from haystack.pipeline.tables import SegmentedImage
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment
from haystack.vocabulary import Vocabulary


@dataclass(frozen=True)
class Segmentation:
    """The panoptic segments of one image.

    Args:
        image_id: the image's id in annotations.
        id_map: int32 [H, W], segment id of every pixel, 0 = void.
        segments: every one of them is in ``id_map``.
    """

    image_id: str
    id_map: IdMap
    segments: tuple[Segment, ...]


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


class PrecomputedSegmenter:
    """Takes masks and classes from PSG-style annotations, found by the image's file name.

    Args:
        dataset: annotations with panoptic PNGs.

    Raises:
        InputError: two records have the same file name, so that it does not say which is meant.
    """

    def __init__(self, dataset: SceneGraphDataset) -> None:
        self._dataset = dataset
        self._graphs: dict[str, SceneGraph] = {}
        for graph in dataset.graphs:
            name = PurePosixPath(graph.file_name).name
            other = self._graphs.setdefault(name, graph)
            if other is not graph:
                raise InputError(
                    f"the images {other.image_id} and {graph.image_id} have the same file name "
                    f"{name!r}, by which images find their record; rename one of them",
                    path=dataset.root,
                )

    def fingerprint(self) -> dict[str, Any]:
        """Hash of every record's segments, and size and modification time of its panoptic PNG.

        Relations are left out: more of them make no other segments.
        """
        records = hashlib.sha256()
        for graph in self._dataset.graphs:
            mask: list[int] = []
            if graph.pan_seg_file_name is not None:
                path = self._dataset.path_of(graph.pan_seg_file_name)
                if path.is_file():
                    stat = path.stat()
                    mask = [stat.st_size, stat.st_mtime_ns]
            record = [graph.image_id, graph.file_name, graph.height, graph.width, mask]
            record.extend(astuple(segment) for segment in graph.segments)
            records.update(files.canonical_json(record).encode())
        return {"segmenter": "precomputed", "records": records.hexdigest()}

    def segment(self, image_key: str, image: Image.Image) -> Segmentation:
        """The record's segments, checked against the image, the PNG and the vocabulary.

        Raises:
            InputError: no record, no PNG, another size, or a segment or class that is not there.
        """
        name = PurePosixPath(image_key).name
        graph = self._graphs.get(name)
        if graph is None:
            raise InputError(f"the annotations have no record with the file name {name!r}")
        if (graph.width, graph.height) != image.size:
            raise InputError(
                f"the record says {graph.width}x{graph.height} pixels and the image has "
                f"{image.width}x{image.height}",
                record=f"image {graph.image_id}",
            )
        if graph.pan_seg_file_name is None:
            raise InputError(
                "the record names no panoptic PNG (pan_seg_file_name)",
                record=f"image {graph.image_id}",
            )
        id_map = read_panoptic_png(
            self._dataset.path_of(graph.pan_seg_file_name), size=(graph.height, graph.width)
        )
        return Segmentation(graph.image_id, id_map, graph.segments)


def segment_images(
    images: Iterable[tuple[str, bytes]],
    segmenter: Segmenter,
    vocabulary: Vocabulary,
    *,
    set_aside: Callable[[str, str], None],
) -> Iterator[SegmentedImage]:
    """Segment a shard's images, one after the other.

    Args:
        images: image key and encoded bytes.
        segmenter: gives the segments.
        vocabulary: class indices must lie in it.
        set_aside: called with image key and reason for every image that cannot be used.
    """
    for key, content in images:
        try:
            image = decode_image(content, key)
        except InputError as error:
            set_aside(key, error.message)
            continue
        try:
            result = segmenter.segment(key, image)
            _check(result, image, vocabulary)
        except InputError as error:
            set_aside(key, str(error))
            continue
        yield SegmentedImage(
            image_key=key,
            image_id=result.image_id,
            height=image.height,
            width=image.width,
            panoptic=encode_panoptic_png(result.id_map),
            segments=result.segments,
        )


def _check(result: Segmentation, image: Image.Image, vocabulary: Vocabulary) -> None:
    where = f"image {result.image_id}"
    if result.id_map.shape != (image.height, image.width):
        height, width = result.id_map.shape
        raise InputError(
            f"expected masks of {image.width}x{image.height} pixels, got {width}x{height}",
            record=where,
        )
    present = set(np.unique(result.id_map).tolist())
    for position, segment in enumerate(result.segments):
        if segment.id not in present:
            raise InputError(
                f"segment {position} has the id {segment.id}, which the panoptic PNG does not hold",
                record=where,
            )
        if not 0 <= segment.category < vocabulary.num_objects:
            raise InputError(
                f"segment {position} has the unknown category {segment.category}; the vocabulary "
                f"has classes 0..{vocabulary.num_objects - 1}",
                record=where,
            )
