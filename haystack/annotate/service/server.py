"""The server: an address, a port that is free, and an end that loses nothing."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from haystack.annotate.service.guard import LOOPBACK_HOSTS
from haystack.errors import InputError

_PORTS_TRIED = 20


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
        app: what :func:`~haystack.annotate.service.app.create_app` made.
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
