"""Keyboard, screen readers, small and large screens, in a real browser."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright.sync_api", reason="browser tests need the package playwright")

from page_actions import all_saved, given, press, settled
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_the_question_is_written_and_spoken(page):
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text("person eating pizza ?")
    expect(page.locator("h1 .subject")).to_have_text("person")
    expect(page.locator("h1 .subject")).to_have_css("color", "rgb(86, 180, 233)")
    expect(page.locator("h1 .object")).to_have_css("color", "rgb(230, 159, 0)")
    expect(page.get_by_role("img", name="Picture with two segments")).to_be_visible()
    for landmark in ("main", "navigation", "banner", "contentinfo"):
        assert page.get_by_role(landmark).count() >= (landmark in ("main", "navigation"))
    press(page, "x")
    expect(page.locator("[aria-live=polite]")).to_have_text("Incorrect. person eating pizza?")


def test_help_opens_and_keeps_the_keys_to_itself(page, sqlite_store):
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("x")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    page.wait_for_timeout(100)
    assert sqlite_store.event_count() == 0
    press(page, "x")
    all_saved(page)
    assert given(sqlite_store) == ["incorrect"]


def test_space_after_a_click_skips_but_presses_a_button_reached_by_tab(page, sqlite_store):
    page.locator("[data-verdict=correct]").click()
    settled(page)
    press(page, "Space")
    page.locator("#question").focus()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.verdict === 'no_relation'"):
            break
    press(page, "Space", "Enter")
    all_saved(page)
    assert given(sqlite_store) == ["correct", "skip", "no_relation", "no_relation"]


def test_everything_is_on_screen_from_tablet_to_laptop(page):
    for width, height in ((1366, 768), (1280, 640), (1024, 768), (820, 1180), (600, 960)):
        page.set_viewport_size({"width": width, "height": height})
        for button in page.locator("#answers button").all():
            box = button.bounding_box()
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width
            assert 0 <= box["y"] <= box["y"] + box["height"] <= height
        stage = page.locator("#stage").bounding_box()
        assert stage["height"] > 0.4 * height
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_on_a_tablet_the_predicates_are_behind_a_button(page, sqlite_store):
    page.set_viewport_size({"width": 820, "height": 1180})
    expect(page.locator("#predicates")).to_be_hidden()
    page.get_by_role("button", name="Predicates", exact=True).click()
    expect(page.locator("#predicates")).to_be_visible()
    page.keyboard.press("x")  # the picture is behind the list: this is no answer
    page.get_by_role("button", name="riding, 0 of 12 done").click()
    expect(page.locator("#predicates")).to_be_hidden()
    expect(page.locator("h1")).to_have_text("person riding pizza ?")
    settled(page)
    assert sqlite_store.event_count() == 0
    press(page, "x")
    all_saved(page)
    assert given(sqlite_store) == ["incorrect"]
