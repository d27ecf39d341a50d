"""``haystack train``: configurations, retraining during a campaign, resuming."""

from __future__ import annotations

import json
import os
import shutil
import sys
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


def test_the_start_model_may_be_a_setting(material, model, tmp_path, capsys):
    """``init=FOLDER`` and ``--init FOLDER`` are one thing, with a configuration and without."""
    weights = []
    for number, start in enumerate((("--init", model), (f"init={model}",))):
        for name, file in (("own", ()), ("given", ("train/vctree_psg_mini", *QUICK))):
            out = tmp_path / f"{name}{number}"
            code, answer = run(
                capsys, *file, *start, f"annotations={material / 'psg'}", *QUICK[:1], "--out", out
            )
            assert (code, answer["step"]) == (0, 3)
            config = yaml.safe_load((out / "config.yaml").read_text())
            assert config["init"] == str(model / "model.safetensors")
            weights.append((out / "model.safetensors").read_bytes())
    assert weights[:2] == weights[2:]
    code, answer = run(capsys, *start, "--init", model, "--out", tmp_path / "x")
    assert code == 2
    assert "both --init" in answer["error"]


def test_annotations_that_are_in_use_already_are_not_mixed_in(material, model, tmp_path, capsys):
    base = material / "psg"
    argv = ("train/imp_psg_mini", *QUICK, f"annotations={base}", "--out", tmp_path / "out")
    for mixed in (
        ("--annotations", base / "annotation.json"),
        (f"mix=[{base}]",),
        (f"mix=[{material / 'export'}, {material / 'psg' / '..' / 'export'}]",),
    ):
        code, answer = run(capsys, *argv, *mixed)
        assert code == 2
        assert "are in use already" in answer["error"]
    code, answer = run(capsys, "train/imp_psg_mini", "mix=[psg-mini]", "--out", tmp_path / "out")
    assert (code, "are in use already, as annotations" in answer["error"]) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("where", ["a file/cache", "locked"])
def test_a_cache_that_cannot_be_written_leaves_no_run(
    where, material, tmp_path, capsys, monkeypatch
):
    (tmp_path / "a file").touch()
    # Whoever runs the tests may be one whom no permission stops.
    allowed = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != "locked" and allowed(path, mode)
    )
    settings = (*QUICK, f"annotations={material / 'psg'}", f"cache={tmp_path / where}")
    code, answer = run(capsys, "train/imp_psg_mini", *settings, "--out", tmp_path / "out")
    assert code == 2
    assert str(tmp_path / where) in answer["error"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "module"), [("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_a_tracker_that_is_not_installed_leaves_no_run(
    kind, module, material, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    settings = (*QUICK, f"annotations={material / 'psg'}", f"track={kind}")
    code, answer = run(capsys, "train/imp_psg_mini", *settings, "--out", tmp_path / "out")
    assert code == 2
    assert f"track={kind} needs the package '{kind}'" in answer["error"]
    assert not (tmp_path / "out").exists()


def test_a_start_model_of_another_vocabulary_leaves_no_run(material, model, tmp_path, capsys):
    words = json.loads((material / "psg" / "annotation.json").read_text())
    words["predicate_classes"][0] = "above all"
    (material / "psg" / "other.json").write_text(json.dumps(words))
    settings = (*QUICK, f"annotations={material / 'psg' / 'other.json'}", f"init={model}")
    code, answer = run(capsys, "train/imp_psg_mini", *settings, "--out", tmp_path / "out")
    assert code == 2
    assert "expected the same predicates in the start model" in answer["error"]
    assert not (tmp_path / "out").exists()


OWN = """
from haystack.models.relation.heads.base import HeadOutput
from own_relation_model import ClassPairs

class Narrow(ClassPairs):
    def forward(self, encoded):
        batch, output = super().forward(encoded)
        return batch, HeadOutput(output.logits[:, 1:])

class Raising(ClassPairs):
    def forward(self, encoded):
        raise KeyError("no such thing")

class Shy(ClassPairs):
    def encode(self, scenes):
        return scenes[3]

class Broken:
    def __init__(self, vocabulary):
        raise ZeroDivisionError("by nothing")
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Narrow", "must give logits of shape"),
        ("Raising", "the model's forward() raised KeyError: 'no such thing'"),
        ("Shy", "the model's encode() raised IndexError"),
        ("Broken", "making the model raised ZeroDivisionError: by nothing"),
    ],
)
def test_a_class_of_ones_own_that_fails_is_named(name, words, material, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    shutil.copy(Path(__file__).parents[2] / "examples" / "own_relation_model.py", tmp_path)
    argv = ("train/vctree_psg_mini", "--model", f"{own}:{name}", "steps=2")
    code, answer = run(capsys, *argv, f"annotations={material / 'psg'}", "--out", tmp_path / "out")
    assert code == 2
    assert words in answer["error"]
    assert f"own.py:{name}: " in answer["error"]


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
