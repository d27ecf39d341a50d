"""What tests do with the annotation page in a browser."""

from __future__ import annotations

import json

from playwright.sync_api import expect

EATING, RIDING = 0, 1
SETTLE_MS = 170  # keys pressed sooner are taken to be meant for the picture before


def visit(page, running, predicate=EATING):
    page.goto("about:blank")
    page.goto(f"{running.url}#predicate={predicate}")
    settled(page)


def settled(page):
    """Wait until a picture is on screen, and until keys count for it."""
    expect(page.locator("#stage")).not_to_have_class("waiting", timeout=20_000)
    page.wait_for_timeout(SETTLE_MS)


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)
        settled(page)


def all_saved(page):
    expect(page.locator("#saved")).to_have_text("All answers saved", timeout=20_000)


def given(store):
    """Verdicts in the order in which they were given."""
    answers = sorted(store.answers(), key=lambda answer: answer.created_at)
    return [answer.verdict for answer in answers]


def canvas(page):
    return page.evaluate("document.getElementById('canvas').toDataURL()")


def accessibility_faults(page):
    """What axe-core finds wrong with the page as it is now, a line each."""
    from axe_playwright_python.base import AXE_FILE_PATH

    page.evaluate(AXE_FILE_PATH.read_text())  # past the page's own policy on scripts
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{rule['id']}: {rule['help']}: {json.dumps([node['html'] for node in rule['nodes']])}"
        for rule in found["violations"]
    ]
