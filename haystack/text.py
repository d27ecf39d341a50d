"""Text for people: tables in aligned columns, times."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a table: columns of numbers to the right, all others to the left.

    Args:
        header: names of the columns.
        rows: cells; a float is shown with 3 decimals, NaN as a dash.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    columns = list(zip(header, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(aligned).rstrip()

    return [line(header), line(["-" * width for width in widths]), *map(line, cells)]


def duration(seconds: float) -> str:
    """A time in the unit that people would use: ``40 s``, ``12 min``, ``3.5 h``, ``4.2 days``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def display_name(object_class: str) -> str:
    """A class's name for people: ``wall-other-merged`` is a wall."""
    return re.sub(r"(-other)?(-merged)?(-stuff)?$", "", object_class) or object_class


_PROPOSED_BY = re.compile(r"(?<=[:,] )\S.*?(?= rank \d+ \(score )")
_CLASS_AND_WEIGHTS = re.compile(r"(.+?:[^\W\d]\w*)@(.+)")


def without_folders(origin: str) -> str:
    """Which models proposed something, without where their files lie on somebody's machine.

    Args:
        origin: as ``Proposal.origin`` of the pipeline gives it: ``cluster 4: NAME rank 3 (score
            2.35), NAME rank 1 (score -1)``, or the name of a model. A name is a file, a module,
            ``FILE.py:CLASS`` or ``FILE.py:CLASS@FILE``.
    """
    if "/" not in origin:
        return origin
    found = _PROPOSED_BY.sub(lambda name: _last_parts(name[0]), origin)
    return _last_parts(found) if "/" in found else found


def _last_parts(name: str) -> str:
    parts = _CLASS_AND_WEIGHTS.fullmatch(name)
    names = (name,) if parts is None else parts.groups()
    return "@".join(each.rstrip("/").rpartition("/")[2] for each in names)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.3f}"
    return str(value)
