"""Weights of the frozen trunk, from a detector's checkpoint or a classifier's."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from haystack.errors import InputError
from haystack.models.checkpoints.state_dicts import differences, read_state_dict, shapes
from haystack.models.relation.features.trunk import Trunk

logger = logging.getLogger(__name__)

_COUNTER = "num_batches_tracked"


def to_mmdet(name: str) -> str:
    """A trunk tensor's name in checkpoints of mmdet and OpenPSG."""
    block = re.fullmatch(r"fpn\.(inner|layer)_blocks\.(\d)\.0\.(\w+)", name)
    if block is None:
        return name
    kind = "lateral_convs" if block[1] == "inner" else "fpn_convs"
    return f"neck.{kind}.{block[2]}.conv.{block[3]}"


def _to_torchvision(name: str) -> str:
    part, _, rest = name.partition(".")
    return f"backbone.{'body' if part == 'backbone' else part}.{rest}"


@dataclass(frozen=True)
class _Source:
    """Whose checkpoint it is.

    Args:
        mark: some name begins with this in these files, and in no others.
        rename: from a trunk tensor's name to the file's.
        others: beginnings of names that belong to parts the trunk has not.
        has_pyramid: whether the file has one.
    """

    mark: str
    rename: Callable[[str], str]
    others: tuple[str, ...]
    has_pyramid: bool = True


_SOURCES = {
    "mmdet's detectors": _Source(
        "neck.lateral_convs.",
        to_mmdet,
        ("rpn_head.", "roi_head.", "semantic_head.", "panoptic_fusion_head.", "relation_head."),
    ),
    "torchvision's detectors": _Source(
        "backbone.body.", _to_torchvision, ("rpn.head.", "roi_heads.")
    ),
    "torchvision's classifiers": _Source(
        "conv1.", lambda name: name.removeprefix("backbone."), ("fc.",), has_pyramid=False
    ),
}


def load_trunk(trunk: Trunk, path: str | Path | None) -> None:
    """Fill a trunk, in place; nothing is downloaded.

    Args:
        trunk: to be filled.
        path: a file of mmdet's detectors with a feature pyramid (Panoptic FPN, Mask R-CNN,
            OpenPSG's models), of torchvision's (``fasterrcnn_resnet50_fpn``), or of a ResNet
            classifier of torchvision or timm, whose pyramid stays random; None leaves everything
            random. What is random is said in a warning.

    Raises:
        InputError: see ``read_state_dict``; or the file is none of these, or its tensors are not
            exactly the trunk's: every unexpected, missing or misshapen one is named.
    """
    if path is None:
        logger.warning(
            "the trunk has random weights, and stays so: what the model sees of pictures means "
            "little; give a detector's weights"
        )
        return
    tensors = read_state_dict(path)
    source = _source_of(tensors, path)
    ours = {
        name: tensor
        for name, tensor in trunk.state_dict().items()
        if source.has_pyramid or not name.startswith("fpn.")
    }
    came = _with_newer_names(tensors)
    expected = {source.rename(name): shape for name, shape in shapes(ours).items()}
    # Detectors of torchvision keep their statistics without counting the batches behind them.
    required = {k: v for k, v in expected.items() if not k.endswith(_COUNTER) or k in came}
    complaints = differences(
        required, {k: v for k, v in came.items() if not k.startswith(source.others)}
    )
    if complaints:
        raise InputError(
            f"the tensors are not those of the trunk: {'; '.join(complaints)}", path=path
        )
    if not source.has_pyramid:
        logger.warning(
            "%s: a classifier without a feature pyramid; the pyramid's convolutions are random, "
            "and stay so",
            path,
        )
    for name, tensor in ours.items():
        if source.rename(name) in required:
            tensor.copy_(came[source.rename(name)])


def _source_of(tensors: dict[str, Tensor], path: str | Path) -> _Source:
    for source in _SOURCES.values():
        if any(name.startswith(source.mark) for name in tensors):
            return source
    raise InputError(
        f"expected a checkpoint of {', '.join(_SOURCES)}, got tensors named "
        f"{', '.join(list(tensors)[:3])}, ...",
        path=path,
    )


def _with_newer_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pyramid blocks gained a ``.0`` in torchvision 0.14; older files lack it."""
    older = re.compile(r"(.*\.(?:inner|layer)_blocks\.\d)\.(weight|bias)")
    return {older.sub(r"\1.0.\2", name): tensor for name, tensor in tensors.items()}
