from __future__ import annotations

import json

import pytest
from tiny_tars import write_tars

from haystack.annotate.store.schema import leases
from haystack.annotate.store.store import AnnotationStore
from haystack.campaign.answers import _picture
from haystack.campaign.rounds import Round, begun_rounds, current_round
from haystack.cli import main
from haystack.cli.verbs import run_verb
from haystack.executors.locks import stage_lock
from haystack.io import read_psg
from haystack.io.provenance import read_provenance
from haystack.pipeline.config import load_config
from haystack.pipeline.workspace import Workspace
from haystack.vocabulary import PSG_PREDICATES


def asked_in(database):
    with AnnotationStore(database) as store:
        return {
            (p.image_id, p.subject, p.object, p.predicate): p.round
            for p in (answer.proposal for answer in store.answers())
        }


def queued(work):
    return {
        (p.image_id, p.subject, p.object, p.predicate) for p in Workspace.open(work).proposals()
    }


def leased(store):
    with store.database.read() as connection:
        return [tuple(row) for row in connection.execute(leases.select())]


def test_two_rounds(campaign, capsys):
    work = campaign.work
    before = asked_in(work / "annotations.db")
    assert before
    assert set(before.values()) == {0}
    first = campaign.next()
    assert first["round"] == 1
    assert queued(work)
    assert not queued(work) & set(before)
    folder = Round(work, 1).folder
    assert json.loads((folder / "report.json").read_text()) == first
    assert first["model_after"] == str(folder / "model" / "model.safetensors")
    assert Workspace.open(work).config.score.model == first["model_after"]

    # What was learned are the base's images and the answered ones, with their negatives.
    answers = read_psg(folder / "answers" / "annotation.json")
    base = read_psg(campaign.root / "train" / "annotation.json")
    assert first["training"]["images"] == len(base.graphs) + len(answers.graphs)
    rows = sum(len(g.relations) + len(g.neg_relations) for g in answers.graphs)
    assert rows == len(read_provenance(folder / "answers" / "annotation.json"))
    assert all(answers.path_of(graph.file_name).is_file() for graph in answers.graphs)
    assert all(answers.path_of(graph.pan_seg_file_name).is_file() for graph in answers.graphs)

    # Measured on images of which nothing was learned.
    measured = first["measured"]
    assert measured["images"] == 9
    assert measured["before"]["R@50"] is not None
    assert measured["before"] != measured["after"]

    # Nothing new to learn: refused, and nothing is written.
    assert "nothing was answered since round 1" in campaign.fails(capsys, "next", work)
    assert [one.number for one in begun_rounds(work)] == [1]

    said = campaign.annotate(limit=4)  # of the new queue, as its round
    rounds = asked_in(work / "annotations.db")
    assert len(rounds) == len(before) + said["answers"]
    assert {rounds[question] for question in before} == {0}
    assert {rounds[question] for question in set(rounds) - set(before)} == {1}

    second = campaign.next("campaign.start=scratch")
    assert second["round"] == current_round(work) == 2
    assert second["model_before"] == first["model_after"]
    assert not queued(work) & set(rounds)
    assert [row["round"] for row in second["yield"]] == [0, 1]
    assert second["yield"][0] == first["yield"][0]
    for row in second["yield"]:
        numbers = [question for question, number in rounds.items() if number == row["round"]]
        assert row["asked"] == len(numbers)
        low, high = row["interval"]
        assert low <= row["per_100"] == 100 * row["needles"] / row["asked"] <= high
        assert 0 < row["random_per_100"] < 20
    truth = read_psg(campaign.truth)
    true = {(g.image_id, *r) for g in truth.graphs for r in map(tuple, g.relations.tolist())}
    assert sum(row["needles"] for row in second["yield"]) == len(true & set(rounds))

    status = run_verb("campaign", "status", work)
    assert status.data["current"] == 2
    assert [one["done"] for one in status.data["rounds"]] == [True, True]
    assert status.data["yield"] == second["yield"]


def test_a_dry_run_shows_the_plan_and_changes_nothing(campaign):
    before = {path: path.stat().st_mtime_ns for path in campaign.work.rglob("*")}
    outcome = run_verb("campaign", "next", campaign.work, *campaign.settings, "--dry-run")
    assert {path: path.stat().st_mtime_ns for path in campaign.work.rglob("*")} == before
    steps = outcome.data["steps"]
    assert [step["step"] for step in steps] == [
        *("answers", "train", "measure", "score", "propose", "load", "report"),
    ]
    assert not any(step["done"] for step in steps)
    assert "haystack train train/vctree_psg_mini steps=3" in outcome.text
    start = Workspace.open(campaign.work).config.score.model
    assert f"init={start} --out {campaign.work / 'rounds' / '001' / 'model'}" in outcome.text


def test_a_stopped_round_goes_on_and_leaves_leases_and_answers(campaign, capsys):
    work, database = campaign.work, campaign.work / "annotations.db"
    stopped = campaign.next("--stop-after", "answers")
    assert stopped == {"round": 1, "stopped_after": "answers"}
    assert current_round(work) == 0
    sentence = campaign.fails(capsys, "next", work, *campaign.settings, "campaign.start=scratch")
    assert (
        "round 1 was begun with other settings (campaign.start: 'last' then, 'scratch'" in sentence
    )
    with AnnotationStore(database) as store:
        (held,) = store.claim(min(store.progress()), "ann", 1).questions
        asked = held
        lease = leased(store)
        assert len(lease) == 1
        # Answered while the round is made: kept, not learned, and not asked again.
        late = store.upcoming(asked.predicate, "bob", 9)[-1]
        store.answer(late.id, "incorrect", "bob", "late")
    with stage_lock(work, "rounds", plan="", shared=False):
        words = ["campaign", "next", str(work), *campaign.settings]
        assert main(words) == 1
        assert "is running the stage 'rounds'" in capsys.readouterr().err
    report = campaign.next()
    learned = Round(work, 1).folder / "answers" / "annotation.json"
    assert report["answers"]["images"] == len(read_psg(learned).graphs)
    with AnnotationStore(database) as store:
        assert leased(store) == lease
        assert "late" in {answer.key for answer in store.answers()}
    question = (late.image_id, late.subject, late.object, late.predicate)
    assert question not in queued(work)


class Names:
    """Media of a page of which no picture is asked."""

    def caption(self, proposal):
        from haystack.annotate.service.media import Caption

        return Caption("this", "that")


def test_a_page_that_runs_asks_the_new_round(campaign):
    client = pytest.importorskip("fastapi.testclient", reason="the page needs FastAPI")
    from haystack.annotate.service.app import create_app

    with AnnotationStore(campaign.work / "annotations.db") as store:
        app = create_app(store, Names(), list(PSG_PREDICATES), annotator="ann")
        with client.TestClient(app, base_url="http://127.0.0.1:8000") as page:
            predicate = min(store.progress())
            where = {"params": {"predicate": predicate}}
            held = page.get("/api/next", **where).json()["questions"]
            assert {store.proposal(question["id"]).round for question in held} == {0}
            campaign.next()
            new = {p.id for p in store.upcoming(predicate, "bob", 999) if p.round == 1}
            assert new
            # What is on the screen stays there; what comes after it is of the new round.
            found = page.get("/api/next", **where).json()["questions"]
            assert [question["id"] for question in found] == [question["id"] for question in held]
            for number, question in enumerate(held):
                body = {"proposal_id": question["id"], "verdict": "skip", "key": f"k{number}"}
                found = page.post("/api/answer", json=body).json()["questions"]
            assert found
            assert {question["id"] for question in found} <= new


def test_pictures_inside_tars_are_taken_out_once(tmp_path):
    write_tars(tmp_path / "tars", 1, pictures=2)
    work = Workspace(tmp_path / "work", load_config(None, [f"source.images={tmp_path / 'tars'}"]))
    folder = work.root / "rounds" / "001" / "answers"
    folder.mkdir(parents=True)
    for key, content in work.source.iterate("t000"):
        place = folder / _picture(work, key, f"../{key}", folder)
        assert place.read_bytes() == content
        assert place.resolve().parent == work.root / "rounds" / "pictures"
        written = place.stat().st_mtime_ns
        _picture(work, key, f"../{key}", folder.parent.parent / "002" / "answers")
        assert place.stat().st_mtime_ns == written


def test_answers_about_measured_images_are_not_learned(campaign):
    measure = f"campaign.measure={campaign.truth}"
    answered = {question[0] for question in asked_in(campaign.work / "annotations.db")}
    campaign.next(measure, "--stop-after", "answers")
    kept = read_psg(Round(campaign.work, 1).folder / "answers" / "annotation.json")
    assert {graph.image_id for graph in kept.graphs} <= answered
    assert set(kept.test_image_ids) == {graph.image_id for graph in kept.graphs}
    assert Round(campaign.work, 1).result("answers")["kept_out"] == len(kept.graphs)


def test_what_is_missing_is_said_before_anything_is_written(campaign, capsys, tmp_path):
    work = campaign.work
    assert "has no workspace.yaml" in campaign.fails(capsys, "status", tmp_path / "none")
    slurm = campaign.fails(capsys, "next", work, "--executor", "slurm")
    assert "tools/slurm_array.sh" in slurm
    assert "'campaign.start' expects one of last, scratch" in campaign.fails(
        capsys, "next", work, "campaign.start=again"
    )
    assert "which a round sets itself; got 'mix=x'" in campaign.fails(
        capsys, "next", work, "campaign.settings=[mix=x]"
    )
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((campaign.root / "model" / "model.safetensors").read_bytes())
    sentence = campaign.fails(capsys, "next", work, f"score.model={alone}")
    assert "nothing says how" in sentence
    assert "campaign.train=CONFIG" in sentence
    (work / "annotations.db").unlink()
    assert "no answers yet; run: haystack annotate" in campaign.fails(capsys, "next", work)
    assert begun_rounds(work) == []
    assert not (work / "rounds").exists()


def test_the_events_of_a_campaign_enter_a_new_database(campaign, tmp_path):
    work = campaign.work
    run_verb("export", work, "--events", "--pseudonyms")
    exported = (work / "export" / "annotation.json").read_bytes()
    events = work / "export" / "events.jsonl"
    provenance = read_provenance(work / "export" / "annotation.json")
    assert {a["annotator"] for row in provenance for a in row["answers"]} == {"annotator-1"}
    moved = tmp_path / "moved.db"
    verb = ("import", events, "--format", "events", "--workspace", work, "--database", moved)
    assert run_verb(*verb).data["events"] == len(asked_in(work / "annotations.db"))
    assert asked_in(moved) == asked_in(work / "annotations.db")
    run_verb("export", work, "--database", moved)
    assert (work / "export" / "annotation.json").read_bytes() == exported
