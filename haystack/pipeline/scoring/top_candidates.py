"""The bounded best of all candidates, kept where the scores are.

Keeping the first M of each (cluster, predicate) in the total order of ``candidates.py`` is
associative and commutative: shards merge in any order, and memory is bounded by clusters x
predicates x M rows (twice that with a second opinion, of which both lists are kept).

A row is three numbers on the device: its *group*, its scores, and its *place*, (image, subject,
object) packed into 64 bits. Groups lie in *blocks*, which are cut one at a time, so that sorting
takes the memory of a block, however many rows are kept. Images are numbered as they come; only
names that rows refer to are kept, and their keys compared only where scores are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from haystack.pipeline.memory import release_heap
from haystack.pipeline.scoring.candidates import CandidateImage, Candidates, images_table
from haystack.pipeline.scoring.image_names import ImageNames, without_repeats
from haystack.pipeline.scoring.rows import (
    IMAGE_BITS,
    PAIR,
    Cut,
    RowBuffer,
    Rows,
    pack,
    total_order,
    unpack,
)

_LEAST = torch.finfo(torch.float32).min
_BLOCK_ROWS = 1 << 17
"""Rows that a block holds when it is full, unless one group alone has more."""

_PENDING_ROWS = 1 << 13
"""Rows that a block takes in before it is cut, or a third of what it holds."""

_LOOSE_ROWS = 1 << 16
_LOOSE = 256
"""Rows, and batches, that wait before they are handed to blocks: most batches bring a few rows."""

_IMAGES = 1 << 14
"""Images that are named before it is asked which of them rows still refer to, or a quarter more
than there were."""


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
        self._names = ImageNames()
        self._named = 0
        self._block_groups = max(1, _BLOCK_ROWS // (top * opinions))
        groups = num_clusters * num_predicates
        self._blocks = [
            _Block(start, self._names, top, opinions, device)
            for start in range(0, groups, self._block_groups)
        ]
        self._loose = RowBuffer(opinions, device)
        self._loose_names: list[pa.Table | Sequence[CandidateImage]] = []
        self._loose_images = 0
        self._batches = 0

    def to(self, device: torch.device) -> None:
        """Keep rows on another device from now on."""
        if device == self.floor.device:
            return
        self._cut()
        for buffer in (self._loose, *(block.rows for block in self._blocks)):
            buffer.to(device)
        # Last: where memory runs out before, the next call moves what this one has left.
        self.floor = self.floor.to(device)

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

    def add_rows(self, images: pa.Table | Sequence[CandidateImage], rows: Rows) -> None:
        """As ``add``, for rows that are on the device and that some floor lets pass.

        Args:
            images: what the rows may name, as ``Candidates.images`` or one by one, in any order.
            rows: images in their places are rows of ``images``.
        """
        if not len(rows):
            return
        self._batches += 1
        if self._batches % _LOOSE == 0:
            release_heap()
        place = rows.place + (self._loose_images << IMAGE_BITS)
        self._loose.append(Rows(rows.group, place, rows.scores))
        self._loose_names.append(images)
        self._loose_images += len(images)
        if len(self._loose_names) < _LOOSE and len(self._loose) < _LOOSE_ROWS:
            return
        self._sort_in()
        for block, floor in self._blocks_and_floors():
            if block.pending >= max(_PENDING_ROWS, block.kept // 3):
                block.cut(floor)
        if len(self._names) >= max(_IMAGES, self._named + self._named // 4):
            self._cut()
            self._forget_images()

    def result(self) -> Candidates:
        """The kept rows, by cluster, predicate, then the total order by the first model."""
        self._cut()
        self._forget_images()
        number = torch.from_numpy(self._names.sort()).to(self.floor.device)
        release_heap()
        self._named = len(self._names)
        total = sum(block.kept for block in self._blocks)
        numbers = np.empty((5, total), dtype=np.int64)
        scores = np.empty((self.opinions, total), dtype=np.float32)
        end = 0
        for block in self._blocks:
            block.renumber(number)
            kept = block.in_order()
            start, end = end, end + len(kept)
            group = kept.group + block.first_group
            groups = (group // self.floor.shape[2], group % self.floor.shape[2])
            for row, column in zip(numbers, (*groups, *unpack(kept.place)), strict=True):
                row[start:end] = column.cpu().numpy()
            scores[:, start:end] = kept.scores.cpu().numpy()
        cluster, predicate, image, subject, target = numbers
        return Candidates(
            images=self._names.table(),
            cluster=cluster,
            predicate=predicate,
            image=image,
            subject=subject,
            object=target,
            score=scores[0],
            second_score=scores[1] if self.opinions == 2 else None,
        )

    def full_groups(self) -> int:
        """Number of (cluster, predicate) that hold ``top`` rows, so may have dropped some."""
        self._cut()
        return int((self.floor > _LEAST).any(dim=0).sum())

    def _blocks_and_floors(self) -> zip[tuple[_Block, Tensor]]:
        """Each block with the floors [K, groups] of its groups, to be raised in place."""
        floors = self.floor.view(self.opinions, -1).split(self._block_groups, dim=1)
        return zip(self._blocks, floors, strict=True)

    def _cut(self) -> None:
        """Cut all blocks to their best, and raise the floor."""
        self._sort_in()
        for block, floor in self._blocks_and_floors():
            block.cut(floor)

    def _sort_in(self) -> None:
        """Hand the loose rows to their blocks, and name the images that they refer to."""
        if not self._loose_names:
            return
        rows = self._loose.rows
        # Only now in Arrow: many small tables among the large tensors would fragment the heap.
        tables = [
            each if isinstance(each, pa.Table) else images_table(each) for each in self._loose_names
        ]
        names, position = without_repeats(pa.concat_tables(tables).combine_chunks())
        image = torch.from_numpy(position).to(rows.place.device)[rows.place >> IMAGE_BITS]
        used = torch.zeros(len(names), dtype=torch.bool, device=image.device)
        used[image] = True
        first = self._names.add(names.filter(pa.array(used.cpu().numpy())))
        number = used.cumsum(0) - 1 + first
        rows = Rows(rows.group, (number[image] << IMAGE_BITS) | (rows.place & PAIR), rows.scores)
        of_block = rows.group // self._block_groups
        order = torch.sort(of_block, stable=True).indices
        counts = torch.bincount(of_block, minlength=len(self._blocks)).tolist()
        for block, mine in zip(self._blocks, order.split(counts), strict=True):
            block.add(rows.take(mine))
        self._loose.clear()
        self._loose_names, self._loose_images = [], 0

    def _forget_images(self) -> None:
        """Keep the names that kept rows refer to; nothing may be pending."""
        used = torch.zeros(len(self._names), dtype=torch.bool, device=self.floor.device)
        for block in self._blocks:
            used[block.rows.rows.place >> IMAGE_BITS] = True
        number = torch.from_numpy(self._names.forget(used.cpu().numpy())).to(used.device)
        for block in self._blocks:
            block.renumber(number)
        self._named = len(self._names)


class _Block:
    """The best of consecutive groups, which are numbered from 0 in its rows.

    Args:
        first_group: the first one's number.
        names: of the images that rows refer to.
        top, opinions, device: see ``TopCandidates``.
    """

    def __init__(
        self,
        first_group: int,
        names: ImageNames,
        top: int,
        opinions: int,
        device: torch.device | str,
    ) -> None:
        self.first_group = first_group
        self._names = names
        self._top = top
        self.rows = RowBuffer(opinions, device)
        self.kept = 0
        """Rows that were among the best at the last cut; the others are pending."""

    @property
    def pending(self) -> int:
        """Rows that have come since the last cut."""
        return len(self.rows) - self.kept

    def add(self, rows: Rows) -> None:
        """Take rows of its groups in."""
        self.rows.append(Rows(rows.group - self.first_group, rows.place, rows.scores))

    def cut(self, floor: Tensor) -> None:
        """Keep the best, and raise the floor float32 [K, groups] in place."""
        if not self.pending:
            return
        rows = self.rows.rows
        best = torch.zeros(len(rows), dtype=torch.bool, device=rows.group.device)
        for score, least in zip(rows.scores, floor, strict=True):
            cut = Cut.of(rows.group, score, len(least), self._top)
            best |= cut.best(rows, self._by_key)
            cut.raise_floor(least)
        self.rows.keep(best.nonzero()[:, 0])
        self.kept = len(self.rows)

    def renumber(self, number: Tensor) -> None:
        """Give images other numbers: int [N], the new one of each."""
        place = self.rows.rows.place
        image = number[place >> IMAGE_BITS].long()
        place.bitwise_and_(PAIR).bitwise_or_(image << IMAGE_BITS)

    def in_order(self) -> Rows:
        """The rows by group, then the total order by the first model; images are sorted."""
        rows = self.rows.rows
        return rows.take(total_order(rows.group, rows.scores[0], rows.place))

    def _by_key(self, place: Tensor) -> Tensor:
        image = (place >> IMAGE_BITS).cpu().numpy()
        numbers, position = np.unique(image, return_inverse=True)
        rank = torch.from_numpy(self._names.ranks(numbers)[position]).to(place.device)
        return (rank << IMAGE_BITS) | (place & PAIR)
