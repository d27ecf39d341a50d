"""The progress page in a real browser, and what it asks the service for."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the annotation service needs FastAPI")
from fastapi.testclient import TestClient

from haystack.annotate.live import LiveSummary
from haystack.annotate.service.app import create_app
from haystack.annotate.service.identity import Annotator, identify
from haystack.annotate.service.progress import Figure, add_progress
from haystack.annotate.store.schema import events, gold
from haystack.annotate.summary import Summarizer
from haystack.annotate.yields import StopRule

NAMES = ("eating", "riding <b>")
FIGURES = {
    "share": Figure("Share of positives", lambda summary: f"<svg>{summary.needles}</svg>".encode())
}


def part(store, *, every=0.0, **options):
    options = {"baseline": lambda: {0: 0.04}, "rule": StopRule(0.3, shortest=20)} | options

    def add(app):
        summarizer = Summarizer(NAMES.__getitem__, window=10, **options)
        live = LiveSummary(store, summarizer, every=every, queue_every=0)
        add_progress(app, live, "consuming {}".format, FIGURES)

    return add


@pytest.fixture
def campaign(sqlite_store, make_queue):
    """Two people answered the same 30 questions about eating, 10 of them with a needle."""
    queue = make_queue(count=30, images=5)
    sqlite_store.load_proposals(queue, round=0)
    for number, asked in enumerate(queue[:30]):
        for who in ("ann", "bea"):
            differs = number % 6 == 5 and who == "bea"
            verdict = "correct" if number < 10 and not differs else "incorrect"
            sqlite_store.answer(
                asked.id, "no_relation" if differs else verdict, who, f"{who}:{number}"
            )
    return sqlite_store


@pytest.fixture
def client(campaign, media):
    app = create_app(campaign, media, NAMES, annotator="ann", parts=[part(campaign)])
    with TestClient(app, base_url="http://127.0.0.1") as opened:
        opened.app = app
        yield opened


def summary_of(client, **headers):
    response = client.get("/api/summary", headers=headers)
    assert response.status_code == 200
    return response.json()["summary"]


def as_annotator(client, name="ann"):
    client.app.dependency_overrides[identify] = lambda: Annotator(name, "annotator")


def test_the_lead_sees_everybody(client):
    summary = summary_of(client)
    eating, riding = summary["predicates"]
    assert (eating["judged"], eating["needles"], eating["baseline"]) == (30, 9, 0.04)
    assert (riding["judged"], riding["to_ask"]) == (0, 30)
    assert [person["name"] for person in summary["people"]] == ["ann", "bea"]
    (pair,) = summary["pairs"]
    assert pair["items"] == 30
    assert summary["agreement"]["two"]["observed"] == pytest.approx(29 / 30)
    assert summary["agreement"]["three"]["observed"] == pytest.approx(25 / 30)


def test_an_annotator_sees_the_totals_and_nobody_else(client):
    as_annotator(client, "bea")
    summary = summary_of(client)
    assert [person["name"] for person in summary["people"]] == ["bea"]
    assert summary["pairs"] == []
    assert summary["predicates"][0]["judged"] == 30
    assert [row["name"] for row in summary["predicates"]] == ["consuming 0", "consuming 1"]
    as_annotator(client, "new")
    assert summary_of(client)["people"] == []


def test_figures_are_for_leads(client):
    """They carry the data set's own names, which are kept from annotators."""
    as_annotator(client)
    assert client.get("/api/summary").json()["figures"] == {}
    assert client.get("/api/figures/share.svg").status_code == 403


def test_hidden_gold_stays_hidden(client, campaign):
    """A count that moved with an answer would tell that its question was gold."""
    queue = list(campaign.upcoming(1, "ann", 12))
    with campaign.database.write() as connection:
        for number, asked in enumerate(queue):
            fields = {"verdict": "correct", "set_by": "lea", "set_at": "now"}
            connection.execute(gold.insert(), {"proposal_id": asked.id, **fields})
            connection.execute(
                events.insert(),
                {
                    "key": f"gold:{number}",
                    "proposal_id": asked.id,
                    "annotator": "ann",
                    "verdict": "correct",
                    "created_at": "2026-01-01T00:00:00.000000Z",
                    "score": 0.0,
                    "rank": 0,
                    "round": 0,
                    "origin": "",
                    "purpose": "gold",
                },
            )
    assert summary_of(client)["people"][0]["gold"]["two"]["trials"] == 12
    as_annotator(client)
    assert summary_of(client)["people"][0]["gold"]["two"]["trials"] == 10


def test_what_did_not_change_is_not_sent_again(client, campaign):
    first = client.get("/api/summary")
    assert first.headers["cache-control"] == "private, no-cache"
    known = {"If-None-Match": first.headers["etag"]}
    again = client.get("/api/summary", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    campaign.undo("ann")
    assert client.get("/api/summary", headers=known).status_code == 200


def test_events_are_counted_as_they_come(client, campaign):
    before = summary_of(client)
    campaign.undo("ann")
    campaign.undo("bea")
    after = summary_of(client)
    assert (before["predicates"][0]["judged"], after["predicates"][0]["judged"]) == (30, 29)
    assert after["answers"] == before["answers"] - 2
    assert after["predicates"][0]["to_ask"] == 1


def test_looks_in_quick_succession_are_one(campaign):
    live = LiveSummary(campaign, Summarizer(NAMES.__getitem__), every=3600)
    first = live.get()
    campaign.undo("ann")
    assert live.get() is first


def test_figures_are_drawn_from_the_answers_so_far(client, campaign):
    assert client.get("/api/summary").json()["figures"] == {"share": "Share of positives"}
    response = client.get("/api/figures/share.svg")
    assert response.content == b"<svg>9</svg>"
    assert response.headers["content-type"] == "image/svg+xml"
    assert response.headers["content-disposition"] == 'attachment; filename="share.svg"'
    campaign.undo("ann")
    campaign.answer(campaign.upcoming(1, "ann", 1)[0].id, "correct", "ann", "more")
    assert client.get("/api/figures/share.svg").content == b"<svg>10</svg>"
    missing = client.get("/api/figures/other.svg")
    assert missing.status_code == 404
    assert missing.json()["detail"].startswith("there is no such figure")


# ---------------------------------------------------------------------- in the browser


@pytest.fixture
def open_page(context, run_service, campaign, media):
    pytest.importorskip("playwright.sync_api", reason="browser tests need the package playwright")
    service = run_service(campaign, media, NAMES, parts=[part(campaign)])
    faults = []

    def visit():
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        # Fast enough for a test: the page asks every five seconds.
        page.clock.install()
        page.goto(f"{service.url}progress")
        return page

    visit.service = service
    yield visit
    assert faults == []


@pytest.fixture
def expect():
    return pytest.importorskip("playwright.sync_api").expect


def cell(page, table, row, column):
    return page.locator(f"#{table} > tbody > tr:not(.more)").nth(row).locator("> *").nth(column)


@pytest.mark.browser
def test_the_page_shows_the_figures(open_page, expect):
    page = open_page()
    expect(cell(page, "predicates", 0, 0)).to_have_text("eating")
    expect(cell(page, "predicates", 1, 0)).to_have_text("riding <b>")  # a name is no markup
    shown = [cell(page, "predicates", 0, column).inner_text() for column in range(1, 11)]
    assert [shown[i] for i in (0, 1, 2, 4, 6)] == ["30", "9", "30.0", "4.00", "0"]
    assert shown[9] == "go on"
    chart = page.get_by_role("img", name="Yield of eating: 30.0 needles per 100 in 30 questions")
    expect(chart).to_be_visible()
    expect(page.locator("#totals")).to_contain_text("Needles930.0 per 100")
    expect(page.locator("#totals")).to_contain_text("Answers still needed30Time needed")
    expect(page.locator("#totals")).to_contain_text("for one person; nobody is at work now")
    expect(cell(page, "people", 1, 0)).to_contain_text("bea")
    page.get_by_text("Pairs of annotators (1)").click()
    expect(cell(page, "pairs", 0, 0)).to_be_visible()
    expect(cell(page, "pairs", 0, 0)).to_have_text("ann and bea")
    link = page.get_by_role("link", name="Share of positives")
    with page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename == "share.svg"
    assert page.get_by_role("link", name="Progress").get_attribute("aria-current") == "page"


@pytest.mark.browser
def test_no_relation_can_count_as_an_answer_of_its_own(open_page, expect):
    page = open_page()
    expect(page.locator("#agreement")).to_contain_text("Same answer, of pairs97 %")
    expect(cell(page, "pairs", 0, 2)).to_have_text("97 %")
    page.get_by_role("checkbox").check()
    expect(page.locator("#agreement")).to_contain_text("Same answer, of pairs83 %")
    expect(cell(page, "pairs", 0, 2)).to_have_text("83 %")


@pytest.mark.browser
def test_a_row_unfolds_by_keyboard_and_stays_so_while_answers_come(open_page, expect, campaign):
    page = open_page()
    button = page.get_by_role("button", name="eating")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    more = page.locator("#predicates tr.more")
    expect(more).to_contain_text("95 % interval of the yield: 16.7 to 47.9 per 100")
    expect(more).to_contain_text(
        "30 questions were answered by two or more: 97 % of pairs the same"
    )
    expect(more.get_by_role("row", name="0 30 9 30.0")).to_be_visible()
    campaign.answer(campaign.upcoming(1, "ann", 1)[0].id, "correct", "ann", "more")
    page.clock.run_for(6_000)
    expect(cell(page, "predicates", 1, 2)).to_have_text("1")
    expect(button).to_be_focused()
    expect(more).to_be_visible()
    page.keyboard.press("Enter")
    expect(more).to_have_count(0)


@pytest.mark.browser
def test_a_dry_predicate_is_said_to_be_worth_stopping(open_page, expect, campaign):
    for number, asked in enumerate(campaign.upcoming(1, "cem", 30)):
        campaign.answer(asked.id, "incorrect", "cem", f"cem:{number}")
    page = open_page()
    expect(page.locator("#advice")).to_contain_text("Worth stopping: riding <b>.")
    expect(cell(page, "predicates", 1, 10)).to_have_text("worth stopping")
    page.get_by_role("button", name="riding").click()
    expect(page.locator("#predicates tr.more")).to_contain_text(
        "0 needles in a block of 20 questions"
    )


@pytest.mark.browser
def test_a_lost_connection_is_said_and_found_again(open_page, expect, context):
    page = open_page()
    expect(cell(page, "predicates", 0, 0)).to_be_visible()
    context.set_offline(True)
    page.clock.run_for(6_000)
    expect(page.get_by_role("alert")).to_contain_text("No connection")
    context.set_offline(False)
    page.clock.run_for(6_000)
    expect(page.locator("#banner")).to_be_hidden()
    expect(cell(page, "predicates", 0, 0)).to_be_visible()


@pytest.mark.browser
def test_an_empty_campaign_says_so(context, run_service, sqlite_store, media, expect):
    service = run_service(sqlite_store, media, NAMES, parts=[part(sqlite_store)])
    page = context.new_page()
    page.goto(f"{service.url}progress")
    expect(page.locator("#no-predicates")).to_be_visible()
    expect(page.locator("#no-people")).to_be_visible()
    expect(page.locator("#no-agreement")).to_be_visible()


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 820, 1200])
def test_nothing_is_wider_than_the_screen(open_page, expect, width):
    page = open_page()
    page.set_viewport_size({"width": width, "height": 800})
    page.get_by_role("button", name="eating").click()
    expect(page.locator("#predicates tr.more")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
