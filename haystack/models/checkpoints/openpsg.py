"""Relation models of OpenPSG (Yang et al., 2022), as its checkpoints hold them.

Two-stage models with a ResNet-50 or -101: VCTree, MOTIFS, GPSNet and IMP, for PredCls and SGDet
alike. The detector's own heads (proposals, boxes, masks, stuff) take no part where objects are
given; they are checked as strictly as the rest, and set aside.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.models.checkpoints.state_dicts import differences, read_state_dict, shapes
from haystack.models.checkpoints.trunk import to_mmdet
from haystack.models.relation.config import RelationModelConfig
from haystack.models.relation.network import RelationNetwork
from haystack.vocabulary import Vocabulary, psg_vocabulary

logger = logging.getLogger(__name__)

_HEAD = "relation_head."
_CONTEXT = f"{_HEAD}context_layer."

# What only one head has.
_MARKS = {
    "vctree": f"{_CONTEXT}obj_ctx_rnn.multi_layer_lstm.",
    "motifs": f"{_CONTEXT}lin_obj_h.",
    "gpsnet": f"{_CONTEXT}w.",
    "imp": f"{_CONTEXT}edge_gru.",
}
_DEEPER = "backbone.layer3.6."

OPENPSG = RelationModelConfig(
    features="visual",
    embeddings="learned",
    embed_dim=200,
    roi_dim=1024,
    hidden_dim=512,
    pooling_dim=4096,
    side_dim=128,
    dropout=0.0,
    norm_momentum=0.001,
    openpsg_quirks=True,
    classifies_objects=True,
)
"""The architecture of OpenPSG's configurations, VCTree on a ResNet-50."""

# Where a file of other widths shows them: names below relation_head., and the axis.
_WIDTHS = {
    "embed_dim": (("context_layer.obj_embed1.weight", 1), ("context_layer.obj_embed.weight", 1)),
    "roi_dim": (("bbox_roi_extractor.visual_bbox_head.2.bias", 0),),
    "hidden_dim": (
        ("context_layer.score_pre.bias", 0),
        ("context_layer.lin_obj_h.bias", 0),
        ("context_layer.obj_unary.bias", 0),
    ),
    "pooling_dim": (("post_cat.bias", 0),),
    "side_dim": (("context_layer.pos_embed.2.bias", 0),),
}
# A relation's logits: one more than predicates.
_PREDICATES = ("rel_compress.bias", "out_rel.bias", "context_layer.rel_fc.bias")


@dataclass(frozen=True)
class OpenPSGModel:
    """A checkpoint as a model.

    Args:
        network: ready for prediction.
        set_aside: names of the tensors of the detector's own heads.
    """

    network: RelationNetwork
    set_aside: tuple[str, ...]


def load_openpsg(path: str | Path, vocabulary: Vocabulary | None = None) -> OpenPSGModel:
    """Read a checkpoint of OpenPSG; head, depth and widths are those of its tensors.

    Args:
        path: a ``.pth`` file, or see ``read_state_dict``.
        vocabulary: the names of its classes; by default PSG's.

    Raises:
        InputError: see ``read_state_dict`` and ``from_state_dict``.
    """
    return from_state_dict(read_state_dict(path), vocabulary or psg_vocabulary(), path=path)


def from_state_dict(
    tensors: Mapping[str, Tensor], vocabulary: Vocabulary, *, path: str | Path | None = None
) -> OpenPSGModel:
    """A model that holds these very tensors (not copies, where they are float32 already).

    Args:
        tensors: OpenPSG's state dict.
        vocabulary: the names of its classes.
        path: named in errors.

    Raises:
        InputError: none of the four heads, or not exactly the tensors of its model: names every
            one that is missing, unexpected or misshapen.
    """
    config = replace(OPENPSG, head=_head_of(tensors, path), trunk=_trunk_of(tensors))
    set_aside = _detector_heads(vocabulary)
    # Own widths are only believed where they explain more tensors than OpenPSG's: one misshapen
    # tensor must not be taken for the measure of all others.
    tried = []
    own = _with_own_widths(config, tensors)
    for candidate in [config] if own == config else [config, own]:
        with torch.device("meta"):
            network = RelationNetwork(candidate, vocabulary)
        expected = shapes({_foreign(k): v for k, v in network.state_dict().items()})
        tried.append((differences({**expected, **set_aside}, tensors), network))
    complaints, network = min(tried, key=lambda one: len(one[0]))
    if complaints:
        raise InputError(
            f"not the tensors of OpenPSG's {config.head} on a {config.trunk}: "
            f"{'; '.join(complaints)}{_vocabulary_hint(tensors, vocabulary)}",
            path=path,
        )
    weights = {
        name: tensors[_foreign(name)].to(empty.dtype)
        for name, empty in network.state_dict().items()
    }
    _warn_of_copies(network, weights, path)
    network.load_state_dict(weights, assign=True)
    return OpenPSGModel(network.eval(), tuple(set_aside))


def _warn_of_copies(
    network: RelationNetwork, weights: Mapping[str, Tensor], path: str | Path | None
) -> None:
    """Say where a file contradicts itself: two copies of what is one tensor in the model.

    The model has the later one, as OpenPSG's has: there too both names lead to one parameter, and
    a state dict is copied into it name after name, in the order in which modules were made.
    """
    first: dict[int, str] = {}
    for name, parameter in network.state_dict(keep_vars=True).items():
        other = first.setdefault(id(parameter), name)
        if other != name and not torch.equal(weights[other], weights[name]):
            logger.warning(
                "%s%s and %s are one tensor in the model and two different ones here; the second "
                "is used, as in OpenPSG",
                "" if path is None else f"{path}: ",
                _foreign(other),
                _foreign(name),
            )


def _foreign(name: str) -> str:
    """A tensor's name in OpenPSG's files, from its name in a ``RelationNetwork``."""
    part, _, rest = name.partition(".")
    if part == "features" and rest.startswith("trunk."):
        return to_mmdet(rest.removeprefix("trunk."))
    return f"{_HEAD}{rest}"


def _head_of(tensors: Mapping[str, Tensor], path: str | Path | None) -> str:
    for head, mark in _MARKS.items():
        if any(name.startswith(mark) for name in tensors):
            return head
    if not any(name.startswith(_HEAD) for name in tensors):
        raise InputError(
            f"expected a relation model of OpenPSG, got no tensor under {_HEAD}; what "
            "Haystack trained needs no conversion, and a detector alone can be the trunk of a "
            "model in training (init_trunk)",
            path=path,
        )
    raise InputError(
        f"expected one of OpenPSG's two-stage models ({', '.join(_MARKS)}), got another "
        "relation head",
        path=path,
    )


def _trunk_of(tensors: Mapping[str, Tensor]) -> str:
    deeper = any(name.startswith(_DEEPER) for name in tensors)
    return "resnet101" if deeper else "resnet50"


def _with_own_widths(
    config: RelationModelConfig, tensors: Mapping[str, Tensor]
) -> RelationModelConfig:
    widths = asdict(config)
    for width, places in _WIDTHS.items():
        for name, axis in places:
            tensor = tensors.get(f"{_HEAD}{name}")
            if tensor is not None and tensor.ndim > axis and tensor.shape[axis]:
                widths[width] = tensor.shape[axis]
    try:
        return RelationModelConfig(**widths)
    except InputError:  # an odd width: a misshapen tensor, which will be named
        return config


def _vocabulary_hint(tensors: Mapping[str, Tensor], vocabulary: Vocabulary) -> str:
    for name in _PREDICATES:
        tensor = tensors.get(f"{_HEAD}{name}")
        if tensor is not None and tensor.ndim and len(tensor) != vocabulary.num_predicates + 1:
            return (
                f"; it seems to have {len(tensor) - 1} predicates, the vocabulary "
                f"{vocabulary.num_predicates}: give the vocabulary that it was trained with"
            )
    return ""


def _detector_heads(vocabulary: Vocabulary) -> dict[str, tuple[int, ...]]:
    """Names and shapes of Panoptic FPN's heads, which are set aside."""
    things, stuff = len(vocabulary.thing_classes), len(vocabulary.stuff_classes)
    weights: dict[str, tuple[int, ...]] = {
        "rpn_head.rpn_conv": (256, 256, 3, 3),
        "rpn_head.rpn_cls": (3, 256, 1, 1),
        "rpn_head.rpn_reg": (12, 256, 1, 1),
        "roi_head.bbox_head.fc_cls": (things + 1, 1024),
        "roi_head.bbox_head.fc_reg": (4 * things, 1024),
        "roi_head.bbox_head.shared_fcs.0": (1024, 256 * 7 * 7),
        "roi_head.bbox_head.shared_fcs.1": (1024, 1024),
        **{f"roi_head.mask_head.convs.{i}.conv": (256, 256, 3, 3) for i in range(4)},
        "roi_head.mask_head.upsample": (256, 256, 2, 2),
        "roi_head.mask_head.conv_logits": (things, 256, 1, 1),
        "semantic_head.conv_logits": (stuff + 1, 128, 1, 1),
    }
    heads: dict[str, tuple[int, ...]] = {}
    for name, shape in weights.items():
        heads[f"{name}.weight"] = shape
        # A transposed convolution stores its inputs first; all others the outputs.
        heads[f"{name}.bias"] = (shape[0],)
    # Level 0 has one convolution, level n > 0 has n; only the first of a level sees the pyramid.
    for level in range(4):
        for number in range(max(level, 1)):
            layer = f"semantic_head.conv_upsample_layers.{level}.conv.{number}"
            heads[f"{layer}.conv.weight"] = (128, 128 if number else 256, 3, 3)
            heads[f"{layer}.gn.weight"] = heads[f"{layer}.gn.bias"] = (128,)
    return heads
