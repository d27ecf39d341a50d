"""MaskDINO: backbone, pixel decoder, query decoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from haystack.models.maskdino.config import MaskDINOConfig
from haystack.models.maskdino.pixel_decoder import PixelDecoder
from haystack.models.maskdino.query_decoder import QueryDecoder
from haystack.models.maskdino.resnet import ResNet
from haystack.models.maskdino.swin import Swin


@dataclass(frozen=True)
class MaskDINOOutput:
    """Objects found in a batch of B pictures, Q a picture.

    Args:
        logits: float32 [B, Q, classes], of one sigmoid a class.
        boxes: float32 [B, Q, 4], centre x, centre y, width, height, shares of the padded picture.
        mask_embeddings: float32 [B, Q, 256].
        mask_features: float32 [B, 256, H / 4, W / 4].
    """

    logits: Tensor
    boxes: Tensor
    mask_embeddings: Tensor
    mask_features: Tensor

    def mask_logits(self, image: int, queries: Tensor | None = None) -> Tensor:
        """Mask logits of one picture: float32 [N, H / 4, W / 4].

        Most queries find nothing, and a mask is 60,000 numbers: they are only made when asked for.

        Args:
            image: which picture.
            queries: int64 [N] or bool [Q], which of its queries; all if None.
        """
        embeddings = self.mask_embeddings[image]
        if queries is not None:
            embeddings = embeddings[queries]
        return torch.einsum("qc,chw->qhw", embeddings, self.mask_features[image])


class MaskDINO(nn.Module):
    """The model, for inference; random weights until ``haystack.models.checkpoints`` fills them.

    Under ``torch.autocast`` the backbone alone runs at lower precision. Upstream keeps the pixel
    decoder and the decoder's layers in float32 too; its heads it does not, but a score of 8 bits
    cannot tell the best tokens apart.

    Args:
        config: the architecture.
    """

    def __init__(self, config: MaskDINOConfig) -> None:
        super().__init__()
        self.config = config
        resnet = config.backbone == "resnet50"
        self.backbone: ResNet | Swin = ResNet() if resnet else Swin()
        # The pixel decoder's transformer starts at stride 8 on a ResNet, at stride 4 on Swin-L.
        self.pixel_decoder = PixelDecoder(
            self.backbone.channels, int(resnet), config.encoder_layers, config.feedforward
        )
        self.query_decoder = QueryDecoder(config, len(self.pixel_decoder.input_proj))

    def forward(self, pictures: Tensor) -> MaskDINOOutput:
        """Objects of prepared pictures.

        Args:
            pictures: float32 [B, 3, H, W], H and W multiples of 32; see ``preprocessing``.

        Raises:
            InputError: pictures too small to have as many tokens as there are queries.
        """
        maps = [one.float() for one in self.backbone(pictures)]
        with torch.autocast(pictures.device.type, enabled=False):
            pixels = self.pixel_decoder(maps)
            found = self.query_decoder(pixels)
        return MaskDINOOutput(found.logits, found.boxes, found.masks, pixels.mask_features)
