"""Segments from existing annotations."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from functools import partial
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any, TypeVar

from PIL import Image

from haystack import files
from haystack.errors import InputError
from haystack.io.panoptic_png import read_panoptic_png
from haystack.pipeline.segmenters.base import Segmentation, complete
from haystack.scene_graph import SceneGraph, SceneGraphDataset

_Item = TypeVar("_Item")


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
                    refused[key] = shared_record(image_id, other)
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


def shared_record(image_id: str, other: str) -> str:
    """Why an image goes without a record that another one has too."""
    return (
        f"its record (image id {image_id}) is that of {other} too; give each a record of its own, "
        "with a file_name that ends as the image's path does"
    )
