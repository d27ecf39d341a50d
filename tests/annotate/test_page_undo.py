"""Undoing and answering again on the page, in a real browser."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright.sync_api", reason="browser tests need the package playwright")

from page_actions import EATING, RIDING, all_saved, given, press, settled, visit
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_undo_after_undo_and_after_a_reload(page, running, sqlite_store):
    queue = sqlite_store.upcoming(EATING, "ann", 4)
    press(page, "a", "x", "n")
    press(page, "z")
    expect(page.locator("#earlier-text")).to_have_text("Undone: No relation")
    press(page, "Backspace")
    expect(page.locator("#earlier-text")).to_have_text("Undone: Incorrect")
    all_saved(page)
    assert given(sqlite_store) == ["correct"]
    visit(page, running, RIDING)  # the page has forgotten, the service has not
    expect(page.locator("h1")).to_have_text("person riding pizza ?")
    page.keyboard.press("z")
    expect(page.locator("h1")).to_have_text("person eating pizza ?")
    settled(page)
    all_saved(page)
    assert given(sqlite_store) == []
    press(page, "a")
    all_saved(page)
    assert [answer.proposal for answer in sqlite_store.answers()] == queue[:1]
    press(page, "z")
    page.keyboard.press("z")
    expect(page.locator("#banner")).to_have_text("There is nothing left to undo.")


def test_undo_across_predicates_without_a_network(page, context, sqlite_store):
    press(page, "a", "]", "x", "n")
    all_saved(page)
    context.set_offline(True)
    for word, sentence in (
        ("No relation", "person riding pizza ?"),
        ("Incorrect", "person riding pizza ?"),
        ("Correct", "person eating pizza ?"),
    ):
        press(page, "z")
        expect(page.locator("#earlier-text")).to_have_text(f"Undone: {word}")
        expect(page.locator("h1")).to_have_text(sentence)
    assert given(sqlite_store) == ["correct", "incorrect", "no_relation"]
    context.set_offline(False)
    all_saved(page)
    assert given(sqlite_store) == []
    expect(page.locator("h1")).to_have_text("person eating pizza ?")
    expect(page.get_by_role("button", name="eating, 0 of 12 done")).to_be_visible()


def test_after_a_reload_undo_needs_no_reply(page, context, running, sqlite_store):
    press(page, "a", "x")
    all_saved(page)
    page.reload()
    settled(page)
    context.set_offline(True)
    press(page, "z", "z")
    expect(page.locator("#earlier-text")).to_have_text("Undone: Correct")
    context.set_offline(False)
    all_saved(page)
    assert given(sqlite_store) == []


def test_an_undo_that_waits_says_so(page, context, running, sqlite_store):
    press(page, "a")
    all_saved(page)
    page.evaluate("sessionStorage.clear()")
    visit(page, running, RIDING)
    running.stop()
    press(page, "x", "z")
    page.keyboard.press("z")  # of a visit that the page knows nothing of
    expect(page.locator("#banner")).to_contain_text("No connection. 3 answers are kept")
    running.start()
    all_saved(page)
    expect(page.locator("h1")).to_have_text("person eating pizza ?")
    assert given(sqlite_store) == []


def test_a_recent_answer_is_replaced_by_answering_again(page, sqlite_store):
    press(page, "a", "x", "n")
    recent = page.get_by_role("region", name="Recent answers").get_by_role("button")
    expect(recent).to_have_count(3)
    asked = sqlite_store.upcoming(EATING, "ann", 1)
    recent.nth(2).click()
    expect(page.locator("#earlier-text")).to_have_text("Answered: Correct")
    settled(page)
    press(page, "s")
    expect(recent.nth(0)).to_have_accessible_name(
        "Subject mask faulty: person eating pizza. Answer again"
    )
    expect(recent).to_have_count(3)
    all_saved(page)
    answers = sorted(sqlite_store.answers(), key=lambda answer: answer.proposal.rank)
    assert [answer.verdict for answer in answers] == ["subject_faulty", "incorrect", "no_relation"]
    press(page, "z", "z")  # the answer to the first question, then the one to the third
    all_saved(page)
    answers = sorted(sqlite_store.answers(), key=lambda answer: answer.proposal.rank)
    assert [answer.verdict for answer in answers] == ["correct", "incorrect"]
    assert asked == sqlite_store.upcoming(EATING, "ann", 2)[1:]


def test_a_recent_answer_that_was_only_looked_at_stays(page, sqlite_store):
    press(page, "a", "x")
    recent = page.get_by_role("region", name="Recent answers").get_by_role("button")
    for leave in (
        lambda: page.keyboard.press("Escape"),
        page.get_by_role("button", name="Leave it").click,
    ):
        recent.nth(1).click()
        settled(page)
        leave()
        expect(page.locator("#earlier")).to_be_hidden()
        settled(page)
    press(page, "n")
    all_saved(page)
    assert given(sqlite_store) == ["correct", "incorrect", "no_relation"]
    assert sqlite_store.event_count() == 3
