"""What every request must pass before it reaches the application, and headers for every answer.

The page needs no login because only this machine can reach it. A browser on this machine can be
made to send requests by any web site, though: the checks here refuse those.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Names of this machine that nothing outside it can reach."""

_SAFE_METHODS = ("GET", "HEAD")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """ASGI middleware: known Host, own Origin, JSON bodies of bounded size, strict headers.

    Args:
        app: the application behind it.
        hosts: host names under which the service may be addressed. A page of another site whose
            name was made to point here (DNS rebinding) carries its own name, and is refused.
        max_body: longest request body in bytes.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Iterable[str] = LOOPBACK_HOSTS, max_body: int = 16_384
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], headers)
        if refusal is None and scope["method"] not in _SAFE_METHODS:
            body = await self._read(headers, receive)
            if body is None:
                refusal = (413, f"a request may be at most {self._max_body} bytes long")
            else:
                receive = _replay(body, receive)
        if refusal is not None:
            await _refuse(send_with_headers, *refusal)
            return
        await self._app(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if _host_name(host) not in self._hosts:
            return (
                400,
                f"this service is not addressed as {host[:80]!r}; use http://127.0.0.1:PORT/",
            )
        if method in _SAFE_METHODS:
            return None
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "requests that change something must come from Haystack's own page"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "requests that change something must come from Haystack's own page"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "expected a request body of type application/json"
        return None

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None as soon as it is too long."""
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced) > self._max_body:
            return None
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return bytes(body)
            body += message.get("body", b"")
            if len(body) > self._max_body:
                return None
            if not message.get("more_body", False):
                return bytes(body)


def _host_name(host: str) -> str | None:
    """The name in a Host header, without port or brackets; None if it cannot be read."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives the body that was read already, then whatever follows."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


async def _refuse(send: Any, status: int, sentence: str) -> None:
    content = json.dumps({"detail": sentence}).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(content)).encode()),
                (b"connection", b"close"),
            ],
        }
    )
    await send({"type": "http.response.body", "body": content})
