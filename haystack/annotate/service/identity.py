"""Who is asking. A name is never taken from what a request says, only from who may send it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from haystack.annotate.service.errors import LeadOnlyError

Role = Literal["annotator", "lead"]
"""A lead also names predicates, chooses clusters and settles disagreements."""


@dataclass(frozen=True)
class Annotator:
    """Somebody who answers.

    Args:
        name: what the answers are saved under.
        role: what they may do.
    """

    name: str
    role: Role


class Door:
    """ASGI middleware: notes who is asking, for :func:`identify`.

    Args:
        app: the application behind it.
        local: everybody who reaches the service is this person.
    """

    def __init__(self, app: ASGIApp, *, local: Annotator) -> None:
        self._app = app
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["annotator"] = self._local
        await self._app(scope, receive, send)


def identify(request: Request) -> Annotator:
    """Who sent this request."""
    annotator: Annotator = request.state.annotator
    return annotator


Asker = Annotated[Annotator, Depends(identify)]
"""Parameter of a route: who is asking."""


def lead_only(asker: Asker) -> Annotator:
    """The lead who sent this request.

    Raises:
        LeadOnlyError: it is no lead.
    """
    if asker.role != "lead":
        raise LeadOnlyError(f"only a lead may do this, and {asker.name!r} is an annotator")
    return asker


Lead = Annotated[Annotator, Depends(lead_only)]
"""Parameter of a route that is for leads: which one is asking."""
