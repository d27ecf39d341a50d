"""ResNet-50 with frozen batch normalisation, as detectron2 builds it, on torchvision's module."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet50


class FrozenBatchNorm(nn.Module):
    """Batch normalisation whose statistics and scales are constants.

    Args:
        channels: of the maps.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, maps: Tensor) -> Tensor:
        """Normalised maps [B, C, H, W]; epsilon 1e-5 as in detectron2."""
        return F.batch_norm(maps, self.running_mean, self.running_var, self.weight, self.bias)


class ResNet(nn.Module):
    """ResNet-50 without its classifier, the stride of a block in its 3x3 convolution.

    Parameter names are torchvision's.
    """

    channels: ClassVar[tuple[int, ...]] = (256, 512, 1024, 2048)

    def __init__(self) -> None:
        super().__init__()
        net = resnet50(weights=None, norm_layer=FrozenBatchNorm)
        for name, part in net.named_children():
            if name not in ("avgpool", "fc"):
                self.add_module(name, part)

    def forward(self, pictures: Tensor) -> list[Tensor]:
        """Maps at strides 4, 8, 16 and 32 of pictures [B, 3, H, W]."""
        maps, stages = pictures, []
        for name, part in self.named_children():
            maps = part(maps)
            if name.startswith("layer"):
                stages.append(maps)
        return stages
