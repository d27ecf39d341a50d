"""The configurations that come with Haystack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haystack.cli.configs import find_config
from haystack.config import load_config
from haystack.errors import HaystackError, InputError
from haystack.io import read_psg
from haystack.models.relation.config import HEADS
from haystack.models.relation.features.visual import VisualFeatures
from haystack.training.config import TrainConfig
from haystack.training.frequency import FrequencyConfig
from haystack.training.trainer import train

FOLDER = find_config("train/vctree_psg_mini").parent


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_is_valid_and_named_after_its_head(path):
    name = path.stem.partition("_")[0]
    if name == "frequency":
        assert load_config(FrequencyConfig(), path).kind == name
    else:
        assert load_config(TrainConfig(), path).model.head == name


@pytest.mark.parametrize("head", HEADS)
def test_every_head_has_its_configurations(head):
    assert (FOLDER / f"{head}_psg_mini.yaml").is_file()
    paper = load_config(TrainConfig(), FOLDER / f"{head}_psg.yaml")
    assert paper.model.features == "visual"
    assert paper.learning_rate == (0.001 if head == "imp" else 0.03)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("encoded")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("head", HEADS)
def test_every_head_trains_on_psg_mini(head, precision, cache):
    file = FOLDER / f"{head}_psg_mini.yaml"
    settings = ["steps=16", "schedule=constant", "log_every=1", f"cache={cache}"]
    config = load_config(TrainConfig(), file, settings)
    losses = [row["relation"] for row in train(replace(config, precision=precision)).metrics]
    assert sum(losses[-4:]) < 0.95 * sum(losses[:4])


def test_pictures_are_encoded_once_for_all_runs(cache, monkeypatch, caplog):
    """The paper's recipe in small; bf16, because the cache serves every precision."""
    settings = [
        "device=cpu",
        "epochs=2",
        "batch_size=4",
        "flip=false",
        "validation_fraction=0",
        "warmup_steps=2",
        "model.long_side=96",
        "model.short_side=64",
        "model.roi_dim=32",
        "model.hidden_dim=32",
        "model.pooling_dim=32",
        "model.norm_momentum=0.1",
        "workers=0",
        "log_every=1",
    ]
    config = load_config(TrainConfig(), FOLDER / "motifs_psg.yaml", settings)
    mini = read_psg("psg-mini")
    few = replace(mini, graphs=mini.split("train")[:4])
    plain = train(config, few)
    assert "the trunk has random weights" in caplog.text
    config = replace(config, cache=str(cache))
    kept = train(config, few)
    for ours, theirs in zip(kept.metrics, plain.metrics, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)

    other = replace(config, model=replace(config.model, long_side=80))
    monkeypatch.setattr(VisualFeatures, "encode", lambda *_: pytest.fail("encoded again"))
    again = train(config, few)
    assert again.metrics == kept.metrics
    half = train(replace(config, precision="bf16"), few)
    assert half.metrics[0]["loss"] == pytest.approx(kept.metrics[0]["loss"], rel=0.05)
    with pytest.raises(pytest.fail.Exception):
        train(other, few)


def test_a_trunk_for_features_without_one_is_refused(tmp_path):
    with pytest.raises(InputError, match="init_trunk fills the trunk"):
        TrainConfig(init_trunk="r50.pth")
    config = load_config(TrainConfig(), FOLDER / "imp_psg.yaml", ["device=cpu"])
    config = replace(config, annotations="psg-mini", init_trunk=str(tmp_path / "gone.pth"))
    with pytest.raises(InputError, match=r"gone\.pth"):
        train(config, out=tmp_path / "out")


@pytest.mark.parametrize(
    "setting",
    [
        "model.dropout=1.0",
        "model.dropout=.nan",
        "model.norm_momentum=-3",
        "momentum=2",
        "learning_rate=.inf",
        "milestones=[-3]",
        "epochs=.inf",
        "seed=9223372036854775808",
    ],
)
def test_impossible_numbers_are_refused_by_name(setting):
    with pytest.raises(InputError, match=setting.partition("=")[0].rpartition(".")[2]):
        load_config(TrainConfig(), None, [setting])


def test_an_unknown_device_is_refused():
    with pytest.raises(InputError, match="the device 'bogus' cannot be used"):
        train(TrainConfig(device="bogus", steps=1))


@pytest.mark.parametrize("head", HEADS)
def test_weights_that_diverge_end_the_run_in_words(head, tmp_path):
    settings = ["learning_rate=1.0e+30", "warmup_steps=0", "log_every=1"]
    config = load_config(TrainConfig(), FOLDER / f"{head}_psg_mini.yaml", settings)
    with pytest.raises(HaystackError, match="gradient"):
        train(config, out=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
