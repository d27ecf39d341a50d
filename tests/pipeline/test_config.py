from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from haystack.errors import InputError
from haystack.pipeline.config import WorkspaceConfig, dump_config, load_config
from haystack.pipeline.workspace import Workspace


def test_defaults_are_the_papers() -> None:
    config = load_config()
    assert config == WorkspaceConfig()
    assert config.cluster.k == 50
    assert config.score.min_count == 2
    assert config.embed.encoder == "vit_large_patch14_dinov2.lvd142m"


def test_file_over_defaults_and_overrides_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_text("cluster: {k: 20, seed: 3}\nsource: {images: pictures}\n")
    config = load_config(file, ["cluster.k=7", "propose.predicates=[kissing,eating]"])
    assert (config.cluster.k, config.cluster.seed, config.cluster.iterations) == (7, 3, 25)
    assert config.source.images == "pictures"
    assert config.propose.predicates == ["kissing", "eating"]
    other = load_config(None, ["cluster.seed=9"], base=config)
    assert (other.cluster.k, other.cluster.seed) == (7, 9)
    assert load_config(None, ["propose.predicates=[on,in]"]).propose.predicates == ["on", "in"]
    assert load_config(None, ["cluster.gpu=true"]).cluster.gpu is True
    assert load_config(None, ["embed.image_size=224"]).embed.image_size == 224
    assert load_config(None, ["embed.device=cuda:1"]).embed.device == "cuda:1"


def test_what_is_saved_can_be_read_again(tmp_path: Path) -> None:
    config = load_config(None, ["embed.image_size=98", "propose.predicates=[on]"])
    file = tmp_path / "workspace.yaml"
    file.write_text(dump_config(config, {"versions": {"haystack": "0"}}))
    assert load_config(file) == config
    assert yaml.safe_load(file.read_text())["resolved"]["versions"] == {"haystack": "0"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster.kk=3", "unknown key 'cluster.kk'; nearest: cluster.k"),
        ("k=3", "unknown key 'k'; nearest: cluster.k"),
        ("embed.encodre=x", "unknown key 'embed.encodre'; nearest: embed.encoder"),
        ("zzz.qqq=1", "unknown key 'zzz'"),
        ("cluster.k=many", "'cluster.k' expects an integer, got 'many'"),
        ("cluster.k=2.5", "'cluster.k' expects an integer, got 2.5"),
        ("cluster.k=null", "'cluster.k' expects an integer, got None"),
        ("cluster.gpu=perhaps", "'cluster.gpu' expects true or false, got 'perhaps'"),
        ("embed.image_size=big", "'embed.image_size' expects an integer or null, got 'big'"),
        ("propose.predicates=on", "'propose.predicates' expects a list of texts, got 'on'"),
        ("cluster=3", "'cluster' is a section"),
        ("cluster.k", "expected key=value, for example seed=7, got 'cluster.k'"),
        ("cluster.k=[1", "quote it for the shell"),
        ("cluster.k={]}", "not valid YAML"),
        ("cluster.k=0", "'cluster.k' expects an integer of at least 1, got 0"),
        ("embed.dtype=int8", "'embed.dtype' expects one of float32, float16, got 'int8'"),
        ("score.split=val", "'score.split' expects one of train, test, all, got 'val'"),
        ("segment.kind=magic", "'segment.kind' expects one of precomputed, maskdino"),
    ],
)
def test_wrong_overrides_are_named(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_config(None, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value) or "YAML" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cluster: {kk: 3}", "unknown key 'cluster.kk'; nearest: cluster.k"),
        ("cluster: [1]", "'cluster' is a section"),
        ("- 1", "expected 'key: value' entries, got list"),
        ("cluster: {", "not valid YAML"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(InputError) as caught:
        load_config(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    with pytest.raises(InputError, match="cannot read the configuration"):
        load_config(tmp_path / "missing.yaml")


def test_empty_file_means_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("")
    assert load_config(file) == WorkspaceConfig()


def test_reading_settings_needs_nothing_heavy() -> None:
    code = (
        "import sys; from haystack.pipeline.config import load_config; load_config(); "
        "print([name for name in ('torch', 'faiss', 'timm', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "name", ["p #h", "q: r", "${HOME}", "[a, b", "{x}", "true", "1e5", "'x'", "a\\b", "~", ""]
)
def test_file_names_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    config = load_config(None, [f"source.images={name}"])
    assert config.source.images == name
    (tmp_path / "saved.yaml").write_text(dump_config(config, {}))
    again = load_config(tmp_path / "saved.yaml")
    assert again == config
    assert load_config(None, ["cluster.k=2"], base=again).source.images == name


def test_stages_that_start_at_the_same_moment_keep_each_others_settings(tmp_path: Path) -> None:
    Workspace.create(tmp_path, overrides=["score.top=7"])
    stages = [
        Workspace.configured(tmp_path, overrides=overrides)
        for overrides in (["cluster.k=3"], ["segment.batch_size=5"])
    ]
    for stage in stages:
        stage.save()
    config = Workspace.open(tmp_path).config
    assert (config.cluster.k, config.segment.batch_size, config.score.top) == (3, 5, 7)
