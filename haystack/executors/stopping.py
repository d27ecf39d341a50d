"""Signals that end a run: clean at once, or when the shards in work are finished."""

from __future__ import annotations

import signal
import threading
from collections.abc import Collection
from types import FrameType
from typing import Any


class Stopped(KeyboardInterrupt):
    """A signal ended the run.

    No ``Exception``: jobs take those for broken images. ``computed`` is the number of shards that
    the run had computed by then.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = signal.Signals(number)
        self.computed = 0


class StopSignals:
    """While it is entered, SIGTERM raises ``Stopped``; it may be entered within itself.

    Args:
        finish: signals after which the shards in work may still be finished.
        grace: seconds for that; then ``Stopped`` is raised.
    """

    def __init__(self, finish: Collection[signal.Signals] = (), *, grace: float = 0.0) -> None:
        self._finish = frozenset(finish)
        self._grace = grace
        self._before: dict[signal.Signals, Any] = {}
        self._depth = 0
        self._in_work = False
        self._raised = False
        self.requested: signal.Signals | None = None

    def __enter__(self) -> StopSignals:
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            alarm = [signal.SIGALRM] if self._finish else []
            for number in (signal.SIGTERM, *self._finish, *alarm):
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            if self._finish:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in self._before.items():
                signal.signal(number, handler or signal.SIG_DFL)
            self._before.clear()

    def ignore(self) -> None:
        """From now on these signals do nothing, also when it is left."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        self._before.clear()

    def work(self, *, begins: bool) -> None:
        """Tell it when there are shards in work, and when no more."""
        self._in_work = begins

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._raised:  # once is enough: a second time would cut off the cleaning up
            return
        if number != signal.SIGALRM:
            self.requested = signal.Signals(number)
            if self._in_work and self.requested in self._finish:
                signal.setitimer(signal.ITIMER_REAL, self._grace)
                return
        if self.requested is not None:
            self._raised = True
            raise Stopped(self.requested)
