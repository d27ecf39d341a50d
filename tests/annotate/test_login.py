"""Logging in: where others than this machine's user reach the service."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone

import pytest

pytest.importorskip("fastapi", reason="the annotation page needs FastAPI")
pytest.importorskip("httpx", reason="tests of the service need httpx")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from haystack.annotate.service.app import create_app
from haystack.annotate.service.identity import Lead
from haystack.annotate.service.login import Throttle
from haystack.annotate.service.site import Site
from haystack.annotate.store.accounts import Accounts
from haystack.errors import InputError

NAMES = ("eating", "riding")
ADDRESS = "http://192.0.2.7:8765"
PUBLIC = "https://annotate.example.org"


@pytest.fixture
def accounts(sqlite_store):
    return Accounts(sqlite_store.database)


@pytest.fixture
def tokens(accounts):
    return {"ann": accounts.add("ann"), "lea": accounts.add("lea", "lead")}


@pytest.fixture
def open_client(sqlite_store, make_queue, media, tokens):
    """Opens a client of a service that others can reach."""
    sqlite_store.load_proposals(make_queue(count=18), round=0)

    def add_secret(app: FastAPI):
        @app.post("/api/secret")
        def post_secret(lead: Lead) -> str:
            return lead.name

    def open_it(site=None, base_url=ADDRESS, **options):
        site = site or Site("0.0.0.0")
        app = create_app(
            sqlite_store, media, NAMES, annotator="nobody", site=site, parts=[add_secret]
        )
        return TestClient(app, base_url=base_url, **options)

    return open_it


@pytest.fixture
def client(open_client):
    return open_client()


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def log_in(client, token, **headers):
    return client.post("/api/login", json={"token": token}, headers=headers)


def answer(client, key="k1", **headers):
    question = client.get("/api/next?predicate=0", headers=headers).json()["questions"][0]
    body = {"proposal_id": question["id"], "verdict": "correct", "key": key}
    return client.post("/api/answer", json=body, headers=headers)


# ---------------------------------------------------------------- starting


@pytest.mark.parametrize("site", [Site("0.0.0.0"), Site("192.0.2.7"), Site(public_url=PUBLIC)])
def test_without_a_valid_token_it_does_not_start(sqlite_store, media, accounts, site):
    for state in ("no account", "revoked"):
        with pytest.raises(InputError, match="make one with: haystack annotators add WORK NAME"):
            create_app(sqlite_store, media, NAMES, site=site)
        if state == "no account":
            accounts.add("ann")
            create_app(sqlite_store, media, NAMES, site=site)
            accounts.revoke("ann")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_on_loopback_nobody_logs_in(sqlite_store, make_queue, media, tokens, host):
    sqlite_store.load_proposals(make_queue(), round=0)
    app = create_app(sqlite_store, media, NAMES, annotator="ann", site=Site(host))
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:
        assert client.get("/api/me").json() == {
            "name": "ann",
            "role": "lead",
            "login": False,
            "pages": ["/", "/disagreements"],
        }
        assert client.post("/api/login", json={"token": tokens["lea"]}).status_code == 404


@pytest.mark.parametrize(
    "url",
    [
        "annotate.example.org",
        "ftp://example.org",
        "https://",
        "https://example.org/haystack",
        "https://user@example.org",
        "https://example.org:99999",
        "https://[::1",
        "https://example.org?x=1",
    ],
)
def test_a_public_url_that_cannot_be_one_is_refused(url):
    with pytest.raises(InputError, match="public URL"):
        Site(public_url=url)


def test_an_empty_host_is_refused():
    with pytest.raises(InputError, match=r"0\.0\.0\.0 all of its addresses"):
        Site("")


# ---------------------------------------------------------------- the door


def test_pages_are_open_and_hold_no_data(client):
    for path in ("/", "/login", "/static/app.js", "/healthz"):
        assert client.get(path).status_code == 200
    assert "eating" not in client.get("/").text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/next?predicate=0"),
        ("GET", "/api/next"),
        ("GET", "/api/progress"),
        ("GET", "/api/me"),
        ("POST", "/api/answer"),
        ("POST", "/api/undo"),
        ("POST", "/api/secret"),
        ("GET", "/media/image?key=0.jpg"),
        ("GET", "/media/overlay?proposal=0"),
        ("GET", "/openapi.json"),
        ("GET", "/nothing"),
        ("POST", "/"),
        ("DELETE", "/login"),
        ("GET", "//api/progress"),
    ],
)
def test_all_else_is_for_who_is_logged_in(client, sqlite_store, method, path):
    response = client.request(method, path, headers={"Content-Type": "application/json"})
    assert response.status_code == 401
    assert "nobody is logged in" in response.json()["detail"]
    assert response.headers["www-authenticate"] == "Bearer"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert sqlite_store.event_count() == 0


def test_a_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(client, tokens, sqlite_store):
    response = log_in(client, tokens["ann"])
    assert (response.status_code, response.json()) == (200, {"name": "ann", "role": "annotator"})
    cookie = response.headers["set-cookie"]
    assert cookie.startswith(f"haystack-{sqlite_store.campaign}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert tokens["ann"] not in response.text
    me = client.get("/api/me").json()
    assert (me["name"], me["role"], me["login"]) == ("ann", "annotator", True)


def test_answers_are_saved_under_the_name_of_the_token(client, tokens, sqlite_store):
    log_in(client, tokens["ann"])
    assert answer(client, "k1").status_code == 200
    assert answer(client, "k2", **bearer(tokens["lea"])).status_code == 200
    assert {a.key: a.annotator for a in sqlite_store.answers()} == {"k1": "ann", "k2": "lea"}


def test_behind_https_the_cookie_travels_by_https_alone(open_client, tokens):
    client = open_client(Site(public_url=PUBLIC), PUBLIC)
    response = log_in(client, tokens["ann"], Origin=PUBLIC)
    assert response.headers["set-cookie"].startswith("__Host-haystack-")
    assert "Secure" in response.headers["set-cookie"]
    assert client.get("/api/me").json()["name"] == "ann"


def test_logging_out_makes_the_browser_forget(client, tokens):
    log_in(client, tokens["ann"])
    assert client.post("/api/logout", json={}).status_code == 200
    assert client.get("/api/me").status_code == 401
    assert client.post("/api/logout", json={}).status_code == 200


def test_a_revoked_token_is_refused_at_once(client, tokens, accounts, sqlite_store):
    log_in(client, tokens["ann"])
    assert answer(client).status_code == 200
    accounts.revoke("ann")
    refused = client.get("/api/next?predicate=0")
    assert (refused.status_code, refused.json()["detail"]) == (
        401,
        "the token of 'ann' was revoked; ask your lead for a new one",
    )
    body = {"proposal_id": "0" * 20, "verdict": "correct", "key": "k2"}
    assert client.post("/api/answer", json=body).status_code == 401
    assert log_in(client, tokens["ann"]).status_code == 401
    assert sqlite_store.event_count() == 1


def test_an_expired_token_is_refused(client, sqlite_store):
    past = Accounts(sqlite_store.database, clock=lambda: datetime(2020, 1, 1, tzinfo=timezone.utc))
    token = past.add("old", lifetime=timedelta(days=1))
    for response in (log_in(client, token), client.get("/api/me", headers=bearer(token))):
        assert response.status_code == 401
        assert "the token of 'old' has expired" in response.json()["detail"]


def test_only_a_lead_may_do_what_is_for_leads(client, tokens):
    response = client.post("/api/secret", json={}, headers=bearer(tokens["ann"]))
    assert response.status_code == 403
    assert response.json()["detail"] == "only a lead may do this, and 'ann' is an annotator"
    assert client.post("/api/secret", json={}, headers=bearer(tokens["lea"])).json() == "lea"


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer  "},
        {"Authorization": "Basic YW5uOmFubg=="},
        {"Authorization": "Bearer ann"},
        {"X-Forwarded-User": "ann"},
        {"Cookie": "haystack=ann"},
        {"Cookie": "annotator=ann; role=lead"},
    ],
)
def test_no_header_makes_one_somebody_without_a_token(client, tokens, headers):
    assert client.get("/api/me", headers=headers).status_code == 401


def test_a_token_in_the_query_is_none(client, tokens):
    assert client.get("/api/me", params={"token": tokens["ann"]}).status_code == 401


def test_what_a_page_of_somebody_else_holds_is_not_saved(client, tokens, sqlite_store):
    log_in(client, tokens["ann"])
    question = client.get("/api/next?predicate=0").json()["questions"][0]
    body = {"proposal_id": question["id"], "verdict": "correct", "key": "k1", "annotator": "lea"}
    response = client.post("/api/answer", json=body)
    assert response.status_code == 421
    assert "opened by 'lea', and 'ann' is logged in now" in response.json()["detail"]
    assert client.post("/api/undo", json={"key": "u", "annotator": "lea"}).status_code == 421
    assert sqlite_store.event_count() == 0
    assert client.post("/api/answer", json=body | {"annotator": "ann"}).status_code == 200


def test_a_database_that_fails_is_worth_trying_again(client, tokens, sqlite_store):
    with sqlite_store.database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE annotators RENAME TO hidden")
    response = client.get("/api/me", headers=bearer(tokens["ann"]))
    assert response.status_code == 503


# ---------------------------------------------------------------- names, origins


@pytest.mark.parametrize(
    ("site", "host", "known"),
    [
        (Site(), "127.0.0.1:8765", True),
        (Site(), "192.0.2.7:8765", False),
        (Site(), "evil.example", False),
        (Site("0.0.0.0"), "192.0.2.7:8765", True),
        (Site("0.0.0.0"), "[2001:db8::7]:8765", True),
        (Site("0.0.0.0"), "localhost:8765", True),
        (Site("0.0.0.0"), "evil.example", False),
        (Site("0.0.0.0"), "192.0.2.7.evil.example", False),
        (Site("0.0.0.0"), "[::1", False),
        (Site("0.0.0.0"), "", False),
        (Site("box.example.org"), "BOX.example.org:8765", True),
        (Site("box.example.org"), "example.org", False),
        (Site(public_url=PUBLIC), "annotate.example.org", True),
        (Site(public_url=PUBLIC), "127.0.0.1:8765", True),
        (Site(public_url=PUBLIC), "192.0.2.7:8765", False),
    ],
)
def test_under_which_names_the_service_answers(site, host, known):
    assert site.knows(host) is known


def test_this_machine_is_known_by_its_name_where_others_reach_it(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Box.lab")
    assert Site("0.0.0.0").knows("box.lab:1")
    assert Site("192.0.2.7").knows("box:1")
    assert not Site().knows("box.lab:1")
    assert Site("0.0.0.0").url(8765) == "http://Box.lab:8765/"
    assert Site("2001:db8::7").url(80) == "http://[2001:db8::7]:80/"
    assert Site(public_url=PUBLIC).url(8765) == f"{PUBLIC}/"


@pytest.mark.parametrize(
    ("site", "host", "origin", "status"),
    [
        (Site("0.0.0.0"), "192.0.2.7:8765", "http://192.0.2.7:8765", 200),
        (Site("0.0.0.0"), "192.0.2.7:8765", "http://192.0.2.7", 403),
        (Site("0.0.0.0"), "192.0.2.7:8765", "http://192.0.2.8:8765", 403),
        (Site("0.0.0.0"), "192.0.2.7:8765", "http://evil.example", 403),
        (Site("0.0.0.0"), "evil.example", "http://evil.example", 421),
        (Site(public_url=PUBLIC), "annotate.example.org", PUBLIC, 200),
        (Site(public_url=PUBLIC), "127.0.0.1:8765", PUBLIC, 200),  # a proxy that says its own
        (Site(public_url=PUBLIC), "annotate.example.org", "http://annotate.example.org", 403),
        (Site(public_url=PUBLIC), "annotate.example.org", "https://evil.example", 403),
        (Site(public_url=PUBLIC), "annotate.example.org", f"{PUBLIC}:444", 403),
    ],
)
def test_only_the_own_page_can_log_in_and_answer(open_client, tokens, site, host, origin, status):
    client = open_client(site)
    headers = {"Host": host, "Origin": origin}
    assert log_in(client, tokens["ann"], **headers).status_code == status
    body = {"key": "u1"}
    response = client.post("/api/undo", json=body, headers=headers | bearer(tokens["ann"]))
    assert response.status_code == status


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_can_show_the_page_but_fetch_nothing(client, tokens, site):
    headers = bearer(tokens["ann"]) | {"Sec-Fetch-Site": site}
    fetched = client.get("/api/next?predicate=0", headers=headers | {"Sec-Fetch-Mode": "no-cors"})
    assert fetched.status_code == 403
    opened = client.get("/", headers=headers | {"Sec-Fetch-Mode": "navigate"})
    assert opened.status_code == 200


# ---------------------------------------------------------------- too many wrong tokens


def test_an_address_that_tries_many_tokens_is_not_listened_to(client, tokens, caplog):
    log_in(client, tokens["ann"])
    with caplog.at_level(logging.WARNING):
        statuses = [log_in(client, f"wrong-{i}").status_code for i in range(25)]
    assert statuses == [401] * 20 + [429] * 5
    assert len(caplog.records) == 1
    closed = log_in(client, tokens["lea"])
    assert closed.status_code == 429
    assert closed.headers["retry-after"] == "60"
    assert "wait a minute" in closed.json()["detail"]
    # Nor by another way in; but who is in stays in.
    assert client.get("/api/me", headers=bearer("wrong")).status_code == 429
    assert client.get("/api/me").json()["name"] == "ann"


def test_a_page_that_keeps_an_old_token_locks_nobody_out(client, tokens, accounts):
    log_in(client, tokens["ann"])
    new = accounts.renew("ann")
    assert {client.get("/api/me").status_code for _ in range(50)} == {401}
    assert log_in(client, new).status_code == 200


def test_a_throttle_forgets_and_is_bounded(monkeypatch):
    now = 0.0
    throttle = Throttle(most=2, window=60, clock=lambda: now)
    throttle.count("192.0.2.1", "a")
    throttle.count("192.0.2.1", "a")
    assert not throttle.is_closed("192.0.2.1")
    throttle.count("192.0.2.1", "b")
    assert throttle.is_closed("192.0.2.1")
    assert not throttle.is_closed("192.0.2.2")
    now = 60.0
    assert not throttle.is_closed("192.0.2.1")
    # One network of IPv6 is one address.
    throttle.count("2001:db8::1", "a")
    throttle.count("2001:db8::ffff:1", "b")
    assert throttle.is_closed("2001:db8::2")
    assert not throttle.is_closed("2001:db8:0:1::2")
    monkeypatch.setattr("haystack.annotate.service.login._MOST_ADDRESSES", 3)
    for i in range(10):
        throttle.count(f"198.51.100.{i}", "a")
    assert len(throttle._wrong) == 3
