"""Segments that a user brings along, whatever wrote them: each format is a ``Segmenter``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from haystack import files
from haystack.errors import InputError
from haystack.io.coco import (
    Detection,
    Detections,
    decode_masks,
    read_coco_detections,
    read_coco_panoptic,
)
from haystack.io.datasets import BUNDLED
from haystack.io.panoptic_png import IdMap, read_panoptic_png
from haystack.io.psg import load_json, parse_psg, read_psg
from haystack.pipeline.segmenters.base import Segmentation, Segmenter, complete
from haystack.pipeline.segmenters.precomputed import PrecomputedSegmenter
from haystack.scene_graph import MaskRuns, Segment
from haystack.vocabulary import Vocabulary


def open_segments(
    path: str | Path, vocabulary: Vocabulary, image_keys: Iterable[str] | None = None
) -> Segmenter:
    """The segments that a file or a folder holds.

    - PSG or Haystack JSON with panoptic PNGs, or a bundled name: ``PrecomputedSegmenter``.
    - COCO panoptic JSON with its folder of PNGs: the same.
    - COCO detection results, boxes with or without masks: ``DetectionSegmenter``.
    - A folder of panoptic PNGs, each with a JSON of the same name: ``FolderSegmenter``.

    Args:
        path: of the file or folder.
        vocabulary: numbers the classes.
        image_keys: all images of the source, or None; see ``PrecomputedSegmenter``.

    Raises:
        InputError: nothing there, or none of these.
    """
    if str(path) in BUNDLED:
        return PrecomputedSegmenter(read_psg(path, vocabulary=vocabulary), image_keys)
    place = Path(path)
    if place.is_dir():
        return FolderSegmenter(place, vocabulary, image_keys)
    if not place.is_file():
        raise InputError("there is no such file or folder of segments", path=place)
    content = load_json(place)
    entries = content.get("annotations") if isinstance(content, Mapping) else content
    if isinstance(content, Mapping) and isinstance(content.get("data"), list):
        return PrecomputedSegmenter(parse_psg(content, place, vocabulary=vocabulary), image_keys)
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], Mapping):
        raise InputError(
            "expected a PSG file, a COCO panoptic file, or COCO detection results, got none of "
            "these (or an empty one)",
            path=place,
        )
    if isinstance(content, Mapping) and "segments_info" in entries[0]:
        dataset = read_coco_panoptic(content, vocabulary, place)
        return PrecomputedSegmenter(dataset, image_keys)
    return DetectionSegmenter(read_coco_detections(content, vocabulary, place))


class FolderSegmenter:
    """Panoptic PNGs and, beside each, a JSON that says what its ids are.

    For ``street/01.jpg`` it takes ``street/01.png`` and ``street/01.json`` of the folder, else
    ``01.png`` and ``01.json``, unless another image of the source has that name as well. The JSON
    is a list, or an object with that list under ``segments_info``: ``{"id": 7, "category":
    "person"}``, with an optional ``score``; ``category_id`` may stand for the name, as the class's
    number in the vocabulary.

    Args:
        folder: of the files.
        vocabulary: numbers the classes.
        image_keys: all images of the source; where None, names are compared as images come.
    """

    def __init__(
        self, folder: Path, vocabulary: Vocabulary, image_keys: Iterable[str] | None = None
    ) -> None:
        self._folder = folder
        self._vocabulary = vocabulary
        self._first: dict[str, str] = {}
        self._shared: dict[str, tuple[str, str]] = {}
        for key in image_keys or ():
            self._note(PurePosixPath(key))

    def _note(self, key: PurePosixPath) -> None:
        """Remember who has a name: the first image, and the first two where there are several."""
        first = self._first.setdefault(key.stem, str(key))
        if first != str(key):
            self._shared.setdefault(key.stem, (first, str(key)))

    def fingerprint(self) -> dict[str, Any]:
        """Names, sizes and modification times of the folder's files."""
        found = {
            path.relative_to(self._folder).as_posix(): [
                path.stat().st_size,
                path.stat().st_mtime_ns,
            ]
            for path in sorted(self._folder.rglob("*"))
            if path.suffix in (".png", ".json")
        }
        return {"segmenter": "folder", "files": files.sha256_text(files.canonical_json(found))}

    def segment(self, image_key: str, image: Image.Image) -> Segmentation:
        """The image's PNG and JSON.

        Raises:
            InputError: one is missing or broken, could be another image's, or a class is unknown.
        """
        key = PurePosixPath(image_key)
        self._note(key)
        png = (self._folder / key).with_suffix(".png")
        if not png.is_file() and len(key.parts) > 1:
            own, png = png, (self._folder / key.name).with_suffix(".png")
            if png.is_file() and key.stem in self._shared:
                first, second = self._shared[key.stem]
                raise InputError(
                    f"it could be of {first} or of {second}; move it to {own}, or to where the "
                    "other one's belongs",
                    path=png,
                )
        if not png.is_file():
            raise InputError(f"{self._folder} holds no panoptic PNG {png.name}")
        id_map = read_panoptic_png(png, size=(image.height, image.width))
        sidecar = png.with_suffix(".json")
        content = load_json(sidecar)
        entries = content.get("segments_info") if isinstance(content, Mapping) else content
        if not isinstance(entries, list):
            raise InputError("expected a list of segments", path=sidecar)
        segments = tuple(self._segment(entry, sidecar, i) for i, entry in enumerate(entries))
        return Segmentation(image_key, id_map, complete(segments, id_map))

    def _segment(self, entry: Any, path: Path, position: int) -> Segment:
        where = f"segment {position}"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), int):
            raise InputError("expected an object with 'id' and 'category'", path=path, record=where)
        category, score = entry.get("category", entry.get("category_id")), entry.get("score")
        if isinstance(category, str):
            try:
                category = self._vocabulary.object_index(category)
            except InputError as error:
                raise InputError(error.message, path=path, record=where) from error
        if not isinstance(category, int):
            raise InputError(
                f"expected a 'category' by its name, got {json.dumps(category)}",
                path=path,
                record=where,
            )
        if score is not None and not isinstance(score, (int, float)):
            raise InputError(
                f"expected a score as a number, got {score!r}", path=path, record=where
            )
        return Segment(
            entry["id"], category, 0, (0, 0, 0, 0), score=None if score is None else float(score)
        )


class DetectionSegmenter:
    """Detected boxes, with masks where the detector gave them.

    An image is found by its file name where the file lists its images, else by its own name as the
    image id: ``000000000139.jpg`` is image 139.

    Args:
        detections: of all images.

    Raises:
        InputError: two images of the file have the same file name.
    """

    def __init__(self, detections: Detections) -> None:
        self._detections = detections
        self._ids: dict[str, list[str]] = defaultdict(list)
        for name, image_id in detections.image_ids.items():
            self._ids[PurePosixPath(name).name].append(image_id)

    def fingerprint(self) -> dict[str, Any]:
        """The file's checksum."""
        return {"segmenter": "detections", "file": files.sha256_file(self._detections.path)}

    def segment(self, image_key: str, image: Image.Image) -> Segmentation:
        """The image's detections; where masks overlap, the surer one is seen in the id map.

        Raises:
            InputError: the file says nothing of this image, or a mask has another size.
        """
        image_id = self._image_id(PurePosixPath(image_key))
        found = self._detections.by_image.get(image_id, ())
        masks = None
        if found and all(detection.mask is not None for detection in found):
            try:
                masks = decode_masks((d.mask for d in found), image.height, image.width)
            except InputError as error:
                raise InputError(
                    error.message, path=self._detections.path, record=f"image {image_id}"
                ) from error
        areas = [None] * len(found) if masks is None else masks.areas.tolist()
        segments = tuple(
            _segment(detection, number, area)
            for number, (detection, area) in enumerate(zip(found, areas, strict=True))
        )
        id_map = None if masks is None else _painted(masks, segments)
        return Segmentation(image_id, id_map, segments, masks=masks)

    def _image_id(self, key: PurePosixPath) -> str:
        if self._detections.image_ids:
            ids = self._ids.get(key.name, [])
            if len(ids) == 1:
                return ids[0]
            raise InputError(
                f"{self._detections.path} lists {len(ids)} images with the file name {key.name!r}; "
                "expected one"
            )
        names = (key.stem, key.stem.lstrip("0") or "0")
        known = [name for name in names if name in self._detections.by_image]
        if not known:
            raise InputError(f"{self._detections.path} has no detections of image {names[-1]!r}")
        return known[0]


def _segment(detection: Detection, number: int, area: int | None) -> Segment:
    x1, y1, x2, y2 = detection.box
    size = round((x2 - x1) * (y2 - y1)) if area is None else area
    return Segment(number + 1, detection.category, size, detection.box, score=detection.score)


def _painted(masks: MaskRuns, segments: tuple[Segment, ...]) -> IdMap:
    id_map = np.zeros((masks.height, masks.width), dtype=np.int32)
    scores = [1.0 if segment.score is None else segment.score for segment in segments]
    for position in np.argsort(scores, kind="stable").tolist():
        id_map[masks[position]] = segments[position].id
    return id_map
