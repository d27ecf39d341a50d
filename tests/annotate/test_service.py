from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the annotation page needs FastAPI")
pytest.importorskip("httpx", reason="tests of the service need httpx")

from fastapi.testclient import TestClient

import haystack.annotate.service.server as service
from haystack.annotate.service.app import create_app
from haystack.annotate.service.server import serve
from haystack.annotate.service.site import Site
from haystack.annotate.store.schema import MIGRATIONS
from haystack.errors import InputError

EATING, RIDING = 0, 1
NAMES = ("eating", "riding")
ORIGIN = "http://127.0.0.1:8000"


@pytest.fixture
def app(sqlite_store, make_queue, media):
    sqlite_store.load_proposals(make_queue(), round=0)
    return create_app(sqlite_store, media, NAMES, annotator="ann", media_version="v1", ahead=4)


@pytest.fixture
def client(app):
    with TestClient(app, base_url=ORIGIN) as opened:
        yield opened


def ask(client, predicate=EATING):
    return client.get("/api/next", params={"predicate": predicate}).json()["questions"]


def post_answer(client, question, verdict="correct", key="k1", **more):
    body = {"proposal_id": question["id"], "verdict": verdict, "key": key, **more}
    return client.post("/api/answer", json=body)


def detail(response):
    return response.json()["detail"]


def ids(questions):
    return [question["id"] for question in questions]


def test_next_gives_the_question_and_those_after_it(client, make_queue):
    found = client.get("/api/next?predicate=0").json()
    assert found["predicate"] == EATING
    assert ids(found["questions"]) == [proposal.id for proposal in make_queue()[:4]]
    first = found["questions"][0]
    assert (first["subject_name"], first["predicate_name"], first["object_name"]) == (
        "person",
        "eating",
        "pizza",
    )
    assert first["image_url"] == "/media/image?key=0.jpg&v=v1"


def test_an_answer_is_saved_and_the_next_questions_come_back(client, sqlite_store, make_queue):
    first, second, *_ = ask(client)
    response = post_answer(client, first, dwell_ms=640)
    assert response.status_code == 200
    assert ids(response.json()["questions"]) == [proposal.id for proposal in make_queue()[1:5]]
    assert response.json()["questions"][0] == second
    (saved,) = sqlite_store.answers()
    assert (saved.verdict, saved.annotator, saved.dwell_ms) == ("correct", "ann", 640)


def test_sending_an_answer_twice_saves_it_once(client, sqlite_store):
    first, *_ = ask(client)
    once, twice = post_answer(client, first), post_answer(client, first)
    assert once.json() == twice.json()
    assert sqlite_store.event_count() == 1
    clash = post_answer(client, first, verdict="incorrect")
    assert clash.status_code == 409
    assert "'k1' already stands for another event" in detail(clash)


def test_undo_gives_the_question_back(client, sqlite_store):
    first, *_ = ask(client)
    post_answer(client, first)
    reply = client.post("/api/undo", json={"key": "u1"}).json()
    assert reply["undone"] == reply["queue"]["questions"][0] == first
    assert client.post("/api/undo", json={"key": "u1"}).json() == reply
    assert client.post("/api/undo", json={"key": "u2"}).json() == {"undone": None, "queue": None}
    assert list(sqlite_store.answers()) == []


def test_a_question_says_which_models_proposed_it(client, sqlite_store, make_proposal):
    sqlite_store.load_proposals([make_proposal(origin="cluster 0: m rank 1 (score 2)")], round=0)
    (question,) = ask(client)
    assert question["origin"] == "cluster 0: m rank 1 (score 2)"


def test_progress_counts_and_names(client, sqlite_store):
    first, second, *_ = ask(client)
    post_answer(client, first)
    post_answer(client, second, verdict="skip", key="k2")
    found = client.get("/api/progress").json()
    assert (found["annotator"], found["campaign"]) == ("ann", sqlite_store.campaign)
    eating, riding = found["predicates"]
    assert (eating["name"], eating["total"], eating["open"]) == ("eating", 6, 4)
    assert (eating["correct"], eating["skip"], riding["open"]) == (1, 1, 6)


def test_an_answer_meant_for_another_campaign_is_not_taken(client, sqlite_store):
    first, *_ = ask(client)
    response = post_answer(client, first, campaign="another")
    assert response.status_code == 421
    assert "serves another campaign now" in detail(response)
    assert client.post("/api/undo", json={"key": "u", "campaign": "x"}).status_code == 421
    assert sqlite_store.event_count() == 0
    assert post_answer(client, first, campaign=sqlite_store.campaign).status_code == 200


def test_health_and_schema(client):
    assert client.get("/healthz").json() == {"status": "ok", "schema_version": len(MIGRATIONS)}
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/api/next", "/api/answer", "/api/undo", "/api/progress", "/healthz"} <= set(paths)
    verdicts = client.get("/openapi.json").json()["components"]["schemas"]["AnswerRequest"]
    assert "subject_faulty" in json.dumps(verdicts["properties"]["verdict"])


def test_who_asks(client):
    me = client.get("/api/me").json()
    pages = ["/", "/disagreements"]
    assert me == {"name": "ann", "role": "lead", "login": False, "pages": pages}


def test_the_page_asks_nothing_of_other_sites(client):
    page = client.get("/")
    assert page.status_code == 200
    assert "<title>Haystack</title>" in page.text
    assert page.headers["cache-control"] == "no-cache"
    linked = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert len(linked) >= 4
    for address in linked:
        assert address.startswith("/static/")
        assert client.get(address).status_code == 200
    for file in (Path(service.__file__).parents[1] / "static").iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|url\(", text), f"{file.name} names another site"
        parses = (
            r"(inner|outer)HTML\s*\+?=[^=]|insertAdjacentHTML|document\.write|DOMParser|Fragment"
        )
        assert not re.search(parses, text), f"{file.name} makes elements of text"


def test_every_answer_has_strict_headers(client):
    for path in ("/", "/static/app.js", "/api/progress", "/nothing", "/media/image?key=x"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_pictures_and_overlays_are_kept_for_ever_under_their_version(client):
    question, *_ = ask(client)
    image = client.get(question["image_url"])
    overlay = client.get(question["overlay_url"])
    assert (image.status_code, image.headers["content-type"]) == (200, "image/jpeg")
    assert image.content.startswith(b"\xff\xd8")
    assert overlay.headers["content-type"] == "image/png"
    assert overlay.content.startswith(b"\x89PNG")
    for response in (image, overlay):
        assert "immutable" in response.headers["cache-control"]
    old = client.get(question["image_url"].replace("v=v1", "v=v0"))
    assert old.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "key", ["../../etc/passwd", "/etc/passwd", "..%2F0.jpg", "nothing.jpg", "", "0.jpg\x00"]
)
def test_only_images_that_a_proposal_is_about_can_be_had(client, media, key):
    asked = []
    media.image = asked.append
    response = client.get("/media/image", params={"key": key})
    assert (response.status_code, asked) == (404, [])


def test_an_overlay_of_no_proposal_is_refused(client):
    response = client.get("/media/overlay", params={"proposal": "../x"})
    assert response.status_code == 404
    assert "there is no proposal" in detail(response)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../service/app.py",
        "/static/%2e%2e/service/app.py",
        "/static/..%2fservice/app.py",
        "/static//etc",
    ],
)
def test_static_files_stay_in_their_folder(client, path):
    assert client.get(path).status_code == 404


def test_a_picture_that_cannot_be_read_is_a_sentence(client, media):
    media.broken.add("0.jpg")
    response = client.get(ask(client)[0]["image_url"])
    assert response.status_code == 404
    assert detail(response) == "0.jpg: the picture is damaged"


@pytest.mark.parametrize(
    ("change", "status", "sentence"),
    [
        ({"verdict": "maybe"}, 422, "body.verdict: Input should be 'correct'"),
        ({"verdict": None}, 422, "body.verdict"),
        ({"proposal_id": "f" * 20}, 404, "there is no proposal"),
        ({"proposal_id": "' OR 1=1"}, 422, "body.proposal_id"),
        ({"proposal_id": 7}, 422, "body.proposal_id"),
        ({"key": "a b"}, 422, "body.key"),
        ({"key": "undo/1"}, 422, "body.key"),
        ({"key": "x" * 10_000}, 422, "body.key"),
        ({"dwell_ms": -1}, 422, "body.dwell_ms"),
        ({"dwell_ms": 1e300}, 422, "body.dwell_ms"),
        ({"dwell_ms": "5"}, 422, "body.dwell_ms"),
        ({"annotator": "bob"}, 421, "this page was opened by 'bob', and 'ann' is logged in now"),
        ({"name": "bob"}, 422, "body.name: Extra inputs are not permitted"),
    ],
)
def test_a_bad_answer_is_a_sentence_and_saves_nothing(
    client, sqlite_store, change, status, sentence
):
    body = {"proposal_id": ask(client)[0]["id"], "verdict": "correct", "key": "k1"} | change
    response = client.post("/api/answer", json=body)
    assert response.status_code == status
    assert sentence in detail(response)
    assert len(detail(response)) < 300
    assert sqlite_store.event_count() == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a": NaN}'])
def test_a_body_that_is_no_answer_is_refused(client, content):
    headers = {"content-type": "application/json"}
    response = client.post("/api/answer", content=content, headers=headers)
    assert response.status_code in (400, 422)
    assert isinstance(detail(response), str)


@pytest.mark.parametrize("predicate", ["-1", "2", "99999999999999999999", "x", ""])
def test_an_unknown_predicate_is_refused(client, predicate):
    response = client.get("/api/next", params={"predicate": predicate})
    assert response.status_code == 422
    assert "predicate" in detail(response)


def test_a_long_body_is_refused_announced_or_not(client, sqlite_store):
    headers = {"content-type": "application/json"}
    long = b'{"key": "' + b"x" * 20_000 + b'"}'
    assert client.post("/api/answer", content=long, headers=headers).status_code == 413
    pieces = iter([b" " * 5_000] * 5)
    response = client.post("/api/answer", content=pieces, headers=headers)
    assert response.status_code == 413
    assert "at most 16384 bytes" in detail(response)
    assert sqlite_store.event_count() == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": ORIGIN}, 200),
        ({"origin": ORIGIN, "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "https://127.0.0.1:8000"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8000"}, 421),
        ({"host": "[::1"}, 421),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"host": "[::1]:8000", "origin": "http://[::1]:8000"}, 200),
    ],
)
def test_only_the_own_page_can_change_something(client, sqlite_store, headers, status):
    body = json.dumps({"proposal_id": ask(client)[0]["id"], "verdict": "skip", "key": "k1"})
    headers = {"content-type": "application/json"} | headers
    response = client.post("/api/answer", content=body, headers=headers)
    assert response.status_code == status
    assert sqlite_store.event_count() == (status == 200)


def test_a_foreign_host_name_reads_nothing(client):
    response = client.get("/api/progress", headers={"host": "rebound.example:8000"})
    assert response.status_code == 421
    assert "not addressed as 'rebound.example:8000'" in detail(response)


def test_other_methods_are_refused(client):
    json_type = {"content-type": "application/json"}
    assert client.get("/api/answer").status_code == 405
    assert client.delete("/api/answer", headers=json_type).status_code == 405
    assert client.options("/api/answer", headers=json_type).status_code == 405


def test_html_in_names_travels_as_text(sqlite_store, make_queue, media):
    evil = "<img src=x onerror=alert(1)>"
    sqlite_store.load_proposals(make_queue(), round=0)
    media.names = (evil,) * 3
    with TestClient(create_app(sqlite_store, media, (evil, "riding")), base_url=ORIGIN) as client:
        response = client.get("/api/next?predicate=0")
        assert response.headers["content-type"] == "application/json"
        assert response.json()["questions"][0]["predicate_name"] == evil
        assert evil not in client.get("/").text


def test_a_database_that_cannot_be_used_is_worth_trying_again(app, sqlite_store, caplog):
    with TestClient(app, base_url=ORIGIN, raise_server_exceptions=False) as client:
        question, *_ = ask(client)
        with sqlite_store._database.write() as connection:
            connection.exec_driver_sql("ALTER TABLE events RENAME TO hidden")
        response = post_answer(client, question)
        assert response.status_code == 503
        assert detail(response) == (
            "the annotation database cannot be used now; the service's log says why"
        )
        assert "no such table: events" in caplog.text
        with sqlite_store.database.write() as connection:
            connection.exec_driver_sql("ALTER TABLE meta RENAME TO hidden_meta")
        assert client.get("/healthz").status_code == 503
        assert client.get("/livez").json() == {"status": "ok"}


def test_a_fault_of_the_service_is_a_sentence_too(app, media):
    with TestClient(app, base_url=ORIGIN, raise_server_exceptions=False) as client:
        del media.names
        response = client.get("/api/next?predicate=0")
        assert (response.status_code, response.json()["detail"]) == (
            500,
            "the service failed (AttributeError); its log says more",
        )


def test_a_queue_that_the_vocabulary_does_not_name_is_refused(sqlite_store, make_queue, media):
    sqlite_store.load_proposals(make_queue(), round=0)
    with pytest.raises(InputError, match="asks about predicate 1, the vocabulary names only 1"):
        create_app(sqlite_store, media, ("eating",))
    with pytest.raises(InputError, match="expected ahead to be 1 to 20"):
        create_app(sqlite_store, media, NAMES, ahead=0)


def test_a_busy_port_is_passed_over_and_all_busy_is_a_sentence(app, monkeypatch):
    urls = []

    class Server:
        def __init__(self, config):
            assert config.timeout_keep_alive == 75

        def run(self, sockets):
            assert len(sockets) == 1

    monkeypatch.setattr(service.uvicorn, "Server", Server)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        serve(app, port=port, announce=urls.append)
        (url,) = urls
        assert port < int(url.rsplit(":", 1)[1].strip("/")) < port + 20
        monkeypatch.setattr(service, "_PORTS_TRIED", 1)
        with pytest.raises(InputError, match="in use; give another port"):
            serve(app, port=port, announce=urls.append)


@pytest.mark.parametrize("host", ["192.0.2.7", "nothing.invalid", "2001:db8::7", "a b"])
def test_an_address_that_is_not_this_machines_is_refused(app, host):
    app.state.site = Site(host)
    with pytest.raises(InputError, match=f"cannot listen on '{host}'"):
        serve(app, port=0)


def test_a_team_is_given_no_other_port_than_it_was_told(app):
    app.state.site = Site("0.0.0.0")
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} is in use; give another port"):
            serve(app, port=port)


_SERVICE = """
import sys
from haystack.annotate import AnnotationStore, Caption, create_app, serve
class Media:
    def caption(self, proposal): return Caption("person", "pizza")
with AnnotationStore(sys.argv[1]) as store:
    serve(create_app(store, Media(), ("eating", "riding")), port=0)
print("ended cleanly")
"""


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_the_service_starts_answers_and_ends_cleanly(sqlite_store, make_queue, signal_number):
    sqlite_store.load_proposals(make_queue(), round=0)
    path = sqlite_store._database.name
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVICE, path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline()).group()
        question = json.load(urllib.request.urlopen(url + "api/next?predicate=0"))["questions"][0]
        body = {"proposal_id": question["id"], "verdict": "correct", "key": "k1"}
        request = urllib.request.Request(
            url + "api/answer", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        assert urllib.request.urlopen(request).status == 200
        process.send_signal(signal_number)
        output, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, output, errors) == (0, "ended cleanly\n", "")
    assert [answer.key for answer in sqlite_store.answers()] == ["k1"]
