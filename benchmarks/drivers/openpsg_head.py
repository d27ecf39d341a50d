"""The relation heads of Jingkang50/OpenPSG, from a checkout, without mmcv and mmdet.

Shells stand for these two, of which a head needs a base class, a registry and initialisations that
given weights overwrite, and for the download of word vectors. Everything between features and
logits is the checkout's.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from drivers.common import shell
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims

_PACKAGE = "openpsg.models.relation_heads"
HEADS = {
    "vctree": ("vctree_head", "VCTreeHead"),
    "motifs": ("motif_head", "MotifHead"),
    "gpsnet": ("gps_head", "GPSHead"),
    "imp": ("imp_head", "IMPHead"),
}
TASKS = {"predcls": (True, True), "sgcls": (True, False), "sgdet": (False, False)}


def build(checkout: Path, name: str, task: str, dims: HeadDims) -> nn.Module:
    """The original head of this name, set up for a task; its ``side_dim`` is always 128."""
    _shells(checkout)
    given_boxes, given_labels = TASKS[task]
    config = SimpleNamespace(
        use_gt_box=given_boxes,
        use_gt_label=given_labels,
        use_vision=True,
        embed_dim=dims.embed_dim,
        hidden_dim=dims.hidden_dim,
        roi_dim=dims.roi_dim,
        context_pooling_dim=dims.pooling_dim,
        dropout_rate=dims.decoder_dropout,
        context_object_layer=1,
        context_edge_layer=1,
        num_iter=2,
        glove_dir=None,
        causal_effect_analysis=False,
    )
    module, member = HEADS[name]
    head: nn.Module = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), member)(
        object_classes=[""] * dims.num_objects,
        predicate_classes=[""] * dims.num_predicates,
        head_config=config,
        num_classes=dims.num_objects + 1,
        num_predicates=dims.num_predicates + 1,
        loss_object=None,
    )
    return head


def answer_of(
    head: Any, batch: SceneBatch, objects: Tensor, unions: Tensor
) -> tuple[Tensor, Tensor]:
    """Predicate logits of all pairs and object logits of all objects."""
    result = question_of(batch)
    head.frontend_features = lambda *_: (objects, unions, result)
    # A head that is told to test builds no losses.
    result = head(None, None, result, is_testing=True)
    return _joined(result.rel_scores), _joined(result.refine_scores)


def question_of(batch: SceneBatch) -> Any:
    """Objects and pairs of a batch as the original heads take them."""
    first = (torch.tensor(batch.counts).cumsum(0) - torch.tensor(batch.counts)).tolist()
    pairs = batch.pairs.split(batch.pair_counts)
    scores = batch.class_scores
    labels = list((batch.labels + 1).split(batch.counts))
    return SimpleNamespace(
        bboxes=list(batch.boxes.split(batch.counts)),
        labels=labels,
        target_labels=labels,
        target_rel_labels=[torch.zeros(count) for count in batch.pair_counts],
        dists=None if scores is None else list(_with_background(scores).split(batch.counts)),
        img_shape=[tuple(size.tolist()) for size in batch.sizes],
        rel_pair_idxes=[rows - start for rows, start in zip(pairs, first, strict=True)],
    )


def _joined(values: Tensor | Sequence[Tensor]) -> Tensor:
    return values if isinstance(values, Tensor) else torch.cat(tuple(values))


def _with_background(scores: Tensor) -> Tensor:
    return torch.nn.functional.pad(scores, (1, 0))


def _shells(checkout: Path) -> None:
    class BaseModule(nn.Module):
        def __init__(self, init_cfg: Any = None) -> None:
            super().__init__()

    class Registry:
        def register_module(self) -> Any:
            return lambda registered: registered

    shell("mmcv")
    shell("mmcv.cnn", xavier_init=None, normal_init=None, kaiming_init=None)
    shell("mmcv.runner", BaseModule=BaseModule)
    shell("mmdet")
    shell("mmdet.core", bbox2roi=None)
    shell("mmdet.models", HEADS=Registry(), builder=None)
    shell("mmdet.models.losses", accuracy=None)
    for name in ("six", "six.moves", "six.moves.urllib"):
        shell(name)
    shell("six.moves.urllib.request", urlretrieve=None)
    for name in ("openpsg", "openpsg.models", _PACKAGE, f"{_PACKAGE}.approaches"):
        shell(name, checkout.joinpath(*name.split(".")))
    approaches = importlib.import_module(f"{_PACKAGE}.approaches")
    util = importlib.import_module(f"{_PACKAGE}.approaches.motif_util")
    util.obj_edge_vectors = lambda names, wv_dir, wv_dim: torch.randn(len(names), wv_dim)
    for module, member in (
        ("vctree", "VCTreeLSTMContext"),
        ("motif", "LSTMContext"),
        ("dmp", "DirectionAwareMessagePassing"),
        ("imp", "IMPContext"),
    ):
        found = importlib.import_module(f"{_PACKAGE}.approaches.{module}")
        setattr(approaches, member, getattr(found, member))
    approaches.PostProcessor = approaches.RelationSampler = approaches.FrequencyBias = object
    approaches.get_weak_key_rel_labels = None
