"""Who is asking. A name is never taken from what a request says, only from who may send it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from haystack.annotate.service.errors import LeadOnlyError
from haystack.annotate.store.accounts import Role


@dataclass(frozen=True)
class Annotator:
    """Somebody who answers.

    Args:
        name: what the answers are saved under.
        role: what they may do.
    """

    name: str
    role: Role


def identify(request: Request) -> Annotator:
    """Who sent this request: whom the door let in (see ``login.Door``)."""
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
