"""Candidates as three numbers a row, on the device where they are scored, and where lists end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

POSITION_BITS = 16
"""Subjects and objects are positions below 2 ** 16: such an image would have 4 billion pairs."""

IMAGE_BITS = 2 * POSITION_BITS
_POSITIONS = (1 << POSITION_BITS) - 1
PAIR = (1 << IMAGE_BITS) - 1
_HALF = 1 << 31


@dataclass(frozen=True)
class Rows:
    """N rows on one device.

    Args:
        group: int64 [N], cluster * P + predicate, or that less the first of some groups.
        place: int64 [N], see ``pack``.
        scores: float32 [K, N], by each of the K models.
    """

    group: Tensor
    place: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return len(self.group)

    @classmethod
    def none(cls, opinions: int, device: torch.device | str = "cpu") -> Rows:
        """No rows with scores of so many models."""
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        return cls(nothing, nothing, torch.empty((opinions, 0), device=device))

    @classmethod
    def cat(cls, parts: Sequence[Rows], opinions: int, device: torch.device | str) -> Rows:
        """The rows of all parts, of which there may be none."""
        if not parts:
            return cls.none(opinions, device)
        return cls(
            torch.cat([part.group for part in parts]),
            torch.cat([part.place for part in parts]),
            torch.cat([part.scores for part in parts], dim=1),
        )

    def take(self, rows: Tensor) -> Rows:
        """The rows of an index or a mask."""
        return Rows(self.group[rows], self.place[rows], self.scores[:, rows])

    def first(self, count: int) -> Rows:
        """The first rows, as a view."""
        return Rows(self.group[:count], self.place[:count], self.scores[:, :count])

    def resized(self, size: int, count: int) -> Rows:
        """``size`` rows of which the first ``count`` are these and the others undefined."""
        more = Rows(
            self.group.new_empty(size),
            self.place.new_empty(size),
            self.scores.new_empty((len(self.scores), size)),
        )
        more.group[:count] = self.group[:count]
        more.place[:count] = self.place[:count]
        more.scores[:, :count] = self.scores[:, :count]
        return more

    def to(self, device: torch.device) -> Rows:
        """The same rows on another device."""
        return Rows(self.group.to(device), self.place.to(device), self.scores.to(device))


class RowBuffer:
    """Rows in one place that grows when it has to.

    What is kept for long while batches come and go has to stay where it is: pieces of it among
    short-lived tensors would let the C library's heap grow, many times beyond what is in use.

    Args:
        opinions: K.
        device: where they are.
    """

    def __init__(self, opinions: int, device: torch.device | str) -> None:
        self._room = Rows.none(opinions, device)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Rows:
        """The rows, as a view: writing to its tensors changes them."""
        return self._room.first(self._count)

    def append(self, rows: Rows) -> None:
        """Put rows behind the others."""
        end = self._count + len(rows)
        if end > len(self._room):
            self._room = self._room.resized(end + end // 8, self._count)
        place = slice(self._count, end)
        self._room.group[place] = rows.group
        self._room.place[place] = rows.place
        self._room.scores[:, place] = rows.scores
        self._count = end

    def keep(self, rows: Tensor) -> None:
        """Only these rows, an index."""
        kept = self.rows.take(rows)
        self.clear()
        self.append(kept)

    def clear(self) -> None:
        """No rows; the room stays."""
        self._count = 0

    def to(self, device: torch.device) -> None:
        """Move to another device."""
        self._room = self._room.to(device)


def pack(image: Tensor, subject: Tensor, target: Tensor) -> Tensor:
    """One int64 a row, which ascends by image, subject, object."""
    return (image << IMAGE_BITS) | (subject << POSITION_BITS) | target


def unpack(place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Image, subject and object of places, int64 [N] each."""
    return place >> IMAGE_BITS, (place >> POSITION_BITS) & _POSITIONS, place & _POSITIONS


def total_order(group: Tensor, score: Tensor, place: Tensor) -> Tensor:
    """Row numbers by group, score descending, place: int64 [N]."""
    by_place = torch.sort(place, stable=True).indices
    return by_place[torch.sort(_sort_key(group, score)[by_place], stable=True).indices]


@dataclass(frozen=True)
class Cut:
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
    def of(cls, group: Tensor, score: Tensor, num_groups: int, top: int) -> Cut:
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

    def best(self, rows: Rows, by_key: Callable[[Tensor], Tensor]) -> Tensor:
        """Bool [N]: which of the rows belong to the best.

        Args:
            rows: those that it was made of.
            by_key: places -> the same with images numbered so that they ascend as their keys do;
                asked only of rows that are equal to their group's last one.
        """
        last = self.last[rows.group]
        if not self.has_ties:
            return self.key <= last
        best = self.key < last
        tied = (self.key == last).nonzero()[:, 0]
        group, place = rows.group[tied], by_key(rows.place[tied])
        order = total_order(group, torch.zeros_like(rows.scores[0, tied]), place)
        _, sizes = torch.unique_consecutive(group[order], return_counts=True)
        starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        rank = torch.arange(len(tied), device=tied.device) - starts
        best[tied[order[rank < self.room[group[order]]]]] = True
        return best

    def raise_floor(self, floor: Tensor) -> None:
        """Set the floor of full groups to their last score, float32 [G], in place."""
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
