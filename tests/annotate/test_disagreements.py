"""The disagreements page: requests, and the page in a real browser."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the annotation pages need FastAPI")
pytest.importorskip("httpx", reason="tests of the service need httpx")

from fastapi.testclient import TestClient

from haystack.annotate.service.app import create_app
from haystack.annotate.service.identity import Annotator, identify

NAMES = ("eating", "riding")
ORIGIN = "http://127.0.0.1:8000"


@pytest.fixture
def disputed(sqlite_store, make_queue):
    """A store where annotators dispute the first two questions and agree on the third."""
    queue = make_queue()
    sqlite_store.load_proposals(queue, round=0)
    said = (("correct", "incorrect"), ("no_relation", "correct"), ("correct", "correct"))
    for asked, verdicts in zip(queue, said, strict=False):
        for who, verdict in zip(("ann", "bob"), verdicts, strict=True):
            sqlite_store.answer(asked.id, verdict, who, f"{who}-{asked.id}")
    sqlite_store.answer(queue[1].id, "correct", "<i>cleo</i>", "cleo")
    return sqlite_store, queue


@pytest.fixture
def client(disputed, media):
    store, _ = disputed
    with TestClient(create_app(store, media, NAMES, annotator="lea"), base_url=ORIGIN) as opened:
        yield opened


def listed(client):
    return client.get("/api/disagreements").json()["disputes"]


def test_disputes_are_listed_with_their_votes_ties_first(client, disputed):
    _, queue = disputed
    tied, outvoted = listed(client)
    assert (tied["question"]["id"], tied["is_tied"]) == (queue[0].id, True)
    assert tied["votes"] == [
        {"annotator": "ann", "verdict": "correct"},
        {"annotator": "bob", "verdict": "incorrect"},
    ]
    assert (outvoted["question"]["id"], outvoted["is_tied"]) == (queue[1].id, False)


def test_a_decision_settles_and_can_be_taken_back(client, disputed):
    store, queue = disputed
    path = f"/api/disagreements/{queue[0].id}/decision"
    for _ in range(2):  # the second is the same request, repeated
        assert client.post(path, json={"verdict": "incorrect", "key": "k1"}).status_code == 200
    assert [row["question"]["id"] for row in listed(client)] == [queue[1].id]
    (decision,) = [answer for answer in store.answers() if answer.purpose == "adjudication"]
    assert (decision.annotator, decision.verdict) == ("lea", "incorrect")
    undo = {"key": "u1"}
    assert client.post("/api/disagreements/undo", json=undo).json() == queue[0].id
    assert client.post("/api/disagreements/undo", json=undo).json() == queue[0].id
    assert len(listed(client)) == 2
    assert client.post("/api/disagreements/undo", json={"key": "u2"}).json() is None


def test_a_question_becomes_gold_and_ordinary_again(client, disputed):
    store, queue = disputed
    path = f"/api/gold/{queue[0].id}"
    assert client.put(path, json={"verdict": "correct"}).status_code == 200
    (item,) = store.gold_items()
    assert (item.proposal.id, item.verdict, item.set_by) == (queue[0].id, "correct", "lea")
    assert listed(client)[0]["gold"] == "correct"
    assert client.put(path, json={"verdict": None}).status_code == 200
    assert store.gold_items() == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/disagreements/{id}/decision", {"verdict": "skip", "key": "k"}, 422),
        ("POST", "/api/disagreements/{id}/decision", {"verdict": "correct"}, 422),
        (
            "POST",
            f"/api/disagreements/{20 * 'f'}/decision",
            {"verdict": "correct", "key": "k"},
            404,
        ),
        ("POST", "/api/disagreements/x/decision", {"verdict": "correct", "key": "k"}, 422),
        ("PUT", "/api/gold/{id}", {"verdict": "skip"}, 422),
        ("PUT", f"/api/gold/{20 * 'f'}", {"verdict": "correct"}, 404),
        ("PUT", "/api/gold/{id}", {}, 422),
    ],
)
def test_what_makes_no_sense_is_refused(client, disputed, method, path, body, status):
    store, queue = disputed
    before = store.event_count()
    response = client.request(method, path.format(id=queue[0].id), json=body)
    assert response.status_code == status
    assert response.json()["detail"]
    assert (store.event_count(), store.gold_items()) == (before, [])


def test_only_a_lead_sees_votes_and_decides(disputed, media):
    store, queue = disputed
    app = create_app(store, media, NAMES)
    app.dependency_overrides[identify] = lambda: Annotator("ann", "annotator")
    with TestClient(app, base_url=ORIGIN) as client:
        for method, path, body in (
            ("GET", "/api/disagreements", None),
            ("POST", f"/api/disagreements/{queue[0].id}/decision", {"verdict": "correct"}),
            ("POST", "/api/disagreements/undo", {"key": "k"}),
            ("PUT", f"/api/gold/{queue[0].id}", {"verdict": "correct"}),
        ):
            body = body and {"key": "k"} | body if "gold" not in path else body
            assert client.request(method, path, json=body).status_code == 403
    assert store.gold_items() == []
    assert not [answer for answer in store.answers() if answer.purpose == "adjudication"]


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def page(context, run_service, disputed, media):
    store, _ = disputed
    service = run_service(store, media, annotator="lea")
    opened = context.new_page()
    faults = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.goto(f"{service.url}disagreements")
    yield opened
    assert faults == []


def colours(page):
    """How many pixels of the canvas look like the subject's and the object's outline."""
    return page.evaluate(
        """() => {
            const canvas = document.getElementById("canvas");
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            const near = (at, r, g, b) => Math.abs(data[at] - r) + Math.abs(data[at + 1] - g)
                + Math.abs(data[at + 2] - b) < 40;
            let [subject, object] = [0, 0];
            for (let at = 0; at < data.length; at += 4) {
                if (near(at, 86, 180, 233)) subject += 1;
                if (near(at, 230, 159, 0)) object += 1;
            }
            return [subject, object];
        }"""
    )


@pytest.mark.browser
def test_a_lead_settles_by_keystroke(page, disputed):
    from playwright.sync_api import expect

    store, queue = disputed
    summary = page.locator("#summary")
    expect(summary).to_have_text("2 to settle, 1 of them tied.")
    expect(page.locator("#question")).to_have_text("person eating pizza ?")
    expect(page.locator("#votes td")).to_have_text(["ann", "Correct", "bob", "Incorrect"])
    expect(page.get_by_role("link", name="Disagreements")).to_have_attribute("aria-current", "page")
    page.wait_for_function("document.querySelector('#canvas').width > 300")
    page.wait_for_timeout(800)
    assert min(colours(page)) > 50
    page.keyboard.press("g")
    expect(page.locator("#gold")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("x")
    expect(summary).to_have_text("1 to settle, 0 of them tied.")
    expect(page.locator("#votes td").nth(0)).to_have_text("<i>cleo</i>")
    assert [(g.proposal.id, g.verdict) for g in store.gold_items()] == [(queue[0].id, "incorrect")]
    page.wait_for_timeout(800)
    page.keyboard.press("n")
    expect(summary).to_have_text("Nothing to settle: nobody contradicts anybody.")
    expect(page.locator("#later")).to_be_hidden()
    expect(page.locator("#gold")).to_be_hidden()
    page.keyboard.press("z")
    expect(summary).to_have_text("1 to settle, 0 of them tied.")
    decided = {a.proposal.id: a.verdict for a in store.answers() if a.purpose == "adjudication"}
    assert decided == {queue[0].id: "incorrect"}


@pytest.mark.browser
def test_a_dispute_can_be_left_for_later(page):
    from playwright.sync_api import expect

    expect(page.locator("#votes tr")).to_have_count(2)
    page.keyboard.press(" ")
    expect(page.locator("#votes tr")).to_have_count(3)
    page.keyboard.press(" ")
    expect(page.locator("#votes tr")).to_have_count(2)
