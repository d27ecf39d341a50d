from __future__ import annotations

import json
from pathlib import Path

import pytest

from haystack.cli import main
from haystack.weights import NAMES, known


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HAYSTACK_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main([str(word) for word in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list_says_what_is_where(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    file = place / known("dinov2_vitb14").file
    file.write_bytes(b"x")
    code, out, err = run(capsys, "weights", "list", "--json")
    assert code == 0
    content = json.loads(out)
    assert [row["name"] for row in content["weights"]] == list(NAMES)
    here = {row["name"]: row["path"] for row in content["weights"]}
    assert here["dinov2_vitb14"] == str(file)
    assert here["maskdino_r50"] is None
    assert str(place) in err
    assert "Apache-2.0" in err


def test_path_is_for_the_shell(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    file = place / known("dinov2_vitb14").file
    file.write_bytes(b"x")
    assert run(capsys, "weights", "path", "dinov2_vitb14")[:2] == (0, f"{file}\n")
    code, out, _ = run(capsys, "weights", "path", "dinov2_vitb14", "--json")
    assert (code, json.loads(out)) == (0, {"paths": {"dinov2_vitb14": str(file)}})
    code, _, err = run(capsys, "weights", "path", "dinov2_vitl14")
    assert code == 2
    assert err.endswith("run: haystack weights pull dinov2_vitl14\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pull"], "haystack weights pull expects a name"),
        (["list", "resnet50"], "takes no names, got 'resnet50'"),
        (["pull", "resnet50", "resnet51"], "no weights are known as 'resnet51'; nearest: resnet50"),
    ],
)
def test_bad_usage(
    capsys: pytest.CaptureFixture[str], place: Path, argv: list[str], message: str
) -> None:
    code, _, err = run(capsys, "weights", *argv)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_pull_of_what_is_here_downloads_nothing(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    (place / known("dinov2_vitb14").file).write_bytes(b"x")
    code, out, _ = run(capsys, "weights", "pull", "dinov2_vitb14", "--json")
    assert code == 0
    assert json.loads(out)["paths"] == {"dinov2_vitb14": str(place / "dinov2_vitb14_pretrain.pth")}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("embed WORK source.images=IMAGES", "dinov2_vitl14"),
        ("embed WORK source.images=IMAGES embed.weights=dinov2_vits14", "dinov2_vits14"),
        ("embed WORK source.images=IMAGES embed.encoder=dinov2_vitg14_reg", "dinov2_vitg14_reg"),
        ("segment WORK source.images=IMAGES segment.kind=maskdino", "maskdino_r50"),
        (
            "segment WORK source.images=IMAGES segment.kind=maskdino "
            "segment.weights=maskdino_swinl",
            "maskdino_swinl",
        ),
        (
            "train train/vctree_psg annotations=psg-mini device=cpu init_trunk=resnet50 --out WORK",
            "resnet50",
        ),
        ("convert IMAGES/resnet50-0676ba61.pth --out WORK/m.safetensors", "resnet50"),
    ],
)
def test_every_verb_says_the_command_that_is_missing(
    capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path, command: str, name: str
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a.jpg").write_bytes(b"")
    words = command.replace("WORK", str(tmp_path / "work")).replace("IMAGES", str(images)).split()
    code, _, err = run(capsys, *words)
    assert code == 2
    assert f"haystack weights pull {name}" in err
    assert not (tmp_path / "work").exists()
