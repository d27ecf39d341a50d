"""SGBench's prediction files: ranked triplets without scores.

Plain JSON where objects are boxes, or a ZIP with the same as ``triplets.json`` and, for each image,
a TIFF with a mask an object:

    {"version": 1, "images": [{"id": "107902",
       "annotation": [{"bbox": [x1, y1, x2, y2], "category": 0}, ...],  as SGBench 1.0.0 reads it
       "categories": [0, ...], "bboxes": [[x1, y1, x2, y2], ...],       as its README, and version 2
       "seg_filename": "0.tiff",                                        in a ZIP
       "triplets": [[subject, object, predicate], ...],                 most confident first
       "ng_triplets": [[subject, object, predicate], ...]}]}            optional

Of equal triplets the first counts, as in SGBench. Nothing is unpacked to the disk.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.io.json_stream import stream_items
from haystack.io.prediction_checks import (
    first_rows,
    integers,
    located,
    predicted_objects,
    refuse_unknown,
)
from haystack.io.psg import image_id_text
from haystack.io.tiff_masks import read_tiff_masks
from haystack.scene_graph import MaskRuns, PredictedObjects, RankedTriplets, Triplets
from haystack.vocabulary import Vocabulary

VERSIONS = (1, 2)

_TRIPLETS = "triplets.json"
_LARGEST_TIFF = 2**30


class SgBench:
    """Predictions of an SGBench file; iterate over it for one ``RankedTriplets`` an image.

    One image is in memory at a time.

    Args:
        path: the JSON or ZIP.
        vocabulary: of the annotations.

    Raises:
        InputError: it is neither; and, when an image is read, the version is unknown, a key is
            missing, an index or a class is out of range, or the TIFF does not fit.
    """

    def __init__(self, path: str | Path, vocabulary: Vocabulary) -> None:
        self.path = Path(path)
        self._vocabulary = vocabulary
        self.has_masks = zipfile.is_zipfile(self.path)
        with self._open() as (_, stream), _readable(self.path):
            if stream.buffer.read(1000).lstrip()[:1] != b"{":
                raise InputError("expected a JSON object or a ZIP of SGBench")

    def __iter__(self) -> Iterator[RankedTriplets]:
        number = 0
        with self._open() as (archive, stream):
            entries = stream_items(stream, "images")
            while True:
                with _readable(self.path, f"images[{number}]"):
                    entry = next(entries, None)
                if entry is None:
                    return
                key, value = entry
                if key == "version" and value not in VERSIONS:
                    raise InputError(
                        f"expected version 1 or 2 of SGBench's format, got {value!r}",
                        path=self.path,
                    )
                if key == "images":
                    yield self._image(value, number, archive)
                    number += 1

    @contextmanager
    def _open(self) -> Iterator[tuple[zipfile.ZipFile | None, TextIO]]:
        """The archive, if it is one, and the text of the triplets."""
        with ExitStack() as stack:
            with _readable(self.path):
                archive, binary = None, stack.enter_context(self.path.open("rb"))
                if self.has_masks:
                    archive = stack.enter_context(zipfile.ZipFile(binary))
                    binary = stack.enter_context(_member(archive, _TRIPLETS))
                text = stack.enter_context(io.TextIOWrapper(binary, encoding="utf-8"))
            yield archive, text

    def _image(self, record: Any, number: int, archive: zipfile.ZipFile | None) -> RankedTriplets:
        where = f"images[{number}]"
        if not isinstance(record, Mapping) or "id" not in record:
            raise InputError("expected an object with an 'id'", path=self.path, record=where)
        image_id = image_id_text(record["id"], self.path, where)
        with located(self.path, f"image {image_id}"):
            objects = self._objects(record, archive)
            ranked = {
                key: self._triplets(record[key], key, len(objects))
                for key in ("triplets", "ng_triplets")
                if record.get(key) is not None
            }
            if "triplets" not in ranked:
                raise InputError("expected rows under 'triplets', got none")
            return RankedTriplets(image_id, objects=objects, **ranked)

    def _objects(
        self, record: Mapping[str, Any], archive: zipfile.ZipFile | None
    ) -> PredictedObjects:
        labels, boxes = _labels_and_boxes(record)
        masks = None
        if archive is not None and len(labels):
            name = record.get("seg_filename")
            if not isinstance(name, str):
                raise InputError(f"expected the name of a TIFF under 'seg_filename', got {name!r}")
            with _readable(self.path, name):
                masks = _read_masks(archive, name, len(labels))
        elif archive is None and boxes is None and len(labels):
            raise InputError("expected boxes under 'bboxes', or a ZIP with masks; got neither")
        return predicted_objects(labels, boxes, masks, self._vocabulary.num_objects)

    def _triplets(self, rows: Any, key: str, num_objects: int) -> Triplets:
        triplets = integers(rows, key, 3)
        refuse_unknown(triplets[:, :2], num_objects, "object")
        refuse_unknown(triplets[:, 2:], self._vocabulary.num_predicates, "predicate")
        return triplets[first_rows(triplets)]


def read_sgbench(path: str | Path, vocabulary: Vocabulary) -> SgBench:
    """Open an SGBench file; see :class:`SgBench`."""
    return SgBench(path, vocabulary)


@contextmanager
def _readable(path: Path, record: str | None = None) -> Iterator[None]:
    """Turn what a damaged file or archive leads to into an ``InputError`` that says where."""
    try:
        yield
    except InputError as error:
        raise InputError(error.message, path=path, record=error.record or record) from error
    except (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"cannot read it: {error}", path=path, record=record) from error


def _member(archive: zipfile.ZipFile, name: str) -> Any:
    try:
        return archive.open(name)
    except KeyError:
        raise InputError(f"the archive has no member {name!r}") from None


def _labels_and_boxes(record: Mapping[str, Any]) -> tuple[npt.NDArray[np.int64], Any]:
    """Object classes, and boxes as the record gives them, if it does."""
    if "categories" in record:
        return integers(record["categories"], "categories"), record.get("bboxes")
    entries = record.get("annotation")
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InputError("expected 'categories', or objects under 'annotation'")
    labels = integers([entry.get("category") for entry in entries], "annotation[].category")
    boxes = [entry["bbox"] for entry in entries if "bbox" in entry]
    return labels, boxes or None


def _read_masks(archive: zipfile.ZipFile, name: str, count: int) -> MaskRuns:
    with _member(archive, name) as member:
        size = archive.getinfo(name).file_size
        if size > _LARGEST_TIFF:
            raise InputError(f"expected a TIFF of at most {_LARGEST_TIFF} bytes, got {size}")
        return read_tiff_masks(member.read(), count)
