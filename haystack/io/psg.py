"""PSG and Haystack annotation files, read; ``psg_writer`` writes them.

Both are one JSON object: ``data`` (records), ``thing_classes``, ``stuff_classes``,
``predicate_classes``, ``test_image_ids``. Haystack adds ``neg_relations`` to a record. What the
format leaves open is decided here, once:

- Image ids are strings in PSG and integers in Haystack; here always strings.
- ``relations`` and ``neg_relations`` may be absent or empty; such records are kept.
- Predicate -1 means "no relation at all for this ordered pair"; in whichever list a file holds
  it, it is read into ``neg_relations``.
- Duplicate rows, self relations and several predicates for a pair are kept as they are
  (``haystack stats`` counts them).
- A triple labelled both ways is an error: no reading of it would be safe.
- A file ``faulty_segments.json`` beside the annotations (image id -> positions of segments whose
  mask or class is wrong) is read with them and written with them.
- ``score`` of an entry of ``segments_info`` is the confidence of the model that found the segment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from haystack.errors import InputError
from haystack.io.datasets import find_annotations
from haystack.io.panoptic_png import MAX_SEGMENT_ID
from haystack.scene_graph import (
    NO_RELATION,
    SceneGraph,
    SceneGraphDataset,
    Segment,
    Triplets,
    as_triplets,
)
from haystack.vocabulary import Vocabulary

FAULTY_SEGMENTS = "faulty_segments.json"

VOCABULARY_KEYS = ("thing_classes", "stuff_classes", "predicate_classes")
_OWN_KEYS = frozenset(
    (
        "image_id",
        "height",
        "width",
        "file_name",
        "pan_seg_file_name",
        "segments_info",
        "annotations",
        "relations",
        "neg_relations",
    )
)
_MOST_PIXELS = 2**40  # beyond any image; keeps what is read inside int64 and float64
XYXY, XYWH = 0, 1  # detectron2's BoxMode numbers, which PSG files use


def read_psg(
    annotations: str | Path,
    *,
    vocabulary: Vocabulary | None = None,
    allow_contradictions: bool = False,
) -> SceneGraphDataset:
    """Read a PSG or Haystack annotation file, or a bundled data set by name (``psg-mini``).

    Args:
        annotations: path of the JSON file, or a bundled name.
        vocabulary: expected class lists; used where the file has none, else compared with it.
        allow_contradictions: keep triples that are labelled both ways instead of refusing them
            (the protocol ``haystack-v1`` counts them as two samples).

    Returns:
        The data set; file names resolve against the folder of the annotation file.

    Raises:
        InputError: anything that does not fit the format, with file, image and what to do.
    """
    path = find_annotations(annotations)
    return parse_psg(
        load_json(path), path, vocabulary=vocabulary, allow_contradictions=allow_contradictions
    )


def parse_psg(
    content: Any,
    path: Path,
    *,
    vocabulary: Vocabulary | None = None,
    allow_contradictions: bool = False,
) -> SceneGraphDataset:
    """A PSG or Haystack annotation file whose JSON was loaded already; see ``read_psg``.

    Args:
        content: of the file.
        path: of the file; file names resolve against its folder.
        vocabulary: see ``read_psg``.
        allow_contradictions: see ``read_psg``.

    Raises:
        InputError: see ``read_psg``.
    """
    if not isinstance(content, Mapping) or not isinstance(content.get("data"), list):
        raise InputError("expected a JSON object with a list under 'data'", path=path)
    vocabulary = _vocabulary(content, vocabulary, path)

    graphs: list[SceneGraph] = []
    positions: dict[str, int] = {}
    for position, record in enumerate(content["data"]):
        graph = _read_record(record, position, vocabulary, path, allow_contradictions)
        if graph.image_id in positions:
            raise InputError(
                f"the image id {graph.image_id} is given twice, by records "
                f"{positions[graph.image_id]} and {position}; keep one",
                path=path,
            )
        positions[graph.image_id] = position
        graphs.append(graph)

    test_ids = content.get("test_image_ids") or []
    if not isinstance(test_ids, list):
        raise InputError("expected a list under 'test_image_ids'", path=path)
    return SceneGraphDataset(
        vocabulary=vocabulary,
        graphs=tuple(graphs),
        test_image_ids=tuple(
            image_id_text(identifier, path, f"test_image_ids[{i}]")
            for i, identifier in enumerate(test_ids)
        ),
        root=path.parent,
        faulty_segments=_read_faulty_segments(path.parent / FAULTY_SEGMENTS, graphs),
    )


def image_id_text(identifier: object, path: str | Path | None, where: str) -> str:
    """An image id as text: strings as they are, integers in decimal; nothing else is one.

    Raises:
        InputError: neither a non-empty string nor an integer.
    """
    if isinstance(identifier, str) and identifier.strip():
        return identifier.strip()
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        return str(identifier)
    raise InputError(
        f"expected an image id as text or integer, got {identifier!r}", path=path, record=where
    )


def load_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        InputError: it cannot be read, is empty, is no JSON, or is nested too deeply.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read it: {error}", path=path) from error
    if not text.strip():
        raise InputError("the file is empty", path=path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"not valid JSON: {error}", path=path) from error
    except RecursionError as error:
        raise InputError(
            "not an annotation file: its JSON is nested too deeply", path=path
        ) from error


def _vocabulary(content: Mapping[str, Any], expected: Vocabulary | None, path: Path) -> Vocabulary:
    if expected is not None and not any(key in content for key in VOCABULARY_KEYS):
        return expected
    found = Vocabulary.from_dict(content, path=path)
    if expected is not None:
        for key in VOCABULARY_KEYS:
            if getattr(found, key) != getattr(expected, key):
                raise InputError(
                    f"its {key} differ from the expected vocabulary; indices would be mixed up",
                    path=path,
                )
        return expected
    return found


def _read_record(
    record: object, position: int, vocabulary: Vocabulary, path: Path, allow_contradictions: bool
) -> SceneGraph:
    if not isinstance(record, Mapping):
        raise InputError(
            f"expected an object, got {type(record).__name__}",
            path=path,
            record=f"data[{position}]",
        )
    image_id = image_id_text(record.get("image_id"), path, f"data[{position}]")
    where = f"image {image_id}"
    height, width = (_size(record, key, path, where) for key in ("height", "width"))
    file_name = record.get("file_name")
    if not isinstance(file_name, str) or not file_name:
        raise InputError(f"expected a file_name, got {file_name!r}", path=path, record=where)
    masks = record.get("pan_seg_file_name")
    if masks is not None and (not isinstance(masks, str) or not masks):
        raise InputError(
            f"expected pan_seg_file_name to be text, got {masks!r}", path=path, record=where
        )
    segments = _segments(record, vocabulary, path, where)
    relations = _rows(record, "relations", len(segments), vocabulary, path, where)
    negatives = _rows(record, "neg_relations", len(segments), vocabulary, path, where)
    placeholder = relations[:, 2] == NO_RELATION
    negatives = np.concatenate([negatives, relations[placeholder]])
    relations = relations[~placeholder]
    if not allow_contradictions:
        _refuse_contradictions(relations, negatives, vocabulary, path, where)
    return SceneGraph(
        image_id=image_id,
        height=height,
        width=width,
        file_name=file_name,
        pan_seg_file_name=masks,
        segments=segments,
        relations=relations,
        neg_relations=negatives,
        extra={key: value for key, value in record.items() if key not in _OWN_KEYS},
    )


def _size(record: Mapping[str, Any], key: str, path: Path, where: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(
            f"expected a positive integer {key}, got {value!r}", path=path, record=where
        )
    return value


def _segments(
    record: Mapping[str, Any], vocabulary: Vocabulary, path: Path, where: str
) -> tuple[Segment, ...]:
    annotations = record.get("annotations")
    if not isinstance(annotations, list):
        raise InputError(
            "expected a list of boxes and classes under 'annotations'", path=path, record=where
        )
    # Some Haystack-style files carry boxes only; then segments are numbered from 1.
    information = record.get("segments_info")
    if information is None:
        information = [
            {**entry, "id": number + 1} if isinstance(entry, Mapping) else entry
            for number, entry in enumerate(annotations)
        ]
    if not isinstance(information, list) or len(information) != len(annotations):
        raise InputError(
            "'segments_info' and 'annotations' must be lists of the same length, got "
            f"{len(information) if isinstance(information, list) else type(information).__name__}"
            f" and {len(annotations)}",
            path=path,
            record=where,
        )
    segments = []
    seen: dict[int, int] = {}
    for number, (info, entry) in enumerate(zip(information, annotations, strict=True)):
        place = f"{where}, segment {number}"
        if not isinstance(info, Mapping) or not isinstance(entry, Mapping):
            raise InputError("expected an object for each segment", path=path, record=place)
        segment = _segment(info, entry, vocabulary, path, place)
        if segment.id in seen:
            raise InputError(
                f"the segment id {segment.id} is used by segments {seen[segment.id]} and {number}; "
                "ids must be unique in an image",
                path=path,
                record=where,
            )
        seen[segment.id] = number
        segments.append(segment)
    return tuple(segments)


def _segment(
    info: Mapping[str, Any],
    entry: Mapping[str, Any],
    vocabulary: Vocabulary,
    path: Path,
    place: str,
) -> Segment:
    category = entry.get("category_id")
    if info.get("category_id") != category:
        raise InputError(
            f"'segments_info' says category {info.get('category_id')!r} and 'annotations' says "
            f"{category!r}; the two lists must describe the same segments in the same order",
            path=path,
            record=place,
        )
    if not _is_index(category, vocabulary.num_objects):
        raise InputError(
            f"unknown category_id {category!r}; the vocabulary has classes "
            f"0..{vocabulary.num_objects - 1}",
            path=path,
            record=place,
        )
    if "isthing" in info and bool(info["isthing"]) != vocabulary.is_thing(category):
        kind = "thing" if vocabulary.is_thing(category) else "stuff"
        raise InputError(
            f"'isthing' is {info['isthing']!r} but category {category} "
            f"({vocabulary.object_classes[category]}) is a {kind} class; check the class order",
            path=path,
            record=place,
        )
    identifier = info.get("id")
    if not _is_number(identifier, 1, MAX_SEGMENT_ID):
        raise InputError(
            f"expected a segment id of 1..{MAX_SEGMENT_ID} (what a panoptic PNG can hold), "
            f"got {identifier!r}",
            path=path,
            record=place,
        )
    box = _box(entry, path, place)
    area = info.get("area", round((box[2] - box[0]) * (box[3] - box[1])))
    if not isinstance(area, (int, float)) or not 0 <= area < _MOST_PIXELS:
        raise InputError(f"expected an area in pixels, got {area!r}", path=path, record=place)
    crowd = info.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise InputError(f"expected iscrowd to be 0 or 1, got {crowd!r}", path=path, record=place)
    score = info.get("score")
    if score is not None and not (isinstance(score, (int, float)) and abs(score) < _MOST_PIXELS):
        raise InputError(f"expected a score as a number, got {score!r}", path=path, record=place)
    return Segment(
        identifier,
        category,
        round(area),
        box,
        bool(crowd),
        None if score is None else float(score),
    )


def _box(entry: Mapping[str, Any], path: Path, place: str) -> tuple[float, float, float, float]:
    box, mode = entry.get("bbox"), entry.get("bbox_mode", XYXY)
    if (
        not isinstance(box, list)
        or len(box) != 4
        or not all(isinstance(x, (int, float)) and abs(x) < _MOST_PIXELS for x in box)
    ):
        raise InputError(
            f"expected a bbox of four finite numbers, got {box!r}", path=path, record=place
        )
    x1, y1, x2, y2 = (float(x) for x in box)
    if mode == XYWH:
        x2, y2 = x1 + x2, y1 + y2
    elif mode != XYXY:
        raise InputError(
            f"expected bbox_mode {XYXY} (x1, y1, x2, y2) or {XYWH} (x, y, width, height), "
            f"got {mode!r}",
            path=path,
            record=place,
        )
    if x2 < x1 or y2 < y1:
        raise InputError(
            f"the bbox {box!r} ends before it begins; is it in another bbox_mode?",
            path=path,
            record=place,
        )
    return x1, y1, x2, y2


def _rows(
    record: Mapping[str, Any],
    key: str,
    num_segments: int,
    vocabulary: Vocabulary,
    path: Path,
    where: str,
) -> Triplets:
    rows = record.get(key)
    if rows is None:
        return as_triplets(())
    good = isinstance(rows, list) and all(
        isinstance(row, list)
        and len(row) == 3
        and all(_is_number(x, -_MOST_PIXELS, _MOST_PIXELS) for x in row)
        for row in rows
    )
    if not good:
        raise InputError(
            f"expected '{key}' to be a list of integer rows [subject, object, predicate]",
            path=path,
            record=where,
        )
    table = as_triplets(rows)
    for columns, low, high, what in (
        (table[:, :2], 0, num_segments, "segment"),
        (table[:, 2:], NO_RELATION, vocabulary.num_predicates, "predicate"),
    ):
        wrong = ((columns < low) | (columns >= high)).any(axis=1)
        if wrong.any():
            number = int(wrong.argmax())
            raise InputError(
                f"{key}[{number}] = {table[number].tolist()} has a {what} index out of range; "
                f"the allowed {what} indices are {low}..{high - 1}",
                path=path,
                record=where,
            )
    return table


def _refuse_contradictions(
    relations: Triplets, negatives: Triplets, vocabulary: Vocabulary, path: Path, where: str
) -> None:
    if not len(relations) or not len(negatives):
        return
    denied = {tuple(row) for row in negatives.tolist()}
    for subject, target, predicate in relations.tolist():
        for refusal in (predicate, NO_RELATION):
            if (subject, target, refusal) in denied:
                name = vocabulary.predicate_classes[predicate]
                other = "a negative" if refusal == predicate else "'no relation'"
                raise InputError(
                    f"segment {subject} '{name}' segment {target} is labelled as a relation and "
                    f"as {other}; remove one of the two",
                    path=path,
                    record=where,
                )


def _is_number(value: object, low: int, high: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_index(value: object, size: int) -> TypeGuard[int]:
    return _is_number(value, 0, size - 1)


def _read_faulty_segments(path: Path, graphs: Iterable[SceneGraph]) -> dict[str, tuple[int, ...]]:
    if not path.is_file():
        return {}
    content = load_json(path)
    if not isinstance(content, Mapping):
        raise InputError("expected an object: image id -> list of segment positions", path=path)
    sizes = {graph.image_id: len(graph.segments) for graph in graphs}
    faulty = {}
    for image_id, positions in content.items():
        size = sizes.get(image_id)
        if size is None:
            continue  # one list may serve several annotation files of a folder
        if not isinstance(positions, list) or not all(_is_index(p, size) for p in positions):
            raise InputError(
                f"expected segment positions 0..{size - 1}, got {positions!r}",
                path=path,
                record=f"image {image_id}",
            )
        faulty[image_id] = tuple(positions)
    return faulty
