from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from encoder_files import jpeg, official_state
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

from haystack.errors import InputError
from haystack.pipeline.config import EmbedConfig
from haystack.pipeline.encoders import encoder
from haystack.pipeline.encoders.dinov2 import ENCODERS, held_model, resize_position_embedding
from haystack.pipeline.encoders.encoder import Encoder, find_encoder

SIZES = {"s": (384, 12), "b": (768, 12), "l": (1024, 24), "g": (1536, 40)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of ViT-S with and without registers, in upstream's layout."""
    folder = tmp_path_factory.mktemp("dinov2")
    found = {}
    for name in ("dinov2_vits14", "dinov2_vits14_reg"):
        found[name] = folder / f"{name}_pretrain.pth"
        torch.save(official_state(384, 12, registers=name.endswith("_reg")), found[name])
    return found


def load(name: str, file: Path, **settings: object) -> Encoder:
    return find_encoder(EmbedConfig(encoder=name, weights=str(file), **settings)).load()  # type: ignore[arg-type]


def features(encoder: Encoder, *pictures: bytes) -> torch.Tensor:
    rows = encoder.encode([encoder.read("a.jpg", picture) for picture in pictures])
    return torch.stack([row for row in rows if isinstance(row, torch.Tensor)])


def by_hand(state: dict[str, torch.Tensor], pixels: torch.Tensor) -> torch.Tensor:
    """DINOv2's forward pass, written out; tokens after the last norm, registers left out."""

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weights = state[f"{name}.weight"], state[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], *weights, eps=1e-6)

    patches = functional.conv2d(
        pixels, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=14
    )
    grid, width = patches.shape[-1], patches.shape[1]
    registers = state.get("register_tokens", torch.empty(1, 0, width))
    positions = resize_position_embedding(state["pos_embed"], grid, registers=registers.numel() > 0)
    x = torch.cat([state["cls_token"], patches.flatten(2).mT], dim=1) + positions
    x = torch.cat([x[:, :1], registers, x[:, 1:]], dim=1)
    heads = width // 64
    for block in (f"blocks.{number}" for number in range(12)):
        qkv = linear(norm(x, f"{block}.norm1"), f"{block}.attn.qkv")
        q, k, v = qkv.reshape(*x.shape[:2], 3, heads, 64).permute(2, 0, 3, 1, 4)
        mixed = ((q @ k.mT) / 8).softmax(-1) @ v
        mixed = linear(mixed.transpose(1, 2).reshape(x.shape), f"{block}.attn.proj")
        x = x + state[f"{block}.ls1.gamma"] * mixed
        hidden = functional.gelu(linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1"))
        x = x + state[f"{block}.ls2.gamma"] * linear(hidden, f"{block}.mlp.fc2")
    x = norm(x, "norm")
    return torch.cat([x[:, :1], x[:, 1 + registers.shape[1] :]], dim=1)


@pytest.mark.parametrize("name", ["dinov2_vits14", "dinov2_vits14_reg"])
def test_features_of_official_files_are_those_of_the_architecture(
    files: dict[str, Path], name: str
) -> None:
    state = torch.load(files[name], weights_only=True)
    encoder = load(name, files[name], image_size=112)
    pixels = encoder.preprocessing.normalise(encoder.read("a.jpg", jpeg())[None])
    tokens = by_hand(state, pixels)
    found = features(encoder, jpeg())
    assert encoder.dimension == found.shape[1] == 384
    torch.testing.assert_close(found, tokens[:, 0], atol=2e-5, rtol=1e-4)
    mean = features(load(name, files[name], image_size=112, pooling="patches"), jpeg())
    torch.testing.assert_close(mean, tokens[:, 1:].mean(dim=1), atol=2e-5, rtol=1e-4)
    at_518 = load(name, files[name]).model.pos_embed
    torch.testing.assert_close(at_518, state["pos_embed"][:, -at_518.shape[1] :], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["dinov2_vits14", "dinov2_vits14_reg"])
def test_timms_and_the_official_layout_give_equal_features(
    files: dict[str, Path], tmp_path: Path, name: str
) -> None:
    official = load(name, files[name], image_size=518)
    timms = tmp_path / "model.safetensors"
    save_file(official.model.state_dict(), timms)  # as timm publishes it, for 518 px
    if name.endswith("_reg"):
        assert "reg_token" in official.model.state_dict()
    ours, theirs = (
        features(load(name, file, image_size=98), jpeg()) for file in (files[name], timms)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("name", list(ENCODERS))
def test_every_official_file_loads_strictly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    width, depth = SIZES[name[10]]
    registers, swiglu = name.endswith("_reg"), name[10] == "g"
    with torch.device("meta"):  # shapes and names alone: the largest has 4.5 GB
        state = official_state(width, depth, registers=registers, swiglu=swiglu, device="meta")
        assert held_model(state) == name
        model, settings = encoder._build_timm(ENCODERS[name], dict(state), 518)
        assert settings["input_size"] == (3, 518, 518)
        # The mask token is for training alone.
        assert len(model.state_dict()) == len(state) - 1
        del state["blocks.3.ls2.gamma"]
        with pytest.raises(RuntimeError, match=r"blocks\.3\.ls2\.gamma"):
            encoder._build_timm(ENCODERS[name], state, 518)


def test_a_file_of_another_dinov2_is_named(files: dict[str, Path]) -> None:
    assert load("dinov2_vits14_reg", files["dinov2_vits14_reg"], image_size=98).dimension == 384
    for name in ("vit_small_patch14_dinov2.lvd142m", "dinov2_vitl14", "resnet18"):
        with pytest.raises(
            InputError, match=r"holds dinov2_vits14_reg.*embed\.encoder=dinov2_vits"
        ):
            load(name, files["dinov2_vits14_reg"])


def test_sides_must_be_whole_patches(files: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"multiple of 14 .* got 225; nearest: 224"):
        load("dinov2_vits14", files["dinov2_vits14"], image_size=225)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_near(files: dict[str, Path], precision: str) -> None:
    file, picture = files["dinov2_vits14"], jpeg()
    exact = features(load("dinov2_vits14", file, image_size=98), picture)
    encoder = load("dinov2_vits14", file, image_size=98, precision=precision)
    assert next(encoder.model.parameters()).dtype == getattr(torch, precision)
    found = features(encoder, picture)
    assert found.dtype == torch.float32
    assert not torch.equal(found, exact)
    assert torch.cosine_similarity(found, exact).item() > 0.999


def test_position_embedding_follows_upstreams_rule() -> None:
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(1, 1 + 37 * 37, 8, generator=generator)
    patches = embedding[0, 1:].reshape(37, 37, 8).permute(2, 0, 1)[None]
    assert resize_position_embedding(embedding, 37) is embedding
    assert resize_position_embedding(embedding, 37, registers=True) is embedding
    for grid in (7, 16, 23, 40):
        found = resize_position_embedding(embedding, grid)
        assert found.shape == (1, 1 + grid * grid, 8)
        torch.testing.assert_close(found[:, 0], embedding[:, 0])
        # Bicubic at scale (grid + 0.1) / 37: sample the output's first row by hand.
        plain = functional.interpolate(patches, size=(grid, grid), mode="bicubic")
        offset = functional.interpolate(
            patches, scale_factor=(grid + 0.1) / 37, mode="bicubic", recompute_scale_factor=False
        )
        image = found[:, 1:].reshape(1, grid, grid, 8).permute(0, 3, 1, 2)
        torch.testing.assert_close(image, offset)
        assert (image - plain).abs().max() > 1e-3, "the 0.1 matters"
        smooth = functional.interpolate(patches, (grid, grid), mode="bicubic", antialias=True)
        for table in (embedding, embedding[:, 1:]):  # upstream's layout, and timm's
            found = resize_position_embedding(table, grid, registers=True)[:, -(grid**2) :]
            torch.testing.assert_close(found.reshape(1, grid, grid, 8).permute(0, 3, 1, 2), smooth)


def test_pictures_are_resized_and_cropped_as_upstream_evaluates(files: dict[str, Path]) -> None:
    encoder = load("dinov2_vits14", files["dinov2_vits14"], image_size=98)
    pixels = encoder.read("a.jpg", jpeg())
    assert (pixels.dtype, tuple(pixels.shape)) == (torch.uint8, (3, 98, 98))
    picture = Image.open(io.BytesIO(jpeg())).resize((130, 98), Image.Resampling.BICUBIC)
    expected = torch.frombuffer(
        bytearray(picture.crop((16, 0, 114, 98)).tobytes()), dtype=torch.uint8
    )
    torch.testing.assert_close(pixels.permute(1, 2, 0).flatten(), expected, atol=0, rtol=0)
    seen = encoder.preprocessing.normalise(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))
    imagenet = [(1 - mean) / std for mean, std in ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))]
    torch.testing.assert_close(seen[0, :, 0, 0], torch.tensor(imagenet))
