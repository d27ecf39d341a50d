"""Keyboard, screen readers, small and large screens, in a real browser."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright.sync_api", reason="browser tests need the package playwright")

from page_actions import EATING, accessibility_faults, all_saved, given, press, settled
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


@pytest.mark.parametrize("size", [(320, 640), (375, 667), (390, 844)])
def test_on_a_phone_the_picture_keeps_a_size_and_all_answers_can_be_reached(
    page, sqlite_store, size
):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    assert page.locator("#stage").bounding_box()["height"] >= 200
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    for button in page.locator("#answers button").all():
        button.scroll_into_view_if_needed()
        expect(button).to_be_in_viewport(ratio=1)
    settled(page)
    page.locator("[data-verdict=incorrect]").click()
    all_saved(page)
    assert given(sqlite_store) == ["incorrect"]


def test_everything_is_on_screen_from_tablet_to_laptop(page):
    for width, height in ((1366, 768), (1280, 640), (1024, 768), (820, 1180), (600, 960)):
        page.set_viewport_size({"width": width, "height": height})
        for button in page.locator("#answers button").all():
            box = button.bounding_box()
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width
            assert 0 <= box["y"] <= box["y"] + box["height"] <= height
        stage = page.locator("#stage").bounding_box()
        assert stage["height"] > 0.4 * height
        rows = {button.bounding_box()["y"] for button in page.locator("#answers button").all()}
        assert len(rows) <= (2 if width > 1000 else 4)
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


def test_axe_finds_nothing_wrong_in_any_state(page, context, running):
    assert accessibility_faults(page) == []
    press(page, "a", "x", "n", "z")  # with recent answers, and something undone
    assert accessibility_faults(page) == []
    page.keyboard.press("?")
    assert accessibility_faults(page) == []
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 768, "height": 1024})
    page.keyboard.press("p")
    assert accessibility_faults(page) == []
    page.keyboard.press("Escape")
    context.set_offline(True)
    press(page, "a")
    expect(page.locator("#banner")).to_be_visible()
    assert accessibility_faults(page) == []
    context.set_offline(False)
    all_saved(page)
    nothing = {"predicate": EATING, "questions": [], "held": 0, "free_in": None}
    context.route("**/api/next?*", lambda route: route.fulfill(json=nothing))
    page.reload()
    expect(page.locator("#notice-text")).to_contain_text("Nothing is left")
    assert accessibility_faults(page) == []


def test_the_focus_goes_through_all_controls_in_their_order_and_is_seen(page):
    press(page, "a")
    page.evaluate("document.getElementById('question').focus()")
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        what = page.evaluate("""() => {
          const element = document.activeElement;
          if (element === document.body) return null;
          const { outlineStyle, outlineWidth } = getComputedStyle(element);
          if (outlineStyle === 'none' || outlineWidth === '0px') throw element.outerHTML;
          return element.dataset.key ?? element.className;
        }""")
        if what is None:
            break
        seen.append(what)
    verdicts = ["correct", "incorrect", "no_relation", "skip", "subject_faulty", "object_faulty"]
    assert seen == ["farther", "whole", "closer", "pair", *verdicts, "undo", "hide", "mode"]


def test_the_dialog_keeps_the_focus_and_gives_it_back(page):
    page.locator("#mode").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys and settings")).to_be_visible()
    for _ in range(60):
        page.keyboard.press("Tab")
        inside = (
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
        assert page.evaluate(inside)
    page.keyboard.press("Escape")
    expect(page.locator("#mode")).to_be_focused()


def test_all_is_reached_at_twice_the_size(page, sqlite_store):
    """A laptop's window at 200 % zoom is half as large in CSS pixels; then the page scrolls."""
    page.set_viewport_size({"width": 683, "height": 384})
    assert page.evaluate("document.documentElement.scrollWidth") <= 683
    assert page.locator("#stage").bounding_box()["height"] >= 200
    for button in page.locator("#answers button").all():
        button.scroll_into_view_if_needed()
        expect(button).to_be_in_viewport()
    assert accessibility_faults(page) == []
    settled(page)
    page.locator("[data-verdict=no_relation]").click()
    settled(page)
    all_saved(page)
    assert given(sqlite_store) == ["no_relation"]


def test_nothing_moves_for_who_wants_no_motion(page):
    page.emulate_media(reduced_motion="reduce")
    moving = page.evaluate("""() => [...document.querySelectorAll('*')].filter((element) => {
      const style = getComputedStyle(element);
      return parseFloat(style.transitionDuration) > 0 && style.transitionProperty !== 'none'
        || style.animationName !== 'none';
    }).length""")
    assert moving == 0


def change_key(page, action, key):
    page.locator(f"#key-list [data-action={action}]").click()
    page.keyboard.press(key)


def test_keys_can_be_changed_and_are_shown_and_remembered(page, sqlite_store):
    page.keyboard.press("?")
    change_key(page, "correct", "j")
    expect(page.locator("#keys-say")).to_have_text("“Correct” is J now.")
    change_key(page, "undo", "PageUp")
    page.keyboard.press("Escape")
    button = page.locator("[data-verdict=correct]")
    expect(button).to_have_text("CorrectJ")
    expect(button).to_have_attribute("aria-keyshortcuts", "J")
    press(page, "j")
    page.keyboard.press("a")  # means nothing any more
    page.keyboard.press("1")
    page.reload()
    settled(page)
    press(page, "J")
    all_saved(page)
    assert given(sqlite_store) == ["correct", "correct"]
    press(page, "PageUp")
    all_saved(page)
    assert given(sqlite_store) == ["correct"]
    page.keyboard.press("?")
    page.get_by_role("button", name="Reset the keys").click()
    expect(page.get_by_role("button", name="Reset the keys")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(button).to_have_text("CorrectA")
    press(page, "a")
    all_saved(page)
    assert given(sqlite_store) == ["correct", "correct"]


def test_a_key_never_has_two_meanings(page, sqlite_store):
    page.keyboard.press("?")
    change_key(page, "correct", "x")
    expect(page.locator("#keys-say")).to_have_text(
        "X is the key of “Incorrect”; change that one first."
    )
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#keys-say")).to_contain_text("has a meaning of its own")
    page.keyboard.press("Escape")  # gives up choosing, and does not close the dialog
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.locator("#key-list [data-action=correct]")).to_have_text("A1")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    press(page, "x", "a")
    all_saved(page)
    assert given(sqlite_store) == ["incorrect", "correct"]


def test_a_damaged_memory_of_keys_is_no_hindrance(page, running, sqlite_store):
    page.evaluate("""() => {
      localStorage.setItem('haystack.keys', '{"correct": 7, "nothing": "q", "skip": "x"}');
      localStorage.setItem('haystack.mode', '"sepia"');
      localStorage.setItem('haystack.next-view', '{');
    }""")
    page.reload()
    settled(page)
    press(page, "a", "x", "q")
    all_saved(page)
    assert given(sqlite_store) == ["correct", "incorrect"]
