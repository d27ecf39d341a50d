"""The verb ``bench`` as people call it."""

import json
import shutil

import numpy as np
import pytest

from haystack.cli import main
from haystack.io.datasets import BUNDLED
from haystack.io.psg import read_psg
from haystack.models.relation.inputs import RelationLogits, all_pairs


def run(capsys, *argv):
    code = main([str(word) for word in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    """The run of the frequency baseline on psg-mini, with few resamples."""
    folder = tmp_path_factory.mktemp("bench")
    definition = folder / "quick.yaml"
    from haystack.cli.configs import find_config

    text = find_config("bench/psg_mini_predcls").read_text()
    definition.write_text(text.replace("replicates: 1000", "replicates: 40"))
    words = ["bench", definition, "--baseline", "--out", folder / "run", "--json"]
    assert main([str(word) for word in words]) == 0
    return folder


def test_without_a_name_the_benchmarks_are_listed(capsys):
    code, out, err = run(capsys, "bench", "--json")
    assert code == 0
    assert "psg_mini_predcls" in json.loads(out)["benchmarks"]
    assert "comes with Haystack" in err


def test_the_baseline_is_counted_and_measured(capsys, baseline):
    content = json.loads((baseline / "run" / "result.json").read_text())
    assert content["model"] == "frequency_psg_mini"
    assert 0.5 < content["columns"]["P-AUC"] < 1
    assert content["environment"]["versions"]["python"]
    assert (baseline / "run" / "report.txt").read_text().startswith("psg-mini, predicate class")
    again = [baseline / "quick.yaml", "--predictions", baseline / "run" / "predictions.parquet"]
    code, out, _ = run(
        capsys, "bench", *again, "--name", "mine", "--out", baseline / "again", "--json"
    )
    assert code == 0
    assert json.loads(out)["columns"] == content["columns"]
    assert json.loads(out)["model"] == "mine"


class ReadsPictures:
    """A model that looks at pictures, and finds all predicates as likely."""

    reads_images = True

    def __init__(self, vocabulary):
        self.num_predicates = vocabulary.num_predicates

    def predict(self, scenes):
        return [self.answer(scene.image_id, all_pairs(len(scene))) for scene in scenes]

    def answer(self, image_id, pairs):
        return RelationLogits(
            image_id, pairs, np.zeros((len(pairs), self.num_predicates), np.float32), None
        )


@pytest.mark.parametrize("which", ["pictures", "masks"])
def test_a_model_that_sees_other_files_than_the_benchmarks_is_refused(
    capsys, baseline, tmp_path, which
):
    copy = tmp_path / "psg"
    shutil.copytree(BUNDLED["psg-mini"].parent, copy)
    graph = read_psg("psg-mini").split("test")[0]
    file = copy / (graph.file_name if which == "pictures" else graph.pan_seg_file_name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    words = ["--annotations", copy / "annotation.json", "--out", tmp_path / "run"]
    model = f"{__file__}:ReadsPictures"
    code, _, err = run(capsys, "bench", baseline / "quick.yaml", "--model", model, *words)
    assert code == 2
    assert f"the {which} are not those of the benchmark: SHA-256" in err
    assert not (tmp_path / "run").exists()


def test_what_a_model_saw_is_recorded(capsys, baseline, tmp_path):
    model = f"{__file__}:ReadsPictures"
    words = ["bench", baseline / "quick.yaml", "--model", model, "--out", tmp_path / "run"]
    assert run(capsys, *words)[0] == 0
    inputs = json.loads((tmp_path / "run" / "result.json").read_text())["inputs"]
    assert inputs["pictures"]["is_pinned"]
    assert inputs["masks"]["is_pinned"]
    counted = json.loads((baseline / "run" / "result.json").read_text())["inputs"]
    assert "masks" in counted
    assert "pictures" not in counted  # the baseline looks at no picture
    assert run(capsys, "compare", baseline / "run", tmp_path / "run", "--ci", 40)[0] == 0


def test_two_runs_are_compared_by_their_folders(capsys, baseline):
    folder = baseline / "run"
    code, out, err = run(capsys, "compare", folder, folder, "--ci", 40, "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["P-AUC"]["difference"] == 0
    assert "frequency_psg_mini" in err
    code, _, err = run(capsys, "compare", folder, folder, "--protocol", "openpsg")
    assert code == 2
    assert "the runs' benchmark fixes it; leave out --protocol" in err
    file = folder / "predictions.parquet"
    code, _, err = run(capsys, "compare", file, file)
    assert code == 2
    assert "expected --annotations" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["psg_mini_predcls", "--baseline"], "expected --out RUN"),
        (["psg_mini_predcls", "--out", "x"], "expected what to measure"),
        (["nothing", "--baseline", "--out", "x"], "bench/psg_mini_predcls"),
        (["psg_test_sgdet", "--model", "m", "--out", "x"], "haystack predict PICTURES"),
        (["psg_test_predcls", "--baseline", "--out", "x"], "needs --annotations: psg.json"),
        (["psg_mini_predcls", "--model", "none", "--out", "x"], "no such relation model"),
    ],
)
def test_what_is_missing_is_said(capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "bench", *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "x").exists()
