"""Pages and the files that they load: static, the same for everybody, and without data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from haystack.annotate.service.identity import Asker
from haystack.annotate.service.messages import Me

STATIC = Path(__file__).parents[1] / "static"

# A browser asks whether its copy is still good, so an upgrade is seen at once.
_FRESH = {"Cache-Control": "no-cache"}


class _Static(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_FRESH)
        return response


def add_static(app: FastAPI) -> None:
    """Serve scripts, styles and icons under ``/static/``."""
    app.mount("/static", _Static(directory=STATIC))


def add_page(app: FastAPI, path: str, file: str) -> None:
    """Serve ``static/<file>`` at ``path``; the header of all pages may link to it.

    Args:
        app: the application.
        path: such as ``/clusters``; ``static/shell.js`` names the link, and who sees it.
        file: such as ``clusters.html``; it must not hold anything that not everybody may see.
    """

    @app.get(path, include_in_schema=False)
    def get_page() -> FileResponse:
        return FileResponse(STATIC / file, headers=_FRESH)

    app.state.pages.append(path)


def add_me(app: FastAPI, *, login: bool) -> None:
    """Add the route that tells a page who is asking, for its header.

    Args:
        app: the application.
        login: whether people log in.
    """

    @app.get("/api/me")
    def get_me(asker: Asker) -> Me:
        """Who asks. Without a login it is the user of this machine, who leads the campaign."""
        return Me(name=asker.name, role=asker.role, login=login, pages=app.state.pages)
