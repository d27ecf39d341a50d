"""Image encoders: one feature vector an image, always from real weights.

A randomly initialised network clusters worse than a colour histogram, so where weights are missing
there is an error that says how to get them, and never a stand-in.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from haystack import weights
from haystack.devices import usable_device
from haystack.errors import InputError
from haystack.models.checkpoints.state_dicts import read_state_dict
from haystack.pipeline.config import EmbedConfig
from haystack.pipeline.encoders import dinov2
from haystack.pipeline.encoders.decoding import Decoder, NvjpegDecoder, PillowDecoder, Preprocessing
from haystack.pipeline.encoders.small import PREPROCESSING, SMALL_ENCODER, build_small
from haystack.pipeline.memory import InHalves

logger = logging.getLogger(__name__)

_KNOWN_AS = {timm: upstream for upstream, timm in dinov2.ENCODERS.items()}


@dataclass(frozen=True)
class Encoder:
    """A loaded encoder.

    Args:
        model: [B, 3, S, S] -> [B, D], both of ``precision``.
        preprocessing: what becomes of a picture before ``model`` sees it.
        decoder: encoded bytes -> pixels.
        dimension: D.
        device: where the model is.
        precision: of the model's numbers.
    """

    model: nn.Module
    preprocessing: Preprocessing
    decoder: Decoder
    dimension: int
    device: torch.device
    precision: torch.dtype = torch.float32
    _in_halves: InHalves[Tensor, list[Tensor | InputError]] = field(init=False)

    def __post_init__(self) -> None:
        halves = InHalves(
            self._encode,
            what="image",
            lower="embed.image_size or embed.precision",
            notify=lambda said: logger.warning("embed: %s", said),
            unfit=lambda _, said: [InputError(said)],
        )
        object.__setattr__(self, "_in_halves", halves)

    def read(self, image_key: str, content: bytes) -> Tensor:
        """Decode one image as far as any thread can; uint8, for ``encode``.

        Raises:
            InputError: the image is broken.
        """
        return self.decoder.read(image_key, content)

    def encode(self, batch: Sequence[Tensor]) -> list[Tensor | InputError]:
        """Features of images that were read: float32 [D] each, on the CPU, or why there are none.

        A batch that does not fit into memory is halved, and so are all after it. An image that
        does not fit alone has no features.

        Raises:
            HaystackError: three images in a row do not fit.
        """
        return [row for part in self._in_halves(batch) for row in part]

    @torch.inference_mode()
    def _encode(self, batch: Sequence[Tensor]) -> list[Tensor | InputError]:
        pictures = self.decoder.finish(batch)
        pixels = [picture for picture in pictures if isinstance(picture, Tensor)]
        if not pixels:
            return list(pictures)
        seen = self.preprocessing.normalise(torch.stack(pixels).to(self.device))
        features = iter(self.model(seen.to(self.precision)).float().cpu())
        return [
            picture if isinstance(picture, InputError) else next(features) for picture in pictures
        ]


@dataclass(frozen=True)
class EncoderSpec:
    """An encoder whose weights were found, not yet loaded.

    Args:
        name: timm's, or that of the small encoder.
        weights: the weight file.
        config: the stage's settings.
    """

    name: str
    weights: Path
    config: EmbedConfig

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What determines the features.

        Device, batch size and threads are left out: they change speed, and rounding at most, and
        a run that moves to another machine need not start again.
        """
        config = self.config
        return {
            "encoder": self.name,
            "image_size": config.image_size,
            "weights": weights.checksum(self.weights),
            "pooling": config.pooling,
            "precision": config.precision,
            "decode": config.decode,
            "draft": config.draft,
        }

    def load(self) -> Encoder:
        """Build the model and load the weights, strictly.

        Raises:
            InputError: the file does not hold this model's weights, or the device cannot be used.
            HaystackError: the device cannot decode.
        """
        config = self.config
        device = usable_device(config.device)
        state = read_state_dict(self.weights)
        dinov2.check_model(self.name, state, self.weights)
        try:
            model, settings = (
                (build_small(state), dict(PREPROCESSING))
                if self.name == SMALL_ENCODER
                else _build_timm(self.name, state, config.image_size)
            )
        except (RuntimeError, KeyError, IndexError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"these are not the weights of '{self.name}': {reason}", path=self.weights
            ) from error
        if config.image_size is not None:
            settings["input_size"] = (3, config.image_size, config.image_size)
        preprocessing = Preprocessing.of_timm(settings)
        _leave_features(model, self.name, config.pooling)
        precision: torch.dtype = getattr(torch, config.precision)
        return Encoder(
            model=model.eval().requires_grad_(False).to(device, precision),
            preprocessing=preprocessing,
            decoder=NvjpegDecoder(preprocessing, device)
            if config.decode == "nvjpeg"
            else PillowDecoder(preprocessing, draft=config.draft),
            dimension=int(getattr(model, "head_hidden_size", None) or model.num_features),
            device=device,
            precision=precision,
        )


def find_encoder(config: EmbedConfig) -> EncoderSpec:
    """Find the weights of the configured encoder, without loading or downloading anything.

    Raises:
        InputError: unknown encoder, or no weights; the message says how to get them.
        MissingDependencyError: the small encoder's package is not installed.
    """
    name = dinov2.ENCODERS.get(config.encoder, config.encoder)
    if name != SMALL_ENCODER:
        _pretrained_config(name)
    if config.weights:
        path = weights.resolve(config.weights, "embed.weights")
    else:
        path = _installed_weights(name)
    return EncoderSpec(name, path, config)


def _pretrained_config(name: str) -> Any:
    import timm

    config = timm.get_pretrained_cfg(name)
    if config is None:
        known = [SMALL_ENCODER, *dinov2.ENCODERS, *timm.list_models(pretrained=True)]
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise InputError(
            f"unknown encoder {name!r}; give the name of a timm model or '{SMALL_ENCODER}'{hint}"
        )
    return config


def _installed_weights(name: str) -> Path:
    official = _KNOWN_AS.get(name)
    if official is not None and weights.locate(weights.known(official)) is not None:
        return weights.find(official)
    found = None if name == SMALL_ENCODER else _in_caches(name)
    if found is not None:
        return found
    if name == SMALL_ENCODER:
        return weights.find(name)
    instead = f"; or use embed.encoder={SMALL_ENCODER}, which needs no download"
    if official is not None:
        raise InputError(f"{weights.missing(official)}{instead}")
    repository = _pretrained_config(name).hf_hub_id
    command = (
        f"run once with network access: hf download {repository.partition('@')[0]}"
        if repository
        else "put the file there by hand"
    )
    raise InputError(
        f"there are no weights for the encoder '{name}' on this machine; give "
        f"embed.weights=FILE, or {command}{instead}"
    )


def _in_caches(name: str) -> Path | None:
    """The encoder's file where timm would have put it: the caches of the two hubs."""
    config = _pretrained_config(name)
    if config.url:
        cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(config.url).name
        if cached.is_file():
            return cached
    if not config.hf_hub_id:
        return None
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = config.hf_hub_id.partition("@")
    names = [config.hf_hub_filename] if config.hf_hub_filename else []
    for file in [*names, "model.safetensors", "pytorch_model.bin"]:
        found = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(found, str):
            return Path(found)
    return None


def _build_timm(
    name: str, state: dict[str, Tensor], image_size: int | None
) -> tuple[Any, dict[str, Any]]:
    import timm
    from timm.data.config import resolve_model_data_config

    config = _pretrained_config(name)
    arguments: dict[str, Any] = {}
    if config.fixed_input_size:
        side = image_size or config.input_size[-1]
        arguments["img_size"] = side
        if "dinov2" in name:
            state = dinov2.resized(state, side, name)
    # timm's own loader renames keys and is strict as long as the classifier is not replaced.
    model: Any = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay={"state_dict": state}, **arguments
    )
    return model, resolve_model_data_config(model)


def _leave_features(model: Any, name: str, pooling: str) -> None:
    """Take the classifier off, and choose what the features are."""
    if pooling == "cls":
        model.reset_classifier(0)
        return
    try:
        model.reset_classifier(0, "avg")
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(
            f"embed.pooling=patches is not possible with '{name}'; use embed.pooling=cls"
        ) from error
