"""IDEA-Research/MaskDINO from a checkout, without detectron2 and without its CUDA operator.

Shells stand for what its modules import: registries, a convolution with norm and activation,
initialisations that given weights overwrite, boxes around masks. The decoders, Swin and the
deformable attention in PyTorch are the checkout's. A ResNet is detectron2's and not in it: ours is
used on both sides.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from drivers.common import shell
from torch import Tensor, nn

from haystack.models.maskdino.config import MaskDINOConfig
from haystack.models.maskdino.network import MaskDINO

_MODELING = "maskdino.modeling"
_NAMES = ("res2", "res3", "res4", "res5")


class _Shape(NamedTuple):
    channels: int
    stride: int


class _Convolution(nn.Conv2d):
    def __init__(self, *sizes: int, norm: Any = None, activation: Any = None, **others: Any):
        super().__init__(*sizes, **others)
        self.norm, self.activation = norm, activation

    def forward(self, maps: Tensor) -> Tensor:
        maps = super().forward(maps)
        maps = maps if self.norm is None else self.norm(maps)
        return maps if self.activation is None else self.activation(maps)


class _Registry:
    def __init__(self, *_: str) -> None:
        pass

    def register(self) -> Callable[[Any], Any]:
        return lambda member: member


class _BitMasks:
    def __init__(self, masks: Tensor) -> None:
        self._masks = masks

    def get_bounding_boxes(self) -> SimpleNamespace:
        boxes = torch.zeros(len(self._masks), 4)
        for box, mask in zip(boxes, self._masks, strict=True):
            rows, columns = mask.nonzero().unbind(1)
            if len(rows):
                corners = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
                box.copy_(torch.stack(corners))
        return SimpleNamespace(tensor=boxes)


class Official(nn.Module):
    """The original's modules under the names of its checkpoints.

    Args:
        checkout: of the original.
        config: what to build.
        resnet: taken as the backbone, if the configuration says ``resnet50``.
    """

    def __init__(self, checkout: Path, config: MaskDINOConfig, resnet: nn.Module | None) -> None:
        super().__init__()
        _shells(checkout)
        swin = config.backbone == "swin_large"
        channels = (192, 384, 768, 1536) if swin else (256, 512, 1024, 2048)
        self.backbone = _swin() if swin else resnet
        self.sem_seg_head = nn.Module()
        self.sem_seg_head.pixel_decoder = _pixel_decoder(config, channels)
        self.sem_seg_head.predictor = _predictor(config, 5 if swin else 4)

    def forward(self, pictures: Tensor) -> dict[str, Tensor]:
        """``pred_logits``, ``pred_masks`` and ``pred_boxes``."""
        maps = self.backbone(pictures)
        named = maps if isinstance(maps, dict) else dict(zip(_NAMES, maps, strict=True))
        head = self.sem_seg_head
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch.meshgrid and torch.cuda.amp
            features, _, levels = head.pixel_decoder.forward_features(named, None)
            found: dict[str, Tensor] = head.predictor(levels, features, None)[0]
        return found


def official_of(checkout: Path, network: MaskDINO) -> Official:
    """The original with the same weights as ours (tensors are shared)."""
    from haystack.models.checkpoints.maskdino import to_official

    config = network.config
    resnet = network.backbone if config.backbone == "resnet50" else None
    original = Official(checkout, config, resnet)
    weights = to_official(network)
    own = {name for name in original.state_dict() if resnet is None or "backbone." not in name}
    theirs = {name: weights[name] for name in own if name in weights}
    missing, unexpected = original.load_state_dict(theirs, strict=False, assign=True)
    wrong = [name for name in missing if name in own and not name.endswith("label_enc.weight")]
    if wrong or unexpected:
        raise SystemExit(f"weights do not fit: missing {wrong}, unexpected {unexpected}")
    return original.eval().requires_grad_(False)


def _pixel_decoder(config: MaskDINOConfig, channels: tuple[int, ...]) -> nn.Module:
    module = importlib.import_module(f"{_MODELING}.pixel_decoder.maskdino_encoder")
    first = 0 if config.backbone == "swin_large" else 1
    shapes = {
        name: _Shape(width, 4 * 2**place)
        for place, (name, width) in enumerate(zip(_NAMES, channels, strict=True))
    }
    decoder: nn.Module = module.MaskDINOEncoder(
        shapes,
        transformer_dropout=0.0,
        transformer_nheads=8,
        transformer_dim_feedforward=config.feedforward,
        transformer_enc_layers=config.encoder_layers,
        conv_dim=256,
        mask_dim=256,
        norm="GN",
        transformer_in_features=list(_NAMES[first:]),
        common_stride=4,
        num_feature_levels=4 - first,
        total_num_feature_levels=5 - first,
        feature_order="low2high",
    )
    return decoder


def _predictor(config: MaskDINOConfig, levels: int) -> nn.Module:
    module = importlib.import_module(f"{_MODELING}.transformer_decoder.maskdino_decoder")
    predictor: nn.Module = module.MaskDINODecoder(
        256,
        True,
        num_classes=config.classes,
        hidden_dim=256,
        num_queries=config.queries,
        nheads=8,
        dim_feedforward=config.feedforward,
        dec_layers=config.decoder_layers,
        mask_dim=256,
        enforce_input_project=False,
        two_stage=True,
        dn="seg",
        noise_scale=0.4,
        dn_num=100,
        initialize_box_type=config.box_initialisation,
        initial_pred=True,
        learn_tgt=False,
        total_num_feature_levels=levels,
    )
    return predictor


def _swin() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of timm.models.layers
        module = importlib.import_module(f"{_MODELING}.backbone.swin")
    swin: nn.Module = module.SwinTransformer(
        embed_dim=192, depths=[2, 2, 18, 2], num_heads=[6, 12, 24, 48], window_size=12
    )
    return swin


def _shells(checkout: Path) -> None:
    def nothing(*_: Any, **__: Any) -> None:
        pass

    def unchanged(member: Any) -> Any:
        return member

    root = checkout / "maskdino"
    shell("fvcore")
    shell("fvcore.nn")
    shell("fvcore.nn.weight_init", c2_xavier_fill=nothing)
    shell("detectron2")
    shell("detectron2.config", configurable=unchanged)
    shell(
        "detectron2.layers",
        Conv2d=_Convolution,
        ShapeSpec=_Shape,
        get_norm=lambda _, width: nn.GroupNorm(32, width),
    )
    shell("detectron2.utils")
    shell("detectron2.utils.registry", Registry=_Registry)
    shell("detectron2.structures", BitMasks=_BitMasks)
    shell(
        "detectron2.modeling",
        SEM_SEG_HEADS_REGISTRY=_Registry(),
        BACKBONE_REGISTRY=_Registry(),
        Backbone=nn.Module,
        ShapeSpec=_Shape,
    )
    # Its attention falls back to PyTorch where the operator fails, which an empty module does.
    shell("MultiScaleDeformableAttention")
    shell("maskdino", root)
    shell(_MODELING, root / "modeling")
    for part in ("pixel_decoder", "transformer_decoder", "backbone"):
        shell(f"{_MODELING}.{part}", root / "modeling" / part)
