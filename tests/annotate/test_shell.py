"""The header that all pages share, in a real browser."""

from __future__ import annotations

import pytest

playwright_api = pytest.importorskip(
    "playwright.sync_api", reason="browser tests need the package playwright"
)

pytestmark = pytest.mark.browser

expect = playwright_api.expect
ALL_PAGES = ["/", "/clusters", "/names", "/progress", "/disagreements"]


@pytest.fixture
def open_as(context, run_service, sqlite_store, make_queue, media):
    """Opens the annotation page as somebody, of a service with certain pages."""
    sqlite_store.load_proposals(make_queue(), round=0)
    service = run_service(sqlite_store, media)

    def open_page(role="lead", login=False, pages=ALL_PAGES, name="Ada <b>"):
        me = {"name": name, "role": role, "login": login, "pages": pages}
        context.route("**/api/me", lambda route: route.fulfill(json=me))
        page = context.new_page()
        page.goto(service.url)
        return page

    return open_page


def links(page):
    navigation = page.get_by_role("navigation", name="Pages")
    expect(navigation.get_by_role("link").first).to_be_visible()
    return navigation.get_by_role("link").all_text_contents()


def test_the_lead_sees_all_pages_and_where_they_are(open_as):
    page = open_as()
    assert links(page) == ["Annotate", "Clusters", "Names", "Progress", "Disagreements"]
    current = page.locator("#shell [aria-current=page]")
    expect(current).to_have_text("Annotate")
    expect(page.get_by_role("banner")).to_be_visible()
    expect(page.get_by_role("button", name="Log out")).to_have_count(0)


def test_an_annotator_sees_no_page_of_the_lead(open_as):
    assert links(open_as(role="annotator")) == ["Annotate", "Names", "Progress"]


def test_pages_that_are_not_served_have_no_link(open_as):
    assert links(open_as(pages=["/", "/progress"])) == ["Annotate", "Progress"]


def test_logging_out_ends_the_login(open_as, context):
    asked = []

    def log_out(route):
        asked.append(route.request.method)
        route.fulfill(json={})

    context.route("**/api/logout", log_out)
    context.route("**/login", lambda route: route.fulfill(body="login"))
    page = open_as(login=True)
    expect(page.locator("#shell .who")).to_have_text("Ada <b>")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    assert asked == ["POST"]


def test_the_first_tab_skips_the_header(open_as):
    page = open_as()
    links(page)
    page.keyboard.press("Tab")
    expect(page.locator(".jump")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#question")).to_be_focused()


def test_the_header_fits_a_tablet(open_as):
    page = open_as(login=True)
    for width in (1366, 1024, 768):
        page.set_viewport_size({"width": width, "height": 1024})
        for part in page.locator("#shell :is(a, button):not(.jump)").all():
            box = part.bounding_box()
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width


@pytest.mark.parametrize("width", [320, 390, 780, 1000, 1440])
def test_all_pages_are_in_sight_at_any_width(open_as, width):
    page = open_as(login=True, name="Ada of the long and winding names")
    page.set_viewport_size({"width": width, "height": 800})
    names = links(page)
    for name in (*names, "Haystack"):
        link = page.get_by_role("link", name=name)
        expect(link).to_be_in_viewport(ratio=1)
        box = link.bounding_box()
        assert box["height"] >= 24
        assert page.evaluate(
            "([x, y]) => document.elementFromPoint(x, y).closest('a').getAttribute('href')",
            [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2],
        ) == link.get_attribute("href")
    for name in ("Log out", "Keys and settings"):
        expect(page.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # By keyboard: the tab key reaches all of them, one after the other.
    reached = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
    assert [name for name in reached if name in names] == names


def test_links_can_be_tapped_on_a_phone(browser, run_service, sqlite_store, make_queue, media):
    sqlite_store.load_proposals(make_queue(), round=0)
    service = run_service(sqlite_store, media)
    phone = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    page = phone.new_page()
    page.goto(service.url)
    link = page.get_by_role("link", name="Disagreements")
    expect(link).to_be_visible()
    assert link.bounding_box()["height"] >= 44
    link.tap()
    expect(page.get_by_role("heading", name="Disagreements")).to_be_visible()
    phone.close()
