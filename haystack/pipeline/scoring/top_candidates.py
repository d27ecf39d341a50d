"""The bounded best of all candidates, kept where the scores are.

Keeping the first M of each (cluster, predicate) in the total order of ``candidates.py`` is
associative and commutative: shards merge in any order, and memory is bounded by clusters x
predicates x M rows (twice that with a second opinion, of which both lists are kept).

A row is three numbers on the device: its *group*, its scores, and its *place*, (image, subject,
object) packed into 64 bits so that places ascend as the total order asks. Images are numbered by
their keys whenever rows are cut, and forgotten once no row names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from haystack.pipeline.scoring.candidates import IMAGES, Candidates

POSITION_BITS = 16
"""Subjects and objects are positions below 2 ** 16: such an image would have 4 billion pairs."""

_IMAGE_BITS = 2 * POSITION_BITS
_POSITIONS = (1 << POSITION_BITS) - 1
_HALF = 1 << 31
_PAIR = (1 << _IMAGE_BITS) - 1
_LEAST = torch.finfo(torch.float32).min
_COMPACT_ROWS = 1 << 16
_COMPACT_IMAGES = 1 << 16
_LOOSE = 256
"""Batches that wait apart before they are joined: a tensor or a table of a few rows takes many
times the bytes of its rows, and hundreds of thousands of batches can wait for one cut."""


@dataclass(frozen=True)
class Rows:
    """N rows on one device.

    Args:
        group: int64 [N], cluster * P + predicate.
        place: int64 [N], see ``pack``.
        scores: float32 [K, N], by each of the K models.
    """

    group: Tensor
    place: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return len(self.group)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """All rows of at least one part, in order."""
        return cls(
            torch.cat([part.group for part in parts]),
            torch.cat([part.place for part in parts]),
            torch.cat([part.scores for part in parts], dim=1),
        )

    def take(self, rows: Tensor) -> Rows:
        """The rows of an index or a mask."""
        return Rows(self.group[rows], self.place[rows], self.scores[:, rows])

    def to(self, device: torch.device) -> Rows:
        """The same rows on another device."""
        return Rows(self.group.to(device), self.place.to(device), self.scores.to(device))


def pack(image: Tensor, subject: Tensor, target: Tensor) -> Tensor:
    """One int64 a row, which ascends by image, subject, object."""
    return (image << _IMAGE_BITS) | (subject << POSITION_BITS) | target


def total_order(group: Tensor, score: Tensor, place: Tensor) -> Tensor:
    """Row numbers by group, score descending, place: int64 [N]."""
    by_place = torch.sort(place, stable=True).indices
    return by_place[torch.sort(_sort_key(group, score)[by_place], stable=True).indices]


@dataclass(frozen=True)
class _Cut:
    """Where each group's best end, by one model's scores.

    Finding it takes one sort of numbers alone; only rows that are equal to a group's last one need
    their places compared.

    Args:
        key: int64 [N], the sort key of every row.
        last: int64 [G], key of the row at the cut; of the last row where there are fewer.
        room: int64 [G], how many rows with that key belong to the best.
        full: bool [G], the group has as many rows as are kept.
        has_ties: some group has more rows with that key than there is room for.
    """

    key: Tensor
    last: Tensor
    room: Tensor
    full: Tensor
    has_ties: bool

    @classmethod
    def of(cls, group: Tensor, score: Tensor, num_groups: int, top: int) -> _Cut:
        """Of N > 0 rows with these groups and scores."""
        key = _sort_key(group, score)
        ascending = torch.sort(key).values
        every = torch.arange(num_groups + 1, device=key.device)
        bounds = torch.searchsorted(ascending, (every << 32) - _HALF)
        sizes = bounds.diff()
        end = bounds[:-1] + sizes.clamp(max=top)
        last = ascending[(end - 1).clamp(min=0)]
        begin, after = torch.searchsorted(ascending, torch.stack([last, last + 1]))
        has_ties = ((after > end) & (sizes > 0)).any()
        return cls(key, last, end - begin, sizes >= top, bool(has_ties))

    def best(self, rows: Rows) -> Tensor:
        """Bool [N]: which of the rows belong to the best; places are in order where keys tie."""
        last = self.last[rows.group]
        if not self.has_ties:
            return self.key <= last
        best = self.key < last
        tied = (self.key == last).nonzero()[:, 0]
        group, place = rows.group[tied], rows.place[tied]
        order = total_order(group, torch.zeros_like(rows.scores[0, tied]), place)
        _, sizes = torch.unique_consecutive(group[order], return_counts=True)
        starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        rank = torch.arange(len(tied), device=tied.device) - starts
        best[tied[order[rank < self.room[group[order]]]]] = True
        return best

    def raise_floor(self, floor: Tensor) -> None:
        """Set the floor float32 [G] of full groups to their last score."""
        groups = self.full.nonzero()[:, 0]
        ascending = ((groups << 32) - self.last[groups]).int()
        floor[groups] = _flipped(ascending).view(torch.float32)


def _sort_key(group: Tensor, score: Tensor) -> Tensor:
    """One int64 a row, which ascends by group, then by descending score."""
    # Adding zero turns -0 into 0, which it equals.
    return (group << 32) - _flipped((score + 0.0).view(torch.int32))


def _flipped(bits: Tensor) -> Tensor:
    """The bits of floats as int32 that ascend with them, and back.

    Those of positive floats do already, those of negative ones descend.
    """
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


class TopCandidates:
    """The best ``top`` candidates of every (cluster, predicate) among all that were added.

    Args:
        num_clusters: clusters are numbered 0..num_clusters-1.
        num_predicates: predicates are numbered 0..num_predicates-1.
        top: M, rows kept per (cluster, predicate), and per model.
        opinions: 2 where a second model scores too: kept is the union of both models' best.
        device: where rows are kept; see ``to``.
    """

    def __init__(
        self,
        num_clusters: int,
        num_predicates: int,
        top: int,
        *,
        opinions: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        self.top = top
        self.opinions = opinions
        shape = (opinions, num_clusters, num_predicates)
        self.floor = torch.full(shape, _LEAST, device=device)
        """float32 [K, clusters, predicates]: what no model scores as high as this cannot come in
        any more; equal scores may. -inf never does."""
        none = torch.empty(0, dtype=torch.int64, device=device)
        self._kept = Rows(none, none, torch.empty((opinions, 0), device=device))
        self._pending: list[Rows] = []
        self._pending_rows = 0
        self._loose: list[tuple[pa.Table, Rows]] = []
        self._images: list[pa.Table] = []
        self._num_images = 0
        self._kept_images = 0

    def to(self, device: torch.device) -> None:
        """Keep rows on another device from now on."""
        if device == self.floor.device:
            return
        self._compact()
        self.floor = self.floor.to(device)
        self._kept = self._kept.to(device)

    def hopeful(self, candidates: Candidates) -> npt.NDArray[np.bool_]:
        """Bool [N]: which of them may be among the best; the others need not be added."""
        groups = candidates.cluster * self.floor.shape[2] + candidates.predicate
        floor = self.floor.view(self.opinions, -1).cpu().numpy()
        above = candidates.score >= floor[0, groups]
        if self.opinions == 2:
            assert candidates.second_score is not None
            above |= candidates.second_score >= floor[1, groups]
        return above

    def add(self, candidates: Candidates) -> None:
        """Take candidates in; the order of calls does not matter."""
        if not len(candidates):
            return
        candidates = candidates.take(self.hopeful(candidates))
        scores = [candidates.score]
        if candidates.second_score is not None:
            scores.append(candidates.second_score)
        columns = (candidates.image, candidates.subject, candidates.object)
        rows = Rows(
            torch.from_numpy(candidates.cluster * self.floor.shape[2] + candidates.predicate),
            pack(*(torch.from_numpy(column) for column in columns)),
            torch.from_numpy(np.stack(scores)),
        )
        self.add_rows(candidates.images, rows.to(self.floor.device))

    def add_rows(self, images: pa.Table, rows: Rows) -> None:
        """As ``add``, for rows that are on the device and that some floor lets pass.

        Args:
            images: what the rows may name, as ``Candidates.images`` but in any order.
            rows: images in their places are rows of ``images``.
        """
        if not len(rows):
            return
        place = rows.place + (self._num_images << _IMAGE_BITS)
        self._loose.append((images, Rows(rows.group, place, rows.scores)))
        self._pending_rows += len(rows)
        self._num_images += len(images)
        if len(self._loose) >= _LOOSE:
            self._join_loose()
        if self._pending_rows >= max(_COMPACT_ROWS, len(self._kept)):
            self._compact()
        if self._num_images >= max(_COMPACT_IMAGES, 2 * self._kept_images):
            self._compact()
            self._number_images()

    def result(self) -> Candidates:
        """The kept rows, by cluster, predicate, then the total order by the first model."""
        self._compact()
        self._number_images()
        kept = self._kept
        kept = kept.take(total_order(kept.group, kept.scores[0], kept.place))
        group, place, scores = (
            column.cpu().numpy() for column in (kept.group, kept.place, kept.scores)
        )
        predicates = self.floor.shape[2]
        return Candidates(
            images=self._images[0] if self._images else IMAGES.empty_table(),
            cluster=group // predicates,
            predicate=group % predicates,
            image=place >> _IMAGE_BITS,
            subject=(place >> POSITION_BITS) & _POSITIONS,
            object=place & _POSITIONS,
            score=scores[0],
            second_score=scores[1] if self.opinions == 2 else None,
        )

    def full_groups(self) -> int:
        """Number of (cluster, predicate) that hold ``top`` rows, so may have dropped some."""
        self._compact()
        return int((self.floor > _LEAST).any(dim=0).sum())

    def _compact(self) -> None:
        """Cut to the best, and raise the floor."""
        self._join_loose()
        if not self._pending:
            return
        self._kept = Rows.joined([self._kept, *self._pending])
        self._pending, self._pending_rows = [], 0
        groups = self.floor[0].numel()
        cuts = [_Cut.of(self._kept.group, score, groups, self.top) for score in self._kept.scores]
        if any(cut.has_ties for cut in cuts):
            self._number_images()
        rows = self._kept
        best = torch.zeros(len(rows), dtype=torch.bool, device=rows.group.device)
        for cut, floor in zip(cuts, self.floor, strict=True):
            best |= cut.best(rows)
            cut.raise_floor(floor.view(-1))
        self._kept = rows.take(best.nonzero()[:, 0])

    def _join_loose(self) -> None:
        if self._loose:
            images, rows = zip(*self._loose, strict=True)
            self._images.append(pa.concat_tables(images).combine_chunks())
            self._pending.append(Rows.joined(rows))
            self._loose = []

    def _number_images(self) -> None:
        """Number the images that rows name by their keys, and forget the others."""
        if not self._images:
            return
        kept = self._kept
        image = kept.place >> _IMAGE_BITS
        used = torch.zeros(self._num_images, dtype=torch.bool, device=image.device)
        used[image] = True
        images = pa.concat_tables(self._images).filter(pa.array(used.cpu().numpy()))
        codes = images["image_key"].combine_chunks().dictionary_encode()
        order = pc.sort_indices(codes.dictionary).to_numpy()
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        number = torch.zeros(self._num_images, dtype=torch.int64, device=image.device)
        positions = codes.indices.to_numpy()
        number[used] = torch.from_numpy(rank[positions]).to(image.device)
        self._kept = Rows(
            kept.group, (number[image] << _IMAGE_BITS) | (kept.place & _PAIR), kept.scores
        )
        first = np.unique(positions, return_index=True)[1]
        self._images = [images.take(first[order]).combine_chunks()]
        self._num_images = self._kept_images = len(order)
