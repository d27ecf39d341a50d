"""Panoptic segments of images, behind one protocol; here from existing annotations."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from PIL import Image

from haystack import files
from haystack.errors import InputError
from haystack.io.images import Content, decode_image
from haystack.io.panoptic_png import (
    IdMap,
    encode_panoptic_png,
    read_panoptic_png,
    segment_geometry,
)
from haystack.pipeline.tables import SegmentedImage
from haystack.scene_graph import MaskRuns, SceneGraph, SceneGraphDataset, Segment
from haystack.vocabulary import Vocabulary

_Item = TypeVar("_Item")


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


class PrecomputedSegmenter:
    """Takes masks and classes from PSG-style annotations, found by the image's file name.

    An image takes the record whose ``file_name`` ends as its key does, over the most folders; if
    several do, none. A record that several images would take goes to the one that agrees best; if
    several do, to none. So both depend on all names, never on the order of work.

    Args:
        dataset: annotations with panoptic PNGs.
        image_keys: all images of the source; None where that is not known beforehand.

    Raises:
        InputError: two records have the same file name, so that it does not say which is meant.
    """

    def __init__(self, dataset: SceneGraphDataset, image_keys: Iterable[str] | None = None) -> None:
        self._dataset = dataset
        self._graphs: dict[str, list[SceneGraph]] = defaultdict(list)
        seen: dict[PurePosixPath, SceneGraph] = {}
        for graph in dataset.graphs:
            path = PurePosixPath(graph.file_name)
            other = seen.setdefault(path, graph)
            if other is not graph:
                raise InputError(
                    f"the images {other.image_id} and {graph.image_id} have the same file name "
                    f"{graph.file_name!r}, by which images find their record; rename one of them",
                    path=dataset.root,
                )
            self._graphs[path.name].append(graph)
        self._refused = self._losers(image_keys or ())

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
            faulty = self._faulty(graph)
            record = [graph.image_id, graph.file_name, graph.height, graph.width, mask, faulty]
            record.extend(astuple(segment) for segment in graph.segments)
            records.update(files.canonical_json(record).encode())
        return {
            "segmenter": "precomputed",
            "records": records.hexdigest(),
            "refused": sorted(self._refused),
        }

    def segment(self, image_key: str, image: Image.Image) -> Segmentation:
        """The record's segments, checked against the image, the PNG and the vocabulary.

        Raises:
            InputError: no record or several, no PNG, another size, or a segment or class that is
                not there.
        """
        if image_key in self._refused:
            raise InputError(self._refused[image_key])
        graph = self._record(image_key)
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
        segments = complete(graph.segments, id_map)
        return Segmentation(graph.image_id, id_map, segments, self._faulty(graph))

    def _faulty(self, graph: SceneGraph) -> tuple[int, ...]:
        return tuple(sorted(self._dataset.faulty_segments.get(graph.image_id, ())))

    def _record(self, image_key: str) -> SceneGraph:
        name = PurePosixPath(image_key).name
        graphs = self._graphs.get(name, [])
        if not graphs:
            raise InputError(f"the annotations have no record with the file name {name!r}")
        graph = _only_best(graphs, lambda graph: _agreement(image_key, graph.file_name))
        if graph is None:
            raise InputError(
                f"{len(graphs)} records have the file name {name!r}, and their folders do not tell "
                "which is meant; give the image's record a file_name that ends as its path does"
            )
        return graph

    def _losers(self, image_keys: Iterable[str]) -> dict[str, str]:
        """Images that must go without the record that they would take, and why."""
        takers: dict[str, list[str]] = defaultdict(list)
        file_names: dict[str, str] = {}
        for key in image_keys:
            try:
                graph = self._record(key)
            except InputError:
                continue
            takers[graph.image_id].append(key)
            file_names[graph.image_id] = graph.file_name
        refused = {}
        for image_id, keys in takers.items():
            rank = partial(_agreement, file_names[image_id])
            winner = _only_best(keys, rank)
            for key in keys:
                if key != winner:
                    other = winner or next(name for name in keys if name != key)
                    refused[key] = _shared_record(image_id, other)
        return refused


def _agreement(one: str, other: str) -> tuple[int, int]:
    """How well two paths agree: equal names from the end, then how many of the two are used up."""
    names, others = PurePosixPath(one).parts, PurePosixPath(other).parts
    pairs = zip(reversed(names), reversed(others), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return common, (common == len(names)) + (common == len(others))


def _only_best(items: Sequence[_Item], rank: Callable[[_Item], tuple[int, int]]) -> _Item | None:
    """The item of the highest rank, or None where several have it."""
    ranks = [rank(item) for item in items]
    best = max(ranks)
    return items[ranks.index(best)] if ranks.count(best) == 1 else None


def _shared_record(image_id: str, other: str) -> str:
    return (
        f"its record (image id {image_id}) is that of {other} too; give each a record of its own, "
        "with a file_name that ends as the image's path does"
    )


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
    taken: dict[str, str] = {}
    for key, image, result in segment_each(images, segmenter, vocabulary, set_aside):
        if taken.setdefault(result.image_id, key) != key:
            set_aside(key, _shared_record(result.image_id, taken[result.image_id]))
            continue
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
    """Decode, segment and check images, one after the other.

    Args:
        images: image key and encoded bytes, or why there are none.
        segmenter: gives the segments.
        vocabulary: class indices must lie in it.
        set_aside: called with image key and reason for every image that cannot be used.
        boxes_suffice: whether segments may come without an id map.
    """
    for key, content in images:
        try:
            if isinstance(content, InputError):
                raise content
            image = decode_image(content, key)
        except InputError as error:
            set_aside(key, error.message)
            continue
        try:
            result = segmenter.segment(key, image)
            if boxes_suffice and result.id_map is None:
                check_classes(result.segments, vocabulary, f"image {result.image_id}")
            else:
                check_segmentation(result, (image.height, image.width), vocabulary)
        except InputError as error:
            set_aside(key, str(error))
            continue
        yield key, image, result


def check_segmentation(
    result: Segmentation, size: tuple[int, int], vocabulary: Vocabulary
) -> IdMap:
    """The id map of a segmentation, once size, ids and classes are found to fit.

    Raises:
        InputError: they do not, or there is no map.
    """
    where = f"image {result.image_id}"
    check_classes(result.segments, vocabulary, where)
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


def check_classes(segments: Sequence[Segment], vocabulary: Vocabulary, where: str) -> None:
    """Raise ``InputError`` where a segment's class is not one of the vocabulary's."""
    for position, segment in enumerate(segments):
        if not 0 <= segment.category < vocabulary.num_objects:
            raise InputError(
                f"segment {position} has the unknown category {segment.category}; the vocabulary "
                f"has classes 0..{vocabulary.num_objects - 1}",
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
