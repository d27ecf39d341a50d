"""Answering a queue from known truth: for simulation, tests and the yield of a queue's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal

from haystack.annotate.records import Proposal, Verdict
from haystack.annotate.store.store import AnnotationStore
from haystack.errors import InputError

Truth = Callable[[Proposal], Verdict | None]
"""The true answer to a proposal; None where the truth does not say."""


class SteppingClock:
    """A clock that moves by the same step at every look, so that runs can be repeated exactly.

    Args:
        start: the first time given.
        step: from one look to the next.
    """

    def __init__(
        self,
        start: datetime = datetime(2000, 1, 1, tzinfo=timezone.utc),
        step: timedelta = timedelta(seconds=1),
    ) -> None:
        self._next = start
        self._step = step

    def __call__(self) -> datetime:
        """The time now; the next look gives one step later."""
        now = self._next
        self._next += self._step
        return now


@dataclass(frozen=True)
class SimulationReport:
    """What a simulated annotator answered.

    Args:
        verdicts: predicate -> the answers in the order in which they were asked.
        unannotated: how many of them the truth did not say.
    """

    verdicts: Mapping[int, tuple[Verdict, ...]]
    unannotated: int

    @property
    def answers(self) -> int:
        """All answers, skips included."""
        return sum(len(given) for given in self.verdicts.values())

    @property
    def positives(self) -> int:
        """Answers that are ``correct``: the needles found."""
        return sum(given.count("correct") for given in self.verdicts.values())


def answer_from_truth(
    store: AnnotationStore,
    truth: Truth,
    annotator: str = "truth",
    *,
    limit: int | None = None,
    predicates: Iterable[int] | None = None,
    unannotated: Literal["skip", "incorrect"] = "skip",
) -> SimulationReport:
    """Answer proposals in queue order, as an annotator who knows the truth would.

    A run that was killed goes on where it stopped, because what was answered is not asked again.

    Args:
        store: the campaign's store.
        truth: the true answer to a proposal.
        annotator: the name to answer under.
        limit: at most this many answers per predicate; None for the whole queue.
        predicates: which predicates, in this order; None for every one that has proposals.
        unannotated: what to answer where the truth does not say.

    Returns:
        What was answered, in order.

    Raises:
        InputError: a negative limit, or another value of ``unannotated``.
    """
    if limit is not None and limit < 0:
        raise InputError(f"expected a limit of 0 or more answers per predicate, got {limit}")
    if unannotated not in ("skip", "incorrect"):
        raise InputError(f"expected unannotated to be skip or incorrect, got {unannotated!r}")
    given: dict[int, tuple[Verdict, ...]] = {}
    unknown = 0
    serial = store.event_count()
    for predicate in store.progress() if predicates is None else predicates:
        verdicts: list[Verdict] = []
        while limit is None or len(verdicts) < limit:
            asked = store.next_proposal(predicate, annotator)
            if asked is None:
                break
            known = truth(asked)
            verdict: Verdict = unannotated if known is None else known
            # The serial keeps the key new when an answer was undone and is simulated again.
            store.answer(asked.id, verdict, annotator, f"simulated:{asked.id}:{serial}")
            serial += 1
            unknown += known is None
            verdicts.append(verdict)
        given[predicate] = tuple(verdicts)
    return SimulationReport(given, unknown)
