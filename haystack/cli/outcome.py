"""What a verb hands back: the JSON object, the text for people, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
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
