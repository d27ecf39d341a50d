"""PSG and Haystack annotation files, written: see ``psg`` for the format."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from haystack import files
from haystack.errors import InputError
from haystack.io.psg import FAULTY_SEGMENTS, VOCABULARY_KEYS, XYXY, load_json
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment
from haystack.vocabulary import Vocabulary


def mask_file(image_id: str) -> str:
    """Name of a panoptic PNG beside the file; ids that are no file names are escaped."""
    plain = "".join(
        c if c.isascii() and (c.isalnum() or c in "-_.") else f"%{ord(c):x}_" for c in image_id
    )
    return f"panoptic/{plain}.png"


class PsgWriter(AbstractContextManager["PsgWriter"]):
    """Writes a PSG-compatible JSON record by record; the file appears when the block ends well.

    Args:
        path: the JSON file.
        vocabulary: of the records.
        test_image_ids: ids of the test split.
        integer_ids: write image ids as integers, as the Haystack authors' script needs them.
    """

    def __init__(
        self,
        path: str | Path,
        vocabulary: Vocabulary,
        *,
        test_image_ids: tuple[str, ...] = (),
        integer_ids: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._test_image_ids = test_image_ids
        self._integer_ids = integer_ids
        self._atomic = files.atomic_path(path)
        self._count = 0

    def __enter__(self) -> PsgWriter:
        self._stream = self._atomic.__enter__().open("w", encoding="utf-8")
        self._stream.write('{"data": [')
        return self

    def add(self, graph: SceneGraph) -> None:
        """Write one record.

        Raises:
            InputError: integer ids are asked for and this one is none.
        """
        record = _record(graph, self._vocabulary, self._identifier(graph.image_id))
        self._stream.write(", " if self._count else "")
        self._stream.write(_json(record))
        self._count += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                rest = {key: list(getattr(self._vocabulary, key)) for key in VOCABULARY_KEYS}
                ids = [self._identifier(image_id) for image_id in self._test_image_ids]
                self._stream.write("], " + _json({**rest, "test_image_ids": ids})[1:] + "\n")
        except BaseException as failure:
            self._close(type(failure), failure, failure.__traceback__)
            raise
        self._close(kind, error, trace)

    def _close(self, *error: Any) -> None:
        self._stream.close()
        self._atomic.__exit__(*error)

    def _identifier(self, image_id: str) -> str | int:
        if not self._integer_ids:
            return image_id
        try:
            number = int(image_id)
        except ValueError:
            number = -1
        if str(number) != image_id:
            raise InputError(
                "this image id is not a plain integer; write string ids instead", record=image_id
            )
        return number


def write_psg(
    dataset: SceneGraphDataset,
    path: str | Path,
    *,
    integer_ids: bool = False,
    faulty_path: str | Path | None = None,
) -> None:
    """Write a data set as a PSG-compatible JSON with ``neg_relations``, atomically.

    Args:
        dataset: what to write.
        path: the JSON file.
        integer_ids: see ``PsgWriter``.
        faulty_path: where the list of faulty segments goes, if there are any; None = as
            ``faulty_segments.json`` beside ``path``, where ``read_psg`` finds it.

    Raises:
        InputError: ``integer_ids`` is asked for and an id is not an integer.
    """
    writer = PsgWriter(
        path,
        dataset.vocabulary,
        test_image_ids=dataset.test_image_ids,
        integer_ids=integer_ids,
    )
    with writer:
        for graph in dataset.graphs:
            writer.add(graph)
        if dataset.faulty_segments:
            faulty = {key: list(value) for key, value in dataset.faulty_segments.items()}
            if faulty_path is None:
                faulty_path = Path(path).parent / FAULTY_SEGMENTS
                if faulty_path.is_file():  # entries of the folder's other annotation files stay
                    faulty = {**load_json(faulty_path), **faulty}
            files.write_json(faulty_path, faulty, indent=None)


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _record(graph: SceneGraph, vocabulary: Vocabulary, identifier: str | int) -> dict[str, Any]:
    record: dict[str, Any] = {"file_name": graph.file_name}
    if graph.pan_seg_file_name is not None:
        record["pan_seg_file_name"] = graph.pan_seg_file_name
    record.update(height=graph.height, width=graph.width, image_id=identifier, **graph.extra)
    record["segments_info"] = [_segment(segment, vocabulary) for segment in graph.segments]
    record["annotations"] = [
        {"bbox": list(segment.box), "bbox_mode": XYXY, "category_id": segment.category}
        for segment in graph.segments
    ]
    record["relations"] = graph.relations.tolist()
    record["neg_relations"] = graph.neg_relations.tolist()
    return record


def _segment(segment: Segment, vocabulary: Vocabulary) -> dict[str, Any]:
    info: dict[str, Any] = {
        "id": segment.id,
        "category_id": segment.category,
        "iscrowd": int(segment.is_crowd),
        "isthing": int(vocabulary.is_thing(segment.category)),
        "area": segment.area,
    }
    return info if segment.score is None else {**info, "score": segment.score}
