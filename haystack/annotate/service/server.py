"""The server: an address, a port that is free, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
import threading
from collections.abc import Callable

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from haystack.annotate.service.site import Site
from haystack.errors import InputError

_PORTS_TRIED = 20
_HEADERS_SECONDS = 20.0
_MOST_CONNECTIONS = 800
"""A browser keeps up to six; Linux gives a process 1024 files unless told otherwise."""


def _announce(url: str) -> None:
    print(f"Annotate at {url} (Ctrl-C ends)", file=sys.stderr, flush=True)


def serve(app: FastAPI, port: int = 8000, *, announce: Callable[[str], None] = _announce) -> None:
    """Serve the application until Ctrl-C or SIGTERM; requests under way are finished first.

    It listens on the address of the application's site, which says whether people log in.

    Args:
        app: what :func:`~haystack.annotate.service.app.create_app` made.
        port: the first port to try; busy ones are passed over, 0 lets the system choose.
        announce: called with the page's URL once it can be opened.

    Raises:
        InputError: an address that is not this machine's, or no free port.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"expected a port of 0 to 65535, got {port}")
    site: Site = app.state.site
    listener = _listen(site, port)
    server = uvicorn.Server(
        # One process, one writer: SQLite's writers take turns in it without waiting for each other.
        # With PostgreSQL several services may run, each with a port of its own.
        uvicorn.Config(
            app,
            http=_Punctual,
            limit_concurrency=_MOST_CONNECTIONS,
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
        announce(site.url(listener.getsockname()[1]))
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # uvicorn raises it after it has shut down
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)
        listener.close()


class _Punctual(H11Protocol):
    """HTTP/1.1 that ends a connection whose request line and headers trickle in.

    Without a limit, a few hundred such connections (slow loris) would shut everybody else out.
    How long a body may take is the guard's matter.
    """

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._await_headers()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        if self._overdue is None:
            self._overdue = self.loop.call_later(_HEADERS_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


def _listen(site: Site, port: int) -> socket.socket:
    # People open the address that they were told, so only this machine's user is given another.
    tried = _PORTS_TRIED if port and not site.needs_login else 1
    for candidate in range(port, port + tried):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                site.host, candidate, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
        except (OSError, OverflowError, UnicodeError) as error:
            raise InputError(f"cannot listen on {site.host!r}: {error}") from error
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if site.host == "::":
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(address)
            # Without listening, a second service could bind the same port with SO_REUSEADDR.
            listener.listen(128)
        except (OSError, OverflowError) as error:
            listener.close()
            if isinstance(error, OSError) and error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise InputError(
                    f"cannot listen on {site.host!r} ({error.strerror}); give an address of this "
                    "machine"
                ) from error
        else:
            return listener
    which = f"the ports {port} to {port + tried - 1} are all" if tried > 1 else f"port {port} is"
    raise InputError(f"{which} in use; give another port")
