"""Whether the service is alive, for whoever watches it: no login, and nothing to learn from it."""

from __future__ import annotations

from fastapi import FastAPI

from haystack.annotate.service.messages import Health, Life
from haystack.annotate.store.database import Database

PATHS = ("/livez", "/healthz")


def add_health(app: FastAPI, database: Database) -> None:
    """Add the routes for watchers."""

    @app.get("/livez")
    async def get_life() -> Life:
        """Whether the service works, whatever its database does; start it anew if not."""
        return Life(status="ok")

    @app.get("/healthz")
    def get_health() -> Health:
        """Whether the service reaches its database; 503 if not, and answers wait in the pages."""
        return Health(status="ok", schema_version=database.check())
