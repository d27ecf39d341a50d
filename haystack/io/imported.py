"""What other annotation tools wrote, as a PSG data set: shapes become segments of a panoptic PNG.

A panoptic PNG gives each pixel to one segment; shapes of other tools may overlap. A pixel of
several shapes goes to the smallest of them, as a cup on a table is drawn over the table.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from haystack import files
from haystack.errors import InputError
from haystack.io.image_entries import file_name_inside, image_size
from haystack.io.panoptic_png import encode_panoptic_png, segment_geometry
from haystack.io.psg_writer import mask_file, write_psg
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.vocabulary import Vocabulary

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Shape:
    """One annotated object.

    Args:
        name: what the file calls it, for errors.
        label: its class.
        mask: bool [H, W].
        is_crowd: COCO's crowd flag.
    """

    name: str
    label: str
    mask: Mask
    is_crowd: bool = False


@dataclass(frozen=True)
class AnnotatedImage:
    """One image as another tool describes it.

    Args:
        image_id: unique in the file.
        file_name: of the picture.
        height, width: in pixels.
        shapes: its objects.
        relations: (position of the subject, position of the object, predicate's name).
    """

    image_id: str
    file_name: str
    height: int
    width: int
    shapes: Sequence[Shape]
    relations: Sequence[tuple[int, int, str]]


@dataclass
class ImportReport:
    """What an import came to.

    Args:
        images: written.
        segments: written.
        relations: written, each row once.
        duplicates: rows that were given more than once.
        shared_pixels: pixels of more than one shape.
        left_out: images without an annotated object, and tasks that nobody finished.
    """

    images: int = 0
    segments: int = 0
    relations: int = 0
    duplicates: int = 0
    shared_pixels: int = 0
    left_out: int = 0


@dataclass(frozen=True)
class Names:
    """Class lists of a file: given ones, or those that it uses.

    Args:
        objects: names of object classes.
        predicates: names of predicates.
        vocabulary: that they must be from; None = they are the vocabulary.
    """

    objects: Iterable[str]
    predicates: Iterable[str]
    vocabulary: Vocabulary | None = None

    def resolve(self, path: Path) -> Vocabulary:
        """The vocabulary of the data set.

        Raises:
            InputError: a name that a given vocabulary lacks.
        """
        objects, predicates = tuple(self.objects), tuple(self.predicates)
        if self.vocabulary is None:
            return Vocabulary(thing_classes=objects, stuff_classes=(), predicate_classes=predicates)
        known = self.vocabulary
        for what, used, names in (
            ("object classes", objects, known.object_classes),
            ("predicates", predicates, known.predicate_classes),
        ):
            lacking = [repr(name) for name in used if name not in names]
            if lacking:
                raise InputError(
                    f"{', '.join(lacking[:5])} are not among the vocabulary's {what}; rename them, "
                    "or leave --vocabulary out to take the file's own names",
                    path=path,
                )
        return known


def write_imported(
    images: Iterable[AnnotatedImage], vocabulary: Vocabulary, out: Path, *, source: Path
) -> ImportReport:
    """Write images as ``out`` with ``panoptic/*.png`` beside it; nothing if one of them is bad.

    Args:
        images: taken one at a time.
        vocabulary: has all their names.
        out: the PSG JSON.
        source: where the images come from, for errors.

    Raises:
        InputError: a shape without a pixel of its own, a relation of an object with itself, or an
            image id that is given twice.
    """
    report, graphs = ImportReport(), []
    files.make_folder(out.parent)
    temporary = files.temporary_name(out.parent / "panoptic")
    seen: set[str] = set()
    try:
        for image in images:
            if image.image_id in seen:
                raise InputError(
                    "this image id is given twice", path=source, record=f"image {image.image_id}"
                )
            seen.add(image.image_id)
            graph, ids = _graph(image, vocabulary, report, source)
            files.write_bytes(temporary / graph_mask(graph), encode_panoptic_png(ids))
            graphs.append(graph)
        if not graphs:
            raise InputError("there is no annotated image in this file", path=source)
        for graph in graphs:
            final = out.parent / graph_mask(graph)
            files.make_folder(final.parent)
            os.replace(temporary / graph_mask(graph), final)
        dataset = SceneGraphDataset(vocabulary=vocabulary, graphs=tuple(graphs))
        write_psg(dataset, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    report.images = len(graphs)
    return report


def graph_mask(graph: SceneGraph) -> str:
    """Name of an image's panoptic PNG beside the JSON."""
    return mask_file(graph.image_id)


def _graph(
    image: AnnotatedImage, vocabulary: Vocabulary, report: ImportReport, source: Path
) -> tuple[SceneGraph, npt.NDArray[np.int32]]:
    where = f"image {image.image_id}"
    ids = np.zeros((image.height, image.width), dtype=np.int32)
    covered = np.zeros(ids.shape, dtype=np.int32)
    for shape in image.shapes:
        covered += shape.mask
    report.shared_pixels += int((covered > 1).sum())
    areas = [int(shape.mask.sum()) for shape in image.shapes]
    for position in sorted(range(len(areas)), key=lambda place: (-areas[place], place)):
        ids[image.shapes[position].mask] = position + 1
    found, areas_left, boxes = segment_geometry(ids)
    place_of = {int(identifier): place for place, identifier in enumerate(found)}
    segments = []
    for position, shape in enumerate(image.shapes):
        place = place_of.get(position + 1)
        if place is None:
            raise InputError(
                f"{shape.name} ({shape.label}) has no pixel of its own: it is empty, or smaller "
                "shapes cover all of it; a panoptic PNG gives each pixel to one segment",
                path=source,
                record=where,
            )
        segments.append(
            Segment(
                id=position + 1,
                category=vocabulary.object_classes.index(shape.label),
                area=int(areas_left[place]),
                box=tuple(float(value) for value in boxes[place]),  # type: ignore[arg-type]  # four
                is_crowd=shape.is_crowd,
            )
        )
    rows: dict[tuple[int, int, int], None] = {}
    for subject, target, name in image.relations:
        if subject == target:
            raise InputError(
                f"{image.shapes[subject].name} has the relation {name!r} with itself",
                path=source,
                record=where,
            )
        row = (subject, target, vocabulary.predicate_index(name))
        report.duplicates += row in rows
        rows[row] = None
    report.segments += len(segments)
    report.relations += len(rows)
    graph = SceneGraph(
        image_id=image.image_id,
        height=image.height,
        width=image.width,
        file_name=image.file_name,
        pan_seg_file_name=mask_file(image.image_id),
        segments=tuple(segments),
        relations=as_triplets(rows),
    )
    return graph, ids


def box_mask(left: float, top: float, right: float, bottom: float, size: tuple[int, int]) -> Mask:
    """A box as a mask: the pixels whose centres lie in it; size = (height, width)."""
    height, width = size
    rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
    inside_rows = (rows >= top) & (rows < bottom)
    inside_columns = (columns >= left) & (columns < right)
    return np.logical_and.outer(inside_rows, inside_columns)


def polygon_mask(points: Sequence[float], size: tuple[int, int]) -> Mask:
    """A polygon x1, y1, x2, y2, ... in pixels as a mask, as COCO's tools draw it."""
    from haystack.io.coco import decode_masks

    return decode_masks([[list(points)]], *size)[0]


class Entry:
    """One object of a JSON file, read strictly.

    Args:
        content: the object.
        path: the file.
        where: the record's place, for errors.
    """

    def __init__(self, content: Any, path: Path, where: str) -> None:
        if not isinstance(content, dict):
            raise InputError(
                f"expected a JSON object, got {str(content)[:60]!r}", path=path, record=where
            )
        self.content: dict[str, Any] = content
        self.path, self.where = path, where

    def fail(self, message: str) -> InputError:
        """The error that says ``message`` of this record."""
        return InputError(message, path=self.path, record=self.where)

    def get(self, name: str, kind: type | tuple[type, ...], what: str) -> Any:
        """A value of the expected kind."""
        value = self.content.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.fail(f"expected {what} under {name!r}, got {str(value)[:60]!r}")
        return value

    def file_name(self, name: str, what: str) -> str:
        """A file's name that stays inside its folder."""
        return file_name_inside(self.get(name, str, what), self.path, self.where)

    def image_size(self, height: str, width: str) -> tuple[int, int]:
        """Height and width of an image that can be written, by the names of the two values."""
        sides = (self.content.get(height), self.content.get(width))
        return image_size(*sides, self.path, self.where)

    def numbers(self, *names: str) -> list[float]:
        """Finite numbers."""
        values = [float(self.get(name, (int, float), "a number")) for name in names]
        if not np.isfinite(values).all():
            raise self.fail(f"expected finite numbers under {', '.join(names)}, got {values}")
        return values

    def entries(self, name: str) -> list[Entry]:
        """The objects of a list."""
        found = self.get(name, list, "a list")
        where = f"{self.where}, " if self.where else ""
        return [Entry(item, self.path, f"{where}{name}[{i}]") for i, item in enumerate(found)]


@dataclass(frozen=True)
class Import:
    """A file that was read: its names, and its images one at a time.

    Args:
        vocabulary: of the data set that it becomes.
        images: decoded as they are taken.
        left_out: see ``ImportReport``.
    """

    vocabulary: Vocabulary
    images: Iterable[AnnotatedImage]
    left_out: int = field(default=0)
