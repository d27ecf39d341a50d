"""The annotation application: puts the parts of the service together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence

from fastapi import FastAPI

from haystack import __version__
from haystack.annotate.service.disagreements import add_disagreements
from haystack.annotate.service.errors import REFUSALS, add_errors
from haystack.annotate.service.guard import Guard
from haystack.annotate.service.health import add_health
from haystack.annotate.service.identity import Annotator
from haystack.annotate.service.login import Door, Entrance, add_login
from haystack.annotate.service.media import Media, add_media
from haystack.annotate.service.pages import add_me, add_page, add_static
from haystack.annotate.service.questions import Desk, add_questions
from haystack.annotate.service.site import Site
from haystack.annotate.store.accounts import Accounts
from haystack.annotate.store.store import AnnotationStore
from haystack.annotate.store.wordings import PredicateNames
from haystack.errors import InputError

_MOST_AHEAD = 20


def create_app(
    store: AnnotationStore,
    media: Media,
    vocabulary_names: Sequence[str],
    *,
    annotator: str = "annotator",
    site: Site | None = None,
    media_version: str | None = None,
    ahead: int = 6,
    title: str = "Haystack",
    parts: Iterable[Callable[[FastAPI], None]] = (),
) -> FastAPI:
    """The annotation application.

    Args:
        store: the campaign's store; the caller closes it.
        media: pictures and class names.
        vocabulary_names: predicate number -> the wording for annotators, as long as no lead has
            set another one.
        annotator: the name that answers are saved under, where only this machine's user answers.
        site: how the service is reached; by default on this machine only, without a login.
        media_version: changes whenever a picture or an overlay may have changed; part of their
            URLs, so that browsers can keep them for ever. None: a new one for every start.
        ahead: how many questions the page gets at a time, the one on screen included.
        title: title of the API schema.
        parts: each adds routes of its own that need more than the store and the media.

    Raises:
        InputError: a proposal's predicate has no name, ``ahead`` is out of range, or people would
            have to log in and nobody has a valid token.
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
    site = site or Site()
    entrance = _entrance(store, site) if site.needs_login else None
    app = FastAPI(
        title=title,
        version=__version__,
        description="Questions about relations in pictures, and the answers of annotators.",
        docs_url=None,  # these pages would load scripts from other sites
        redoc_url=None,
        responses=REFUSALS,
    )
    app.state.site = site
    app.state.pages = []
    local = Annotator(annotator, "lead") if entrance is None else None
    app.add_middleware(Door, local=local, entrance=entrance)
    app.add_middleware(Guard, site=site)  # added last, so it comes first
    add_errors(app)
    if entrance is not None:
        add_login(app, entrance)
    names = PredicateNames(store.database, vocabulary_names)
    desk = Desk(store, media, names, version, ahead)
    add_questions(app, desk)
    add_media(app, store, media, version)
    add_health(app, store.database)
    add_page(app, "/", "index.html")
    add_disagreements(app, store, desk)
    add_static(app)
    add_me(app, login=entrance is not None)
    for add_part in parts:
        add_part(app)
    return app


def _entrance(store: AnnotationStore, site: Site) -> Entrance:
    accounts = Accounts(store.database)
    if not accounts.any_valid():
        raise InputError(
            f"at {site.public_url or site.host} others can reach the page, so annotators log in, "
            "and none of them has a valid token; make one with: haystack annotators add WORK NAME"
        )
    return Entrance(accounts, store.campaign, is_https=site.is_https)
