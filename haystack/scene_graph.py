"""The data that flows through Haystack: ground truth and predictions, without any model or file.

NumPy only, so that the annotation service and the readers need no PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.files import canonical_json, sha256_text
from haystack.vocabulary import Vocabulary

NO_RELATION = -1
"""Predicate of a row in ``neg_relations`` that says: no predicate at all holds for this pair."""

Triplets = npt.NDArray[np.int64]
Split = Literal["train", "test", "all"]


def as_triplets(rows: Iterable[Sequence[int]]) -> Triplets:
    """Rows (subject, object, predicate) as an int64 array [T, 3], also when there are none."""
    return np.asarray(list(rows), dtype=np.int64).reshape(-1, 3)


def empty_triplets() -> Triplets:
    """No rows: int64 [0, 3]."""
    return np.empty((0, 3), dtype=np.int64)


@dataclass(frozen=True)
class Segment:
    """One object of an image: a thing instance or a stuff region.

    Args:
        id: its id in the panoptic PNG (R + 256 G + 65536 B), positive, unique in its image.
        category: object class, 0..C-1.
        area: number of pixels.
        box: x1, y1, x2, y2 in pixels; right and bottom exclusive (COCO's x, y, x + w, y + h).
        is_crowd: COCO's crowd flag.
    """

    id: int
    category: int
    area: int
    box: tuple[float, float, float, float]
    is_crowd: bool = False


def segments_identity(segments: Iterable[Segment]) -> str:
    """Sixteen hexadecimal digits for the ids and classes of an image's segments, in order.

    Positions mean the same two segments only while this stays the same.
    """
    return sha256_text(canonical_json([[s.id, s.category] for s in segments]))[:16]


@dataclass(frozen=True)
class SceneGraph:
    """Ground truth of one image: its segments, its relations, and its explicit negatives.

    Args:
        image_id: always a string here; files may hold an integer.
        height, width: of the image, in pixels.
        file_name, pan_seg_file_name: as the file names them; the second may be None.
        segments: in file order; relations refer to positions in this tuple.
        relations: int64 [T, 3], rows (subject, object, predicate) that hold.
        neg_relations: int64 [N, 3], rows that explicitly do not hold; predicate -1 = none at all.
        extra: keys of the record that Haystack does not interpret, kept for writing.
    """

    image_id: str
    height: int
    width: int
    file_name: str
    pan_seg_file_name: str | None = None
    segments: tuple[Segment, ...] = ()
    relations: Triplets = field(default_factory=empty_triplets)
    neg_relations: Triplets = field(default_factory=empty_triplets)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Object classes of the segments, int64 [N]."""
        return np.array([segment.category for segment in self.segments], dtype=np.int64)

    @property
    def boxes(self) -> npt.NDArray[np.float32]:
        """Boxes x1, y1, x2, y2 of the segments, float32 [N, 4]."""
        return np.array([segment.box for segment in self.segments], np.float32).reshape(-1, 4)

    @property
    def segment_ids(self) -> npt.NDArray[np.int64]:
        """Ids of the segments in the panoptic PNG, int64 [N]."""
        return np.array([segment.id for segment in self.segments], dtype=np.int64)


@dataclass(frozen=True)
class RelationScores:
    """Predicate scores of one image's ordered pairs.

    Args:
        image_id: the image.
        pairs: int64 [R, 2], rows (subject, object): positions among the image's segments.
        scores: float32 [R, P], comparable across pairs; higher means more likely.
        no_relation: float32 [R], the score that no predicate holds, or None.
    """

    image_id: str
    pairs: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    no_relation: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class SceneGraphDataset:
    """Scene graphs that share one vocabulary.

    Args:
        vocabulary: names of classes and predicates.
        graphs: in file order, image ids unique.
        test_image_ids: ids of the test split, as strings; some may have no record here.
        root: folder against which file names resolve, or None.
        faulty_segments: image id -> positions of segments whose mask or class is known wrong.
    """

    vocabulary: Vocabulary
    graphs: tuple[SceneGraph, ...]
    test_image_ids: tuple[str, ...] = ()
    root: Path | None = None
    faulty_segments: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.graphs)

    def by_id(self) -> dict[str, SceneGraph]:
        """Image id -> scene graph."""
        return {graph.image_id: graph for graph in self.graphs}

    def split(self, name: Split) -> tuple[SceneGraph, ...]:
        """Graphs of a split: ``test`` = listed in ``test_image_ids``, ``train`` = the others.

        Raises:
            InputError: the split's name is unknown.
        """
        if name == "all":
            return self.graphs
        if name not in ("train", "test"):
            raise InputError(f"expected the split 'train', 'test' or 'all', got {name!r}")
        test = set(self.test_image_ids)
        return tuple(graph for graph in self.graphs if (graph.image_id in test) == (name == "test"))

    def path_of(self, file_name: str) -> Path:
        """A record's file name against ``root`` (absolute names stay as they are)."""
        return Path(file_name) if self.root is None else self.root / file_name
