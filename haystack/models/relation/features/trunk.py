"""A detector's frozen trunk: ResNet and feature pyramid, from pictures to maps P2 to P5."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

import torch
from torch import Tensor, nn
from torchvision.models import resnet50, resnet101
from torchvision.ops import FeaturePyramidNetwork

_RESNETS = {"resnet50": resnet50, "resnet101": resnet101}
_STAGES = ("layer1", "layer2", "layer3", "layer4")
_WIDTHS = [256, 512, 1024, 2048]


class Trunk(nn.Module):
    """ResNet and feature pyramid as in mmdet's and torchvision's detectors; never trained.

    Parameter names are torchvision's, under ``backbone.`` and ``fpn.``. Batch normalisation uses
    the stored statistics, in training as well. Weights are random until
    ``haystack.models.checkpoints.trunk`` or a model file fills them.

    Args:
        name: ``resnet50`` or ``resnet101``.
    """

    channels: ClassVar[int] = 256
    strides: ClassVar[tuple[int, ...]] = (4, 8, 16, 32)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.backbone = _RESNETS[name](weights=None)
        del self.backbone.fc
        self.fpn = FeaturePyramidNetwork(_WIDTHS, self.channels)
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Trunk:
        """Stays in evaluation mode whatever the mode of the model around it."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> list[Tensor]:
        """Maps of a batch of prepared pictures.

        Args:
            images: float32 [B, 3, H, W], see ``prepare_image``.

        Returns:
            P2 to P5, [B, 256, H / stride, W / stride] each.
        """
        net = self.backbone
        maps = net.maxpool(net.relu(net.bn1(net.conv1(images))))
        stages: OrderedDict[str, Tensor] = OrderedDict()
        for stage in _STAGES:
            maps = stages[stage] = getattr(net, stage)(maps)
        return list(self.fpn(stages).values())
