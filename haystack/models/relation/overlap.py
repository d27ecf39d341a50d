"""Pairs apart from each other count as not related: a filter around any relation model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from haystack.errors import InputError
from haystack.io.panoptic_png import segment_positions
from haystack.models.relation.answers import ask, ask_on_device
from haystack.models.relation.inputs import PairLogits, RelationLogits, SceneInput, all_pairs
from haystack.models.relation.protocol import RelationModel

Overlap = Literal["boxes", "masks"]
"""When a pair may be related: its boxes share pixels (Zellers et al., 2018; OpenPSG's
``test_overlap``), or its masks, which never share any in a panoptic segmentation, touch."""

OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)

_REACH = 2  # pixels; void seams part segments that touch
_MARGIN = 50.0  # below any other pair in practice; exp(-50) is still an ordinary float32


def overlapping(scene: SceneInput, overlap: Overlap) -> npt.NDArray[np.bool_]:
    """Which objects meet: bool [N, N], symmetric.

    On psg-mini, ``boxes`` keeps 33 % of all pairs and 89 % of those that are related, ``masks``
    24 % and 83 %. Where a scene has no id map, boxes stand for masks.
    """
    if overlap == "boxes" or scene.id_map is None:
        low = np.maximum(scene.boxes[:, None, :2], scene.boxes[None, :, :2])
        high = np.minimum(scene.boxes[:, None, 2:], scene.boxes[None, :, 2:])
        return np.all(high > low, axis=2)
    count = len(scene)
    touches = np.zeros((count + 1, count + 1), dtype=np.bool_)
    number = segment_positions(scene.id_map, scene.segment_ids)  # -1, the last row: no object
    for reach in range(1, _REACH + 1):
        touches[number[:, reach:], number[:, :-reach]] = True
        touches[number[reach:], number[:-reach]] = True
    return (touches | touches.T)[:count, :count]


class OverlapFilter:
    """A relation model whose pairs count as not related unless they overlap.

    It moves the logits of the other pairs against "no relation" and leaves those that overlap as
    they are. Around a model without that output it adds one, which leaves the probabilities of
    overlapping pairs unchanged.

    Args:
        model: any relation model.
        overlap: what counts as overlapping.
    """

    def __init__(self, model: RelationModel, overlap: Overlap = "boxes") -> None:
        if overlap not in OVERLAPS:
            raise InputError(
                f"expected overlap to be one of {', '.join(OVERLAPS)}, got {overlap!r}"
            )
        self.model = model
        self.overlap: Overlap = overlap

    @property
    def reads_images(self) -> bool:
        """Whether the model inside reads pictures."""
        return self.model.reads_images

    @property
    def num_predicates(self) -> int:
        """P, of the model inside."""
        return self.model.num_predicates

    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        """The model's answers, pairs apart from each other pushed to "no relation"."""
        return [
            self._filtered(scene, answer)
            for scene, answer in zip(scenes, ask(self.model, scenes), strict=True)
        ]

    def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
        """As ``predict``, where the model inside leaves its logits."""
        answer = ask_on_device(self.model, scenes)
        meets = [np.empty(0, dtype=np.bool_)]
        for scene in scenes:
            subject, target = all_pairs(len(scene)).T
            meets.append(overlapping(scene, self.overlap)[subject, target])
        together = torch.from_numpy(np.concatenate(meets)).to(answer.logits.device)
        if answer.no_relation is None:
            level = answer.logits.amax(dim=1)
            return replace(answer, no_relation=level + torch.where(together, -_MARGIN, _MARGIN))
        return replace(answer, logits=answer.logits - torch.where(together, 0.0, _MARGIN)[:, None])

    def _filtered(self, scene: SceneInput, answer: RelationLogits) -> RelationLogits:
        subject, target = answer.pairs.T
        meets = overlapping(scene, self.overlap)[subject, target]
        if answer.no_relation is None:
            level = answer.logits.max(axis=1, initial=-np.inf)
            none = np.where(meets, level - _MARGIN, level + _MARGIN)
            return replace(answer, no_relation=none.astype(np.float32))
        logits = answer.logits - np.where(meets, np.float32(0), np.float32(_MARGIN))[:, None]
        return replace(answer, logits=logits)
