"""Small parts that several modules are made of; names of parameters are upstream's."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class NormedConv(nn.Conv2d):
    """Convolution without bias, then a normalisation over 32 groups of channels.

    Args:
        inputs: channels that come in.
        outputs: channels that go out.
        side: of the kernel; maps keep their size.
    """

    def __init__(self, inputs: int, outputs: int, side: int) -> None:
        super().__init__(inputs, outputs, side, padding=side // 2, bias=False)
        self.norm = nn.GroupNorm(32, outputs)

    def forward(self, maps: Tensor) -> Tensor:
        """Normalised maps [B, outputs, H, W]."""
        return self.norm(super().forward(maps))


class Perceptron(nn.Module):
    """Linear maps with ReLU in between.

    Args:
        widths: of input, of each layer in between, of output.
    """

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))

    def forward(self, values: Tensor) -> Tensor:
        """From [..., first width] to [..., last width]."""
        for layer in self.layers[:-1]:
            values = layer(values).relu_()
        return self.layers[-1](values)
