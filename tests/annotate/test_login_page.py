"""Logging in and out in a real browser, and a login that ends while answers are on their way."""

from __future__ import annotations

import time

import pytest

playwright_api = pytest.importorskip(
    "playwright.sync_api", reason="browser tests need the package playwright"
)

from haystack.annotate.service.site import Site  # noqa: E402
from haystack.annotate.store.accounts import Accounts  # noqa: E402

pytestmark = pytest.mark.browser

expect = playwright_api.expect
SETTLE_MS = 200
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def accounts(sqlite_store):
    return Accounts(sqlite_store.database)


@pytest.fixture
def service(run_service, sqlite_store, make_queue, media, accounts):
    """A service at which people log in; the token of ann is made."""
    sqlite_store.load_proposals(make_queue(count=18), round=0)
    accounts.add("lea", "lead")
    return run_service(sqlite_store, media, site=Site("0.0.0.0"))


@pytest.fixture
def page(context):
    opened = context.new_page()
    opened.on("dialog", lambda dialog: pytest.fail(f"a script of a name ran: {dialog.message}"))
    return opened


def press(page, key):
    expect(page.locator("#stage")).not_to_have_class("waiting")
    page.wait_for_timeout(SETTLE_MS)
    page.keyboard.press(key)


def question(page):
    return page.locator("#question")


def saved(page):
    expect(page.locator("#saved")).to_have_text("All answers saved")


def test_a_link_logs_in_and_leaves_no_token_behind(page, service, accounts, context):
    token = accounts.add("ann")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{service.url}login#token={token}")
    expect(question(page)).to_contain_text("eating")
    assert page.url == f"{service.url}#predicate=0"
    assert not any(token in url for url in asked)
    assert token not in page.evaluate("document.cookie + JSON.stringify(localStorage)")
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.go_back()
    assert token not in page.url


def test_a_link_logs_in_where_the_login_is_open_already(page, service, accounts):
    page.goto(f"{service.url}login")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto(f"{service.url}login#token={accounts.add('ann')}")
    expect(question(page)).to_contain_text("eating")


def test_a_token_can_be_pasted_with_its_link(page, service, accounts):
    page.goto(service.url)
    page.wait_for_url("**/login*")
    page.get_by_label("Link or token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    link = f"{service.url}login#token={accounts.add('ann')}"
    page.get_by_label("Link or token").fill(f" {link}\n")
    page.keyboard.press("Enter")
    expect(question(page)).to_contain_text("eating")
    expect(page.locator("#shell .who")).to_have_text("ann")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    page.goto(service.url)
    page.wait_for_url("**/login*")


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "http://["]
)
def test_the_login_leads_to_no_other_site(page, service, accounts, target):
    token = accounts.add("ann")
    page.goto(f"{service.url}login#token={token}&next={target}")
    page.wait_for_url(f"{service.url}*")
    expect(question(page)).to_contain_text("eating")


def test_answers_outlive_a_login_that_ends(page, service, accounts, sqlite_store):
    page.goto(f"{service.url}login#token={accounts.add('ann')}")
    expect(page.locator("#stage")).not_to_have_class("waiting")
    press(page, "a")
    saved(page)
    accounts.revoke("ann")
    press(page, "x")
    ended = page.locator("#login-ended")
    expect(ended).to_contain_text("the token of 'ann' was revoked; ask your lead for a new one")
    press(page, "n")
    assert sqlite_store.event_count() == 1

    # Somebody else who logs in here does not get these answers under their name.
    page.goto(f"{service.url}login#token={accounts.add('bob')}")
    expect(page.locator("#shell .who")).to_have_text("bob")
    expect(question(page)).to_contain_text("eating")
    saved(page)
    assert {answer.annotator for answer in sqlite_store.answers()} == {"ann"}

    page.goto(f"{service.url}login#token={accounts.renew('ann')}")
    expect(page.locator("#shell .who")).to_have_text("ann")
    # Until it has looked into its outbox, the page says that all is saved.
    deadline = time.monotonic() + 30
    while sqlite_store.event_count() < 3 and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    saved(page)
    answers = sqlite_store.answers()
    assert [(a.annotator, a.verdict) for a in answers if a.annotator == "ann"] == [
        ("ann", "correct"),
        ("ann", "incorrect"),
        ("ann", "no_relation"),
    ]


def test_the_way_back_in_leads_to_the_page_and_vanishes(page, service, accounts, context):
    page.goto(f"{service.url}login#token={accounts.add('ann')}")
    expect(question(page)).to_contain_text("eating")
    expect(page.locator("#stage")).not_to_have_class("waiting")  # its picture wants a login, too
    accounts.revoke("ann")
    press(page, "a")
    link = page.locator("#login-ended a")
    expect(link).to_have_text("Log in")
    other = context.new_page()
    other.goto(f"{service.url}login#token={accounts.renew('ann')}")
    expect(other.locator("#question")).to_contain_text("eating")
    expect(page.locator("#login-ended")).to_have_count(0, timeout=20_000)
    saved(page)


def test_names_are_text_whatever_they_hold(page, run_service, sqlite_store, make_queue, media):
    sqlite_store.load_proposals(make_queue(), round=0)
    media.names = (EVIL, EVIL, f"</script><script>alert(2)</script>{'long ' * 2000}")
    accounts = Accounts(sqlite_store.database)
    token = accounts.add(EVIL)
    service = run_service(sqlite_store, media, (EVIL, "riding"), site=Site("0.0.0.0"))
    page.goto(f"{service.url}login#token={token}")
    expect(question(page)).to_contain_text(f"{EVIL} {EVIL} </script>")
    expect(page.locator("#shell .who")).to_have_text(EVIL)
    expect(page.locator("#predicate-list .name").first).to_have_text(EVIL)
    press(page, "a")
    saved(page)
    assert page.locator("img[src=x]").count() == 0
    assert [answer.annotator for answer in sqlite_store.answers()] == [EVIL]
