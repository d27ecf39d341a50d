"""Whether the service is alive, for whoever watches it: no login, and nothing to learn from it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError

from haystack.annotate.service.errors import sentence
from haystack.annotate.service.messages import Health, Life
from haystack.annotate.store.database import Database
from haystack.errors import HaystackError

PATHS = ("/livez", "/healthz")

_log = logging.getLogger(__name__)
_KEPT_SECONDS = 2.0
_HANGS_SECONDS = 10.0


class Watch:
    """Tries whether an answer could be stored; rarely, since anybody may ask, and it is a write.

    Args:
        database: to try.
        clock: seconds that only grow.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._trying = threading.Lock()
        self._began = clock()
        self._known: tuple[float, int | None] | None = None

    def version(self) -> int | None:
        """The database's schema version; None where it takes no answers.

        What was found is said again for two seconds, and to others while it is tried anew, unless
        that takes so long that it is as good as failed.
        """
        if not self._trying.acquire(blocking=self._known is None):
            hangs = self._clock() - self._began > _HANGS_SECONDS
            return None if hangs or self._known is None else self._known[1]
        try:
            now = self._clock()
            if self._known is None or now - self._known[0] >= _KEPT_SECONDS:
                self._began = now
                self._known = (now, self._try())
            return self._known[1]
        finally:
            self._trying.release()

    def _try(self) -> int | None:
        try:
            return self._database.check()
        except (SQLAlchemyError, HaystackError) as error:
            _log.error("no answer can be stored: %s", getattr(error, "orig", None) or error)
            return None


def add_health(app: FastAPI, database: Database) -> None:
    """Add the routes for watchers."""
    watch = Watch(database)

    @app.get("/livez")
    async def get_life() -> Life:
        """Whether the service works, whatever its database does; start it anew if not."""
        return Life(status="ok")

    @app.get("/healthz", response_model=Health)
    def get_health() -> Any:
        """Whether an answer could be stored; 503 if not, and answers wait in the pages."""
        version = watch.version()
        if version is None:
            return sentence(
                503,
                "answers cannot be stored now and wait in the browsers; the service's log says why",
            )
        return Health(status="ok", schema_version=version)
