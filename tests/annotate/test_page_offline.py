"""Losing the network, the service, the tab and the browser: no answer is lost or doubled."""

from __future__ import annotations

import contextlib

import pytest

pytest.importorskip("playwright.sync_api", reason="browser tests need the package playwright")

import sqlalchemy
from page_actions import EATING, RIDING, all_saved, given, press, settled, visit
from playwright.sync_api import expect

from haystack.annotate.store.schema import leases
from haystack.annotate.store.store import AnnotationStore

pytestmark = pytest.mark.browser


def test_without_a_network_nothing_is_lost(page, context, sqlite_store):
    queue = sqlite_store.upcoming(EATING, "ann", 6)
    context.set_offline(True)
    press(page, "a", "x", "n", "z", "Space")  # the pictures are there already
    expect(page.locator("#banner")).to_contain_text(
        "No connection. 5 answers are kept on this computer"
    )
    assert sqlite_store.event_count() == 0
    context.set_offline(False)
    all_saved(page)
    expect(page.locator("#banner")).to_be_hidden()
    assert given(sqlite_store) == ["correct", "incorrect", "skip"]
    assert {answer.proposal for answer in sqlite_store.answers()} == set(queue[:3])
    assert sqlite_store.event_count() == 5


def test_without_a_network_to_the_end_of_what_is_there_and_on(page, context, sqlite_store):
    page.wait_for_timeout(400)
    context.set_offline(True)
    press(page, *["x"] * 5)
    page.keyboard.press("x")
    expect(page.locator("#notice")).to_be_visible()
    context.set_offline(False)
    settled(page)
    press(page, "a")
    all_saved(page)
    assert given(sqlite_store) == ["incorrect"] * 6 + ["correct"]


def test_a_reload_in_the_middle_of_an_answer_loses_and_doubles_nothing(
    page, context, running, sqlite_store
):
    sent = []
    context.route(
        "**/api/answer", lambda route: sent.append(route)
    )  # on its way, and never arrives
    page.keyboard.press("a")
    for _ in range(300):  # until it is on its way, however slow the machine
        if sent:
            break
        page.wait_for_timeout(50)
    page.goto("about:blank")
    assert len(sent) == 1
    context.unroute("**/api/answer")
    assert sqlite_store.event_count() == 0
    visit(page, running)
    all_saved(page)
    assert given(sqlite_store) == ["correct"]
    assert sqlite_store.event_count() == 1
    press(page, "x")
    all_saved(page)
    assert given(sqlite_store) == ["correct", "incorrect"]


def test_an_answer_that_was_saved_but_not_acknowledged_is_not_doubled(page, context, sqlite_store):
    lost = []

    def lose(route):
        route.fetch()
        lost.append(route.request.post_data_json["key"])
        route.abort()

    context.route("**/api/answer", lose, times=1)
    page.keyboard.press("a")
    expect(page.locator("#banner")).to_be_visible()
    all_saved(page)
    (saved,) = sqlite_store.answers()
    assert lost == [saved.key]
    assert sqlite_store.event_count() == 1


def test_the_service_may_go_away_and_come_back(page, running, sqlite_store):
    running.stop()
    press(page, "a", "x")
    expect(page.locator("#banner")).to_contain_text("2 answers are kept on this computer")
    running.start()
    all_saved(page)
    assert given(sqlite_store) == ["correct", "incorrect"]


def test_answers_for_one_campaign_never_reach_another(
    page, running, sqlite_store, make_queue, media, tmp_path
):
    running.stop()
    press(page, "a")
    with AnnotationStore(tmp_path / "other.db") as other:
        other.load_proposals(make_queue(count=12), round=0)
        running.store = other
        running.start()
        expect(page.locator("#banner")).to_contain_text(
            "serves another campaign now", timeout=20_000
        )
        visit(page, running)
        press(page, "x")
        all_saved(page)
        assert given(other) == ["incorrect"]
        running.stop()
    running.store = sqlite_store
    running.start()
    visit(page, running)
    all_saved(page)
    assert given(sqlite_store) == ["correct"]


def test_two_tabs_of_one_annotator_lose_nothing(page, context, running, sqlite_store):
    second = context.new_page()
    visit(second, running)
    for _ in range(3):
        press(page, "a")
        press(second, "a")
    all_saved(page)
    all_saved(second)
    with contextlib.closing(second):
        assert set(given(sqlite_store)) == {"correct"}
    assert sqlite_store.event_count() == 6


def test_the_browser_may_be_closed_before_answers_are_saved(
    chromium, running, sqlite_store, tmp_path
):
    kind, options = chromium
    profile = tmp_path / "profile"
    with contextlib.closing(kind.launch_persistent_context(profile, **options)) as opened:
        page = opened.pages[0]
        visit(page, running)
        running.stop()
        press(page, "a", "x", "n")
        expect(page.locator("#banner")).to_contain_text("3 answers are kept on this computer")
        with contextlib.suppress(Exception):
            page.reload()  # the browser's own page says that nobody answers
    assert sqlite_store.event_count() == 0
    running.start()
    with contextlib.closing(kind.launch_persistent_context(profile, **options)) as opened:
        page = opened.pages[0]
        visit(page, running)
        all_saved(page)
        assert given(sqlite_store) == ["correct", "incorrect", "no_relation"]
        expect(page.get_by_role("button", name="eating, 3 of 12 done")).to_be_visible()


def test_the_tab_may_crash_before_answers_are_saved(page, context, running, sqlite_store):
    running.stop()
    press(page, "a", "x")
    with contextlib.suppress(Exception):
        page.goto("chrome://crash", timeout=2_000)
    running.start()
    second = context.new_page()
    visit(second, running)
    all_saved(second)
    assert given(sqlite_store) == ["correct", "incorrect"]
    second.close()


@pytest.mark.parametrize(
    "reply",
    [
        {"status": 404, "json": {"detail": "Not Found"}},  # another FastAPI program
        {"status": 404, "body": "<html>not here</html>", "content_type": "text/html"},
        {"status": 403, "body": "<html>proxy</html>", "content_type": "text/html"},
        {"status": 200, "body": "<html>hotel</html>", "content_type": "text/html"},
        {"status": 200, "json": {"status": "ok"}},
        {"status": 503, "json": {"detail": "the annotation database cannot be used now"}},
        {"status": 421, "json": {"detail": "this service is not addressed as 'box.lab'"}},
        {"status": 403, "json": {"detail": "requests must come from Haystack's own page"}},
        {"status": 429, "json": {"detail": "slower, please"}},
    ],
)
def test_only_the_services_own_words_count(page, context, sqlite_store, reply):
    context.route("**/api/answer", lambda route: route.fulfill(**reply), times=1)
    page.keyboard.press("a")
    expect(page.locator("#banner")).to_contain_text("1 answer is kept on this computer")
    all_saved(page)
    assert given(sqlite_store) == ["correct"]


def test_when_the_login_ends_answers_are_kept(page, context, sqlite_store):
    ended = {"status": 401, "json": {"detail": "Your login has ended."}}
    context.route("**/api/answer", lambda route: route.fulfill(**ended))
    press(page, "a", "x")
    expect(page.locator("#banner")).to_contain_text("Your login has ended. 2 answers are kept")
    expect(page.get_by_role("link", name="Log in")).to_have_attribute(
        "href", "/login#next=%2F%23predicate%3D0"
    )
    box = page.locator("#stage").bounding_box()
    assert box["height"] > 300  # the banner leaves the picture where it is
    assert sqlite_store.event_count() == 0
    context.unroute("**/api/answer")
    all_saved(page)
    expect(page.get_by_role("link", name="Log in")).to_have_count(0)
    assert given(sqlite_store) == ["correct", "incorrect"]


def test_answers_of_one_annotator_are_never_sent_as_another(page, running, sqlite_store):
    running.stop()
    press(page, "a")
    running.options["annotator"] = "bob"
    running.start()
    visit(page, running)
    press(page, "x")
    all_saved(page)
    assert [(a.annotator, a.verdict) for a in sqlite_store.answers()] == [("bob", "incorrect")]
    running.stop()
    running.options["annotator"] = "ann"
    running.start()
    visit(page, running)
    all_saved(page)
    assert {(a.annotator, a.verdict) for a in sqlite_store.answers()} == {
        ("bob", "incorrect"),
        ("ann", "correct"),
    }


def test_a_tab_sends_what_a_closed_one_left(page, context, running, sqlite_store):
    second = context.new_page()
    visit(second, running, RIDING)
    running.stop()
    press(second, "a")
    second.close()
    press(page, "x")
    running.start()
    all_saved(page)
    expect(page.get_by_role("button", name="riding, 1 of 12 done")).to_be_visible()
    assert sorted(given(sqlite_store)) == ["correct", "incorrect"]


def test_a_tab_gives_back_only_what_no_other_tab_shows(page, context, running, sqlite_store):
    def held():
        with sqlite_store.database.read() as connection:
            return set(connection.execute(sqlalchemy.select(leases.c.proposal_id)).scalars())

    def held_at_last(expected):
        for _ in range(200):
            if held() == expected:
                return
            page.wait_for_timeout(50)
        assert held() == expected

    eating = {asked.id for asked in sqlite_store.upcoming(EATING, "ann", 6)}
    riding = {asked.id for asked in sqlite_store.upcoming(RIDING, "ann", 6)}
    held_at_last(eating)
    same, other = context.new_page(), context.new_page()
    visit(same, running)
    visit(other, running, RIDING)
    held_at_last(eating | riding)
    same.goto("about:blank")
    other.goto("about:blank")
    held_at_last(eating)
    press(page, "x")
    all_saved(page)
    now = {asked.id for asked in sqlite_store.upcoming(EATING, "ann", 6)}
    assert now != eating
    held_at_last(now)
    page.goto("about:blank")
    held_at_last(set())
