from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_files import jpeg, needs_small_encoder, official_state
from PIL import Image
from safetensors.torch import save_file

from haystack.errors import HaystackError, InputError
from haystack.pipeline.config import EmbedConfig
from haystack.pipeline.encoders.encoder import SMALL_ENCODER, Encoder, find_encoder

DINOV2 = "vit_small_patch14_dinov2.lvd142m"


@pytest.fixture(scope="module")
def dinov2_state() -> dict[str, torch.Tensor]:
    return official_state(384, 12)


@pytest.fixture
def small_encoder() -> Encoder:
    return find_encoder(EmbedConfig(encoder=SMALL_ENCODER)).load()


@needs_small_encoder
def test_small_encoder_has_real_features(small_encoder: Encoder) -> None:
    spec = find_encoder(EmbedConfig(encoder=SMALL_ENCODER))
    assert len(spec.fingerprint["weights"]) == 64
    assert small_encoder.dimension == 1280
    red, blue = (small_encoder.read("x", jpeg(c)) for c in ((200, 30, 30), (30, 30, 200)))
    first, second, third = small_encoder.encode([red, blue, red])
    assert first.shape == (1280,)
    torch.testing.assert_close(first, third)
    assert (first - second).norm() > 1
    # The trained stem's first weights, as the file has them.
    stored = torch.load(spec.weights, weights_only=True)["_conv_stem.weight"]
    torch.testing.assert_close(small_encoder.model.conv_stem.weight, stored)


@needs_small_encoder
def test_small_encoder_preprocessing(small_encoder: Encoder) -> None:
    def seen(picture: Image.Image) -> torch.Tensor:
        stream = io.BytesIO()
        picture.save(stream, format="PNG")
        pixels = small_encoder.read("a.png", stream.getvalue())
        return small_encoder.preprocessing.normalise(pixels[None])[0]

    tensor = seen(Image.new("RGB", (640, 480), (127, 255, 0)))
    assert tensor.shape == (3, 224, 224)
    expected = torch.tensor([0.0, (255 - 127) / 128, -127 / 128])
    torch.testing.assert_close(tensor.amax(dim=(1, 2)), expected, atol=1e-6, rtol=0)
    ramp = np.tile(np.linspace(0, 255, 512, dtype=np.uint8), (256, 1))
    row = seen(Image.fromarray(np.stack([ramp] * 3, axis=-1)))[0, 0]
    # Shorter edge 256, then the central 224: columns 144..367 of 512.
    assert row[0] * 128 + 127 == pytest.approx(255 * 144 / 511, abs=2)
    assert row[-1] * 128 + 127 == pytest.approx(255 * 367 / 511, abs=2)


@needs_small_encoder
def test_what_changes_features_changes_the_fingerprint() -> None:
    def fingerprint(**settings: object) -> object:
        return find_encoder(EmbedConfig(encoder=SMALL_ENCODER, **settings)).fingerprint  # type: ignore[arg-type]

    plain = fingerprint()
    for settings in ({"batch_size": 3}, {"threads": 0}, {"device": "cuda"}):
        assert fingerprint(**settings) == plain
    for settings in (
        {"pooling": "patches"},
        {"precision": "bfloat16"},
        {"draft": True},
        {"decode": "nvjpeg"},
        {"image_size": 98},
    ):
        assert fingerprint(**settings) != plain


@needs_small_encoder
def test_a_network_of_convolutions_pools_its_last_map_either_way(small_encoder: Encoder) -> None:
    patches = find_encoder(EmbedConfig(encoder=SMALL_ENCODER, pooling="patches")).load()
    item = small_encoder.read("x", jpeg())
    torch.testing.assert_close(small_encoder.encode([item]), patches.encode([item]))


@needs_small_encoder
def test_a_batch_without_room_is_halved_and_the_features_are_the_same(
    small_encoder: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    items = [small_encoder.read("x", jpeg((shade, 90, 9))) for shade in (0, 60, 120, 180, 240)]
    expected = small_encoder.encode(items)
    forward = small_encoder.model.forward

    def small_device(pixels: torch.Tensor) -> torch.Tensor:
        if len(pixels) > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return forward(pixels)

    monkeypatch.setattr(small_encoder.model, "forward", small_device)
    found = small_encoder.encode(items)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert "embed: out of memory with 5 images at once; going on with 2 at once" in caplog.text
    assert len(small_encoder.encode(items)) == 5
    assert caplog.text.count("out of memory") == 1
    monkeypatch.setattr(
        small_encoder.model, "forward", lambda _: small_device(torch.empty(3, 3, 8, 8))
    )
    with pytest.raises(HaystackError, match=r"a single image .* lower embed\.image_size or"):
        small_encoder.encode(items)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which all places are where weights may lie."""
    monkeypatch.setenv("HAYSTACK_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch/hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_missing_weights_say_what_to_do(caches: Path) -> None:
    with pytest.raises(InputError) as caught:
        find_encoder(EmbedConfig())
    text = str(caught.value)
    assert "the weights 'dinov2_vitl14' are not on this machine" in text
    assert "run: haystack weights pull dinov2_vitl14;" in text
    assert "embed.encoder=efficientnet-lite0, which needs no download" in text
    with pytest.raises(InputError, match=r"embed\.weights=FILE, or .* hf download timm/resnet18"):
        find_encoder(EmbedConfig(encoder="resnet18"))


@pytest.mark.parametrize("place", ["weights", "torch/hub/checkpoints"])
def test_upstreams_file_is_found_by_either_name(caches: Path, place: str) -> None:
    file = caches / place / "dinov2_vitl14_pretrain.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    for config in (
        EmbedConfig(),
        EmbedConfig(encoder="dinov2_vitl14"),
        EmbedConfig(weights="dinov2_vitl14"),
    ):
        spec = find_encoder(config)
        assert (spec.name, spec.weights) == ("vit_large_patch14_dinov2.lvd142m", file)


def test_weights_in_the_hub_cache_are_found(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        message = "cannot read the checkpoint"
    else:
        torch.save(state, file)
    with pytest.raises(InputError, match=message):
        find_encoder(EmbedConfig(encoder=DINOV2, weights=str(file), image_size=98)).load()


def test_safetensors_and_nested_state_dicts(
    tmp_path: Path, dinov2_state: dict[str, torch.Tensor]
) -> None:
    save_file(dinov2_state, tmp_path / "w.safetensors")
    torch.save({"model": dinov2_state, "epoch": 1}, tmp_path / "w.pth")
    encoders = [
        find_encoder(
            EmbedConfig(encoder=DINOV2, weights=str(tmp_path / name), image_size=98)
        ).load()
        for name in ("w.safetensors", "w.pth")
    ]
    features = [encoder.encode([encoder.read("x", jpeg())]) for encoder in encoders]
    torch.testing.assert_close(features[0], features[1], rtol=0, atol=0)
