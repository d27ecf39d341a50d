"""What a verb hands back: the JSON object, the text for people, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OK, FAILURE, BAD_INPUT, QUARANTINED = 0, 1, 2, 3


@dataclass(frozen=True)
class Outcome:
    """Result of a verb.

    Args:
        text: for people, on stderr.
        data: for programs, on stdout with ``--json``.
        exit_code: 0 ok, 1 failure, 3 finished but some inputs were quarantined.
    """

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = OK


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows in aligned columns: numbers to the right, text to the left; floats with 3 decimals."""
    cells = [[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    columns = list(zip(header, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(aligned).rstrip()

    return "\n".join((line(header), line(["-" * w for w in widths]), *map(line, cells)))
