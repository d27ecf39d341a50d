"""``haystack train``: configurations, retraining during a campaign, resuming."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from haystack.cli import main
from haystack.io import read_psg, write_psg

QUICK = ("steps=3", "model.roi_dim=16", "model.hidden_dim=16", "model.pooling_dim=16")


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Eight photographs to learn from, and a campaign's export: four others, negatives only."""
    root = tmp_path_factory.mktemp("material")
    mini = read_psg("psg-mini")
    folder = mini.root
    for name, graphs in (("psg", mini.graphs[:8]), ("export", mini.graphs[8:12])):
        (root / name).mkdir()
        shutil.copytree(folder / "panoptic", root / name / "panoptic")
        part = replace(mini, graphs=graphs, test_image_ids=(), faulty_segments={})
        write_psg(part, root / name / "annotation.json")
    return root


@pytest.fixture(scope="module")
def model(material, tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "first"
    settings = (*QUICK, f"annotations={material / 'psg' / 'annotation.json'}")
    assert main(["train", "train/vctree_psg_mini", *settings, "--out", str(out)]) == 0
    return out


def run(capsys, *argv):
    code = main(["train", *map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_an_export_is_mixed_into_what_the_start_model_learned_from(
    material, model, tmp_path, capsys
):
    argv = ("--annotations", material / "export", "--init", model, "mix_share=0.5")
    code, answer = run(capsys, *argv, "--out", tmp_path / "second")
    assert code == 0
    assert answer["summary"]["images"] == [8, 4]
    config = yaml.safe_load((tmp_path / "second" / "config.yaml").read_text())
    assert config["init"] == str(model / "model.safetensors")
    assert config["annotations"] == str(material / "psg" / "annotation.json")
    assert config["mix"] == [str(material / "export")]
    assert (config["mix_share"], config["steps"], config["model"]["roi_dim"]) == (0.5, 3, 16)

    # The next round names the same export again: it is mixed in once.
    again = ("--annotations", material / "export", "--init", tmp_path / "second")
    code, answer = run(capsys, *again, "--out", tmp_path / "third")
    assert code == 0
    assert answer["summary"]["images"] == [8, 4]


def test_without_a_configuration_the_annotations_are_all_there_is(
    material, model, tmp_path, capsys
):
    bare = shutil.copy(model / "model.safetensors", tmp_path / "bare.safetensors")
    argv = ("--annotations", material / "export", "--init", bare, "steps=2")
    code, answer = run(capsys, *argv, "--out", tmp_path / "out")
    assert code == 0
    assert answer["summary"]["images"] == [4]


def test_the_configuration_may_stand_anywhere(material, tmp_path, capsys):
    annotations = f"annotations={material / 'psg'}"
    argv = ("--out", tmp_path / "out", "train/imp_psg_mini", annotations, *QUICK)
    code, answer = run(capsys, *argv)
    assert (code, answer["step"]) == (0, 3)
    code, answer = run(capsys, *argv)
    assert (code, answer["was_finished"]) == (0, True)
    assert main(["train", *map(str, argv)]) == 0
    assert "this run is finished already" in capsys.readouterr().err


def test_a_class_of_ones_own_starts_from_the_seed(material, tmp_path, capsys):
    own = Path(__file__).parents[2] / "examples" / "own_relation_model.py"
    settings = ("steps=2", f"annotations={material / 'psg'}")
    argv = ("train/vctree_psg_mini", "--model", f"{own}:ClassPairs", *settings)
    weights = []
    for number, seed in enumerate((0, 0, 1)):
        out = tmp_path / str(number)
        code, answer = run(capsys, *argv, f"seed={seed}", "--out", out)
        assert (code, answer["step"]) == (0, 2)
        weights.append((out / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("train/frequency_psg_mini", "--model", "a:B"), "are for networks"),
        (("train/imp_psg_mini", "--init", "x", "--model", "a:B"), "write --model CLASS@RUN"),
        (("train/imp_psg_mini", "--model", "no_such:Model"), "cannot import the module"),
        ((), "expected a configuration, for example train/vctree_psg_mini, or --init MODEL"),
        (("train/imp_psg_mini", "train/vctree_psg_mini"), "expected one configuration file"),
        (("train/imp_psg_mini", "--init", "nowhere"), "no such relation model"),
        (("train/imp",), "no such configuration file"),
        (("train/imp_psg_mini", "mix_share=2"), "mix_share between 0 and 1"),
        (("train/imp_psg_mini", "--annotations", "nowhere.json"), "no such annotation file"),
    ],
)
def test_bad_usage_is_told(argv, words, tmp_path, capsys):
    code, answer = run(capsys, *argv, "--out", tmp_path / "out")
    assert code == 2
    assert words in answer["error"]
    assert not (tmp_path / "out").exists()
