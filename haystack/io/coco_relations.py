"""COCO detection files with relations: ``rel_annotations`` and ``rel_categories``.

``annotations`` are the objects, ``categories`` their classes; an entry of ``rel_annotations`` has
``subject_id`` and ``object_id`` (ids of annotations), ``predicate_id`` (id of a ``rel_categories``
entry) and ``image_id``. SGG-Annotate and SGG-Benchmark write it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from haystack.errors import InputError
from haystack.io.coco import decode_masks
from haystack.io.imported import AnnotatedImage, Entry, Import, Mask, Names, Shape, box_mask
from haystack.vocabulary import Vocabulary


def read_coco_relations(
    content: Any,
    path: Path,
    *,
    vocabulary: Vocabulary | None = None,
    boxes_as_masks: bool = False,
) -> Import:
    """Read a COCO file with relations.

    Args:
        content: the file's JSON.
        path: of the file, for errors.
        vocabulary: whose names the categories must be; None = they are the vocabulary, in the order
            of their ids.
        boxes_as_masks: take an annotation that has no ``segmentation`` for a segment of its box's
            shape.

    Raises:
        InputError: anything that does not fit, with the record.
    """
    whole = Entry(content, path, "")
    objects, predicates = (_names(whole, key) for key in ("categories", "rel_categories"))
    images = _by_id(whole, "images")
    annotations = _by_id(whole, "annotations")
    of_image: dict[int, list[int]] = defaultdict(list)
    for identifier, entry in annotations.items():
        of_image[_known(entry, "image_id", images, "images")].append(identifier)
        _known(entry, "category_id", objects, "categories")
    relations: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for entry in whole.entries("rel_annotations"):
        ends = [
            _known(entry, f"{end}_id", annotations, "annotations") for end in ("subject", "object")
        ]
        image = _known(entry, "image_id", images, "images")
        if any(annotations[end].content["image_id"] != image for end in ends):
            raise entry.fail("its subject, its object and itself are not of one image")
        predicate = predicates[_known(entry, "predicate_id", predicates, "rel_categories")]
        relations[image].append((ends[0], ends[1], predicate))
    used, said = list(objects.values()), list(predicates.values())
    if vocabulary is not None:  # which need not know what nothing in the file uses
        used = sorted({objects[entry.content["category_id"]] for entry in annotations.values()})
        said = sorted({name for rows in relations.values() for _, _, name in rows})
    names = Names(used, said, vocabulary)

    def decoded() -> Iterator[AnnotatedImage]:
        for identifier, entry in images.items():
            if of_image[identifier]:
                own = {key: annotations[key] for key in of_image[identifier]}
                yield _image(identifier, entry, own, objects, relations[identifier], boxes_as_masks)

    left_out = sum(not of_image[identifier] for identifier in images)
    return Import(names.resolve(path), decoded(), left_out)


def _names(whole: Entry, key: str) -> dict[int, str]:
    entries = _by_id(whole, key)
    names = {number: entry.get("name", str, "a name").strip() for number, entry in entries.items()}
    if len(set(names.values())) < len(names):
        raise whole.fail(f"two of the {key} have one name")
    return dict(sorted(names.items()))


def _by_id(whole: Entry, key: str) -> dict[int, Entry]:
    found: dict[int, Entry] = {}
    for entry in whole.entries(key):
        number = entry.get("id", int, "a whole number")
        if found.setdefault(number, entry) is not entry:
            raise entry.fail(f"the id {number} is given twice")
    return found


def _known(entry: Entry, key: str, known: Mapping[int, object], where: str) -> int:
    number: int = entry.get(key, int, "a whole number")
    if number not in known:
        raise entry.fail(f"{key} {number} is not among the {where}")
    return number


def _image(
    identifier: int,
    entry: Entry,
    annotations: Mapping[int, Entry],
    names: Mapping[int, str],
    relations: list[tuple[int, int, str]],
    boxes_as_masks: bool,
) -> AnnotatedImage:
    entry.where = f"image {identifier}"
    height, width = entry.image_size("height", "width")
    position = {key: number for number, key in enumerate(annotations)}
    return AnnotatedImage(
        image_id=str(identifier),
        file_name=entry.file_name("file_name", "the picture's name"),
        height=height,
        width=width,
        shapes=[
            Shape(
                f"annotation {key}",
                names[one.content["category_id"]],
                _mask(one, (height, width), boxes_as_masks),
                bool(one.content.get("iscrowd", 0)),
            )
            for key, one in annotations.items()
        ],
        relations=[(position[first], position[second], name) for first, second, name in relations],
    )


def _mask(entry: Entry, size: tuple[int, int], boxes_as_masks: bool) -> Mask:
    code = entry.content.get("segmentation")
    if code:
        try:
            return decode_masks([code], *size)[0]
        except InputError as error:
            raise entry.fail(error.message) from error
    if not boxes_as_masks:
        raise entry.fail(
            "it has a box and no segmentation, so nothing says which pixels it has; give "
            "--boxes-as-masks to take it for a segment of its box's shape"
        )
    box = entry.get("bbox", list, "a box")
    if len(box) != 4:
        raise entry.fail(f"expected a bbox of four numbers, got {box}")
    named = dict(zip(("x", "y", "width", "height"), box, strict=True))
    x, y, w, h = Entry(named, entry.path, entry.where).numbers(*named)
    return box_mask(x, y, x + w, y + h, size)
