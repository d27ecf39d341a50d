"""Pictures, masks, zoom and what is fetched ahead, in a real browser."""

from __future__ import annotations

import io
import time

import pytest

pytest.importorskip("playwright.sync_api", reason="browser tests need the package playwright")

from page_actions import EATING, SETTLE_MS, all_saved, canvas, given, press, settled, visit
from PIL import Image, ImageDraw
from playwright.sync_api import expect

from haystack.annotate.service.media import OVERLAY_PALETTE, Caption

pytestmark = pytest.mark.browser


def shows(page, drawing):
    """Wait until the canvas is like this; what is drawn ahead differs by a rounding at first."""
    page.wait_for_function(
        "(drawing) => document.getElementById('canvas').toDataURL() === drawing", arg=drawing
    )


def still(page):
    """The canvas once the masks that are drawn ahead have come onto it."""
    drawing = canvas(page)
    while True:
        page.wait_for_timeout(150)
        if drawing == (drawing := canvas(page)):
            return drawing


def test_masks_can_be_hidden_and_drawn_in_four_ways(page):
    with_masks = still(page)
    page.keyboard.down("h")
    without = canvas(page)
    expect(page.locator("#hide")).to_have_attribute("aria-pressed", "true")
    page.keyboard.up("h")
    assert with_masks != without
    shows(page, with_masks)
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
    shows(page, with_masks)


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


def test_no_request_lies_between_a_key_and_the_next_picture(page, context, sqlite_store):
    page.wait_for_timeout(600)  # five pictures ahead
    held = []
    context.route("**/*", lambda route: held.append(route))  # nothing is answered from now on
    drawn = {canvas(page)}
    for _ in range(5):
        press(page, "x")
        drawn.add(canvas(page))
    assert len(drawn) == 6
    assert [route.request.url.rpartition("/")[2] for route in held] == ["answer"]
    for route in held:
        route.continue_()
    context.unroute("**/*")
    all_saved(page)
    assert given(sqlite_store) == ["incorrect"] * 5


def test_how_long_a_picture_took_can_be_read(page):
    page.evaluate("""() => {
      window.taken = [];
      new PerformanceObserver((list) => taken.push(...list.getEntries().map((e) => e.name)))
        .observe({ type: 'measure' });
    }""")
    press(page, "x", "a")
    assert page.evaluate("taken") == ["haystack.next"] * 2


def zoom_level(page):
    return int(page.locator("#zoom-level").text_content().split()[0])


def frame(page):
    """Wait for what is drawn next."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def do(page, *keys):
    for key in keys:
        page.keyboard.press(key)
        frame(page)


def blue_runs(page):
    """Lengths of the runs of the subject's exact colour in the middle row of the canvas."""
    return page.evaluate("""() => {
      const canvas = document.getElementById('canvas');
      const row = canvas.getContext('2d')
        .getImageData(0, Math.round(canvas.height / 2), canvas.width, 1).data;
      const runs = [0];
      for (let at = 0; at < row.length; at += 4) {
        if (row[at] === 86 && row[at + 1] === 180 && row[at + 2] === 233) runs[runs.length - 1]++;
        else if (runs[runs.length - 1]) runs.push(0);
      }
      return runs.filter((run) => run);
    }""")


def test_keys_zoom_and_move_the_picture_and_answers_still_count(page, sqlite_store):
    whole = still(page)
    do(page, "ArrowRight")
    assert still(page) == whole  # there is nothing to move
    do(page, "+", "+")
    assert zoom_level(page) == 225
    closer = canvas(page)
    do(page, "ArrowRight")
    moved = canvas(page)
    do(page, "ArrowLeft")
    assert canvas(page) == closer != moved
    do(page, "-")
    assert zoom_level(page) == 150
    do(page, "0")
    shows(page, whole)
    do(page, "f")
    fitted = zoom_level(page)
    assert fitted > 100
    do(page, "f")
    assert zoom_level(page) == 100
    do(page, "f")
    assert zoom_level(page) == fitted
    press(page, "a")
    assert zoom_level(page) == 100  # with the next question
    all_saved(page)
    assert given(sqlite_store) == ["correct"]


def test_outlines_stay_thin_and_sharp_however_close(page):
    page.keyboard.press("m")  # outline alone
    page.keyboard.press("f")
    for _ in range(8):
        do(page, "+")
    assert zoom_level(page) >= 400
    do(page, *["ArrowLeft"] * 60)
    for _ in range(60):
        runs = blue_runs(page)
        if runs:
            break
        do(page, "ArrowRight")
    assert runs
    assert max(runs) <= 6


def test_wheel_drag_and_double_click(page):
    whole = still(page)
    box = page.locator("#canvas").bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(*middle)
    page.mouse.wheel(0, -300)
    frame(page)
    level = zoom_level(page)
    assert level > 140
    before = canvas(page)
    page.mouse.down()
    page.mouse.move(middle[0] + 40, middle[1] + 10, steps=4)
    page.mouse.up()
    frame(page)
    assert canvas(page) != before
    assert zoom_level(page) == level
    page.mouse.move(middle[0] + 80, middle[1])  # not pressed any more
    frame(page)
    dragged = canvas(page)
    page.mouse.move(*middle)
    frame(page)
    assert canvas(page) == dragged
    page.mouse.dblclick(*middle)
    frame(page)
    shows(page, whole)
    page.mouse.dblclick(*middle)
    frame(page)
    assert zoom_level(page) == 250
    page.mouse.wheel(0, 5000)
    frame(page)
    shows(page, whole)


def test_the_point_under_the_wheel_stays_there(page):
    box = page.locator("#canvas").bounding_box()
    colour = """([x, y]) => [...document.getElementById('canvas').getContext('2d')
      .getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data]"""
    do(page, "+", "+", "+")  # so close that the picture has no margin that must stay in the middle
    for _ in range(20):
        if blue_runs(page):  # the subject's outline, where a wrong centre would be seen at once
            break
        do(page, "ArrowLeft")
    x = page.evaluate("""() => {
      const canvas = document.getElementById('canvas');
      const row = canvas.getContext('2d')
        .getImageData(0, Math.round(canvas.height / 2), canvas.width, 1).data;
      for (let at = 0; at < row.length; at += 4) {
        if (row[at] === 86 && row[at + 1] === 180 && row[at + 2] === 233) return at / 4;
      }
    }""")
    y = round(box["height"] / 2)
    page.mouse.move(box["x"] + x, box["y"] + y)
    for _ in range(3):
        page.mouse.wheel(0, -100)
        frame(page)
    near = [page.evaluate(colour, [x + step, y]) for step in range(-8, 9)]
    assert [86, 180, 233, 255] in near


def test_two_fingers_zoom_on_a_tablet(browser, running):
    context = browser.new_context(viewport={"width": 1024, "height": 768}, has_touch=True)
    page = context.new_page()
    visit(page, running)
    devtools = context.new_cdp_session(page)
    box = page.locator("#canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def touch(kind, *gaps):
        points = [{"x": x + gap, "y": y, "id": index} for index, gap in enumerate(gaps)]
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", -30)
    touch("touchStart", -30, 30)
    for gap in (40, 50, 60, 75, 90):
        touch("touchMove", -gap, gap)
    touch("touchEnd")
    frame(page)
    assert 270 <= zoom_level(page) <= 330
    assert page.evaluate("visualViewport.scale") == 1  # the page itself does not zoom
    page.locator("#zoom [data-key=whole]").tap()
    frame(page)
    assert zoom_level(page) == 100
    context.close()


def test_what_a_new_question_shows_is_remembered(page, running):
    def choose(value):
        page.keyboard.press("?")
        page.get_by_label("With each new question show").select_option(value)
        page.keyboard.press("Escape")

    choose("same")
    do(page, "+", "+")
    press(page, "x")
    assert zoom_level(page) == 225
    choose("pair")
    press(page, "x")
    assert 100 < zoom_level(page) != 225
    page.reload()
    settled(page)
    assert zoom_level(page) > 100
    choose("whole")
    press(page, "x")
    assert zoom_level(page) == 100


class HardMedia:
    """Masks that are easily lost: a line of one pixel, one pixel, a ring, and the whole border."""

    size = (400, 300)

    def __init__(self, ground):
        self.ground = ground

    def image(self, image_key):
        stream = io.BytesIO()
        Image.new("RGB", self.size, (self.ground,) * 3).save(stream, "PNG")
        return stream.getvalue(), "image/png"

    def overlay(self, image_key, subject, object):
        mask = Image.new("P", self.size, 0)
        mask.putpalette([channel for colour in OVERLAY_PALETTE for channel in colour[:3]])
        draw = ImageDraw.Draw(mask)
        kind = int(image_key.split(".")[0])
        if kind == 0:
            draw.line((50, 60, 350, 60), fill=1)
            draw.point((200, 200), fill=2)
        elif kind == 1:
            draw.ellipse((100, 50, 300, 250), fill=2)
            draw.ellipse((170, 120, 230, 180), fill=1)
        else:
            draw.rectangle((0, 0, 150, 299), fill=1)
            draw.rectangle((151, 0, 399, 299), fill=2)
        stream = io.BytesIO()
        mask.save(stream, "PNG", transparency=0)
        return stream.getvalue()

    def caption(self, proposal):
        return Caption("cup", "dog")


@pytest.mark.parametrize("ground", [10, 128, 245])
def test_no_mask_is_lost_however_it_is_drawn(
    context, run_service, sqlite_store, make_queue, ground
):
    """In every mode both segments leave a line that stands out from what is around them."""
    sqlite_store.load_proposals(make_queue(count=4), round=0)
    page = context.new_page()
    visit(page, run_service(sqlite_store, HardMedia(ground)))
    # Names would be counted with the masks.
    page.evaluate("CanvasRenderingContext2D.prototype.roundRect = () => {}")
    count = """() => {
      const canvas = document.getElementById('canvas');
      const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      const found = { blue: 0, orange: 0 };
      for (let at = 0; at < pixels.length; at += 4) {
        const [red, , blue] = [pixels[at], pixels[at + 1], pixels[at + 2]];
        if (blue - red > 60) found.blue++;
        if (red - blue > 80) found.orange++;
      }
      return found;
    }"""
    for _ in range(3):
        page.keyboard.down("h")
        bare = page.evaluate(count)
        page.keyboard.up("h")
        assert bare == {"blue": 0, "orange": 0}
        for _ in range(4):
            page.keyboard.press("m")
            found = page.evaluate(count)
            assert found["blue"] > 30
            assert found["orange"] > 30
        press(page, "x")
    page.close()
