"""The Haystack authors' prediction file: one ``.npy`` array, one row an ordered pair.

Columns: image id, subject, object, then one score for each predicate; with one score more, "no
relation" is among them, last by default. Ids are numbers in a floating-point array, so only image
ids that are plain integers fit; they are matched with annotations as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from haystack import files
from haystack.errors import InputError
from haystack.scene_graph import RelationScores

NoRelationColumn = Literal["last", "first"]

_FIXED = 3  # image id, subject, object
_EXACT_FLOAT32 = 2**24


class HaystackNpy(Sequence[RelationScores]):
    """Predictions of a ``.npy`` file, one item an image, read from the disk as they are asked for.

    Images come in ascending order of id, the pairs of an image in the order of the file.

    Args:
        path: the file.
        num_predicates: P; the file must have P or P + 1 score columns.
        no_relation: where the column of "no relation" is, if there is one.

    Raises:
        InputError: the file is no such array, has another number of columns, an id that is no
            integer, or a pair twice; and, when an image is read, a score that is not finite.
    """

    def __init__(
        self,
        path: str | Path,
        num_predicates: int = 56,
        *,
        no_relation: NoRelationColumn = "last",
    ) -> None:
        if no_relation not in ("last", "first"):
            raise InputError(f"expected no_relation 'last' or 'first', got {no_relation!r}")
        self.path = Path(path)
        self.num_predicates = num_predicates
        self._table = _open_table(self.path, num_predicates)
        self.has_no_relation = self._table.shape[1] == _FIXED + num_predicates + 1
        self._first_score = _FIXED + (self.has_no_relation and no_relation == "first")
        self._none = _FIXED if no_relation == "first" else _FIXED + num_predicates
        ids = _integer_columns(self._table, self.path)
        self._pairs = ids[:, 1:]
        self._order = np.argsort(ids[:, 0], kind="stable")
        self._image_ids, begins = np.unique(ids[self._order, 0], return_index=True)
        self._bounds = np.append(begins, len(ids))
        self._sorted = bool((self._order[1:] > self._order[:-1]).all())
        _refuse_repeated_pairs(ids, self.path)

    def __len__(self) -> int:
        return len(self._image_ids)

    @overload
    def __getitem__(self, index: int) -> RelationScores: ...
    @overload
    def __getitem__(self, index: slice) -> list[RelationScores]: ...
    def __getitem__(self, index: int | slice) -> RelationScores | list[RelationScores]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        begin, end = (int(bound) for bound in self._bounds[position : position + 2])
        # A file that is already in order is read as one piece of the disk.
        rows = slice(begin, end) if self._sorted else self._order[begin:end]
        values = np.array(self._table[rows, _FIXED:], dtype=np.float32)
        self._refuse_infinite(values, begin)
        first = self._first_score - _FIXED
        return RelationScores(
            image_id=str(self._image_ids[position]),
            pairs=self._pairs[rows],
            scores=values[:, first : first + self.num_predicates],
            no_relation=values[:, self._none - _FIXED] if self.has_no_relation else None,
        )

    def __iter__(self) -> Iterator[RelationScores]:
        return (self[position] for position in range(len(self)))

    def _refuse_infinite(self, values: npt.NDArray[np.float32], begin: int) -> None:
        wrong = ~np.isfinite(values)
        if wrong.any():
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            raise InputError(
                f"expected finite scores, got {values[row, column]} in column {column + _FIXED}",
                path=self.path,
                record=f"row {int(self._order[begin + row])}",
            )


def read_haystack_npy(
    path: str | Path, num_predicates: int = 56, *, no_relation: NoRelationColumn = "last"
) -> HaystackNpy:
    """Open a ``.npy`` prediction file; see :class:`HaystackNpy`."""
    return HaystackNpy(path, num_predicates, no_relation=no_relation)


def write_haystack_npy(
    scores: Iterable[RelationScores],
    path: str | Path,
    *,
    no_relation: NoRelationColumn | None = "last",
) -> None:
    """Write predictions as the authors' ``.npy``, atomically.

    Args:
        scores: predictions, each image once; ids must be plain integers.
        path: the file.
        no_relation: where the column of "no relation" goes, if the predictions have it; None
            leaves it out, as the authors' script expects.

    Raises:
        InputError: an id is no plain integer, there is nothing to write, or some images have the
            score of "no relation" and others do not.
    """
    parts = []
    for image in scores:
        none = image.no_relation if no_relation is not None else None
        columns = [image.scores] if none is None else [image.scores, none[:, None]]
        if no_relation == "first":
            columns.reverse()
        number = np.full((len(image.pairs), 1), _plain_integer(image.image_id), dtype=np.float64)
        parts.append(np.concatenate([number, image.pairs, *columns], axis=1))
    widths = sorted({part.shape[1] for part in parts})
    if len(widths) != 1:
        raise InputError(
            "expected predictions with one number of columns"
            + (
                f", got {widths}; is 'no relation' missing in some images?"
                if widths
                else ", got none"
            )
        )
    table = np.concatenate(parts)
    largest = table[:, :_FIXED].max(initial=0)
    with files.atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, table.astype(np.float32) if largest <= _EXACT_FLOAT32 else table)


def _plain_integer(image_id: str) -> int:
    if image_id.isascii() and image_id.isdigit() and str(int(image_id)) == image_id:
        return int(image_id)
    raise InputError(
        "this format holds image ids that are plain integers only; write Parquet instead",
        record=f"image {image_id}",
    )


def _open_table(path: Path, num_predicates: int) -> npt.NDArray[np.floating]:
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"cannot read it as a .npy array: {error}", path=path) from error
    if not isinstance(table, np.ndarray) or table.ndim != 2 or table.dtype.kind != "f":
        found = (
            f"{table.dtype} {list(table.shape)}" if isinstance(table, np.ndarray) else "an archive"
        )
        raise InputError(f"expected a two-dimensional floating-point array, got {found}", path=path)
    if table.shape[1] not in (_FIXED + num_predicates, _FIXED + num_predicates + 1):
        raise InputError(
            f"expected {num_predicates} score columns ({num_predicates + 1} with 'no relation') "
            f"after image id, subject and object, got {table.shape[1] - _FIXED}; "
            "does the vocabulary fit the model?",
            path=path,
        )
    return table


def _integer_columns(table: npt.NDArray[np.floating], path: Path) -> npt.NDArray[np.int64]:
    """Image id, subject and object of each row, int64 [R, 3]."""
    raw = np.array(table[:, :_FIXED])
    # Beyond this a float of so many bits no longer holds every integer: ids would be mixed up.
    limit = 2 ** (min(np.finfo(raw.dtype).nmant, 52) + 1)
    with np.errstate(invalid="ignore"):
        wrong = ~((raw >= 0) & (raw <= limit) & (raw == np.floor(raw)))
    if wrong.any():
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        what = ("an image id", "a subject", "an object")[column]
        raise InputError(
            f"expected {what} as an integer of 0..{limit} (all that {raw.dtype} holds exactly), "
            f"got {raw[row, column]}",
            path=path,
            record=f"row {row}",
        )
    return raw.astype(np.int64)


def _refuse_repeated_pairs(ids: npt.NDArray[np.int64], path: Path) -> None:
    order = np.lexsort(ids.T[::-1])
    same = (ids[order[1:]] == ids[order[:-1]]).all(axis=1)
    if same.any():
        position = int(same.argmax())
        first, second = sorted(int(row) for row in order[position : position + 2])
        image, subject, target = ids[first].tolist()
        raise InputError(
            f"the pair ({subject}, {target}) of image {image} is given twice, in rows {first} and "
            f"{second}; give each ordered pair once",
            path=path,
        )
