"""The names page: requests, and the page in a real browser; the examples are drawn."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("fastapi", reason="the annotation pages need FastAPI")
pytest.importorskip("httpx", reason="tests of the service need httpx")

from fastapi.testclient import TestClient

from haystack.annotate.service.app import create_app
from haystack.annotate.service.identity import Annotator, identify
from haystack.annotate.service.names import NamesDesk, add_names
from haystack.annotate.store.wordings import PredicateNames, Wordings, affirmed_pairs

ORIGIN = "http://127.0.0.1:8000"
EATING, RIDING, PLAYING = 0, 1, 2
ORIGINALS = ("eating", "riding", "playing")
VOCABULARY_NAMES = ("eating", "riding on", "playing")


@pytest.fixture
def make_desk(sqlite_store, examples):
    return functools.partial(NamesDesk, sqlite_store, examples, ORIGINALS, VOCABULARY_NAMES)


@pytest.fixture
def client(sqlite_store, media, make_queue, make_desk):
    sqlite_store.load_proposals(make_queue(), round=0)
    part = functools.partial(add_names, desk=make_desk())
    app = create_app(sqlite_store, media, VOCABULARY_NAMES, annotator="lea", parts=[part])
    with TestClient(app, base_url=ORIGIN) as opened:
        yield opened


@pytest.fixture
def wordings(sqlite_store):
    return Wordings(sqlite_store.database)


def as_annotator(client, name="ann"):
    client.app.dependency_overrides[identify] = lambda: Annotator(name, "annotator")


def describe(client, predicate=EATING, words="chews", key="k1", **more):
    body = {"predicate": predicate, "words": words, "key": key, **more}
    return client.post("/api/wordings", json=body)


def rename(client, predicate=EATING, name="chewing", help="", edition=0):
    body = {"predicate": predicate, "name": name, "help": help, "edition": edition}
    return client.post("/api/names", json=body)


def rows(client):
    return {row["original"]: row for row in client.get("/api/names").json()["names"]}


# ---------------------------------------------------------------- describing


def test_annotators_see_pictures_and_never_a_name(client):
    as_annotator(client)
    tasks = client.get("/api/wordings")
    assert {task["predicate"] for task in tasks.json()["tasks"]} == {EATING, RIDING}
    pictures = client.get(f"/api/wordings/{EATING}")
    first = pictures.json()["pictures"][0]
    assert (first["subject_name"], first["object_name"]) == ("person", "<b>pizza</b>")
    for reply in (tasks, pictures):
        assert not any(name in reply.text for name in (*ORIGINALS, *VOCABULARY_NAMES))
    picture = client.get(first["image_url"])
    assert picture.headers["content-type"] == "image/jpeg"
    assert "immutable" in picture.headers["cache-control"]
    stale = client.get("/media/example", params={"id": "e00", "v": "old"})
    assert stale.headers["cache-control"] == "no-store"


def test_classes_can_be_hidden(sqlite_store, media, make_desk):
    part = functools.partial(add_names, desk=make_desk(hide_classes=True))
    app = create_app(sqlite_store, media, VOCABULARY_NAMES, parts=[part])
    with TestClient(app, base_url=ORIGIN) as client:
        reply = client.get(f"/api/wordings/{EATING}")
    assert "person" not in reply.text
    assert reply.json()["pictures"][0]["subject_name"] is None


def test_words_are_saved_once_with_what_was_shown(client, wordings):
    as_annotator(client)
    once, again = describe(client), describe(client)
    assert once.json() == again.json() == {"predicate": EATING, "words": "chews"}
    (saved,) = wordings.history()
    assert (saved.annotator, saved.shown) == ("ann", (("i0", 0, 2), ("i1", 0, 2)))
    clash = describe(client, words="bites")
    assert clash.status_code == 409
    describe(client, words="bites", key="k2")
    tasks = client.get("/api/wordings").json()["tasks"]
    assert {task["predicate"]: task["words"] for task in tasks} == {EATING: "bites", RIDING: None}


def test_nobody_sees_what_others_wrote(client):
    as_annotator(client, "ann")
    describe(client, words="chews")
    as_annotator(client, "ben")
    replies = [client.get("/api/wordings"), client.get("/api/wordings/0"), client.get("/api/names")]
    assert not any("chews" in reply.text for reply in replies)
    assert replies[2].status_code == 403
    assert rename(client).status_code == 403


def test_everyone_has_an_order_of_their_own(client):
    def order(name):
        as_annotator(client, name)
        return [task["predicate"] for task in client.get("/api/wordings").json()["tasks"]]

    assert order("ann") == order("ann")
    assert {tuple(order(f"ann-{number}")) for number in range(12)} == {(0, 1), (1, 0)}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"words": ""}, "expected words of 1 to 120 characters, got 0"),
        ({"words": "x" * 10_000}, "expected words of 1 to 120 characters, got 10000"),
        ({"words": "a\0b"}, "without control characters, got U+0000"),
        ({"words": "pan\u202eaz"}, "without control characters, got U+202E"),
        ({"words": 5}, "body.words"),
        ({"predicate": PLAYING}, "there are no pictures of predicate 2"),
        ({"predicate": 77}, "there are no pictures of predicate 77"),
        ({"predicate": -1}, "body.predicate"),
        ({"key": "no blanks"}, "body.key"),
        ({"more": 1}, "body.more"),
    ],
)
def test_bad_words_are_refused_with_a_sentence(client, wordings, content, complaint):
    reply = describe(client, **content)
    assert reply.status_code == 422
    assert complaint in reply.json()["detail"]
    assert wordings.history() == []


def test_a_body_that_is_too_long_or_for_somebody_else_is_refused(client, wordings):
    assert describe(client, words="x" * 20_000).status_code == 413
    assert describe(client, campaign="another").status_code == 421
    assert describe(client, annotator="ben").status_code == 421
    lone = '{"predicate": 0, "words": "a\\ud800", "key": "k"}'
    reply = client.post("/api/wordings", content=lone, headers={"content-type": "application/json"})
    assert reply.status_code == 422
    assert wordings.history() == []


def test_pictures_that_are_not_there(client):
    assert client.get("/api/wordings/77").status_code == 422
    for name in ("../../etc/passwd", "", "zz"):
        assert client.get("/media/example", params={"id": name}).status_code == 404


# ---------------------------------------------------------------- naming


def test_a_lead_sees_all_words_and_what_is_asked_about(client):
    for number, (name, words) in enumerate((("ann", "Chews"), ("ben", "chews"), ("cy", "<b>"))):
        as_annotator(client, name)
        describe(client, words=words, key=f"k{number}")
    client.app.dependency_overrides.clear()
    found = rows(client)
    assert list(found) == ["eating", "riding"]
    assert found["eating"]["words"] == [
        {"words": "chews", "annotators": ["ann", "ben"]},
        {"words": "<b>", "annotators": ["cy"]},
    ]
    assert (found["riding"]["name"], found["riding"]["edition"]) == ("riding on", 0)


def test_a_new_name_is_asked_with_from_the_next_question_on(client, sqlite_store):
    def ask():
        return client.get("/api/next", params={"predicate": EATING}).json()["questions"][0]

    assert (ask()["predicate_name"], ask()["help"]) == ("eating", "")
    saved = rename(client, name=" chewing ", help="Food is in the mouth.\n\nNot only held.").json()
    assert (saved["name"], saved["original"]) == ("chewing", "eating")
    question = ask()
    assert question["predicate_name"] == "chewing"
    assert question["help"] == "Food is in the mouth.\n\nNot only held."
    progress = client.get("/api/progress").json()["predicates"]
    assert progress[EATING]["name"] == "chewing"
    answer = {"proposal_id": question["id"], "verdict": "correct", "key": "a1"}
    following = client.post("/api/answer", json=answer).json()["questions"]
    assert {each["predicate_name"] for each in following} == {"chewing"}
    undone = client.post("/api/undo", json={"key": "u1"}).json()["undone"]
    assert undone["predicate_name"] == "chewing"
    # Another process that serves the same database is told by it.
    PredicateNames(sqlite_store.database, VOCABULARY_NAMES).set(
        EATING, "munching", "", "ben", edition=saved["edition"]
    )
    assert (ask()["predicate_name"], ask()["help"]) == ("munching", "")
    assert [was["name"] for was in rows(client)["eating"]["history"]] == ["chewing", "munching"]


def test_the_second_of_two_leads_is_told_of_the_first(client):
    first = rename(client, name="chewing").json()
    second = rename(client, name="biting")
    assert second.status_code == 409
    assert "has called it 'chewing' meanwhile" in second.json()["detail"]
    assert rows(client)["eating"]["name"] == "chewing"
    assert rename(client, name="biting", edition=first["edition"]).status_code == 200


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"name": ""}, "expected a name of 1 to 80 characters"),
        ({"name": "x" * 10_000}, "got 10000"),
        ({"name": "Riding on"}, "predicate 1 is called 'riding on' already"),
        ({"help": "x" * 3_000}, "at most 2000 characters, got 3000"),
        ({"help": "\0"}, "got U+0000"),
        ({"predicate": 3}, "expected a predicate in 0..2, got 3"),
        ({"edition": -1}, "body.edition"),
    ],
)
def test_bad_names_are_refused_with_a_sentence(client, content, complaint):
    reply = rename(client, **content)
    assert reply.status_code == 422
    assert complaint in reply.json()["detail"]
    assert rows(client)["eating"]["history"] == []


def test_pairs_that_somebody_called_correct_and_nobody_contradicted(store, make_queue):
    store.load_proposals(make_queue(count=6, predicates=(EATING,)), round=0)
    asked = list(store.upcoming(EATING, "ann", 6))
    said = ["correct", "correct", "correct", "incorrect", "skip", "correct"]
    for number, (proposal, verdict) in enumerate(zip(asked, said, strict=True)):
        store.answer(proposal.id, verdict, "ann", f"a{number}")
    store.answer(asked[1].id, "no_relation", "ben", "b1")
    store.answer(asked[2].id, "skip", "ben", "b2")
    store.answer(asked[0].id, "correct", "ben", "b0")
    found = affirmed_pairs(store.database)
    assert set(found) == {EATING}
    assert {each.id for each in found[EATING]} == {asked[n].id for n in (0, 2, 5)}
    store.undo("ann")
    assert {each.id for each in affirmed_pairs(store.database)[EATING]} == {
        asked[n].id for n in (0, 2)
    }


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def open_page(context, run_service, sqlite_store, media, make_queue, make_desk):
    """Opens the page as somebody; what goes wrong in it fails the test."""
    sqlite_store.load_proposals(make_queue(), round=0)
    faults = []

    def open_as(name="lea", role="lead", view="", path="names", **options):
        def part(app):
            add_names(app, make_desk(**options))
            app.dependency_overrides[identify] = lambda: Annotator(name, role)

        service = run_service(sqlite_store, media, VOCABULARY_NAMES, parts=[part])
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{service.url}{path}{view}")
        return page

    yield open_as
    assert faults == []


@pytest.mark.browser
def test_an_annotator_types_words_for_one_set_after_the_other(open_page, wordings, expect):
    page = open_page("ann", "annotator")
    expect(page.locator("#views")).to_be_hidden()
    expect(page.locator("#describe-pictures img")).to_have_count(2)
    field = page.get_by_role("textbox", name="Words between A and B")
    expect(field).to_be_focused()
    expect(field).to_have_attribute("autocomplete", "off")
    assert page.get_by_role("img", name="Picture 1: A person, B <b>pizza</b>").count() == 1
    assert page.locator("figcaption b").count() == 0
    expect(page.locator("#done")).to_have_text("Set 1 of 2 · 0 described.")
    body = page.locator("body").inner_text()
    assert not any(name in body for name in (*ORIGINALS, *VOCABULARY_NAMES))
    page.keyboard.type("<i>holds</i>")
    page.keyboard.press("Enter")
    expect(page.locator("#done")).to_have_text("Set 2 of 2 · 1 described.")
    expect(field).to_have_value("")
    page.keyboard.type("יושב על")
    page.keyboard.press("Enter")
    expect(page.locator("#done")).to_contain_text("2 described. Thank you!")
    page.get_by_role("button", name="Previous").click()
    expect(field).to_have_value("<i>holds</i>")
    field.fill("holds tight")
    page.keyboard.press("Enter")
    expect(page.locator("[aria-live=polite]")).to_contain_text("2 described")
    said = [each.words for each in wordings.history()]
    assert said == ["<i>holds</i>", "יושב על", "holds tight"]
    page.reload()
    expect(page.locator("#done")).to_contain_text("2 described")


@pytest.mark.browser
def test_nothing_typed_is_said_and_a_set_can_be_skipped(open_page, wordings, expect):
    page = open_page("ann", "annotator")
    expect(page.locator("#describe-pictures img")).to_have_count(2)
    page.keyboard.press("Enter")
    expect(page.locator("#words-error")).to_have_text("Write what you see, or skip these pictures.")
    expect(page.locator("#words")).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Skip").click()
    expect(page.locator("#done")).to_have_text("Set 2 of 2 · 0 described.")
    expect(page.locator("#words-error")).to_be_hidden()
    assert wordings.history() == []


@pytest.mark.browser
def test_words_stay_where_they_are_without_a_connection(open_page, context, wordings, expect):
    page = open_page("ann", "annotator")
    expect(page.locator("#describe-pictures img")).to_have_count(2)
    page.keyboard.type("chews")
    context.set_offline(True)
    page.keyboard.press("Enter")
    expect(page.locator("#words-error")).to_contain_text("No connection; your words are still here")
    expect(page.locator("#words")).to_have_value("chews")
    context.set_offline(False)
    page.keyboard.press("Enter")
    expect(page.locator("#done")).to_contain_text("1 described")
    assert [said.words for said in wordings.history()] == ["chews"]


@pytest.mark.browser
def test_hidden_classes_are_not_on_the_page(open_page, expect):
    page = open_page("ann", "annotator", hide_classes=True)
    expect(page.get_by_role("img", name="Picture 1: A and B")).to_have_count(1)
    expect(page.locator("figcaption")).to_have_count(0)


@pytest.mark.browser
def test_a_lead_chooses_among_words_and_sets_a_help_text(open_page, sqlite_store, wordings, expect):
    for number, (name, words) in enumerate(
        (("ann", "sits on"), ("ben", "Sits on"), ("cy", "<img src=x onerror=alert(1)>"))
    ):
        wordings.add(RIDING, words, name, f"k{number}")
    page = open_page()
    entries = page.get_by_role("navigation", name="Predicates").get_by_role("button")
    expect(entries).to_have_text(["eating", "riding3riding on"])
    expect(page.locator("#no-words")).to_be_visible()
    entries.first.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#detail-title")).to_have_text("riding")
    expect(page.locator("#detail-pictures img")).to_have_count(2)
    said = page.locator("#all-words button")
    expect(said).to_have_text(["2sits onann, ben", "1<img src=x onerror=alert(1)>cy"])
    assert page.locator("#all-words img").count() == 0
    said.first.click()
    expect(page.locator("#name")).to_have_value("sits on")
    expect(page.locator("#name-saved")).to_have_text("Not saved yet")
    page.get_by_label("Help text").fill("Moves with it.\nNot: stands by it.")
    page.locator("#name-form").get_by_role("button", name="Save").click()
    expect(page.locator("#name-saved")).to_have_text("Saved")
    expect(entries.nth(1)).to_have_text("riding3sits on")
    expect(page.locator("#history-list li")).to_contain_text(["sits on · lea"])
    given = PredicateNames(sqlite_store.database, VOCABULARY_NAMES).current()[RIDING]
    assert (given.name, given.help, given.set_by) == (
        "sits on",
        "Moves with it.\nNot: stands by it.",
        "lea",
    )
    page.get_by_role("button", name="Original name").click()
    expect(page.locator("#name")).to_have_value("riding")


@pytest.mark.browser
def test_drafts_stay_while_a_lead_looks_elsewhere(open_page, expect):
    page = open_page()
    page.locator("#name").fill("chewing")
    page.locator("[data-predicate='1']").click()
    expect(page.locator("#name")).to_have_value("riding on")
    page.locator("[data-predicate='0']").click()
    expect(page.locator("#name")).to_have_value("chewing")


@pytest.mark.browser
def test_of_two_leads_the_second_sees_what_the_first_did(open_page, sqlite_store, expect):
    page = open_page()
    page.locator("#name").fill("biting")
    PredicateNames(sqlite_store.database, VOCABULARY_NAMES).set(
        EATING, "chewing", "", "ben", edition=0
    )
    page.locator("#name-form").get_by_role("button", name="Save").click()
    expect(page.locator("#name-error")).to_contain_text("ben has called it 'chewing' meanwhile")
    expect(page.locator("#history-list li")).to_contain_text(["chewing · ben"])
    expect(page.locator("#name")).to_have_value("biting")
    page.locator("#name-form").get_by_role("button", name="Save").click()
    expect(page.locator("#name-saved")).to_have_text("Saved")
    expect(page.locator("#history-list li")).to_have_count(2)


@pytest.mark.browser
def test_a_lead_may_describe_as_well(open_page, expect):
    page = open_page()
    page.get_by_role("button", name="Describe pictures").click()
    expect(page.locator("#describe-pictures img")).to_have_count(2)
    expect(page.get_by_role("heading", level=1)).to_have_text("In your own words")
    page.get_by_role("button", name="Name predicates").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Names of predicates")


@pytest.mark.browser
def test_the_question_shows_name_and_help(open_page, sqlite_store, expect):
    page = open_page(path="")
    expect(page.locator("#question")).to_contain_text("eating")
    PredicateNames(sqlite_store.database, VOCABULARY_NAMES).set(
        EATING, "<u>chewing</u>", "Food is in <b>the</b> mouth.", "lea", edition=0
    )
    page.reload()
    expect(page.locator("#question")).to_contain_text("person <u>chewing</u> pizza")
    expect(page.locator("#hint")).to_have_text("Food is in <b>the</b> mouth.")
