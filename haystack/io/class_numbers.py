"""Object classes as files and models number them, and a vocabulary's numbers for these.

COCO counts its 133 panoptic classes in three ways. Files hold **category ids**, 1 to 200 with gaps.
Models count without gaps, things by id and then stuff by id (detectron2's *contiguous ids*), which
is PSG's own order. Everything else, and vocabularies in another order, is matched by **name**.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import TypeVar

from haystack.errors import InputError
from haystack.vocabulary import (
    PSG_COCO_CATEGORY_IDS,
    PSG_STUFF_CLASSES,
    PSG_THING_CLASSES,
    Vocabulary,
)

_Number = TypeVar("_Number", bound=Hashable)

_COCO_NAMES = PSG_THING_CLASSES + PSG_STUFF_CLASSES
_SHORT = {re.sub("-other|-merged", "", name): name for name in PSG_STUFF_CLASSES}
"""Names of stuff in detectron2's metadata of separated things and stuff -> COCO's."""
_NAMELESS = re.compile(r"LABEL_\d+")
_SHOWN = 5  # unknown classes named in an error


def of_category_ids(vocabulary: Vocabulary) -> dict[int, int]:
    """COCO's category id -> class, for all 133.

    Raises:
        InputError: the vocabulary lacks one of them.
    """
    classes = of_contiguous_ids(vocabulary)
    return {number: classes[place] for place, number in enumerate(PSG_COCO_CATEGORY_IDS)}


def of_contiguous_ids(vocabulary: Vocabulary, *, things_only: bool = False) -> dict[int, int]:
    """Number of a COCO class in a model without gaps -> class, for all 133 or the 80 things.

    Raises:
        InputError: the vocabulary lacks one of them.
    """
    names = PSG_THING_CLASSES if things_only else _COCO_NAMES
    return of_names(dict(enumerate(names)), vocabulary)


def of_names(names: Mapping[_Number, str], vocabulary: Vocabulary) -> dict[_Number, int]:
    """A model's number of a class -> the vocabulary's, by names.

    Detectron2's shortened names of stuff (``tree`` for ``tree-merged``) are understood, and so are
    the 133 placeholders ``LABEL_0``, ... of COCO models that come without names.

    Args:
        names: of the model's classes, by its numbers; ``N/A`` stands for none.
        vocabulary: numbers the classes.

    Raises:
        InputError: the vocabulary lacks one of them, or they have no names.
    """
    if names and all(_NAMELESS.fullmatch(name) for name in names.values()):
        if set(names) != set(range(len(_COCO_NAMES))):
            raise InputError(
                f"the model does not name its {len(names)} classes; COCO's order is taken for "
                f"{len(_COCO_NAMES)} nameless ones alone; give its configuration an id2label"
            )
        names = {number: _COCO_NAMES[number] for number in names}  # type: ignore[call-overload]
    numbers = {name: place for place, name in enumerate(vocabulary.object_classes)}
    wanted = {number: name.strip() for number, name in names.items() if name.strip() != "N/A"}
    full = {n: name if name in numbers else _SHORT.get(name, name) for n, name in wanted.items()}
    lacking = [wanted[number] for number, name in full.items() if name not in numbers]
    if lacking:
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise InputError(
            f"the segmenter's classes {', '.join(map(repr, lacking[:_SHOWN]))}{more} are not among "
            "the vocabulary's object classes; take a segmenter that was trained on COCO's panoptic "
            "classes, or a vocabulary that has them"
        )
    return {number: numbers[name] for number, name in full.items()}
