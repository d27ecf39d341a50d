"""Whatever goes wrong is answered with a status and one sentence: ``{"detail": sentence}``."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError

from haystack.annotate.records import KeyConflictError, UnknownProposalError
from haystack.annotate.service.messages import Refusal
from haystack.errors import ConflictError, HaystackError, InputError

_log = logging.getLogger(__name__)


class OtherCampaignError(InputError):
    """An answer is meant for another campaign than the one that is served."""


class OtherAnnotatorError(InputError):
    """An answer comes from the page of somebody else than who is logged in."""


class LoginError(InputError):
    """Nobody is logged in who may ask for this."""


class TooManyLoginsError(InputError):
    """An address presented too many wrong tokens."""


class LeadOnlyError(InputError):
    """Only a lead may do this."""


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Refusal, "description": "Refused; why, in one sentence."},
    "5XX": {"model": Refusal, "description": "It failed, and may work later: send it again."},
}
"""For the schema: what every route may answer instead."""

_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "60"}}
_STATUS: dict[type[HaystackError], int] = {
    LoginError: 401,
    LeadOnlyError: 403,
    UnknownProposalError: 404,
    KeyConflictError: 409,
    ConflictError: 409,
    OtherCampaignError: 421,  # the page keeps the answer
    OtherAnnotatorError: 421,  # likewise
    TooManyLoginsError: 429,
}
"""The status of an error; of the others it is 422."""


def sentence(status: int, text: str) -> JSONResponse:
    """The response that says what is wrong."""
    return JSONResponse({"detail": text}, status_code=status, headers=_HEADERS.get(status))


def respond(error: HaystackError | DBAPIError) -> JSONResponse:
    """The response that says what was refused, or that the database cannot be used."""
    if isinstance(error, DBAPIError):
        # 503 makes the page keep the answer and send it again.
        # What it says may name hosts, users and files, and is for who runs the service.
        _log.error("the annotation database cannot be used: %s", error.orig)
        return sentence(
            503, "the annotation database cannot be used now; the service's log says why"
        )
    return sentence(_STATUS.get(type(error), 422), str(error))


def add_errors(app: FastAPI) -> None:
    """Answer every exception with a sentence."""

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return sentence(422, f"{place}: {first['msg']}")

    @app.exception_handler(HaystackError)
    def refused(request: Request, error: HaystackError) -> JSONResponse:
        response = respond(error)
        if response.status_code == 422 and request.url.path.startswith("/media/"):
            return sentence(404, str(error))  # a picture that cannot be had
        return response

    @app.exception_handler(Exception)
    def failed(_: Request, error: Exception) -> JSONResponse:
        return sentence(500, f"the service failed ({type(error).__name__}); its log says more")

    @app.exception_handler(DBAPIError)
    def unavailable(_: Request, error: DBAPIError) -> JSONResponse:
        return respond(error)
