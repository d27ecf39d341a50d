from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from weight_server import Server, weight_file


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server(weight_file())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        found.address = f"http://127.0.0.1:{http.server_port}"
        yield found
        http.shutdown()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> Path:
    """An empty folder of weights, the server as its mirror, and no cache of anybody else."""
    place = tmp_path / "weights"
    monkeypatch.setenv("HAYSTACK_WEIGHTS", str(place))
    monkeypatch.setenv("HAYSTACK_WEIGHTS_MIRROR", f"{server.address}/mirror/")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("haystack.weights.download._PAUSE", 0.0)
    return place
