"""The configurations that come with Haystack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haystack.cli.configs import find_config
from haystack.config import load_config
from haystack.models.relation.config import HEADS
from haystack.training.config import TrainConfig
from haystack.training.trainer import train

FOLDER = find_config("train/vctree_psg_mini").parent


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_is_valid_and_named_after_its_head(path):
    config = load_config(TrainConfig(), path)
    assert config.model.head == path.stem.partition("_")[0]


@pytest.mark.parametrize("head", HEADS)
def test_every_head_has_its_configurations(head):
    assert (FOLDER / f"{head}_psg_mini.yaml").is_file()


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
