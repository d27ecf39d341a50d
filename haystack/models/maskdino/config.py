"""What distinguishes one MaskDINO from another."""

from __future__ import annotations

from dataclasses import dataclass

from haystack.errors import InputError

HIDDEN = 256
"""Width of tokens and queries; a constant, because the anchors' embedding has no other width."""

HEADS = 8
POINTS = 4
"""Sampling points a head and a level."""

BACKBONES = ("resnet50", "swin_large")
BOX_INITIALISATIONS = ("no", "bitmask", "mask2box")


@dataclass(frozen=True)
class MaskDINOConfig:
    """A MaskDINO; the defaults are those of the official panoptic models for COCO.

    Args:
        backbone: ``resnet50`` or ``swin_large``.
        classes: outputs of the class head; each is a sigmoid of its own, there is no "no object".
        queries: objects looked for in an image.
        encoder_layers: of the pixel decoder's transformer.
        decoder_layers: of the query decoder.
        feedforward: inner width of both.
        box_initialisation: the decoder's first boxes. ``no`` = those of the selected tokens, as in
            the two panoptic models of the paper; ``bitmask`` = boxes around their masks, the
            "mask-enhanced" initialisation; ``mask2box`` = the same by another function that is off
            by a pixel. A model must be used as it was trained.

    Raises:
        InputError: an unknown name, or a number below 1.
    """

    backbone: str = "resnet50"
    classes: int = 133
    queries: int = 300
    encoder_layers: int = 6
    decoder_layers: int = 9
    feedforward: int = 2048
    box_initialisation: str = "no"

    def __post_init__(self) -> None:
        for key, choices in (
            ("backbone", BACKBONES),
            ("box_initialisation", BOX_INITIALISATIONS),
        ):
            if getattr(self, key) not in choices:
                raise InputError(
                    f"MaskDINO's {key} expects one of {', '.join(choices)}, "
                    f"got {getattr(self, key)!r}"
                )
        for key in ("classes", "queries", "encoder_layers", "decoder_layers", "feedforward"):
            if getattr(self, key) < 1:
                raise InputError(f"MaskDINO's {key} must be at least 1, got {getattr(self, key)}")
