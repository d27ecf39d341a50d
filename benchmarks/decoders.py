"""What decodes a PNG fastest: the common libraries that are installed, and what Haystack does."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from haystack.io.panoptic_png import read_panoptic_png

OURS = "haystack, to ids"
Decoder = Callable[[bytes], Any]


def available() -> dict[str, Decoder]:
    """Name -> function from the bytes of a PNG to pixels, or for ours to segment ids."""
    found: dict[str, Decoder] = {OURS: read_panoptic_png, "Pillow": _pillow()}
    others = {
        "kornia-rs": _kornia,
        "libvips": _libvips,
        "libspng": _libspng,
        "imagecodecs": _imagecodecs,
        "torchvision": _torchvision,
        "OpenCV": _opencv,
        "Skia": _skia,
    }
    for name, make in others.items():
        try:
            found[name] = make()
        except ImportError:
            continue
    return found


def _pillow() -> Decoder:
    from PIL import Image

    return lambda content: np.asarray(Image.open(io.BytesIO(content)))


def _kornia() -> Decoder:
    from kornia_rs.io import decode_image_png_u8

    def decode(content: bytes) -> Any:
        width, height = struct.unpack_from(">II", content, 16)
        return decode_image_png_u8(content, (height, width), "rgb")

    return decode


def _libvips() -> Decoder:
    import pyvips

    pyvips.cache_set_max(0)

    def decode(content: bytes) -> Any:
        return pyvips.Image.new_from_buffer(content, "", access="sequential").write_to_memory()

    return decode


def _libspng() -> Decoder:
    import pyspng

    return pyspng.load


def _imagecodecs() -> Decoder:
    import imagecodecs

    return imagecodecs.spng_decode


def _skia() -> Decoder:
    import skia

    return lambda content: skia.Image.MakeFromEncoded(skia.Data.MakeWithoutCopy(content)).toarray()


def _torchvision() -> Decoder:
    import torch
    from torchvision.io import ImageReadMode, decode_png

    def decode(content: bytes) -> Any:
        buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return decode_png(buffer, ImageReadMode.RGB)

    return decode


def _opencv() -> Decoder:
    import cv2

    cv2.setNumThreads(1)
    return lambda content: cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
