"""Letting people in: a token once, then a cookie; or a token with every request of a script."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any

from fastapi import FastAPI, Request, Response
from sqlalchemy.exc import DBAPIError
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from haystack.annotate.service import health
from haystack.annotate.service.errors import LoginError, TooManyLoginsError, respond
from haystack.annotate.service.identity import Annotator
from haystack.annotate.service.messages import LoggedOut, LoginRequest, LogoutRequest, Welcome
from haystack.annotate.service.pages import add_page
from haystack.annotate.store.accounts import (
    Account,
    Accounts,
    EndedTokenError,
    TokenError,
    digest_of,
)
from haystack.errors import HaystackError

_COOKIE_SECONDS = 180 * 24 * 3600
"""How long a browser keeps a login. The service asks the account at every request anyway."""

_OPEN_POSTS = ("/api/login", "/api/logout")
_MOST_ADDRESSES = 10_000
_log = logging.getLogger(__name__)


class Throttle:
    """Counts the wrong tokens that came from an address lately.

    A token that is repeated counts once: a page that still holds a token which was renewed is no
    attack.

    Args:
        most: how many different wrong tokens an address may present within ``window``.
        window: seconds.
        clock: seconds that only grow.
    """

    def __init__(
        self, most: int = 20, window: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._window = window
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, dict[str, float]] = OrderedDict()

    def is_closed(self, address: str) -> bool:
        """Whether nothing more is looked at from this address for now."""
        with self._lock:
            return len(self._recent(_network(address))) >= self._most

    def count(self, address: str, digest: str) -> None:
        """Note a wrong token."""
        network = _network(address)
        with self._lock:
            recent = self._recent(network) | {digest: self._clock()}
            self._wrong[network] = recent
            self._wrong.move_to_end(network)
            if len(self._wrong) > _MOST_ADDRESSES:
                self._wrong.popitem(last=False)
        if len(recent) == self._most:
            _log.warning("%d wrong tokens from %s within a minute", self._most, address)

    def _recent(self, network: str) -> dict[str, float]:
        since = self._clock() - self._window
        return {k: at for k, at in self._wrong.get(network, {}).items() if at > since}


def _network(address: str) -> str:
    """Whoever has one IPv6 address has 2^64 of them."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return str(parsed)


class Entrance:
    """Tells by their tokens who people are.

    Args:
        accounts: of the campaign.
        campaign: the campaign's name; several services of one machine share a browser's cookies.
        is_https: whether the cookie travels by https alone.
        throttle: bounds wrong tokens.
    """

    def __init__(
        self,
        accounts: Accounts,
        campaign: str,
        *,
        is_https: bool = False,
        throttle: Throttle | None = None,
    ) -> None:
        # A browser takes a cookie with this prefix from an https answer of this very host only.
        self.cookie = f"{'__Host-' if is_https else ''}haystack-{campaign}"
        self.is_https = is_https
        self._accounts = accounts
        self._throttle = throttle or Throttle()
        self._seen: set[str] = set()

    def admit(self, token: str, address: str) -> Account:
        """Whose token it is.

        Raises:
            LoginError: nobody's, or it has ended.
            TooManyLoginsError: this address presented too many wrong ones to look at another.
        """
        digest = digest_of(token)
        # Who is in already stays in, whatever a neighbour behind the same address does.
        if digest not in self._seen and self._throttle.is_closed(address):
            raise TooManyLoginsError(
                "too many wrong tokens came from this address; wait a minute, then try again"
            )
        try:
            account = self._accounts.verify(token)
        except EndedTokenError as error:
            raise LoginError(str(error)) from None
        except TokenError as error:
            self._throttle.count(address, digest)
            raise LoginError(str(error)) from None
        self._seen.add(digest)
        return account

    def recognise(self, request: Request) -> Annotator:
        """Who sent a request, by its Authorization header or its cookie.

        Raises:
            LoginError: nobody who may.
            TooManyLoginsError: see :meth:`admit`.
        """
        kind, _, credentials = request.headers.get("authorization", "").partition(" ")
        bearer = credentials.strip() if kind.lower() == "bearer" else ""
        token = bearer or request.cookies.get(self.cookie, "")
        if not token:
            raise LoginError("nobody is logged in; open the link that your lead gave you")
        account = self.admit(token, address_of(request))
        return Annotator(account.name, account.role)


class Door:
    """ASGI middleware: nobody unknown gets past it, but to pages and to the login.

    Pages are the same for everybody and hold no data. Whatever else is added to the application
    lies behind the door, without doing anything for it.

    Args:
        app: the application behind it.
        local: who everybody is, where only this machine's user can come.
        entrance: tells who people are otherwise.
    """

    def __init__(
        self, app: ASGIApp, *, local: Annotator | None = None, entrance: Entrance | None = None
    ) -> None:
        self._app = app
        self._local = local
        self._entrance = entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and not _is_open(scope):
            request = Request(scope)
            try:
                request.state.annotator = await self._recognise(request)
            except (HaystackError, DBAPIError) as error:
                await respond(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _recognise(self, request: Request) -> Annotator:
        if self._local is not None:
            return self._local
        if self._entrance is None:
            raise LoginError("nobody can log in here")
        return await run_in_threadpool(self._entrance.recognise, request)


def _is_open(scope: Scope) -> bool:
    method, path = scope["method"], scope["path"]
    if method in ("GET", "HEAD"):
        return (
            path in scope["app"].state.pages or path in health.PATHS or path.startswith("/static/")
        )
    return method == "POST" and path in _OPEN_POSTS


def address_of(request: Request) -> str:
    """Where a request comes from; a proxy on this machine tells for whom it asks."""
    return request.client.host if request.client else ""


def add_login(app: FastAPI, entrance: Entrance) -> None:
    """Add the page and the routes by which people log in and out."""
    add_page(app, "/login", "login.html")

    @app.post("/api/login")
    def post_login(request: Request, login: LoginRequest, response: Response) -> Welcome:
        """Exchange a token for a cookie that only requests of this service's pages carry."""
        account = entrance.admit(login.token, address_of(request))
        response.set_cookie(
            entrance.cookie,
            login.token,
            max_age=_COOKIE_SECONDS,
            secure=entrance.is_https,
            httponly=True,
            samesite="strict",
        )
        return Welcome(name=account.name, role=account.role)

    @app.post("/api/logout")
    def post_logout(_: LogoutRequest, response: Response) -> LoggedOut:
        """Make the browser forget the cookie. The token itself stays valid until it ends."""
        response.delete_cookie(
            entrance.cookie, secure=entrance.is_https, httponly=True, samesite="strict"
        )
        return LoggedOut()

    _describe(app, entrance.cookie)


def _describe(app: FastAPI, cookie: str) -> None:
    """Write the ways in into the schema: the door is no dependency that FastAPI would see."""
    write = app.openapi

    def openapi() -> dict[str, Any]:
        schema = write()
        schema["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "For scripts."},
            "cookie": {"type": "apiKey", "in": "cookie", "name": cookie},
        }
        schema["security"] = [{"token": []}, {"cookie": []}]
        for path in (*_OPEN_POSTS, *health.PATHS):
            for operation in schema["paths"][path].values():
                operation["security"] = []
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
