"""The page that shows how a campaign goes: yield, pace, agreement, and figures to download."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from haystack.annotate.live import LiveSummary
from haystack.annotate.service.errors import sentence
from haystack.annotate.service.identity import Asker, Lead
from haystack.annotate.service.media import picture_of
from haystack.annotate.service.pages import add_page
from haystack.annotate.summary import Summary, seen_by

_REVALIDATED = "private, no-cache"


@dataclass(frozen=True)
class Figure:
    """A figure of the campaign.

    Args:
        title: what it shows.
        draw: makes an SVG of a summary.
    """

    title: str
    draw: Callable[[Summary], bytes]


@dataclass(frozen=True)
class ProgressMessage:
    """What the page shows.

    Args:
        summary: the campaign; an annotator gets no other person's figures.
        figures: name -> title of what a lead can download.
    """

    summary: Summary
    figures: Mapping[str, str]


def add_progress(
    app: FastAPI,
    live: LiveSummary,
    wording: Callable[[int], str],
    figures: Mapping[str, Figure] | None = None,
) -> None:
    """Add the page ``/progress``, what it asks for, and figures.

    Args:
        app: the application.
        live: the campaign's summary.
        wording: predicate number -> what annotators are asked about.
        figures: by name, which becomes part of an address and of a file's name.
    """
    drawings = figures or {}
    titles = {name: figure.title for name, figure in drawings.items()}
    drawn: dict[str, tuple[int, bytes]] = {}

    @app.get("/api/summary")
    def get_summary(request: Request, asker: Asker) -> ProgressMessage:
        """How the campaign goes. A lead sees everybody, an annotator the totals and oneself."""
        message = ProgressMessage(live.get(), titles)
        if asker.role != "lead":
            message = ProgressMessage(seen_by(message.summary, asker.name, wording), {})
        response = JSONResponse(asdict(message))
        return _unless_known(request, response)  # type: ignore[return-value]  # for the schema

    @app.get(
        "/api/figures/{name}.svg",
        response_class=Response,
        responses=picture_of("image/svg+xml"),
    )
    def get_figure(_: Lead, name: str) -> Response:
        """A figure of the campaign as it is now."""
        if name not in drawings:
            return sentence(404, "there is no such figure; the progress page lists them")
        summary = live.get()
        if name not in drawn or drawn[name][0] != summary.last_event:
            drawn[name] = (summary.last_event, drawings[name].draw(summary))
        headers = {
            "Cache-Control": _REVALIDATED,
            "Content-Disposition": f'attachment; filename="{name}.svg"',
        }
        return Response(drawn[name][1], media_type="image/svg+xml", headers=headers)

    add_page(app, "/progress", "progress.html")


def _unless_known(request: Request, response: Response) -> Response:
    """The response, or no content where the browser has it already: a page asks all day."""
    tag = f'"{hashlib.sha256(response.body).hexdigest()[:24]}"'
    headers = {"ETag": tag, "Cache-Control": _REVALIDATED}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response
