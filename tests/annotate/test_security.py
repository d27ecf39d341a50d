"""Hostile requests at a service that really runs, on an address that others can reach.

They go over raw sockets: clients would tidy paths, lengths and headers up before sending them.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone

import pytest

pytest.importorskip("fastapi", reason="the annotation page needs FastAPI")
pytest.importorskip("httpx", reason="tests of the service need httpx")

from fastapi.testclient import TestClient

from haystack.annotate.service.app import create_app
from haystack.annotate.store.accounts import Accounts
from haystack.annotate.store.store import AnnotationStore

_SERVICE = """
import sys
import haystack.annotate.service.guard as guard
import haystack.annotate.service.server as server
from haystack.annotate import AnnotationStore, Caption, Site, create_app
from haystack.errors import InputError
guard._BODY_SECONDS = server._HEADERS_SECONDS = 1.0
class Media:
    def caption(self, proposal): return Caption("person", "pizza")
    def image(self, key): return open(key, "rb").read(), "image/jpeg"
    def overlay(self, key, subject, object): return b""
with AnnotationStore(sys.argv[1]) as store:
    app = create_app(store, Media(), ("eating", "riding"), site=Site("0.0.0.0"))
    server.serve(app, port=0)
"""
SQL = "'; DROP TABLE events; --"


class Victim:
    """The running service, and what its database holds."""

    def __init__(self, port, store, tokens):
        self.port, self.store, self.tokens = port, store, tokens
        self.host = f"192.0.2.7:{port}"

    def send(self, data, *, wait=10.0):
        """Send bytes; gives the status of the first response and everything that came back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            # It may refuse before all is sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            return self.receive(connection)

    @staticmethod
    def receive(connection):
        received = b""
        try:
            while piece := connection.recv(65536):
                received += piece
        except (ConnectionResetError, TimeoutError):
            pass
        status = re.match(rb"HTTP/1.1 (\d+) ", received)
        return (int(status[1]) if status else None), received

    def head(self, method="GET", target="/", *, who="lea", host=None, **headers):
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host or self.host}", "Connection: close"]
        if who is not None:
            lines.append(f"Authorization: Bearer {self.tokens[who]}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n"

    def get(self, target, **options):
        return self.send(self.head(target=target, **options))

    def post(self, target, body, *, content_type="application/json", **options):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        options = {"Content_Type": content_type, "Content_Length": len(content)} | options
        return self.send(self.head("POST", target, **options) + content)

    def answer_to(self, rank=0, **changes):
        question = self.store.upcoming(0, "nobody", 6)[rank]
        return {"proposal_id": question.id, "verdict": "correct", "key": "k"} | changes


@pytest.fixture(scope="module")
def victim(tmp_path_factory, make_queue):
    path = tmp_path_factory.mktemp("victim") / "annotations.db"
    with AnnotationStore(path) as store:
        store.load_proposals(make_queue(), round=0)
        accounts = Accounts(store.database)
        tokens = {name: accounts.add(name) for name in ("ann", "bob", "gone")}
        tokens["lea"] = accounts.add("lea", "lead")
        accounts.revoke("gone")
        past = Accounts(store.database, clock=lambda: datetime(2020, 1, 1, tzinfo=timezone.utc))
        tokens["old"] = past.add("old", lifetime=timedelta(days=1))
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVICE, str(path)], stderr=subprocess.PIPE, text=True
        )
        try:
            port = int(re.search(r":(\d+)/", process.stderr.readline())[1])
            yield Victim(port, store, tokens)
            assert process.poll() is None, "the service did not survive"
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


@pytest.fixture(autouse=True)
def unharmed(victim):
    """Whatever was sent: nothing was saved, and the service goes on."""
    before = victim.store.event_count()
    yield
    assert victim.store.event_count() == before
    status, received = victim.get("/api/me")
    assert status == 200
    assert b'"lea"' in received


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "target",
    [
        "/static/../service/app.py",
        "/static/%2e%2e/service/app.py",
        "/static/..%2fservice/app.py",
        "/static/..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2fetc/passwd",
        "/static/..%5c..%5cservice/app.py",
        "/static/%252e%252e/service/app.py",
        "/static//etc/passwd",
        "/static/%2fetc/passwd",
        "/static/app.js%00.css",
        "/../../../../../../../../etc/passwd",
        "//etc/passwd",
        "/media/image?key=/etc/passwd",
        "/media/image?key=../../../../../../etc/passwd",
        "/media/image?key=%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/media/image?key=0.jpg%00/etc/passwd",
        "/media/overlay?proposal=../../etc/passwd",
        "file:///etc/passwd",
        "http://evil.example/etc/passwd",
    ],
)
def test_no_path_leads_out(victim, target):
    status, received = victim.get(target)
    assert status in (400, 404)
    assert b"root:" not in received
    assert b"create_app" not in received


@pytest.mark.parametrize("target", ["/\0", "/ /api/me", "", "/\n", "/api/me HTTP/1.1\r\nX: y"])
def test_a_request_line_that_is_none_is_refused(victim, target):
    status, received = victim.get(target, who=None)
    assert status in (400, 401, 404)
    assert b'"lea"' not in received


# ---------------------------------------------------------------- lengths


@pytest.mark.parametrize(
    ("length", "status"),
    [
        ("10000000000", 413),
        ("20000", 413),
        ("99999999999999999999999", 400),
        ("-1", 400),
        ("1e3", 400),
        ("0x10", 400),
        ("5, 6", 400),
        ("", 400),
    ],
)
def test_a_length_that_is_too_much_or_none_is_refused(victim, length, status):
    found, _ = victim.post("/api/answer", victim.answer_to(), Content_Length=length)
    assert found == status


def test_two_lengths_are_refused(victim):
    content = json.dumps(victim.answer_to()).encode()
    size = len(content)
    head = victim.head("POST", "/api/answer", Content_Type="application/json", Content_Length=size)
    other = f"Content-Length: {size + 5}\r\n\r\n".encode()
    assert victim.send(head[:-2] + other + content)[0] == 400
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    body = f"{size:x}\r\n".encode() + content + b"\r\n0\r\n\r\n"
    status, received = victim.send(head[:-2] + chunked + body)
    assert status == 400
    assert b"got both" in received


def test_a_length_that_is_less_than_the_body_smuggles_nothing_in(victim):
    hidden = victim.head("POST", "/api/undo", Content_Type="application/json", Content_Length=11)
    hidden += b'{"key":"k"}'
    content = b'{"key":"k1"'
    head = victim.head(
        "POST", "/api/undo", Content_Type="application/json", Content_Length=len(content)
    )
    status, received = victim.send(head + content + hidden)
    assert status == 422
    assert received.count(b"HTTP/1.1") == 1


def test_a_length_that_is_more_than_the_body_ends_in_time(victim):
    status, received = victim.post("/api/answer", victim.answer_to(), Content_Length=5000)
    assert status == 408
    assert b"must be sent within 1 seconds" in received


def test_a_body_in_pieces_is_bounded_as_well(victim):
    head = victim.head(
        "POST", "/api/answer", Content_Type="application/json", Transfer_Encoding="chunked"
    )
    piece = b"400\r\n" + b" " * 1024 + b"\r\n"
    assert victim.send(head + piece * 40)[0] == 413
    assert victim.send(head + piece * 3)[0] == 408
    assert victim.send(head + b"zz\r\n" + b" " * 10)[0] == 400


@pytest.mark.parametrize("count", [1, 200])
def test_headers_are_bounded(victim, count):
    fields = {f"X_{i}": "x" * (200_000 // count) for i in range(count)}
    assert victim.get("/api/me", **fields)[0] in (400, None)


def test_deep_json_is_refused(victim):
    assert victim.post("/api/answer", b"[" * 16_000)[0] in (400, 422)
    assert victim.post("/api/answer", b'{"key":' * 2_000 + b"1" + b"}" * 2_000)[0] in (400, 422)


# ---------------------------------------------------------------- slow ones


def test_headers_that_trickle_in_end_the_connection(victim):
    with socket.create_connection(("127.0.0.1", victim.port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 192.0.2.7\r\n")
        started = time.monotonic()
        ended = False
        while not ended and time.monotonic() - started < 10:
            try:
                connection.sendall(b"X: y\r\n")
                time.sleep(0.1)
            except (BrokenPipeError, ConnectionResetError):
                ended = True
        assert ended


def test_a_connection_that_says_nothing_ends(victim):
    with socket.create_connection(("127.0.0.1", victim.port), timeout=10) as connection:
        assert connection.recv(1) == b""


def test_a_second_request_that_trickles_in_ends_too(victim):
    with socket.create_connection(("127.0.0.1", victim.port), timeout=10) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /livez HTTP/1.1\r\n")
        _, received = victim.receive(connection)
        assert b"HTTP/1.1 200" not in received


def test_many_slow_connections_shut_nobody_out(victim):
    slow = [socket.create_connection(("127.0.0.1", victim.port), timeout=10) for _ in range(150)]
    try:
        for connection in slow:
            connection.sendall(b"POST /api/login HTTP/1.1\r\n")
        assert victim.get("/api/me")[0] == 200
    finally:
        for connection in slow:
            connection.close()


# ---------------------------------------------------------------- who it is


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ("gone", b"the token of 'gone' was revoked"),
        ("old", b"the token of 'old' has expired"),
        (None, b"nobody is logged in"),
    ],
)
def test_who_may_not_saves_nothing(victim, who, sentence):
    for status, received in (
        victim.post("/api/answer", victim.answer_to(), who=who),
        victim.post("/api/undo", {"key": "u"}, who=who),
        victim.get("/api/next?predicate=0", who=who),
        victim.get("/media/image?key=0.jpg", who=who),
    ):
        assert status == 401
        assert sentence in received


@pytest.mark.parametrize(
    ("changes", "headers"),
    [
        ({"annotator": "bob"}, {}),
        ({"annotator": SQL}, {}),
        ({"name": "bob"}, {}),
        ({"role": "lead"}, {}),
    ],
)
def test_a_forged_annotator_is_refused(victim, changes, headers):
    body = victim.answer_to(**changes)
    assert victim.post("/api/answer", body, who="ann", **headers)[0] in (421, 422)


@pytest.mark.parametrize("header", ["X_Forwarded_User", "Remote_User", "X_Annotator", "Cookie"])
def test_no_header_changes_who_one_is(victim, header):
    status, received = victim.get("/api/me?annotator=bob", who="ann", **{header: "bob"})
    assert status == 200
    assert b'"name":"ann","role":"annotator"' in received


def test_two_tokens_are_not_two_people(victim):
    double = victim.head(target="/api/me", who="ann")
    double = double[:-2] + f"Authorization: Bearer {victim.tokens['lea']}\r\n\r\n".encode()
    assert b'"name":"ann"' in victim.send(double)[1]


# ---------------------------------------------------------------- other sites


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://192.0.2.7"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "multipart/form-data; boundary=x"}, 415),
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:80", "Origin": "http://evil.example:80"}, 421),
        ({"host": "192.0.2.7.evil.example"}, 421),
        ({"host": "user@evil.example"}, 421),
        ({"host": "192.0.2.7@evil.example"}, 421),
    ],
)
def test_a_page_of_another_site_changes_nothing(victim, headers, status):
    cookie = f"haystack-{victim.store.campaign}={victim.tokens['ann']}"
    for path, body in (
        ("/api/answer", victim.answer_to()),
        ("/api/undo", {"key": "u"}),
        ("/api/login", {"token": victim.tokens["ann"]}),
        ("/api/logout", {}),
    ):
        assert victim.post(path, body, who=None, Cookie=cookie, **headers)[0] == status


def test_a_name_that_was_made_to_point_here_reads_nothing(victim):
    for target in ("/", "/api/me", "/static/app.js", "/healthz", "/openapi.json"):
        status, received = victim.get(target, host="rebound.example")
        assert status == 421
        assert b"not addressed as 'rebound.example'" in received


def test_two_hosts_are_refused(victim):
    head = victim.head(target="/api/me")
    assert victim.send(head[:-2] + b"Host: evil.example\r\n\r\n")[0] == 400


# ---------------------------------------------------------------- texts, on every database

HOSTILE = [
    SQL,
    '" OR ""="',
    "%' UNION SELECT token_hash FROM annotators --",
    "\\'; SELECT pg_sleep(10); --",
    "x" * 10_000,
    "🙂" * 2_500,
    "a\0b",
    "\0",
    "\ud800",
    "\udfff\ud800",
    "\uffff\u202e\u200b",
    "%s%s%n{}{0}${x}",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "",
]


@pytest.fixture
def client(store, make_queue, media):
    """A client of a service on every kind of database."""
    store.load_proposals(make_queue(), round=0)
    with TestClient(
        create_app(store, media, ("eating", "riding"), annotator="ann"),
        base_url="http://127.0.0.1:8000",
        raise_server_exceptions=False,
    ) as opened:
        yield opened


def test_hostile_texts_are_refused_in_every_field(client, store):
    question = client.get("/api/next?predicate=0").json()["questions"][0]
    good = {"proposal_id": question["id"], "verdict": "correct", "key": "k", "dwell_ms": 5}
    json_type = {"Content-Type": "application/json"}
    for text in HOSTILE:
        for field in (*good, "campaign", "annotator"):
            body = json.dumps(good | {field: text}).encode()
            response = client.post("/api/answer", content=body, headers=json_type)
            assert 400 <= response.status_code < 500, (field, text)
            assert len(response.json()["detail"]) < 400
        for field in ("key", "campaign", "annotator"):
            body = json.dumps({"key": "k"} | {field: text}).encode()
            response = client.post("/api/undo", content=body, headers=json_type)
            assert 400 <= response.status_code < 500, (field, text)
        plain = text.encode("utf-8", "surrogatepass")
        for path, name in (
            ("/media/image", b"key"),
            ("/media/overlay", b"proposal"),
            ("/api/next", b"predicate"),
        ):
            quoted = b"".join(b"%%%02x" % byte for byte in plain)
            response = client.get(f"{path}?{(name + b'=' + quoted).decode()}")
            assert 400 <= response.status_code < 500, (path, text)
    assert store.event_count() == 0
    assert client.post("/api/answer", json=good).status_code == 200
    assert [answer.annotator for answer in store.answers()] == ["ann"]
