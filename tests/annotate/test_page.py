"""Answering on the page, in a real browser with the real service behind it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

pytest.importorskip("playwright.sync_api", reason="browser tests need the package playwright")

from page_actions import EATING, SETTLE_MS, all_saved, given, press, settled, visit
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_every_answer_has_its_keys(page, sqlite_store):
    meaning = {
        "a": "correct",
        "A": "correct",
        "1": "correct",
        "x": "incorrect",
        "2": "incorrect",
        "n": "no_relation",
        "3": "no_relation",
        "Space": "skip",
        "s": "subject_faulty",
        "o": "object_faulty",
    }
    asked = sqlite_store.upcoming(EATING, "ann", 9)
    press(page, *meaning)
    all_saved(page)
    assert given(sqlite_store) == list(meaning.values())
    answers = sorted(sqlite_store.answers(), key=lambda answer: answer.created_at)
    assert [answer.proposal for answer in answers[:9]] == asked
    assert all(SETTLE_MS <= answer.dwell_ms < 60_000 for answer in answers)


def test_every_answer_has_its_button(page, sqlite_store):
    verdicts = ["correct", "incorrect", "no_relation", "skip", "subject_faulty", "object_faulty"]
    for verdict in verdicts:
        page.locator(f"[data-verdict={verdict}]").click()
        settled(page)
    all_saved(page)
    assert given(sqlite_store) == verdicts


def test_a_held_key_answers_once(page, sqlite_store):
    page.keyboard.down("x")
    for _ in range(5):
        settled(page)
        page.keyboard.down("x")  # the browser marks these as repetitions
    page.keyboard.up("x")
    all_saved(page)
    assert sqlite_store.event_count() == 1


def test_a_key_meant_for_the_picture_before_does_not_count(page, sqlite_store):
    page.evaluate("""async () => {
      const press = () => dispatchEvent(new KeyboardEvent('keydown', { key: 'x' }));
      press();
      press(); // the next picture is not on screen
      await new Promise((done) => setTimeout(done));
      press(); // it is, since just now
    }""")
    settled(page)
    all_saved(page)
    assert sqlite_store.event_count() == 1


def test_keys_with_control_belong_to_the_browser(page, sqlite_store):
    for key in ("Control+a", "Alt+x", "Meta+s"):
        page.keyboard.press(key)
    page.wait_for_timeout(200)
    assert sqlite_store.event_count() == 0


def test_predicates_are_chosen_by_keys_and_by_mouse(page, running):
    page.keyboard.press("]")
    expect(page.locator("h1")).to_have_text("person riding pizza ?")
    settled(page)
    page.keyboard.press("[")
    expect(page.locator("h1")).to_have_text("person eating pizza ?")
    settled(page)
    page.keyboard.press("p")
    page.keyboard.press("a")  # belongs to the list now
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(page.locator("h1")).to_have_text("person riding pizza ?")
    settled(page)
    assert running.store.event_count() == 0
    page.get_by_role("button", name="eating, 0 of 12 done").click()
    expect(page.locator("h1")).to_have_text("person eating pizza ?")
    settled(page)
    press(page, "x")
    all_saved(page)
    expect(page.get_by_role("button", name="eating, 1 of 12 done")).to_be_visible()
    expect(page.locator("#counts")).to_have_text("1 of 12 done · 0 correct (0 %) · 0 skipped")
    page.reload()
    expect(page.locator("h1")).to_have_text("person eating pizza ?")


def test_the_end_of_a_queue_leads_to_the_next_one(page, sqlite_store):
    press(page, *["x"] * 11)
    page.keyboard.press("x")
    expect(page.locator("#notice-text")).to_have_text("Nothing is left to ask about “eating”.")
    expect(page.locator("[data-verdict=correct]")).to_be_disabled()
    page.get_by_role("button", name="Go on with “riding”").click()
    settled(page)
    press(page, *["a"] * 11)
    page.keyboard.press("a")
    expect(page.locator("#notice-text")).to_have_text("Everything is answered. Thank you!")
    all_saved(page)
    assert given(sqlite_store) == ["incorrect"] * 12 + ["correct"] * 12


def test_a_faulty_segment_is_not_asked_about_again_not_even_offline(page, context, sqlite_store):
    # Images take turns: the fourth question is about the first image's pizza again.
    page.wait_for_timeout(300)
    context.set_offline(True)
    press(page, "o", "x", "x", "a")
    context.set_offline(False)
    all_saved(page)
    assert sqlite_store.faulty_segments() == {("0", 2)}
    assert sorted(answer.proposal.rank for answer in sqlite_store.answers()) == [0, 1, 2, 4]


def test_a_refused_answer_is_said_and_the_page_goes_on(page, context, sqlite_store):
    refuse = {"status": 404, "json": {"detail": "there is no proposal"}}
    context.route("**/api/answer", lambda route: route.fulfill(**refuse), times=1)
    page.keyboard.press("a")
    expect(page.locator("#banner.refused")).to_contain_text("refused: there is no proposal")
    settled(page)
    press(page, "x")
    all_saved(page)
    assert given(sqlite_store) == ["incorrect"]


def test_hovering_a_question_shows_which_models_proposed_it(
    page, running, sqlite_store, make_proposal
):
    said = "cluster 0: a rank 1 (score 2), b rank 9 (score -1)"
    sqlite_store.load_proposals(
        [make_proposal(origin=said), make_proposal(subject=2, rank=1)], round=1
    )
    visit(page, running)
    expect(page.locator("h1")).to_have_attribute("title", said)
    press(page, "a")
    expect(page.locator("h1")).to_have_attribute("title", "")


def test_html_in_names_is_shown_as_text(page, running, media):
    evil = "<img src=x onerror=document.title='pwned'>"
    media.names = (evil, evil, "<script>document.title='pwned'</script>")
    visit(page, running)
    expect(page.locator("h1")).to_contain_text(evil)
    assert page.locator("h1 img, h1 script, #predicate-list img").count() == 0
    assert page.title() == "Haystack"


def test_nothing_is_asked_of_another_site(page, context, running):
    hosts = set()
    context.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    visit(page, running)
    press(page, "a", "?")
    assert hosts == {urlsplit(running.url).netloc}


def test_the_predicates_help_is_shown_where_there_is_one(page, context, running):
    def with_help(route):
        reply = route.fetch().json()
        for question in reply["questions"]:
            question["help"] = "Food in the mouth, or on its way <there>."
        route.fulfill(json=reply)

    expect(page.locator("#hint")).to_be_hidden()
    context.route("**/api/next?*", with_help)
    visit(page, running)
    expect(page.locator("#hint")).to_have_text("Food in the mouth, or on its way <there>.")


def test_what_others_hold_is_said_at_the_end(page, context, running, sqlite_store):
    def held(route):
        route.fulfill(json={"predicate": EATING, "questions": [], "held": 3, "free_in": 0.1})

    context.route("**/api/next?*", held)
    page.reload()
    expect(page.locator("#notice-text")).to_have_text(
        "Others have the last 3 questions about “eating” before them. What they leave comes here."
    )
    context.unroute("**/api/next?*")
    settled(page)  # it asks again
    press(page, "x")
    all_saved(page)
    assert given(sqlite_store) == ["incorrect"]


def test_two_annotators_at_once_share_the_questions(
    page, context, run_service, sqlite_store, media
):
    """What one has on screen or ahead is not asked of the other, until the page is left."""
    other = context.new_page()
    visit(other, run_service(sqlite_store, media, annotator="bob"))
    for _ in range(3):
        press(page, "a")
        press(other, "x")
    all_saved(page)
    all_saved(other)
    asked = [answer.proposal.id for answer in sqlite_store.answers()]
    assert len(asked) == len(set(asked)) == 6
    page.goto("about:blank")  # what ann still holds comes free
    for _ in range(6):
        expect(other.locator("#stage")).not_to_have_class("waiting", timeout=40_000)
        other.wait_for_timeout(SETTLE_MS)
        other.keyboard.press("x")
    expect(other.locator("#notice-text")).to_contain_text("Nothing is left to ask about “eating”")
    all_saved(other)
    assert (
        sorted(answer.annotator for answer in sqlite_store.answers()) == ["ann"] * 3 + ["bob"] * 9
    )
    other.close()
