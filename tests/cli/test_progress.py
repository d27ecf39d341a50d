"""``haystack progress``: the progress page's numbers in a terminal, and figures as files."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("sqlalchemy", reason="the annotation store needs SQLAlchemy")

from haystack.annotate.records import Proposal
from haystack.annotate.store.store import AnnotationStore
from haystack.cli import main
from haystack.io import read_psg
from haystack.pipeline.workspace import Workspace

EATING, RIDING = (read_psg("psg-mini").vocabulary.predicate_index(n) for n in ("eating", "riding"))


@pytest.fixture
def workspace(tmp_path):
    """A campaign: 20 questions about eating, 5 with a needle; 10 about riding, none answered."""
    root = tmp_path / "work"
    root.mkdir()
    Workspace.configured(root, overrides=["score.statistics=psg-mini", "score.min_count=0"]).save()
    with AnnotationStore(root / "annotations.db") as store:
        queue = [
            Proposal(str(rank), 0, 1, predicate, f"{rank}.jpg", 0.0, 0, rank)
            for predicate, count in ((EATING, 20), (RIDING, 10))
            for rank in range(count)
        ]
        store.load_proposals(queue, round=0)
        for asked in queue[:20]:
            verdict = "correct" if asked.rank % 4 == 0 else "incorrect"
            store.answer(asked.id, verdict, "ann", f"k{asked.rank}")
    return root


def run(capsys, *argv):
    code = main(["progress", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_terminal_and_the_program_get_the_same_numbers(workspace, capsys):
    code, out, err = run(capsys, workspace, "--json")
    assert code == 0
    eating, riding = json.loads(out)["predicates"]
    assert (eating["name"], eating["judged"], eating["needles"]) == ("eating", 20, 5)
    assert (riding["name"], riding["judged"], riding["to_ask"]) == ("riding", 0, 10)
    assert 0 < eating["baseline"] < 0.01
    row = next(line for line in err.splitlines() if line.startswith("eating"))
    assert re.split(r"\s{2,}", row)[1:5] == ["20", "5", "25.0", f"{100 * eating['baseline']:.2f}"]
    assert row.endswith("go on")
    assert next(line for line in err.splitlines() if line.startswith("riding")).endswith("  -")
    assert "20 answers in" in err
    assert "no question was answered by two" in err


def test_random_yields_are_counted_once_and_again_for_other_settings(workspace, capsys):
    run(capsys, workspace)
    kept = workspace / "progress.json"
    first = json.loads(kept.read_text())
    kept.write_text(json.dumps(first | {"random_yield": [0.5] * len(first["random_yield"])}))
    _, out, _ = run(capsys, workspace, "--json")
    assert json.loads(out)["predicates"][0]["baseline"] == 0.5
    Workspace.configured(workspace, overrides=["score.min_count=1"]).save()
    _, out, _ = run(capsys, workspace, "--json")
    assert json.loads(out)["predicates"][0]["baseline"] not in (0.5, first["random_yield"][EATING])


def test_figures_are_written_and_hold_the_numbers(workspace, capsys, tmp_path):
    code, out, _ = run(capsys, workspace, "--figures", tmp_path / "figures", "--json")
    assert code == 0
    written = json.loads(out)["figures"]
    names = ["positive-share.svg", "positives.svg", "relative-size.svg"]
    assert written == [str(tmp_path / "figures" / name) for name in names]
    share = (tmp_path / "figures" / "positive-share.svg").read_text()
    assert "25.0 %  (5/20)" in share
    before = {name: (tmp_path / "figures" / name).read_bytes() for name in names}
    run(capsys, workspace, "--figures", tmp_path / "figures")
    assert before == {name: (tmp_path / "figures" / name).read_bytes() for name in names}


def test_a_higher_bar_is_worth_stopping_below(workspace, capsys):
    with AnnotationStore(workspace / "annotations.db") as store:
        for number in range(10):
            asked = store.upcoming(RIDING, "ann", 1)[0]
            store.answer(asked.id, "incorrect", "ann", f"r{number}")
    _, _, err = run(capsys, workspace, "--stop-below", 1)
    assert "worth stopping" not in err
    code, out, _ = run(capsys, workspace, "--stop-below", 200, "--json")
    assert code == 2
    assert "expected a target between 0 and 1" in json.loads(out)["error"]


def test_moved_statistics_leave_the_baseline_unknown_and_nothing_else(workspace, capsys, tmp_path):
    settings = [f"score.statistics={tmp_path / 'gone.json'}"]
    Workspace.configured(workspace, overrides=settings).save()
    code, out, err = run(capsys, workspace, "--json")
    assert code == 0
    assert json.loads(out)["predicates"][0]["baseline"] is None
    assert json.loads(out)["predicates"][0]["needles"] == 5
    assert "no random baseline" in err


def test_an_annotation_file_has_the_same_figures(capsys, tmp_path):
    code, out, err = run(
        capsys, "psg-mini", "--figures", tmp_path, "--reference", "psg-mini", "--json"
    )
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)["predicates"]}
    dataset = read_psg("psg-mini")
    positives = sum((graph.relations[:, 2] == RIDING).sum() for graph in dataset.graphs)
    assert rows["riding"]["positives"] == positives
    assert rows["riding"]["judged"] > positives
    assert len(list(tmp_path.glob("*.svg"))) == 3
    assert "pairs with no relation at all belong to no predicate" in err
    _, _, err = run(capsys, "psg-mini", "--figures", tmp_path / "fewer")
    assert [path.name for path in (tmp_path / "fewer").iterdir()] == ["positive-share.svg"]
    assert "give --reference A.json" in err


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: path / "missing", "no such annotation file"),
        (lambda path: path, "no answers yet; run: haystack annotate"),
    ],
)
def test_what_is_no_campaign_is_refused(make, sentence, capsys, tmp_path):
    code, _, err = run(capsys, make(tmp_path))
    assert code == 2
    assert sentence in err
    assert list(tmp_path.iterdir()) == []


def test_the_service_has_the_same_numbers_and_figures(workspace, capsys):
    pytest.importorskip("fastapi", reason="the annotation service needs FastAPI")
    from fastapi.testclient import TestClient

    from haystack.annotate.service.app import create_app
    from haystack.cli.yields import progress_part

    _, out, _ = run(capsys, workspace, "--figures", workspace / "figures", "--json")
    campaign = Workspace.configured(workspace)
    names = campaign.vocabulary.predicate_classes
    with AnnotationStore(workspace / "annotations.db") as store:
        app = create_app(store, None, names, parts=[progress_part(campaign, store)])
        with TestClient(app, base_url="http://127.0.0.1") as client:
            message = client.get("/api/summary").json()
            served = {
                name: client.get(f"/api/figures/{name}.svg").content for name in message["figures"]
            }
    shown = json.loads(out)
    assert message["summary"]["predicates"] == shown["predicates"]
    assert served == {path.stem: path.read_bytes() for path in (workspace / "figures").iterdir()}
    assert len(served) == 3
