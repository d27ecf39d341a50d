"""GPSNet's relation head as OpenPSG trains it (Lin et al., 2020; Yang et al., 2022).

Parameter names and shapes are those of an OpenPSG checkpoint under ``relation_head.``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims, HeadOutput, RelationHead
from haystack.models.relation.heads.objects import (
    box_codes,
    class_table,
    embed_classes,
    position_encoder,
    required,
    rows_of,
)


class GPSNetContext(nn.Module):
    """Direction-aware message passing: every object hears all others of its image, both ways."""

    def __init__(self, dims: HeadDims) -> None:
        super().__init__()
        roi_dim = dims.roi_dim
        half, quarter = max(1, roi_dim // 2), max(1, roi_dim // 4)
        self.obj_embed = class_table(dims)
        self.pos_embed = position_encoder(dims)
        self.ws = nn.Linear(roi_dim, roi_dim)
        self.wo = nn.Linear(roi_dim, roi_dim)
        self.wu = nn.Linear(roi_dim, roi_dim)
        self.w = nn.Linear(roi_dim, 1)
        self.project_input = nn.Sequential(
            nn.Linear(roi_dim + dims.embed_dim + dims.side_dim, roi_dim), nn.ReLU()
        )
        self.trans = nn.Sequential(
            nn.Linear(2 * half, quarter),
            nn.LayerNorm(quarter),
            nn.ReLU(),
            nn.Linear(quarter, roi_dim),
        )
        self.W_t3 = nn.Sequential(nn.Linear(roi_dim, half), nn.ReLU())
        self.out_obj = nn.Linear(roi_dim, dims.num_objects + 1) if dims.classifies_objects else None

    def forward(
        self, batch: SceneBatch, objects: Tensor, unions: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Context of every object, float [N, roi_dim], and its logits where it is classified.

        Args:
            batch: labels or guesses of them, boxes, sizes and pairs.
            objects: float [N, roi_dim].
            unions: float [R, roi_dim].
        """
        embedded = embed_classes(self.obj_embed, batch)
        position = self.pos_embed(box_codes(batch))
        features = self.project_input(torch.cat([objects, embedded, position], dim=1))
        attention = self._attention(batch, features, unions)
        messages = batch.pad(self.W_t3(features))
        heard = torch.cat([attention @ messages, attention.transpose(1, 2) @ messages], dim=2)
        context = F.relu(features + self.trans(heard[batch.present]))
        if batch.class_scores is None:
            return context, None
        return context, required(self.out_obj)(context)

    def _attention(self, batch: SceneBatch, features: Tensor, unions: Tensor) -> Tensor:
        """How much object i hears object j, float [B, n, n]; each row sums to 1, or is empty.

        The sigmoids of a row over their sum. A pair that is not among ``batch.pairs`` has the logit
        0 and not minus infinity, as in training OpenPSG's pairs that were not sampled.
        """
        subject, target = batch.pairs.unbind(1)
        pair = self.wu(unions) * rows_of(self.ws(features), subject)
        pair = pair * rows_of(self.wo(features), target)
        images, size = batch.present.shape
        place = batch.slots[subject] * size + batch.slots[target] % size
        logits = pair.new_zeros(images * size * size).index_put((place,), self.w(pair).squeeze(1))
        itself = torch.eye(size, dtype=torch.bool, device=pair.device)
        heard = batch.present[:, None, :] & ~itself
        # As a softmax of log sigmoids, which no logit can turn into 0 / 0.
        weights = F.logsigmoid(logits.view(images, size, size))
        weights = weights.masked_fill(~heard, torch.finfo(weights.dtype).min)
        return weights.softmax(2) * (heard & batch.present[:, :, None])


class GPSNetHead(RelationHead):
    """Predicate logits of object pairs: subject, object and union feature fused two by two.

    Args:
        dims: sizes.
    """

    def __init__(self, dims: HeadDims) -> None:
        super().__init__()
        self.context_layer = GPSNetContext(dims)
        self.w_proj1 = nn.Linear(dims.roi_dim, dims.roi_dim)
        self.w_proj2 = nn.Linear(dims.roi_dim, dims.roi_dim)
        self.w_proj3 = nn.Linear(dims.roi_dim, dims.roi_dim)
        self.out_rel = nn.Linear(dims.roi_dim, dims.num_predicates + 1)
        self.dropout = nn.Dropout(dims.dropout)

    def forward(self, batch: SceneBatch, objects: Tensor, unions: Tensor) -> HeadOutput:
        """See ``RelationHead``."""
        context, object_logits = self.context_layer(batch, objects, unions)
        subject, target = batch.pairs.unbind(1)
        both = _fuse(
            rows_of(self.w_proj1(context), subject), rows_of(self.w_proj2(context), target)
        )
        pair = self.dropout(_fuse(both, self.w_proj3(unions)))
        return HeadOutput(self.out_rel(pair), object_logits=object_logits)

    def class_embeddings(self) -> Sequence[nn.Embedding]:
        """The only one."""
        return (self.context_layer.obj_embed,)


def _fuse(first: Tensor, second: Tensor) -> Tensor:
    return F.relu(first + second) - (first - second).square()
