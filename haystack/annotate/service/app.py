"""The annotation service: one page, and the requests that it makes."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol
from urllib.parse import urlencode

from haystack.annotate.records import (
    KeyConflictError,
    Proposal,
    UnknownProposalError,
)
from haystack.annotate.store.store import AnnotationStore
from haystack.errors import HaystackError, InputError, MissingDependencyError

try:
    import uvicorn
    from fastapi import FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import FileResponse, JSONResponse
    from fastapi.staticfiles import StaticFiles
except ImportError as error:
    raise MissingDependencyError(
        str(error.name), purpose="the annotation page", extra="annotate"
    ) from error

# These need the packages whose absence is explained above.
from sqlalchemy.exc import DBAPIError  # isort: skip

from haystack.annotate.service.guard import LOOPBACK_HOSTS, Guard
from haystack.annotate.service.messages import (
    AnswerRequest,
    CampaignProgress,
    Health,
    PredicateProgress,
    Question,
    Queue,
    Undone,
    UndoRequest,
)

OVERLAY_PALETTE = ((0, 0, 0, 0), (86, 180, 233, 255), (230, 159, 0, 255))
"""RGBA of an overlay's background, subject and object.

A blue and an orange that people with any colour vision tell apart (Okabe and Ito, 2008). The page
tells subject from object by which of red and blue is larger, and background by its alpha.
"""

_STATIC = Path(__file__).parents[1] / "static"
_IMMUTABLE = "private, max-age=31536000, immutable"
_PORTS_TRIED = 20
_MOST_AHEAD = 20


@dataclass(frozen=True)
class Caption:
    """What the two segments of a proposal are called.

    Args:
        subject: the subject's class, as annotators should read it.
        object: the object's class.
    """

    subject: str
    object: str


class Media(Protocol):
    """Pictures and names of a workspace. Methods are called from several threads at once.

    A method raises :class:`~haystack.errors.HaystackError` with a sentence for the annotator when
    it cannot give what it is asked for.
    """

    def image(self, image_key: str) -> tuple[bytes, str]:
        """The picture at display size and its MIME type; already upright (EXIF applied)."""
        ...

    def overlay(self, image_key: str, subject: int, object: int) -> bytes:
        """A PNG of the picture's shape: where the subject is and where the object is.

        A palette PNG with index 0 = neither, 1 = subject, 2 = object and the colours of
        :data:`OVERLAY_PALETTE`. It may be smaller or larger than the picture.
        """
        ...

    def caption(self, proposal: Proposal) -> Caption:
        """Names of the subject's and the object's class."""
        ...


def create_app(
    store: AnnotationStore,
    media: Media,
    vocabulary_names: Sequence[str],
    *,
    annotator: str = "annotator",
    media_version: str | None = None,
    ahead: int = 6,
    title: str = "Haystack",
) -> FastAPI:
    """The annotation application.

    Args:
        store: the campaign's store; the caller closes it.
        media: pictures and class names.
        vocabulary_names: predicate number -> the wording for annotators.
        annotator: the name that answers are saved under.
        media_version: changes whenever a picture or an overlay may have changed; part of their
            URLs, so that browsers can keep them for ever. None: a new one for every start.
        ahead: how many questions the page gets at a time, the one on screen included.
        title: title of the API schema.

    Raises:
        InputError: a proposal's predicate has no name, or ``ahead`` is out of range.
    """
    if not 1 <= ahead <= _MOST_AHEAD:
        raise InputError(f"expected ahead to be 1 to {_MOST_AHEAD} questions, got {ahead}")
    unnamed = [predicate for predicate in store.progress() if predicate >= len(vocabulary_names)]
    if unnamed:
        raise InputError(
            f"the queue asks about predicate {unnamed[0]}, the vocabulary names only "
            f"{len(vocabulary_names)}; give the vocabulary that the proposals were made with"
        )
    version = media_version or secrets.token_hex(8)
    desk = _Desk(store, media, tuple(vocabulary_names), version, ahead)

    def identify(_: Request) -> str:
        # The one place that says who is asking: nobody but this machine's user reaches it.
        return annotator

    # The interactive documentation pages would load scripts from other sites.
    app = FastAPI(title=title, docs_url=None, redoc_url=None)
    app.add_middleware(Guard)
    _add_errors(app)
    _add_questions(app, desk, identify)
    _add_media(app, desk)
    _add_page(app)
    return app


class OtherCampaignError(InputError):
    """An answer is meant for another campaign than the one that is served."""


class _Desk:
    """Turns proposals into what the page shows."""

    def __init__(
        self,
        store: AnnotationStore,
        media: Media,
        names: tuple[str, ...],
        version: str,
        ahead: int,
    ) -> None:
        self.store = store
        self.media = media
        self.names = names
        self.version = version
        self.ahead = ahead

    def question(self, proposal: Proposal) -> Question:
        caption = self.media.caption(proposal)
        image = urlencode({"key": proposal.image_key, "v": self.version})
        overlay = urlencode({"proposal": proposal.id, "v": self.version})
        return Question(
            id=proposal.id,
            image_id=proposal.image_id,
            subject=proposal.subject,
            object=proposal.object,
            predicate=proposal.predicate,
            subject_name=caption.subject,
            object_name=caption.object,
            predicate_name=self.names[proposal.predicate],
            image_url=f"/media/image?{image}",
            overlay_url=f"/media/overlay?{overlay}",
            rank=proposal.rank,
            round=proposal.round,
            origin=proposal.origin,
        )

    def queue(self, predicate: int, annotator: str) -> Queue:
        if predicate >= len(self.names):
            raise InputError(
                f"expected a predicate below {len(self.names)}, got {predicate}; "
                "load the page again"
            )
        waiting = self.store.upcoming(predicate, annotator, self.ahead)
        return Queue(
            predicate=predicate, questions=[self.question(proposal) for proposal in waiting]
        )

    def progress(self, annotator: str) -> CampaignProgress:
        rows = self.store.progress(annotator).values()
        return CampaignProgress(
            campaign=self.store.campaign,
            annotator=annotator,
            predicates=[
                PredicateProgress(name=self.names[row.predicate], **asdict(row)) for row in rows
            ],
        )

    def check_campaign(self, campaign: str | None) -> None:
        if campaign is not None and campaign != self.store.campaign:
            raise OtherCampaignError(
                "this address serves another campaign now; start the service of the campaign that "
                "this page was opened for, or load the page again"
            )

    def cache_control(self, version: str) -> str:
        """For ever, unless the URL is of another version of the media than is served now."""
        return _IMMUTABLE if version == self.version else "no-store"


def _add_questions(app: FastAPI, desk: _Desk, identify: Callable[[Request], str]) -> None:
    @app.get("/api/next")
    def get_next(request: Request, predicate: Annotated[int, Query(ge=0, lt=2**31)]) -> Queue:
        """The next questions about a predicate, first one first."""
        return desk.queue(predicate, identify(request))

    @app.post("/api/answer")
    def post_answer(request: Request, answer: AnswerRequest) -> Queue:
        """Save an answer; gives the next questions about the same predicate."""
        who = identify(request)
        desk.check_campaign(answer.campaign)
        saved = desk.store.answer(
            answer.proposal_id, answer.verdict, who, answer.key, answer.dwell_ms
        )
        return desk.queue(saved.proposal.predicate, who)

    @app.post("/api/undo")
    def post_undo(request: Request, undo: UndoRequest) -> Undone:
        """Retract one's latest answer; can be repeated until none is left."""
        who = identify(request)
        desk.check_campaign(undo.campaign)
        proposal = desk.store.undo(who, undo.key)
        if proposal is None:
            return Undone(undone=None, queue=None)
        return Undone(undone=desk.question(proposal), queue=desk.queue(proposal.predicate, who))

    @app.get("/api/progress")
    def get_progress(request: Request) -> CampaignProgress:
        """Counts of every predicate that has proposals."""
        return desk.progress(identify(request))

    @app.get("/healthz")
    def get_health() -> Health:
        """Whether the service works and reaches its database."""
        desk.store.event_count()
        return Health(status="ok", schema_version=desk.store.schema_version)


def _add_media(app: FastAPI, desk: _Desk) -> None:
    # Keys are looked up in the store, never made into paths here.
    @app.get("/media/image", response_class=Response)
    def get_image(key: str, v: str = "") -> Response:
        """The picture of an image that some proposal is about."""
        if not desk.store.has_image(key):
            return _sentence(404, "no proposal is about that image")
        content, mime = desk.media.image(key)
        return Response(content, headers=_media_headers(mime, desk.cache_control(v)))

    @app.get("/media/overlay", response_class=Response)
    def get_overlay(proposal: str, v: str = "") -> Response:
        """Where the subject and the object of a proposal are (palette PNG)."""
        asked = desk.store.proposal(proposal)
        content = desk.media.overlay(asked.image_key, asked.subject, asked.object)
        return Response(content, headers=_media_headers("image/png", desk.cache_control(v)))


def _media_headers(mime: str, cache_control: str) -> dict[str, str]:
    return {"Content-Type": mime, "Cache-Control": cache_control}


def _add_page(app: FastAPI) -> None:
    # no-cache: a browser asks whether its copy is still good, so an upgrade is seen at once.
    class Static(StaticFiles):
        def file_response(self, *args: Any, **kwargs: Any) -> Response:
            response = super().file_response(*args, **kwargs)
            response.headers["Cache-Control"] = "no-cache"
            return response

    @app.get("/", include_in_schema=False)
    def get_page() -> FileResponse:
        return FileResponse(_STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    app.mount("/static", Static(directory=_STATIC))


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return _sentence(422, f"{place}: {first['msg']}")

    @app.exception_handler(HaystackError)
    def refused(request: Request, error: HaystackError) -> JSONResponse:
        if isinstance(error, UnknownProposalError) or request.url.path.startswith("/media/"):
            return _sentence(404, str(error))
        if isinstance(error, OtherCampaignError):
            return _sentence(421, str(error))  # the page keeps the answer
        return _sentence(409 if isinstance(error, KeyConflictError) else 422, str(error))

    @app.exception_handler(Exception)
    def failed(_: Request, error: Exception) -> JSONResponse:
        return _sentence(500, f"the service failed ({type(error).__name__}); its log says more")

    @app.exception_handler(DBAPIError)
    def unavailable(_: Request, error: DBAPIError) -> JSONResponse:
        # 503 makes the page keep the answer and send it again.
        return _sentence(503, f"the annotation database cannot be used now: {error.orig}")


def _sentence(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"detail": sentence}, status_code=status)


def _announce(url: str) -> None:
    print(f"Annotate at {url} (Ctrl-C ends)", file=sys.stderr, flush=True)


def serve(
    app: FastAPI,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    announce: Callable[[str], None] = _announce,
) -> None:
    """Serve the application until Ctrl-C or SIGTERM; requests under way are finished first.

    Args:
        app: what :func:`create_app` made.
        host: an address of this machine that only this machine reaches.
        port: the first port to try; busy ones are passed over, 0 lets the system choose.
        announce: called with the page's URL once it can be opened.

    Raises:
        InputError: another host, or no free port.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"expected a port of 0 to 65535, got {port}")
    if host not in LOOPBACK_HOSTS:
        raise InputError(
            f"expected a host of {', '.join(LOOPBACK_HOSTS)}, got {host!r}: the page has no login, "
            "so it is served to this machine only; from another one, use an SSH tunnel "
            f"(ssh -L {port}:127.0.0.1:{port} THIS-MACHINE)"
        )
    listener = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listener.getsockname()[1]}/"
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            # The default of 5 s would drop the connection while somebody looks at a picture.
            timeout_keep_alive=75,
            timeout_graceful_shutdown=10,
        )
    )
    in_main_thread = threading.current_thread() is threading.main_thread()
    # uvicorn ends cleanly at SIGTERM, then sends it to itself again, to whoever handled it before.
    before = signal.signal(signal.SIGTERM, lambda *_: None) if in_main_thread else None
    try:
        announce(address)
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # uvicorn raises it after it has shut down
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, port + _PORTS_TRIED if port else 1):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            # Without listening, a second service could bind the same port with SO_REUSEADDR.
            listener.listen(128)
        except (OSError, OverflowError):
            listener.close()
        else:
            return listener
    raise InputError(
        f"the ports {port} to {port + _PORTS_TRIED - 1} are all in use; give another port"
    )
