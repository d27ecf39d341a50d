"""What every request must pass before it reaches the application, and headers for every answer.

Any web site can make a browser send requests to this service: the checks here refuse those.
Without a login they are all that stands between such a site and the answers.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from haystack.annotate.service.site import Site

_SAFE_METHODS = ("GET", "HEAD")
_MOST_BYTES = 16_384
_BODY_SECONDS = 20.0
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
        site: the names under which the service may be addressed, and its own origin.
    """

    def __init__(self, app: ASGIApp, *, site: Site) -> None:
        self._app = app
        self._site = site

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
            try:
                body = await asyncio.wait_for(self._read(headers, receive), _BODY_SECONDS)
            except asyncio.TimeoutError:
                refusal = (408, f"a request must be sent within {_BODY_SECONDS:g} seconds")
            else:
                if body is None:
                    refusal = (413, f"a request may be at most {_MOST_BYTES} bytes long")
                else:
                    receive = _replay(body, receive)
        if refusal is not None:
            await _refuse(send_with_headers, *refusal)
            return
        await self._app(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._site.knows(host):
            return (
                421,  # a page that is open keeps its answers, until the service knows its name
                f"this service is not addressed as {host[:80]!r}; use the address that it printed "
                "when it started, or start it with --public-url",
            )
        foreign = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy in front might take the other one for true, and see another request.
            return 400, "expected either Content-Length or Transfer-Encoding, got both"
        if method in _SAFE_METHODS:
            # Others may link to a page. What is fetched may claim a question, though.
            if foreign and headers.get("sec-fetch-mode") != "navigate":
                return 403, "only Haystack's own page may fetch this"
            return None
        origin = headers.get("origin")
        if origin is not None and not self._site.is_own(origin, host):
            return 403, "requests that change something must come from Haystack's own page"
        if foreign:
            return 403, "requests that change something must come from Haystack's own page"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "expected a request body of type application/json"
        return None

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None as soon as it is too long."""
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced) > _MOST_BYTES:
            return None
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return bytes(body)
            body += message.get("body", b"")
            if len(body) > _MOST_BYTES:
                return None
            if not message.get("more_body", False):
                return bytes(body)


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
