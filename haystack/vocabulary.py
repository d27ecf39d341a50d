"""Names of object classes and predicates, in the order that files and models number them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from haystack.errors import InputError

# fmt: off
PSG_THING_CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat",
    "traffic light", "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog",
    "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella",
    "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard", "sports ball", "kite",
    "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich",
    "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch",
    "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote",
    "keyboard", "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book",
    "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)

PSG_STUFF_CLASSES = (
    "banner", "blanket", "bridge", "cardboard", "counter", "curtain", "door-stuff", "floor-wood",
    "flower", "fruit", "gravel", "house", "light", "mirror-stuff", "net", "pillow", "platform",
    "playingfield", "railroad", "river", "road", "roof", "sand", "sea", "shelf", "snow", "stairs",
    "tent", "towel", "wall-brick", "wall-stone", "wall-tile", "wall-wood", "water-other",
    "window-blind", "window-other", "tree-merged", "fence-merged", "ceiling-merged",
    "sky-other-merged", "cabinet-merged", "table-merged", "floor-other-merged", "pavement-merged",
    "mountain-merged", "grass-merged", "dirt-merged", "paper-merged", "food-other-merged",
    "building-other-merged", "rock-merged", "wall-other-merged", "rug-merged",
)

PSG_PREDICATES = (
    "over", "in front of", "beside", "on", "in", "attached to", "hanging from", "on back of",
    "falling off", "going down", "painted on", "walking on", "running on", "crossing",
    "standing on", "lying on", "sitting on", "flying over", "jumping over", "jumping from",
    "wearing", "holding", "carrying", "looking at", "guiding", "kissing", "eating", "drinking",
    "feeding", "biting", "catching", "picking", "playing with", "chasing", "climbing", "cleaning",
    "playing", "touching", "pushing", "pulling", "opening", "cooking", "talking to", "throwing",
    "slicing", "driving", "riding", "parked on", "driving on", "about to hit", "kicking",
    "swinging", "entering", "exiting", "enclosing", "leaning on",
)

# COCO's category id of each PSG object class (things by id, then stuff by id).
PSG_COCO_CATEGORY_IDS = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 27, 28,
    31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 46, 47, 48, 49, 50, 51, 52, 53, 54,
    55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 67, 70, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81,
    82, 84, 85, 86, 87, 88, 89, 90, 92, 93, 95, 100, 107, 109, 112, 118, 119, 122, 125, 128, 130,
    133, 138, 141, 144, 145, 147, 148, 149, 151, 154, 155, 156, 159, 161, 166, 168, 171, 175, 176,
    177, 178, 180, 181, 184, 185, 186, 187, 188, 189, 190, 191, 192, 193, 194, 195, 196, 197, 198,
    199, 200,
)
# fmt: on

_VOCABULARY_KEYS = ("thing_classes", "stuff_classes", "predicate_classes")


@dataclass(frozen=True)
class Vocabulary:
    """Object classes 0..C-1 (things first, then stuff) and predicates 0..P-1.

    "No relation" is not a predicate: a model's score for it travels beside the P scores.

    Args:
        thing_classes: names of countable classes, in order.
        stuff_classes: names of uncountable classes, numbered after the things.
        predicate_classes: names of predicates, in order.
        annotator_names: predicate -> the wording shown to annotators, where it differs
            (Haystack paper, section 3.1, "predicate renaming"); files keep the original.

    Raises:
        InputError: a name appears twice or is empty, or a renamed predicate does not exist.
    """

    thing_classes: tuple[str, ...]
    stuff_classes: tuple[str, ...]
    predicate_classes: tuple[str, ...]
    annotator_names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, names in (
            ("object class", self.object_classes),
            ("predicate", self.predicate_classes),
        ):
            seen: set[str] = set()
            for name in names:
                if not isinstance(name, str) or not name.strip():
                    raise InputError(f"expected a non-empty {kind} name, got {name!r}")
                if name in seen:
                    raise InputError(f"the {kind} {name!r} is listed twice; give each name once")
                seen.add(name)
        for name in self.annotator_names:
            self.predicate_index(name)
        object.__setattr__(self, "annotator_names", MappingProxyType(dict(self.annotator_names)))

    @property
    def object_classes(self) -> tuple[str, ...]:
        """All object classes: things, then stuff."""
        return self.thing_classes + self.stuff_classes

    @property
    def num_objects(self) -> int:
        """C, the number of object classes."""
        return len(self.thing_classes) + len(self.stuff_classes)

    @property
    def num_predicates(self) -> int:
        """P, the number of predicates."""
        return len(self.predicate_classes)

    def is_thing(self, object_class: int) -> bool:
        """Whether class ``object_class`` is countable."""
        return object_class < len(self.thing_classes)

    def object_index(self, name: str) -> int:
        """Index of an object class by its name; InputError with the nearest names if unknown."""
        return _index(name, self.object_classes, "object class")

    def predicate_index(self, name: str) -> int:
        """Index of a predicate by its name; InputError with the nearest names if unknown."""
        return _index(name, self.predicate_classes, "predicate")

    def annotator_name(self, predicate: int) -> str:
        """The wording that annotators see for predicate number ``predicate``."""
        name = self.predicate_classes[predicate]
        return self.annotator_names.get(name, name)

    def require_same(
        self,
        other: Vocabulary,
        *,
        own: str,
        others: str,
        advice: str,
        path: str | Path | None = None,
    ) -> None:
        """Raise unless another vocabulary numbers the same classes and predicates in the same way.

        Wordings for annotators may differ.

        Args:
            other: the one to compare with.
            own: whose names these are, for the message.
            others: whose the other names are.
            advice: what to do about a difference.
            path: the file of these names.

        Raises:
            InputError: they differ; says where.
        """
        for kind, ours, theirs in (
            ("predicates", self.predicate_classes, other.predicate_classes),
            ("object classes", self.object_classes, other.object_classes),
        ):
            if ours == theirs:
                continue
            message = f"expected the same {kind} in {own} and {others}, got "
            message += f"{len(ours)} and {len(theirs)} of them"
            both = enumerate(zip(ours, theirs, strict=False))
            apart = next((number for number, (one, two) in both if one != two), None)
            if apart is not None:
                message += f", number {apart} is {ours[apart]!r} and {theirs[apart]!r}"
            raise InputError(f"{message}; {advice}", path=path)

    def to_dict(self) -> dict[str, Any]:
        """The keys that PSG files use, plus ``annotator_names`` where there are any."""
        content: dict[str, Any] = {key: list(getattr(self, key)) for key in _VOCABULARY_KEYS}
        if self.annotator_names:
            content["annotator_names"] = dict(self.annotator_names)
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], *, path: str | Path | None = None) -> Vocabulary:
        """Read the three class lists (PSG's key names) and optional ``annotator_names``."""
        missing = [key for key in _VOCABULARY_KEYS if key not in content]
        if missing:
            raise InputError(
                f"expected the keys {', '.join(_VOCABULARY_KEYS)}, missing: {', '.join(missing)}",
                path=path,
            )
        for key in _VOCABULARY_KEYS:
            if isinstance(content[key], str) or not isinstance(content[key], Sequence):
                kind = type(content[key]).__name__
                raise InputError(f"expected a list of names under {key!r}, got {kind}", path=path)
        renamed = content.get("annotator_names") or {}
        if not isinstance(renamed, Mapping):
            raise InputError(
                "expected 'annotator_names' to map predicates to wordings, "
                f"got {type(renamed).__name__}",
                path=path,
            )
        try:
            # Class lists in circulation have stray blanks (' truck'); the names are the same.
            things, stuff, predicates = (
                tuple(name.strip() if isinstance(name, str) else name for name in content[key])
                for key in _VOCABULARY_KEYS
            )
            return cls(things, stuff, predicates, annotator_names=renamed)
        except InputError as error:
            raise InputError(error.message, path=path) from error

    @classmethod
    def from_file(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary from JSON or YAML; a PSG annotation file is one as well."""
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the vocabulary: {error}", path=file) from error
        try:
            if file.suffix.lower() in (".yaml", ".yml"):
                from haystack.config import parse_yaml

                content = parse_yaml(text, path=file)
            else:
                content = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"not valid JSON: {error}", path=file) from error
        if not isinstance(content, Mapping):
            raise InputError(
                f"expected an object with class lists, got {type(content).__name__}", path=file
            )
        return cls.from_dict(content, path=file)


def _index(name: str, names: Sequence[str], kind: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise InputError(f"unknown {kind} {name!r}{hint}") from None


@cache
def psg_vocabulary() -> Vocabulary:
    """PSG's 80 things, 53 stuff classes and 56 predicates (Yang et al., 2022)."""
    return Vocabulary(PSG_THING_CLASSES, PSG_STUFF_CLASSES, PSG_PREDICATES)
