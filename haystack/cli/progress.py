"""How far a long verb is, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

_EVERY = 20.0  # seconds between two lines


class Progress:
    """Shows how much is done. Of several processes the first speaks.

    Args:
        what: the verb.
        unit: what is counted, in the singular.
        total: how many there are, or None where only the end will tell.
    """

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._silent = os.environ.get("RANK", "0") != "0"
        self._bar: Any = None
        self._begun = self._last = time.monotonic()
        if not self._silent and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(desc=what, unit=unit, total=total, file=sys.stderr)

    def show(self, done: int, total: int | None = None, **notes: str) -> None:
        """``done`` of them are finished; ``notes`` stand behind."""
        self._total = total or self._total
        if self._silent:
            return
        if self._bar is not None:
            self._bar.total = self._total
            self._bar.set_postfix(notes, refresh=False)
            self._bar.update(done - self._bar.n)
        elif time.monotonic() - self._last >= _EVERY:
            self._last = time.monotonic()
            of = "" if self._total is None else f" of {self._total}"
            said = "".join(f", {name} {value}" for name, value in notes.items())
            seconds = self._last - self._begun
            print(
                f"{self._what}: {done}{of} {self._unit}s after {seconds:.0f} s{said}",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


def training_progress() -> Any:
    """What ``train`` calls after every step: step, number of steps, losses by name."""
    progress = Progress("train", "step")

    def show(step: int, steps: int, losses: Mapping[str, float]) -> None:
        progress.show(step, steps, **{name: f"{value:.3g}" for name, value in losses.items()})
        if step >= steps:
            progress.close()

    return show


class Watched:
    """Items passed on, counted and shown.

    The first is made at once: what fails at once fails before anything is written.

    Args:
        items: to be passed on.
        progress: where their number is shown.
    """

    def __init__(self, items: Iterable[Any], progress: Progress) -> None:
        iterator = iter(items)
        self._progress = progress
        self._items = chain(list(islice(iterator, 1)), iterator)
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        try:
            for item in self._items:
                yield item
                self.count += 1
                self._progress.show(self.count)
        finally:
            self._progress.close()
