"""How a campaign's questions are shared out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from haystack.errors import InputError

_MOST_COPIES = 100
_SHARE_STEPS = 10_000


@dataclass(frozen=True)
class QueueSettings:
    """How often, for how long and to whom a question is put.

    Args:
        copies: how many annotators answer a question that is shared.
        share: share of the questions that is shared, 0 to 1; the others are answered once. Which
            ones follows from their ids alone.
        copies_of: predicate number -> copies, in place of ``copies`` and ``share``.
        tie_breaker: whether a tie is put to one more annotator; otherwise it waits for a lead.
        lease_seconds: how long a question that was handed out is kept from others; asking for more
            starts the time anew.
        gold_rate: share of the questions that are hidden gold items, 0 to 1, while there are any.
        repeat_rate: share of the questions that the annotator has answered before, 0 to 1.
        repeat_after: after how many further answers a question may be repeated.

    Raises:
        InputError: a number that makes no sense.
    """

    copies: int = 1
    share: float = 1.0
    copies_of: Mapping[int, int] = field(default_factory=dict)
    tie_breaker: bool = False
    lease_seconds: float = 300.0
    gold_rate: float = 0.0
    repeat_rate: float = 0.0
    repeat_after: int = 50

    def __post_init__(self) -> None:
        for copies in (self.copies, *self.copies_of.values()):
            if not 1 <= copies <= _MOST_COPIES:
                raise InputError(f"expected 1 to {_MOST_COPIES} copies of a question, got {copies}")
        for name in ("share", "gold_rate", "repeat_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"expected {name} to be 0 to 1, got {getattr(self, name)}")
        if self.gold_rate + self.repeat_rate > 0.5:
            raise InputError(
                "expected gold_rate and repeat_rate to leave half of the questions to the queue, "
                f"got {self.gold_rate} and {self.repeat_rate}"
            )
        if not (math.isfinite(self.lease_seconds) and self.lease_seconds > 0):
            raise InputError(f"expected lease_seconds above 0, got {self.lease_seconds}")
        if self.repeat_after < 1:
            raise InputError(f"expected repeat_after to be 1 or more, got {self.repeat_after}")

    def copies_for(self, predicate: int, proposal_id: str) -> int:
        """How many annotators answer this question."""
        if predicate in self.copies_of:
            return self.copies_of[predicate]
        if self.copies == 1 or self.share == 1:
            return self.copies
        # Hashed again: whoever samples by the id itself must not sample the shared ones.
        drawn = int(hashlib.sha256(f"share {proposal_id}".encode()).hexdigest(), 16) % _SHARE_STEPS
        return self.copies if drawn < self.share * _SHARE_STEPS else 1
