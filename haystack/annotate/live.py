"""The summary of a campaign while it goes on: what came since the last look is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from haystack.annotate.store.event_feed import (
    events_after,
    further_copies,
    gold_verdicts,
    open_questions,
)
from haystack.annotate.store.store import AnnotationStore
from haystack.annotate.summary import Summarizer, Summary
from haystack.annotate.tally import Tally


class LiveSummary:
    """Any number of threads may look, as often as they like; the database is not asked more often.

    Args:
        store: the campaign's store; the caller closes it.
        summarizer: makes the summaries.
        clock: seconds since 1970.
        every: seconds that a summary is given again before new events are asked for.
        queue_every: the same for how many answers each question is to get, which is slow to count.
    """

    def __init__(
        self,
        store: AnnotationStore,
        summarizer: Summarizer,
        *,
        clock: Callable[[], float] = time.time,
        every: float = 2.0,
        queue_every: float = 60.0,
    ) -> None:
        self._database = store.database
        self._summarizer = summarizer
        self._clock = clock
        self._every, self._queue_every = every, queue_every
        self._tally = Tally()
        self._copies: dict[int, int] = {}
        self._summary: Summary | None = None
        self._looked = self._counted = -float("inf")
        self._lock = threading.Lock()

    def get(self) -> Summary:
        """The campaign now, or a moment ago."""
        with self._lock:
            # Never the wall clock: it may jump.
            now = time.monotonic()
            if self._summary is None or now - self._looked >= self._every:
                if now - self._counted >= self._queue_every:
                    self._copies = further_copies(self._database)
                    self._counted = now
                self._tally.add(events_after(self._database, self._tally.last_event))
                self._summary = self._summarizer.summarize(
                    self._tally,
                    to_ask=self._to_ask(),
                    gold=gold_verdicts(self._database),
                    now=self._clock(),
                )
                self._looked = now
            return self._summary

    def _to_ask(self) -> dict[int, int]:
        """Answers that are still asked for.

        What was given to a question that several are to answer is taken off; a skip of it as well,
        though it will be asked of somebody else.
        """
        return {
            predicate: count + max(0, self._copies.get(predicate, 0) - given)
            for predicate, (count, given) in open_questions(self._database).items()
        }
