"""Whatever goes wrong is answered with a status and one sentence: ``{"detail": sentence}``."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError

from haystack.annotate.records import KeyConflictError, UnknownProposalError
from haystack.errors import HaystackError, InputError


class OtherCampaignError(InputError):
    """An answer is meant for another campaign than the one that is served."""


class LoginError(InputError):
    """Nobody is logged in who may ask for this."""


class LeadOnlyError(InputError):
    """Only a lead may do this."""


_STATUS: dict[type[HaystackError], int] = {
    LoginError: 401,
    LeadOnlyError: 403,
    UnknownProposalError: 404,
    KeyConflictError: 409,
    OtherCampaignError: 421,  # the page keeps the answer
}
"""The status of an error; of the others it is 422."""


def sentence(status: int, text: str) -> JSONResponse:
    """The response that says what is wrong."""
    return JSONResponse({"detail": text}, status_code=status)


def add_errors(app: FastAPI) -> None:
    """Answer every exception with a sentence."""

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return sentence(422, f"{place}: {first['msg']}")

    @app.exception_handler(HaystackError)
    def refused(request: Request, error: HaystackError) -> JSONResponse:
        status = _STATUS.get(type(error), 422)
        if status == 422 and request.url.path.startswith("/media/"):
            status = 404  # a picture that cannot be had
        return sentence(status, str(error))

    @app.exception_handler(Exception)
    def failed(_: Request, error: Exception) -> JSONResponse:
        return sentence(500, f"the service failed ({type(error).__name__}); its log says more")

    @app.exception_handler(DBAPIError)
    def unavailable(_: Request, error: DBAPIError) -> JSONResponse:
        # 503 makes the page keep the answer and send it again.
        return sentence(503, f"the annotation database cannot be used now: {error.orig}")
