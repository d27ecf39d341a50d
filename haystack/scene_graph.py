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

NO_OBJECT = -1
"""Value of a pixel that belongs to no mask, in the id map of a :class:`MaskRuns`."""

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


@dataclass(frozen=True, slots=True)
class Segment:
    """One object of an image: a thing instance or a stuff region.

    Args:
        id: its id in the panoptic PNG (R + 256 G + 65536 B), positive, unique in its image.
        category: object class, 0..C-1.
        area: number of pixels.
        box: x1, y1, x2, y2 in pixels; right and bottom exclusive (COCO's x, y, x + w, y + h).
        is_crowd: COCO's crowd flag.
        score: confidence of the model that found it; None where people drew it.
    """

    id: int
    category: int
    area: int
    box: tuple[float, float, float, float]
    is_crowd: bool = False
    score: float | None = None


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


def mask_edges(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Where the runs of a mask begin and where they end, in turn, ascending: int64 [2 M].

    Args:
        pixels: [P]; those that are not 0 belong to the mask.
    """
    if not len(pixels):
        return np.empty(0, dtype=np.int64)
    # Few values differ from the one before; only those are looked at again.
    changes = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    crossing = (pixels[changes] == 0) != (pixels[changes - 1] == 0)
    first = [0] if pixels[0] else []
    last = [len(pixels)] if pixels[-1] else []
    return np.concatenate([first, changes[crossing], last]).astype(np.int64)


@dataclass(frozen=True)
class MaskRuns:
    """Binary masks of one image, overlapping or not, as runs of pixels: exact and small.

    Pixels are numbered row by row, 0..height * width - 1. The runs of a mask ascend and leave a
    gap between each other; a run may go on from one row into the next. A mask may be empty.

    Args:
        height, width: of the image, in pixels.
        bounds: int64 [M, 2], first pixel of a run and the pixel after its last.
        offsets: int64 [N + 1], the runs of mask i are ``bounds[offsets[i] : offsets[i + 1]]``.
    """

    height: int
    width: int
    bounds: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def from_masks(
        cls, masks: Iterable[npt.NDArray[np.bool_]], height: int, width: int
    ) -> MaskRuns:
        """From masks bool [height, width], taken one at a time (or an array [N, height, width]).

        Raises:
            InputError: a mask has another size.
        """
        edges = []
        for number, mask in enumerate(masks):
            if mask.shape != (height, width):
                raise InputError(
                    f"expected masks of {height} x {width} pixels, got "
                    f"{' x '.join(str(size) for size in mask.shape)} for mask {number}"
                )
            edges.append(mask_edges(mask.ravel().view(np.uint8)))
        return cls.from_edges(edges, height, width)

    @classmethod
    def from_edges(
        cls, edges: Iterable[npt.NDArray[np.int64]], height: int, width: int
    ) -> MaskRuns:
        """From where the runs of each mask begin and end, as :func:`mask_edges` gives it."""
        bounds, offsets = [np.empty((0, 2), dtype=np.int64)], [0]
        for own in edges:
            bounds.append(own.reshape(-1, 2))
            offsets.append(offsets[-1] + len(own) // 2)
        return cls(height, width, np.concatenate(bounds), np.array(offsets, dtype=np.int64))

    @classmethod
    def from_id_map(cls, id_map: npt.NDArray[np.integer], count: int) -> MaskRuns:
        """From a map [height, width] that holds the number of the mask each pixel belongs to.

        Args:
            id_map: numbers 0..count - 1, and ``NO_OBJECT`` for pixels of no mask.
            count: N, the number of masks; those without a pixel are empty.

        Raises:
            InputError: the map has another shape or another number.
        """
        if id_map.ndim != 2:
            raise InputError(f"expected an id map [H, W], got {list(id_map.shape)}")
        flat = id_map.ravel()
        edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
        begins = np.append(0, edges)[: len(flat)]
        ends = np.append(edges, len(flat))[: len(flat)]
        owners = flat[begins].astype(np.int64)
        wrong = (owners < NO_OBJECT) | (owners >= count)
        if wrong.any():
            raise InputError(
                f"expected an id map of numbers 0..{count - 1}, or {NO_OBJECT} for none, got "
                f"{int(owners[wrong.argmax()])}"
            )
        order = np.argsort(owners, kind="stable")
        order = order[np.searchsorted(owners[order], 0) :]
        counts = np.bincount(owners[order], minlength=count)
        height, width = id_map.shape
        return cls(
            height,
            width,
            np.stack([begins[order], ends[order]], axis=1).astype(np.int64),
            np.append(0, np.cumsum(counts)).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.bool_]:
        """Mask number ``index``, bool [height, width]."""
        position = range(len(self))[index]
        steps = np.zeros(self.height * self.width + 1, dtype=np.int8)
        runs = self.bounds[self.offsets[position] : self.offsets[position + 1]]
        steps[runs[:, 0]] = 1
        steps[runs[:, 1]] = -1
        inside = np.cumsum(steps[:-1], dtype=np.int8)
        return inside.astype(np.bool_).reshape(self.height, self.width)

    def dense(self) -> npt.NDArray[np.bool_]:
        """All masks, bool [N, height, width]."""
        masks = np.empty((len(self), self.height, self.width), dtype=np.bool_)
        for number in range(len(self)):
            masks[number] = self[number]
        return masks

    def id_map(self) -> npt.NDArray[np.int32] | None:
        """The map that :meth:`from_id_map` reads, int32 [height, width]; None if masks overlap."""
        order = np.argsort(self.bounds[:, 0], kind="stable")
        begins, ends = self.bounds[order].T
        if (begins[1:] < ends[:-1]).any():
            return None
        # Runs and the gaps around them, in turn.
        edges = np.concatenate([[0], self.bounds[order].ravel(), [self.height * self.width]])
        values = np.full(len(edges) - 1, NO_OBJECT, dtype=np.int32)
        values[1::2] = np.repeat(np.arange(len(self)), np.diff(self.offsets))[order]
        flat = np.repeat(values, np.diff(edges))
        return flat.reshape(self.height, self.width)

    @property
    def areas(self) -> npt.NDArray[np.int64]:
        """Pixels of each mask, int64 [N]."""
        lengths = np.append(0, np.cumsum(self.bounds[:, 1] - self.bounds[:, 0]))
        return np.diff(lengths[self.offsets])


@dataclass(frozen=True)
class PredictedObjects:
    """Objects that a model found in one image; pairs and triplets refer to their positions.

    Args:
        labels: int64 [N], object classes 0..C-1.
        scores: float32 [N], confidence, or None.
        boxes: float32 [N, 4], x1, y1, x2, y2 in pixels as the model gave them, or None.
        masks: N masks, or None.
    """

    labels: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32] | None = None
    boxes: npt.NDArray[np.float32] | None = None
    masks: MaskRuns | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class RelationScores:
    """Predicate scores of one image's ordered pairs.

    Args:
        image_id: the image.
        pairs: int64 [R, 2], rows (subject, object): positions among ``objects``, and where there
            are none (PredCls) among the image's segments. Row order is the file's; where a model
            ranks its pairs, it is the rank.
        scores: float32 [R, P], comparable across pairs; higher means more likely.
        no_relation: float32 [R], the score that no predicate holds, or None.
        objects: what the model found (SGDet), or None.
        pair_ranking: float32 [R], by which the model orders its pairs, highest first, apart from
            the scores of their predicates (fair-psgg's ``rel_rank``); or None.
    """

    image_id: str
    pairs: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    no_relation: npt.NDArray[np.float32] | None = None
    objects: PredictedObjects | None = None
    pair_ranking: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class RankedTriplets:
    """Triplets of one image in the model's order, without scores, as SGBench stores them.

    Order is all there is: recalls can be computed, P-AUC, PDD and PDO cannot.

    Args:
        image_id: the image.
        triplets: int64 [K, 3], distinct rows (subject, object, predicate), the most confident
            first. The format does not enforce the graph constraint: a pair may come again with
            another predicate.
        objects: what subjects and objects refer to.
        ng_triplets: int64 [L, 3], the same for the ranking without graph constraint, or None.
    """

    image_id: str
    triplets: Triplets
    objects: PredictedObjects
    ng_triplets: Triplets | None = None


def best_triplets(
    scores: RelationScores, count: int, *, min_score: float = 0.0
) -> tuple[Triplets, npt.NDArray[np.float32]]:
    """The most certain triplets of an image, each ordered pair with its best predicate.

    Where the objects have scores, a triplet's score is the product of its three parts, as in SGDet.

    Args:
        scores: probabilities.
        count: how many triplets at most.
        min_score: leave out those below.

    Returns:
        int64 [K, 3], rows (subject, object, predicate), highest score first, ties by row; and
        their scores, float32 [K].
    """
    if not len(scores.pairs):
        return np.empty((0, 3), dtype=np.int64), np.empty(0, dtype=np.float32)
    predicate = scores.scores.argmax(axis=1)
    value = scores.scores.max(axis=1)
    if scores.objects is not None and scores.objects.scores is not None:
        value = value * scores.objects.scores[scores.pairs].prod(axis=1)
    order = np.argsort(-value, kind="stable")[:count]
    order = order[value[order] >= min_score]
    rows = np.concatenate([scores.pairs[order], predicate[order, None]], axis=1)
    return rows.astype(np.int64), value[order].astype(np.float32)


Prediction = RelationScores | RankedTriplets
"""What a prediction file holds of one image."""


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
