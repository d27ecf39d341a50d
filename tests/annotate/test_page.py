"""The page in a real browser, with the real service behind it."""

from __future__ import annotations

import contextlib
import time
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="the annotation page needs FastAPI")
playwright_api = pytest.importorskip(
    "playwright.sync_api", reason="browser tests need the package playwright"
)

from haystack.annotate.store.store import AnnotationStore  # noqa: E402

pytestmark = pytest.mark.browser

expect = playwright_api.expect
EATING, RIDING = 0, 1
SETTLE_MS = 170


@pytest.fixture
def running(run_service, sqlite_store, make_queue, media):
    sqlite_store.load_proposals(make_queue(count=12), round=0)
    return run_service(sqlite_store, media)


@pytest.fixture
def page(context, running):
    opened = context.new_page()
    opened.set_default_timeout(15_000)
    faults = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    visit(opened, running)
    yield opened
    opened.close()
    assert faults == []


def visit(page, running, predicate=EATING):
    page.goto("about:blank")
    page.goto(f"{running.url}#predicate={predicate}")
    settled(page)


def settled(page):
    """Wait until a picture is on screen, and until keys count for it."""
    expect(page.locator("#stage")).not_to_have_class("waiting")
    page.wait_for_timeout(SETTLE_MS)


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)
        settled(page)


def all_saved(page):
    expect(page.locator("#saved")).to_have_text("All answers saved")


def given(store):
    """Verdicts in the order in which they were given."""
    answers = sorted(store.answers(), key=lambda answer: answer.created_at)
    return [answer.verdict for answer in answers]


def canvas(page):
    return page.evaluate("document.getElementById('canvas').toDataURL()")


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


def test_a_held_key_answers_once(page, sqlite_store):
    page.keyboard.down("x")
    for _ in range(5):
        settled(page)
        page.keyboard.down("x")  # the browser marks these as repetitions
    page.keyboard.up("x")
    all_saved(page)
    assert sqlite_store.event_count() == 1


def test_a_key_meant_for_the_picture_before_does_not_count(page, sqlite_store):
    page.keyboard.press("x")
    page.keyboard.press("x")
    page.wait_for_timeout(50)
    settled(page)
    all_saved(page)
    assert sqlite_store.event_count() == 1


def test_keys_with_control_belong_to_the_browser(page, sqlite_store):
    for key in ("Control+a", "Alt+x", "Meta+s"):
        page.keyboard.press(key)
    page.wait_for_timeout(200)
    assert sqlite_store.event_count() == 0


def test_undo_after_undo_and_after_a_reload(page, running, sqlite_store):
    queue = sqlite_store.upcoming(EATING, "ann", 4)
    press(page, "a", "x", "n")
    press(page, "z")
    expect(page.locator("#earlier")).to_have_text("Undone: No relation")
    press(page, "Backspace")
    expect(page.locator("#earlier")).to_have_text("Undone: Incorrect")
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


def test_a_faulty_segment_is_not_asked_about_again_not_even_offline(page, context, sqlite_store):
    # Images take turns: the fourth question is about the first image's pizza again.
    page.wait_for_timeout(300)
    context.set_offline(True)
    press(page, "o", "x", "x", "a")
    context.set_offline(False)
    all_saved(page)
    assert sqlite_store.faulty_segments() == {("0", 2)}
    assert sorted(answer.proposal.rank for answer in sqlite_store.answers()) == [0, 1, 2, 4]


def test_masks_can_be_hidden_and_drawn_in_four_ways(page):
    with_masks = canvas(page)
    page.keyboard.down("h")
    without = canvas(page)
    expect(page.locator("#hide")).to_have_attribute("aria-pressed", "true")
    page.keyboard.up("h")
    assert canvas(page) == with_masks != without
    drawings = {with_masks, without}
    for name in ("Outline", "Fill", "Box"):
        page.keyboard.press("m")
        expect(page.locator("#mode-name")).to_have_text(name)
        drawings.add(canvas(page))
    assert len(drawings) == 5
    page.reload()
    settled(page)
    expect(page.locator("#mode-name")).to_have_text("Box")  # remembered
    page.keyboard.press("m")
    assert canvas(page) == with_masks


def test_subject_is_blue_and_object_is_orange_where_their_masks_are(page, media):
    page.keyboard.press("m")
    page.keyboard.press("m")  # fill: more than half of the colour
    read = """([x, y]) => {
      const canvas = document.getElementById('canvas');
      const scale = Math.min(canvas.width / 640, canvas.height / 420);
      const left = Math.round((canvas.width - 640 * scale) / 2);
      const top = Math.round((canvas.height - 420 * scale) / 2);
      const context = canvas.getContext('2d');
      return [...context.getImageData(left + x * scale, top + y * scale, 1, 1).data];
    }"""
    red, _, blue, _ = page.evaluate(read, [140, 210])  # person 0 of the fake media
    assert blue > red + 10  # by itself it has 60 of blue and 200 of red
    red, _, blue, _ = page.evaluate(read, [500, 210])  # pizza 2
    assert red > blue + 60
    red, green, blue, _ = page.evaluate(read, [20, 20])  # ground: as it is
    assert (abs(red - 60), abs(green - 110), abs(blue - 120)) < (12, 12, 12)


def test_the_next_pictures_are_fetched_ahead_and_only_once(page, running):
    fetched = []
    page.on("request", lambda request: fetched.append(request.url))
    visit(page, running)
    page.wait_for_timeout(500)
    overlays = [url for url in fetched if "/media/overlay" in url]
    assert len(overlays) == len(set(overlays)) == 6
    fetched.clear()
    page.keyboard.press("x")
    started = time.perf_counter()
    settled(page)
    assert time.perf_counter() - started < 2
    all_saved(page)
    page.wait_for_timeout(300)
    # The picture that came on screen was there already; one more was fetched behind it.
    assert len([url for url in fetched if "/media/overlay" in url]) == 1
    assert len([url for url in fetched if "/api/answer" in url]) == 1


def test_nothing_is_asked_of_another_site(page, context, running):
    hosts = set()
    context.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    visit(page, running)
    press(page, "a", "?")
    assert hosts == {urlsplit(running.url).netloc}


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


def test_a_refused_answer_is_said_and_the_page_goes_on(page, context, sqlite_store):
    refuse = {"status": 404, "json": {"detail": "there is no proposal"}}
    context.route("**/api/answer", lambda route: route.fulfill(**refuse), times=1)
    page.keyboard.press("a")
    expect(page.locator("#banner.refused")).to_contain_text("refused: there is no proposal")
    settled(page)
    press(page, "x")
    all_saved(page)
    assert given(sqlite_store) == ["incorrect"]


def test_a_picture_that_cannot_be_shown_can_only_be_skipped(page, running, media, sqlite_store):
    media.broken.add("0.jpg")
    running.stop()
    running.start()  # another version of the media: the browser asks again
    page.goto("about:blank")
    page.goto(f"{running.url}#predicate={EATING}")
    expect(page.locator("#notice-text")).to_have_text(
        "The picture cannot be shown: 0.jpg: the picture is damaged. Skip it to go on."
    )
    page.wait_for_timeout(SETTLE_MS)
    page.keyboard.press("a")
    page.keyboard.press("Space")
    settled(page)
    all_saved(page)
    assert given(sqlite_store) == ["skip"]


def test_html_in_names_is_shown_as_text(page, running, media):
    evil = "<img src=x onerror=document.title='pwned'>"
    media.names = (evil, evil, "<script>document.title='pwned'</script>")
    visit(page, running)
    expect(page.locator("h1")).to_contain_text(evil)
    assert page.locator("h1 img, h1 script, #predicate-list img").count() == 0
    assert page.title() == "Haystack"


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
