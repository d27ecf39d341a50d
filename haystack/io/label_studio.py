"""Label Studio's JSON export: tasks with regions (brush, polygon, rectangle) and relations.

A region of an image becomes a segment, a relation a row for each of its labels. Coordinates are
percents of the image; the direction of a relation says who is the subject. What has no clean
mapping is refused, see docs/campaign-data.md.

A brush is a run-length code of the picture's red, green, blue and alpha, a list of bytes read as
bits, the highest first (the format of the package ``rle-pack``): 32 bits, the number of values; 5
bits, the width of a value less 1; four times 4 bits, the widths of run lengths less 1; then runs: 1
bit, whether one value repeats; 2 bits, which of the four widths its length has; the length less 1;
and that one value, or as many values as the length says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.io.image_entries import file_name_inside
from haystack.io.imported import (
    AnnotatedImage,
    Entry,
    Import,
    Mask,
    Names,
    Shape,
    box_mask,
    polygon_mask,
)
from haystack.vocabulary import Vocabulary

_CHANNELS = 4  # red, green, blue, alpha
_LABELS = {"brush": "brushlabels", "polygon": "polygonlabels", "rectangle": "rectanglelabels"}
_DIRECTIONS = ("right", "left", "bi")
_OPAQUE = 128


def read_label_studio(
    content: Any,
    path: Path,
    *,
    vocabulary: Vocabulary | None = None,
    boxes_as_masks: bool = False,
    image_field: str = "image",
) -> Import:
    """Read an export of Label Studio.

    Args:
        content: the file's JSON: a list of tasks.
        path: of the file, for errors.
        vocabulary: whose names the labels must be; None = the labels are the vocabulary.
        boxes_as_masks: take rectangles for segments of their shape.
        image_field: where a task's ``data`` names its picture.

    Raises:
        InputError: anything that does not fit, with task and region.
    """
    if not isinstance(content, list):
        raise InputError(
            "expected a list of tasks, as Label Studio's export 'JSON' is (not JSON-MIN)", path=path
        )
    tasks = [Entry(task, path, f"task {number}") for number, task in enumerate(content)]
    for task in tasks:
        task.where = f"task {task.content.get('id', task.where)}"
    results = [(task, _result(task)) for task in tasks]
    images = [(task, result) for task, result in results if result]
    objects: dict[str, None] = {}
    predicates: dict[str, None] = {}
    for _, result in images:
        regions, relations = _sorted_out(result)
        objects |= dict.fromkeys(label for _, label in regions.values())
        predicates |= dict.fromkeys(name for _, _, name in relations)
    names = Names(sorted(objects), sorted(predicates), vocabulary)
    return Import(
        names.resolve(path),
        (_image(task, result, image_field, boxes_as_masks) for task, result in images),
        len(tasks) - len(images),
    )


def _result(task: Entry) -> list[Entry]:
    """Regions and relations of the one annotation that counts; none where nobody finished."""
    done = [
        annotation
        for annotation in task.entries("annotations")
        if not annotation.content.get("was_cancelled")
    ]
    if len(done) > 1:
        done = [annotation for annotation in done if annotation.content.get("ground_truth")]
        if len(done) != 1:
            raise task.fail(
                "several people annotated this task, and not exactly one annotation is marked as "
                "ground truth; mark one, since regions of two people are not the same objects"
            )
    return done[0].entries("result") if done else []


def _sorted_out(
    result: Sequence[Entry],
) -> tuple[dict[str, tuple[Entry, str]], list[tuple[str, str, str]]]:
    """Region id -> region and label; and relations as (subject's id, object's id, name)."""
    regions: dict[str, Entry] = {}
    labels: dict[str, list[Any]] = {}
    relations = []
    for entry in result:
        kind = entry.get("type", str, "the kind of a region")
        if kind == "relation":
            relations += _relation(entry)
            continue
        shape = kind.removesuffix("labels")
        if shape not in (*_LABELS, ""):
            raise entry.fail(
                f"a region of type {kind!r} has no mask; brush, polygon and rectangle are read"
            )
        identifier = entry.get("id", str, "the id of a region")
        value = entry.get("value", dict, "the region's value")
        if shape and regions.setdefault(identifier, entry) is not entry:
            raise entry.fail(f"the region {identifier!r} is given twice")
        if kind.endswith("labels"):
            found = value.get(kind)
            if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
                raise entry.fail(f"expected a list of labels under value.{kind}, got {found!r}")
            labels.setdefault(identifier, []).extend(found)
    for identifier, entry in regions.items():
        if len(labels.get(identifier, ())) != 1:
            raise entry.fail(
                f"expected one label for the region {identifier!r}, got "
                f"{labels.get(identifier, [])}; a segment has one class"
            )
    for first, second, _ in relations:
        for end in (first, second):
            if end not in regions:
                raise result[0].fail(f"a relation names the region {end!r}, which is not here")
    return {key: (entry, labels[key][0]) for key, entry in regions.items()}, relations


def _relation(entry: Entry) -> list[tuple[str, str, str]]:
    ends = (entry.get("from_id", str, "a region's id"), entry.get("to_id", str, "a region's id"))
    direction = entry.content.get("direction", "right")
    if direction not in _DIRECTIONS:
        raise entry.fail(f"expected a direction of {', '.join(_DIRECTIONS)}, got {direction!r}")
    names = entry.content.get("labels")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise entry.fail(
            f"expected a relation with labels, which are its predicates, got {names!r}; name it in "
            "Label Studio, or remove it"
        )
    ways = [] if direction == "left" else [ends]
    ways += [ends[::-1]] if direction in ("left", "bi") else []
    return [(first, second, name) for first, second in ways for name in names]


def _image(
    task: Entry, result: Sequence[Entry], image_field: str, boxes_as_masks: bool
) -> AnnotatedImage:
    regions, relations = _sorted_out(result)
    if not regions:
        raise task.fail("there are no regions, only relations")
    sizes = {_size(entry) for entry, _ in regions.values()}
    if len(sizes) > 1:
        raise task.fail(f"the regions are of images of different sizes: {sorted(sizes)}")
    ((height, width),) = sizes
    position = {key: number for number, key in enumerate(regions)}
    data = Entry(task.get("data", dict, "the task's data"), task.path, task.where)
    return AnnotatedImage(
        image_id=str(task.get("id", (int, str), "the task's id")),
        file_name=file_name_inside(
            _file_name(data.get(image_field, str, "the picture's address")), task.path, task.where
        ),
        height=height,
        width=width,
        shapes=[
            Shape(f"the region {key!r}", label, _mask(entry, (height, width), boxes_as_masks))
            for key, (entry, label) in regions.items()
        ],
        relations=[(position[first], position[second], name) for first, second, name in relations],
    )


def _size(entry: Entry) -> tuple[int, int]:
    size = entry.image_size("original_height", "original_width")
    if entry.content.get("image_rotation"):
        raise entry.fail("the image was rotated in Label Studio; regions of such are not read")
    return size


def _file_name(address: str) -> str:
    """``folder/a.jpg`` of a local file's address, the last part of any other."""
    parts = urlsplit(address)
    local = parse_qs(parts.query).get("d")
    return unquote(local[0]) if local else unquote(parts.path).rpartition("/")[2]


def _mask(entry: Entry, size: tuple[int, int], boxes_as_masks: bool) -> Mask:
    kind = entry.content["type"].removesuffix("labels")
    value = Entry(entry.content["value"], entry.path, entry.where)
    height, width = size
    if kind == "brush":
        if value.content.get("format") != "rle":
            raise value.fail(
                f"expected a brush of format 'rle', got {value.content.get('format')!r}"
            )
        try:
            code = value.get("rle", list, "a run-length code")
            pixels = decode_brush(code, height * width * _CHANNELS)
        except InputError as error:
            raise value.fail(error.message) from error
        alpha: Mask = pixels.reshape(height, width, _CHANNELS)[:, :, -1] >= _OPAQUE
        return alpha
    if kind == "polygon":
        points = value.get("points", list, "points")
        good = len(points) >= 3 and all(
            isinstance(p, list)
            and len(p) == 2
            and all(isinstance(x, (int, float)) and np.isfinite(x) for x in p)
            for p in points
        )
        if not good:
            raise value.fail("expected three or more points, each of two numbers, under 'points'")
        return polygon_mask(
            [c for x, y in points for c in (x * width / 100, y * height / 100)], size
        )
    if not boxes_as_masks:
        raise value.fail(
            "a rectangle says where an object is, not which pixels it has; give --boxes-as-masks "
            "to take it for a segment of its shape"
        )
    if value.content.get("rotation"):
        raise value.fail("a rotated rectangle is not read; draw it as a polygon")
    x, y, w, h = value.numbers("x", "y", "width", "height")
    return box_mask(
        x * width / 100, y * height / 100, (x + w) * width / 100, (y + h) * height / 100, size
    )


def decode_brush(code: Sequence[int], size: int) -> npt.NDArray[np.uint8]:
    """The values of a brush's run-length code, uint8 [size].

    Args:
        code: bytes.
        size: expected number of values: height x width x 4.

    Raises:
        InputError: no bytes, another number of values, values wider than a byte, or a code that
            breaks off or goes on.
    """
    if not all(isinstance(byte, int) and 0 <= byte < 256 for byte in code):
        raise InputError("expected a run-length code of numbers 0..255")
    bits = np.unpackbits(np.array(code, dtype=np.uint8))
    place = 0

    def take(count: int) -> int:
        nonlocal place
        if place + count > len(bits):
            raise InputError("the run-length code breaks off")
        number = int("".join(map(str, bits[place : place + count])), 2)
        place += count
        return number

    total = take(32)
    width = take(5) + 1
    if width > 8:
        raise InputError(f"expected values of at most 8 bits, got {width}")
    lengths = [take(4) + 1 for _ in range(4)]
    if total != size:  # do not reserve what a broken code asks for
        raise InputError(
            f"expected a brush of {size} values, four for each pixel of the picture, got {total} "
            "values"
        )
    values = np.empty(total, dtype=np.uint8)
    weights = 1 << np.arange(width - 1, -1, -1)
    filled = 0
    while filled < total:
        repeats = take(1)
        count = take(lengths[take(2)]) + 1
        if filled + count > total:
            raise InputError("the run-length code goes on after its last value")
        if repeats:
            values[filled : filled + count] = take(width)
        else:
            if place + count * width > len(bits):
                raise InputError("the run-length code breaks off")
            words = bits[place : place + count * width].reshape(count, width)
            values[filled : filled + count] = words @ weights
            place += count * width
        filled += count
    return values
