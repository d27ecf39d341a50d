"""The clusters page: requests, and the page in a real browser; the clusters are drawn."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

pytest.importorskip("fastapi", reason="the annotation pages need FastAPI")
pytest.importorskip("httpx", reason="tests of the service need httpx")

from fastapi.testclient import TestClient

from haystack.annotate.service.app import create_app
from haystack.annotate.service.clusters import add_clusters
from haystack.annotate.service.identity import Annotator, identify
from haystack.errors import HaystackError

ORIGIN = "http://127.0.0.1:8000"


@pytest.fixture
def client(sqlite_store, media, clusters):
    part = functools.partial(add_clusters, clusters=clusters, version="v1")
    app = create_app(sqlite_store, media, ("eating",), parts=[part])
    with TestClient(app, base_url=ORIGIN) as opened:
        yield opened


def choose(client, cluster, **content):
    body = {"included": False, "clustering": "abc"} | content
    return client.post(f"/api/clusters/{cluster}", json=body)


# ---------------------------------------------------------------- requests


def test_the_list_says_what_each_cluster_holds(client, clusters):
    found = client.get("/api/clusters").json()
    assert found["clustering"] == "abc"
    assert found["clusters"][1] == {
        "id": 1,
        "name": "<b>logos</b>",
        "size": 300,
        "included": True,
        "proposals": None,
        "candidates": None,
    }
    clusters.state = replace(
        clusters.state,
        proposals=[5, 4, 3, 2, 0],
        candidates=[50, 40, 30, 20, 0],
        to_run=["haystack propose w"],
    )
    found = client.get("/api/clusters").json()
    assert (found["clusters"][1]["proposals"], found["clusters"][1]["candidates"]) == (4, 40)
    assert found["to_run"] == ["haystack propose w"]


def test_a_choice_is_passed_on_and_everything_comes_back(client, clusters):
    reply = choose(client, 1)
    assert reply.status_code == 200
    assert [cluster["included"] for cluster in reply.json()["clusters"]] == [
        *(True, False),
        *(True, True, True),
    ]
    assert clusters.calls == [(1, False)]


def test_a_clustering_made_meanwhile_is_a_conflict(client):
    for reply in (
        choose(client, 1, clustering="old"),
        client.get("/api/clusters/1/pictures", params={"clustering": "old"}),
    ):
        assert reply.status_code == 409
        assert "clustered anew meanwhile" in reply.json()["detail"]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("1", {"included": "no"}),
        ("1", {"included": None}),
        ("1", {"clustering": "x" * 129}),
        ("1", {"more": 1}),
        ("-1", {}),
        ("one", {}),
        (str(2**31), {}),
        ("7", {}),
    ],
)
def test_bad_choices_are_refused(client, clusters, path, content):
    before = clusters.state
    reply = choose(client, path, **content)
    assert reply.status_code == 422
    assert isinstance(reply.json()["detail"], str)
    assert clusters.state == before


def test_pictures_have_addresses_that_browsers_may_keep(client, clusters):
    found = client.get("/api/clusters/0/pictures", params={"clustering": "abc"}).json()
    assert (len(found["nearest"]), len(found["drawn"])) == (60, 60)
    assert found["nearest"][0] == "/media/thumbnail?key=0%2F0.jpg&v=v1"
    reply = client.get(found["nearest"][0])
    assert reply.headers["content-type"] == "image/jpeg"
    assert reply.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert reply.content.startswith(b"\xff\xd8")
    old = client.get("/media/thumbnail", params={"key": "0/0.jpg", "v": "v0"})
    assert old.headers["cache-control"] == "no-store"


def test_a_picture_that_cannot_be_had_is_not_found(client):
    for key in ("0/2.jpg", "../../etc/passwd", ""):
        reply = client.get("/media/thumbnail", params={"key": key})
        assert reply.status_code == 404
        assert isinstance(reply.json()["detail"], str)


def test_annotators_neither_see_nor_choose(client, clusters):
    client.app.dependency_overrides[identify] = lambda: Annotator("ben", "annotator")
    replies = [
        client.get("/api/clusters"),
        client.get("/api/clusters/0/pictures", params={"clustering": "abc"}),
        client.get("/media/thumbnail", params={"key": "0/0.jpg"}),
        choose(client, 0),
    ]
    assert [reply.status_code for reply in replies] == [403] * 4
    assert (clusters.calls, clusters.thumbnails) == ([], 0)


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def page(context, run_service, sqlite_store, media, clusters, expect):
    part = functools.partial(add_clusters, clusters=clusters)
    service = run_service(sqlite_store, media, parts=[part])
    opened = context.new_page()
    opened.set_default_timeout(15_000)
    faults = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.goto(f"{service.url}clusters")
    expect(opened.locator("#clusters > li.current")).to_have_count(1)
    yield opened
    opened.close()
    assert faults == []


def wait_for(page, condition):
    """Until the service has seen it."""
    for _ in range(200):
        if condition():
            return
        page.wait_for_timeout(20)


def switch(page, number):
    return page.locator("#clusters > li").nth(number).get_by_role("switch")


def current(page):
    return page.locator("#clusters > li.current").get_attribute("data-cluster")


@pytest.mark.browser
def test_keys_move_toggle_and_undo(page, clusters, expect):
    expect(page.locator("#summary")).to_have_text(
        "5 of 5 clusters included · 1,543 of 1,543 images (100 %)"
    )
    expect(switch(page, 0)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(switch(page, 1)).to_have_attribute("aria-checked", "false")
    expect(page.locator("#summary")).to_have_text(
        "4 of 5 clusters included · 1,243 of 1,543 images (81 %)"
    )
    expect(page.locator("[aria-live=polite]")).to_have_text(
        "1 · <b>logos</b> excluded. 1,243 images included."
    )
    page.keyboard.press("j")
    page.keyboard.press("Space")
    page.keyboard.press("k")
    assert current(page) == "1"
    page.keyboard.press("End")
    assert current(page) == "4"
    page.keyboard.press("ArrowDown")
    assert current(page) == "4"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowUp")
    assert current(page) == "0"
    page.keyboard.press("z")
    assert current(page) == "2"
    page.keyboard.press("Backspace")
    assert current(page) == "1"
    expect(page.locator("#undo")).to_be_disabled()
    page.keyboard.press("z")
    expect(page.locator("[aria-live=polite]")).to_have_text("There is nothing left to undo.")
    wait_for(page, lambda: len(clusters.calls) == 4)
    assert clusters.calls == [(1, False), (2, False), (2, True), (1, True)]
    assert all(cluster.included for cluster in clusters.state.clusters)


@pytest.mark.browser
def test_the_mouse_and_the_focus_choose_as_well(page, clusters, expect):
    switch(page, 3).click()
    expect(switch(page, 3)).to_have_attribute("aria-checked", "false")
    assert current(page) == "3"
    page.locator("#undo").click()
    expect(switch(page, 3)).to_have_attribute("aria-checked", "true")
    expect(switch(page, 3)).to_be_focused()
    wait_for(page, lambda: len(clusters.calls) == 2)
    assert clusters.calls == [(3, False), (3, True)]


@pytest.mark.browser
def test_space_works_when_nothing_has_the_focus(page, clusters, expect):
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Space")
    expect(switch(page, 0)).to_have_attribute("aria-checked", "false")
    wait_for(page, lambda: clusters.calls)
    assert clusters.calls == [(0, False)]


@pytest.mark.browser
def test_a_fast_hand_loses_nothing(page, clusters, expect):
    for _ in range(4):
        page.keyboard.press("Space")
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(page.locator("#summary")).to_have_text(
        "0 of 5 clusters included · 0 of 1,543 images (0 %)"
    )
    wait_for(page, lambda: len(clusters.calls) == 5)
    assert clusters.calls == [(number, False) for number in range(5)]
    page.reload()
    expect(page.locator("#clusters > li.excluded")).to_have_count(5)


@pytest.mark.browser
def test_what_others_chose_meanwhile_is_seen(page, clusters, expect):
    clusters.include(0, False, "abc")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(switch(page, 0)).to_have_attribute("aria-checked", "false")
    expect(page.locator("#summary")).to_contain_text("3 of 5 clusters included")


@pytest.mark.browser
def test_a_new_clustering_is_shown_and_nothing_is_chosen_for_it(page, clusters, expect):
    page.keyboard.press("Space")
    wait_for(page, lambda: clusters.calls)
    page.wait_for_timeout(100)  # until the reply is there
    two = [replace(cluster, included=True, name="new") for cluster in clusters.state.clusters[:2]]
    clusters.state = replace(clusters.state, clustering="def", clusters=two)
    page.keyboard.press("Space")
    expect(page.locator("#banner")).to_contain_text("clustered anew meanwhile")
    expect(page.locator("#clusters > li")).to_have_count(2)
    expect(page.locator("#clusters h2").first).to_have_text("0 · new")
    expect(page.locator("#undo")).to_be_disabled()
    assert all(cluster.included for cluster in clusters.state.clusters)


@pytest.mark.browser
def test_what_is_refused_goes_back_and_says_why(page, clusters, expect):
    clusters.fails = HaystackError("the disk is full")
    page.keyboard.press("Space")
    expect(page.locator("#banner")).to_have_text("the disk is full")
    expect(switch(page, 0)).to_have_attribute("aria-checked", "true")
    expect(page.locator("#undo")).to_be_disabled()
    clusters.fails = None
    page.keyboard.press("Space")
    expect(page.locator("#banner")).to_be_hidden()
    expect(switch(page, 0)).to_have_attribute("aria-checked", "false")


@pytest.mark.browser
def test_without_a_connection_the_page_says_that_nothing_was_saved(page, context, clusters, expect):
    page.wait_for_timeout(300)
    context.set_offline(True)
    page.keyboard.press("Space")
    expect(page.locator("#banner")).to_have_text("No connection. The latest change was not saved.")
    expect(switch(page, 0)).to_have_attribute("aria-checked", "true")
    context.set_offline(False)
    page.keyboard.press("Space")
    expect(switch(page, 0)).to_have_attribute("aria-checked", "false")
    wait_for(page, lambda: clusters.calls)
    assert clusters.calls == [(0, False)]


@pytest.mark.browser
def test_pictures_are_there_when_they_are_looked_at_and_more_on_demand(page, clusters, expect):
    first = page.locator("#clusters > li").first
    expect(first.locator("img:visible")).to_have_count(48)
    expect(first.locator("h3").first).to_have_text("Nearest to the centre")
    expect(first.locator("img").first).not_to_have_class("waiting")
    expect(first.locator("img").nth(2)).to_have_attribute("alt", "This picture cannot be shown")
    page.keyboard.press("m")
    expect(first.locator("img:visible")).to_have_count(120)
    expect(first.get_by_role("button", name="Fewer pictures")).to_have_attribute(
        "aria-expanded", "true"
    )
    page.keyboard.press("m")
    expect(first.locator("img:visible")).to_have_count(48)
    page.keyboard.press("End")
    expect(page.locator("#clusters > li").last).to_contain_text("No image belongs to this cluster")


@pytest.mark.browser
def test_names_are_text_and_the_switch_says_what_it_switches(page, expect):
    expect(page.locator("#clusters h2").nth(1)).to_have_text("1 · <b>logos</b>")
    assert page.locator("#clusters h2 b").count() == 0
    expect(page.get_by_role("switch", name="Include 1 · <b>logos</b>")).to_be_checked()
    expect(page.get_by_role("heading", level=1)).to_have_text("Clusters")
    for landmark in ("banner", "main", "navigation"):
        expect(page.get_by_role(landmark)).to_have_count(1)


@pytest.mark.browser
def test_the_page_says_what_to_run(page, clusters, expect):
    expect(page.locator("#to-run")).to_be_hidden()
    clusters.state = replace(clusters.state, to_run=["haystack score <w>", "haystack propose <w>"])
    page.keyboard.press("Space")
    expect(page.locator("#to-run")).to_have_text(
        "Saved. For it to take effect, run haystack score <w>, then haystack propose <w>, then "
        "start the annotation page again."
    )


@pytest.mark.browser
def test_help_can_be_opened_and_keys_wait_for_it(page, clusters, expect):
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("ArrowDown")
    assert current(page) == "0"
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("ArrowDown")
    assert current(page) == "1"
    assert clusters.calls == []
