"""Proposal candidates in columns.

Candidates have a **total order** inside their (cluster, predicate): score descending, then image
key, subject, object. So the best M of each group are the same rows whatever the sharding, the
batches, or the order in which they were met (``top_candidates.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]

FaultySegment = tuple[str, int]
"""(image id, segment position) that must not be proposed."""

IMAGES = pa.schema(
    [("image_key", pa.string()), ("image_id", pa.string()), ("segments", pa.string())]
)
_COLUMNS = ("cluster", "predicate", "image", "subject", "object", "score")


class CandidateImage(NamedTuple):
    """An image that candidates name.

    Args:
        image_key: the image in its source.
        image_id: its id in annotations.
        segments: identity of its segments (``segments_identity``), to which positions refer.
    """

    image_key: str
    image_id: str
    segments: str


def images_table(images: Sequence[CandidateImage]) -> pa.Table:
    """Images as an Arrow table, one a row."""
    if not images:
        return IMAGES.empty_table()
    columns = [pa.array(column, pa.string()) for column in zip(*images, strict=True)]
    return pa.Table.from_arrays(columns, schema=IMAGES)


@dataclass(frozen=True)
class Candidates:
    """N candidates (cluster, predicate, image, subject, object, score).

    Args:
        images: Arrow table of ``CandidateImage`` rows, distinct, by ascending image key. In Arrow
            because millions of Python strings would take more memory than all else.
        cluster, predicate: int64 [N].
        image: int64 [N], rows of ``images``; as these ascend, so do the keys.
        subject, object: int64 [N], positions among the image's segments.
        score: float32 [N], higher = more likely.
        second_score: float32 [N], the same by the model of the second opinion; None without one.
    """

    images: pa.Table
    cluster: Ints
    predicate: Ints
    image: Ints
    subject: Ints
    object: Ints
    score: Scores
    second_score: Scores | None = None

    @classmethod
    def empty(cls, *, opinions: int = 1) -> Candidates:
        """No candidates, of one model or two."""
        none = np.empty(0, dtype=np.int64)
        scores = none.astype(np.float32)
        second = scores if opinions == 2 else None
        return cls(IMAGES.empty_table(), none, none, none, none, none, scores, second)

    @classmethod
    def from_columns(
        cls,
        image_key: Sequence[str] | pa.Array,
        image_id: Sequence[str] | pa.Array,
        segments: Sequence[str] | pa.Array,
        **columns: Any,
    ) -> Candidates:
        """Candidates whose images are given row by row.

        Args:
            image_key: [N] keys; plain or dictionary-encoded.
            image_id: [N] ids, as many as there are keys.
            segments: [N] identities of segments.
            columns: see the class.
        """
        named = {
            name: _encoded(column)
            for name, column in zip(IMAGES.names, (image_key, image_id, segments), strict=True)
        }
        codes = named["image_key"].indices.to_numpy()
        distinct, first, position = np.unique(codes, return_index=True, return_inverse=True)
        images = pa.table(
            {name: column.take(pa.array(first)).cast(pa.string()) for name, column in named.items()}
        )
        order = pc.sort_indices(images["image_key"]).to_numpy()
        number = np.empty(len(distinct), dtype=np.int64)
        number[order] = np.arange(len(distinct))
        return cls(images=images.take(order), image=number[position], **columns)

    def __len__(self) -> int:
        return len(self.score)

    @property
    def opinions(self) -> int:
        """How many models have scored them: 1 or 2."""
        return 1 if self.second_score is None else 2

    def take(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> Candidates:
        """The rows of an index or a mask, in its order; the images stay listed."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        second = None if self.second_score is None else self.second_score[rows]
        return replace(self, **columns, second_score=second)


def _encoded(column: Sequence[str] | pa.Array) -> pa.DictionaryArray:
    if isinstance(column, pa.DictionaryArray):
        return column
    array = column if isinstance(column, pa.Array) else pa.array(column, pa.string())
    return array.dictionary_encode()
