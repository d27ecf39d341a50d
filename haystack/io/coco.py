"""COCO's files of segments: panoptic annotations or predictions, and detection results.

Categories are found by their names where a file lists them (``categories``), else by COCO's own
numbers. ``score`` of a segment or a detection is kept: it is what makes it a prediction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from haystack.errors import InputError
from haystack.io.class_numbers import of_category_ids
from haystack.io.image_entries import file_name_inside, image_size
from haystack.io.psg import image_id_text
from haystack.scene_graph import MaskRuns, SceneGraph, SceneGraphDataset, Segment
from haystack.vocabulary import Vocabulary

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Detection:
    """One detected object.

    Args:
        category: object class, 0..C-1.
        box: x1, y1, x2, y2 in pixels.
        score: confidence, or None.
        mask: COCO's ``segmentation``: run-length code or polygons; None where there is only a box.
    """

    category: int
    box: Box
    score: float | None
    mask: Any = None


@dataclass(frozen=True)
class Detections:
    """Detections of many images.

    Args:
        by_image: image id -> detections, in file order.
        image_ids: file name -> image id, where the file lists its images.
        path: the file, for errors.
    """

    by_image: Mapping[str, Sequence[Detection]]
    image_ids: Mapping[str, str]
    path: Path


def read_coco_panoptic(
    content: Mapping[str, Any], vocabulary: Vocabulary, path: Path
) -> SceneGraphDataset:
    """A COCO panoptic file, annotations or predictions, as scene graphs without relations.

    Boxes and areas that the file leaves out are zero; they follow from the PNGs.

    Args:
        content: the file's JSON: ``images``, ``annotations`` with ``segments_info``, and
            ``categories``.
        vocabulary: numbers the classes.
        path: of the file; its PNGs lie in the folder of the same name, in ``panoptic``, or beside
            it.

    Raises:
        InputError: anything that does not fit the format.
    """
    images = _images(content, path)
    classes = _classes(content, vocabulary, path)
    annotations = content["annotations"]
    folder = _png_folder(annotations, path)
    graphs = []
    for number, annotation in enumerate(annotations):
        where = f"annotations[{number}]"
        if not isinstance(annotation, Mapping):
            raise InputError("expected an object", path=path, record=where)
        image_id = image_id_text(annotation.get("image_id"), path, where)
        if image_id not in images:
            raise InputError(
                "expected every image to be listed under 'images' with its file_name, height and "
                f"width; image {image_id} is not",
                path=path,
                record=where,
            )
        information = annotation.get("segments_info")
        if not isinstance(information, list):
            raise InputError("expected a list under 'segments_info'", path=path, record=where)
        image = images[image_id]
        named = f"image {image_id}"
        height, width = image_size(image.get("height"), image.get("width"), path, named)
        masks = annotation.get("file_name")
        if not isinstance(masks, str):
            raise InputError(
                "expected the name of a panoptic PNG under 'file_name'", path=path, record=where
            )
        graphs.append(
            SceneGraph(
                image_id=image_id,
                height=height,
                width=width,
                file_name=file_name_inside(str(image["file_name"]), path, named),
                pan_seg_file_name=file_name_inside(masks, path, named),
                segments=tuple(
                    _segment(info, classes, path, f"{where}, segment {place}")
                    for place, info in enumerate(information)
                ),
            )
        )
    return SceneGraphDataset(vocabulary=vocabulary, graphs=tuple(graphs), root=folder)


def read_coco_detections(
    content: Mapping[str, Any] | Sequence[Any], vocabulary: Vocabulary, path: Path
) -> Detections:
    """COCO's detection results: a list of boxes, scores and masks, or a file with that list.

    Args:
        content: the file's JSON: a list, or an object with ``annotations``, ``categories`` and
            ``images``.
        vocabulary: numbers the classes.
        path: of the file, for errors.

    Raises:
        InputError: anything that does not fit the format.
    """
    whole: Mapping[str, Any] = content if isinstance(content, Mapping) else {}
    entries = whole["annotations"] if isinstance(content, Mapping) else content
    classes = _classes(whole, vocabulary, path)
    by_image: dict[str, list[Detection]] = defaultdict(list)
    for number, entry in enumerate(entries):
        where = f"detection {number}"
        if not isinstance(entry, Mapping):
            raise InputError("expected an object", path=path, record=where)
        image_id = image_id_text(entry.get("image_id"), path, where)
        box = entry.get("bbox")
        mask = entry.get("segmentation")
        if box is None and mask is not None:
            box = _box_of_mask(mask, path, where)
        by_image[image_id].append(
            Detection(
                category=_category(entry, classes, path, where),
                box=_corners(box, path, where),
                score=_score(entry, path, where),
                mask=mask,
            )
        )
    images = _images(whole, path) if "images" in whole else {}
    names = {str(image["file_name"]): image_id for image_id, image in images.items()}
    return Detections(by_image, names, path)


def decode_masks(masks: Iterable[Any], height: int, width: int) -> MaskRuns:
    """COCO's run-length codes or polygons as masks.

    Raises:
        InputError: not such a code, or of another size.
    """
    from pycocotools import mask as coco

    def dense(code: Any) -> Any:
        try:
            _refuse_unbounded(code, height, width)
            if isinstance(code, Mapping) and isinstance(code.get("counts"), (str, bytes)):
                runs = dict(code)
            else:
                runs = coco.frPyObjects(code, height, width)
            runs = coco.merge(runs) if isinstance(runs, list) else runs
            return coco.decode(runs).astype(np.bool_)
        except InputError:
            raise
        except Exception as error:  # pycocotools raises no other kind
            raise InputError(f"not a run-length code or polygons of COCO's: {error}") from error

    return MaskRuns.from_masks((dense(code) for code in masks), height, width)


def _refuse_unbounded(code: Any, height: int, width: int) -> None:
    """Refuse what would take memory by what a file says, not by the size of the picture."""
    if isinstance(code, Mapping):
        if code["size"] != [height, width]:
            got = " x ".join(str(side)[:20] for side in code["size"])
            raise InputError(f"expected masks of {height} x {width} pixels, got {got}")
    elif any(isinstance(part, (list, Mapping)) for part in code):
        for part in code:
            _refuse_unbounded(part, height, width)
    elif not (np.abs(np.array(code, dtype=np.float64)) <= 2 * max(height, width)).all():
        raise InputError(
            f"expected polygons inside a picture of {width} x {height} pixels, got points far "
            "outside, or no finite numbers"
        )


def _box_of_mask(mask: Any, path: Path, where: str) -> list[float]:
    from pycocotools import mask as coco

    if not isinstance(mask, Mapping) or not isinstance(mask.get("counts"), (str, bytes)):
        raise InputError(
            "expected a bbox, or a compressed run-length code to take it from",
            path=path,
            record=where,
        )
    box: list[float] = coco.toBbox(dict(mask)).tolist()
    return box


def _images(content: Mapping[str, Any], path: Path) -> dict[str, Mapping[str, Any]]:
    images = content.get("images")
    if not isinstance(images, list) or not all(
        isinstance(image, Mapping) and isinstance(image.get("file_name"), str) for image in images
    ):
        raise InputError("expected 'images', a list of objects with file_name", path=path)
    return {
        image_id_text(image.get("id"), path, f"images[{number}]"): image
        for number, image in enumerate(images)
    }


def _classes(content: Mapping[str, Any], vocabulary: Vocabulary, path: Path) -> dict[int, int]:
    """Category id -> object class."""
    if "categories" not in content:
        try:
            return of_category_ids(vocabulary)
        except InputError as error:
            raise InputError(
                "expected 'categories' with ids and names, because the model's classes are not "
                "COCO's; give an object with 'annotations' and 'categories'",
                path=path,
            ) from error
    numbers = {name: place for place, name in enumerate(vocabulary.object_classes)}
    try:
        return {
            category["id"]: numbers[category["name"].strip()]
            for category in content["categories"]
            if category["name"].strip() in numbers
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError("expected 'categories' with ids and names", path=path) from error


def _category(entry: Mapping[str, Any], classes: Mapping[int, int], path: Path, where: str) -> int:
    category = entry.get("category_id")
    if not isinstance(category, int) or category not in classes:
        raise InputError(
            f"the category_id {category!r} has no name among the model's object classes",
            path=path,
            record=where,
        )
    return classes[category]


def _segment(info: Any, classes: Mapping[int, int], path: Path, where: str) -> Segment:
    if not isinstance(info, Mapping):
        raise InputError("expected an object", path=path, record=where)
    box = (0.0, 0.0, 0.0, 0.0) if info.get("bbox") is None else _corners(info["bbox"], path, where)
    return Segment(
        id=_number(info, "id", path, where, int),
        category=_category(info, classes, path, where),
        area=int(info.get("area") or 0),
        box=box,
        is_crowd=bool(info.get("iscrowd", 0)),
        score=_score(info, path, where),
    )


def _corners(box: Any, path: Path, where: str) -> Box:
    good = isinstance(box, (list, tuple)) and len(box) == 4
    if not good or not all(isinstance(x, (int, float)) and np.isfinite(x) for x in box):
        raise InputError(
            f"expected a bbox of four finite numbers (x, y, width, height), got {box!r}",
            path=path,
            record=where,
        )
    x, y, width, height = (float(value) for value in box)
    if width < 0 or height < 0:
        raise InputError(
            f"the bbox {box!r} has a negative side; COCO's boxes are x, y, width, height",
            path=path,
            record=where,
        )
    return x, y, x + width, y + height


def _score(entry: Mapping[str, Any], path: Path, where: str) -> float | None:
    return None if entry.get("score") is None else _number(entry, "score", path, where, float)


def _number(
    entry: Mapping[str, Any], key: str, path: Path, where: str, kind: type[int] | type[float]
) -> Any:
    value = entry.get(key)
    known = (int,) if kind is int else (int, float)
    if not isinstance(value, known) or isinstance(value, bool) or not np.isfinite(value):
        raise InputError(f"expected a number {key!r}, got {value!r}", path=path, record=where)
    return kind(value)


def _png_folder(annotations: Sequence[Any], path: Path) -> Path:
    """Where the PNGs of a panoptic file lie: by the first one."""
    folders = (path.with_suffix(""), path.parent / "panoptic", path.parent)
    first = annotations[0] if annotations else {}
    name = first.get("file_name") if isinstance(first, Mapping) else None
    if not isinstance(name, str):
        raise InputError(
            "expected the name of a panoptic PNG under 'file_name'",
            path=path,
            record="annotations[0]",
        )
    for folder in folders:
        if (folder / name).is_file():
            return folder
    raise InputError(
        f"the panoptic PNG {name!r} is in none of: {', '.join(map(str, folders))}", path=path
    )
