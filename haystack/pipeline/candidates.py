"""Proposal candidates in columns, and the bounded best of them.

Candidates have a **total order** inside their (cluster, predicate): score descending, then image
key, subject, object. Keeping the first M of each group in that order is associative and
commutative, so shards merge in any order and memory is bounded by clusters x predicates x M rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

FaultySegment = tuple[str, int]
"""(image id, segment position) that must not be proposed."""

_COMPACT_ROWS = 1 << 16
_COLUMNS = ("cluster", "predicate", "image", "subject", "object", "score")


@dataclass(frozen=True)
class Candidates:
    """N candidates (cluster, predicate, image, subject, object, score).

    Args:
        image_keys: distinct image keys in ascending order.
        image_ids: id of each of those images.
        cluster, predicate: int64 [N].
        image: int64 [N], positions in ``image_keys``; as these ascend, so do the keys.
        subject, object: int64 [N], positions among the image's segments.
        score: float32 [N], higher = more likely.
    """

    image_keys: tuple[str, ...]
    image_ids: tuple[str, ...]
    cluster: Ints
    predicate: Ints
    image: Ints
    subject: Ints
    object: Ints
    score: npt.NDArray[np.float32]

    @classmethod
    def empty(cls) -> Candidates:
        """No candidates."""
        none = np.empty(0, dtype=np.int64)
        return cls((), (), none, none, none, none, none, none.astype(np.float32))

    @classmethod
    def of_image(
        cls,
        image_key: str,
        image_id: str,
        cluster: int,
        *,
        predicate: Ints,
        subject: Ints,
        object: Ints,
        score: npt.NDArray[np.float32],
    ) -> Candidates:
        """Candidates of a single image."""
        count = len(score)
        return cls(
            image_keys=(image_key,),
            image_ids=(image_id,),
            cluster=np.full(count, cluster, dtype=np.int64),
            predicate=predicate,
            image=np.zeros(count, dtype=np.int64),
            subject=subject,
            object=object,
            score=score,
        )

    @classmethod
    def from_keys(
        cls,
        keys: Sequence[str],
        id_of: Mapping[str, str],
        *,
        cluster: Ints,
        predicate: Ints,
        subject: Ints,
        object: Ints,
        score: npt.NDArray[np.float32],
    ) -> Candidates:
        """Candidates whose image keys are given row by row.

        Args:
            keys: image key of every row.
            id_of: image key -> image id, at least for ``keys``.
            cluster: see the class, as the following.
            predicate: see the class.
            subject: see the class.
            object: see the class.
            score: see the class.
        """
        distinct = sorted(set(keys))
        position = {key: number for number, key in enumerate(distinct)}
        return cls(
            image_keys=tuple(distinct),
            image_ids=tuple(id_of[key] for key in distinct),
            cluster=cluster,
            predicate=predicate,
            image=np.fromiter((position[key] for key in keys), np.int64, len(keys)),
            subject=subject,
            object=object,
            score=score,
        )

    def __len__(self) -> int:
        return len(self.score)

    def take(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> Candidates:
        """The rows of an index or a mask, in its order; the images stay listed."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    def without_unused_images(self) -> Candidates:
        """The same rows, with only the images that they name."""
        used, image = np.unique(self.image, return_inverse=True)
        if len(used) == len(self.image_keys):
            return self
        return replace(
            self,
            image_keys=tuple(self.image_keys[i] for i in used),
            image_ids=tuple(self.image_ids[i] for i in used),
            image=image.astype(np.int64),
        )

    def order(self) -> Ints:
        """Row numbers by cluster, predicate, then the total order."""
        return np.lexsort(
            (self.object, self.subject, self.image, -self.score, self.predicate, self.cluster)
        ).astype(np.int64)


def concatenate(parts: Sequence[Candidates]) -> Candidates:
    """All rows of ``parts``, one after the other, over the union of their images."""
    if not parts:
        return Candidates.empty()
    id_of: dict[str, str] = {}
    for part in parts:
        id_of.update(zip(part.image_keys, part.image_ids, strict=True))
    keys = sorted(id_of)
    position = {key: number for number, key in enumerate(keys)}
    images = []
    for part in parts:
        renumber = np.array([position[key] for key in part.image_keys], dtype=np.int64)
        images.append(renumber[part.image])
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in _COLUMNS
        if name != "image"
    }
    return Candidates(
        image_keys=tuple(keys),
        image_ids=tuple(id_of[key] for key in keys),
        image=np.concatenate(images),
        **columns,
    )


class TopCandidates:
    """The best ``top`` candidates of every (cluster, predicate) among all that were added.

    Args:
        num_clusters: clusters are numbered 0..num_clusters-1.
        num_predicates: predicates are numbered 0..num_predicates-1.
        top: M, rows kept per (cluster, predicate).
    """

    def __init__(self, num_clusters: int, num_predicates: int, top: int) -> None:
        self.top = top
        self.floor = np.full((num_clusters, num_predicates), -np.inf, dtype=np.float32)
        """float32 [clusters, predicates]: what scores below it cannot come in any more."""
        self._kept = Candidates.empty()
        self._pending: list[Candidates] = []
        self._pending_rows = 0

    def add(self, candidates: Candidates) -> None:
        """Take candidates in; the order of calls does not matter."""
        # Equal scores may still win by image key, hence >=.
        hopeful = candidates.score >= self.floor[candidates.cluster, candidates.predicate]
        if not hopeful.all():
            candidates = candidates.take(hopeful)
        if not len(candidates):
            return
        self._pending.append(candidates)
        self._pending_rows += len(candidates)
        if self._pending_rows >= max(_COMPACT_ROWS, len(self._kept)):
            self._compact()

    def result(self) -> Candidates:
        """The kept rows, by cluster, predicate, then the total order."""
        self._compact()
        return self._kept

    def full_groups(self) -> int:
        """Number of (cluster, predicate) that hold ``top`` rows, so may have dropped some."""
        self._compact()
        return int((self.floor > -np.inf).sum())

    def _compact(self) -> None:
        if not self._pending:
            return
        merged = concatenate([self._kept, *self._pending])
        self._pending, self._pending_rows = [], 0
        merged = merged.take(merged.order())
        group = merged.cluster * self.floor.shape[1] + merged.predicate
        _, starts, counts = np.unique(group, return_index=True, return_counts=True)
        rank = np.arange(len(group)) - np.repeat(starts, counts)
        last = merged.take(rank == self.top - 1)
        self.floor[last.cluster, last.predicate] = last.score
        self._kept = merged.take(rank < self.top).without_unused_images()
