"""How far a run is, for people who watch it."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOG_LINES = 30.0


class Progress:
    """A bar on a terminal, a log line every half minute elsewhere.

    Args:
        stage: its name.
        shards: how many there are.
        shown: whether to show anything.
    """

    def __init__(self, stage: str, shards: int, *, shown: bool) -> None:
        self._stage = stage
        self._total = shards
        self._shards = 0
        self._items = 0
        self._bar: Any = None
        self._shown = shown
        self._last = time.monotonic()
        if shown and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=shards, desc=stage, unit="shard", file=sys.stderr)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def items(self, count: int) -> None:
        """``count`` more items of a shard in work were looked at."""
        self._items += count
        self._show()

    def shard(self, items: int) -> None:
        """One shard is finished, with ``items`` that were not counted yet."""
        self._shards += 1
        self._items += items
        if self._bar is not None:
            self._bar.update(1)
        self._show()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.set_postfix(items=self._items, refresh=False)
            self._bar.update(0)
        elif self._shown and time.monotonic() - self._last >= SECONDS_BETWEEN_LOG_LINES:
            self._last = time.monotonic()
            logger.info(
                "%s: %d of %d shards, %d items", self._stage, self._shards, self._total, self._items
            )
