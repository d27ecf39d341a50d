"""From tokens to objects: the best tokens become queries, which nine layers refine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from haystack.errors import InputError
from haystack.models.maskdino.boxes_of_masks import BOXES_OF_MASKS
from haystack.models.maskdino.config import HEADS, HIDDEN, MaskDINOConfig
from haystack.models.maskdino.deformable_attention import DeformableAttention
from haystack.models.maskdino.layers import Perceptron
from haystack.models.maskdino.pixel_decoder import DecodedPixels, pixel_centres
from haystack.models.maskdino.positions import embed_boxes, inverse_sigmoid

_COARSEST_SIDE = 0.05  # of a token's first box, as a share of the picture
_MARGIN = 0.01


class DecodedQueries(NamedTuple):
    """Objects, the best token's first.

    Args:
        logits: float [B, Q, classes]; each is a sigmoid's.
        boxes: float [B, Q, 4], centre x, centre y, width, height, shares of the padded picture.
        masks: float [B, Q, 256]; a mask's logits are its products with the mask features.
    """

    logits: Tensor
    boxes: Tensor
    masks: Tensor


class QueryDecoder(nn.Module):
    """Selects queries and refines them; names of parameters are close to upstream's.

    Args:
        config: of the model.
        levels: number of maps.
    """

    def __init__(self, config: MaskDINOConfig, levels: int) -> None:
        super().__init__()
        self.queries = config.queries
        self.boxes_of_masks = BOXES_OF_MASKS.get(config.box_initialisation)
        self.enc_output = nn.Linear(HIDDEN, HIDDEN)
        self.enc_output_norm = nn.LayerNorm(HIDDEN)
        self.class_embed = nn.Linear(HIDDEN, config.classes)
        self.mask_embed = Perceptron(HIDDEN, HIDDEN, HIDDEN, HIDDEN)
        # Quirk: one box head for the tokens and all layers; files hold it under 19 names.
        self.box_embed = Perceptron(HIDDEN, HIDDEN, HIDDEN, 4)
        self.decoder_norm = nn.LayerNorm(HIDDEN)
        self.ref_point_head = Perceptron(2 * HIDDEN, HIDDEN, HIDDEN)
        self.layers = nn.ModuleList(
            _Layer(levels, config.feedforward) for _ in range(config.decoder_layers)
        )

    def forward(self, pixels: DecodedPixels) -> DecodedQueries:
        """Find the objects of each picture.

        Raises:
            InputError: the pictures have fewer tokens than there are queries.
        """
        # Quirk: the coarsest map first here, the finest first in the pixel decoder. The order
        # decides which weights belong to which map, and how large a token's first box is.
        sizes = pixels.sizes[::-1]
        tokens = torch.cat(pixels.levels[::-1], 1)
        states, anchors = self._select(tokens, sizes, pixels.mask_features)
        boxes = before = anchors
        for number, layer in enumerate(self.layers):
            if number:
                # Quirk: boxes inside the loop come from the state as it is, the final one below
                # from the normalised state.
                boxes = (self.box_embed(states) + inverse_sigmoid(boxes)).sigmoid()
            before = boxes
            states = layer(states, self.ref_point_head(embed_boxes(boxes)), boxes, tokens, sizes)
        once = self.decoder_norm(states)
        # Quirk: normalised twice before the class and mask heads, once before the box head.
        twice = self.decoder_norm(once)
        return DecodedQueries(
            self.class_embed(twice),
            (self.box_embed(once) + inverse_sigmoid(before)).sigmoid(),
            self.mask_embed(twice),
        )

    def _select(
        self, tokens: Tensor, sizes: Sequence[tuple[int, int]], mask_features: Tensor
    ) -> tuple[Tensor, Tensor]:
        """States and boxes of the tokens that look most like some class."""
        if tokens.shape[1] < self.queries:
            raise InputError(
                f"MaskDINO chooses {self.queries} queries among a picture's tokens, and this size "
                f"has only {tokens.shape[1]}; enlarge the picture"
            )
        proposals = propose_boxes(sizes, tokens.device)
        usable = proposals.isfinite().all(-1, keepdim=True)
        # Quirk: tokens at the margin are set to zero before the linear map, whose bias they then
        # are; they can be chosen, with a box of infinite logits.
        candidates = self.enc_output_norm(self.enc_output(tokens * usable))
        scores = self.class_embed(candidates).amax(-1)
        # Highest score first. Which of two equal scores comes first is not defined; upstream
        # calls the same function.
        chosen = scores.topk(self.queries, dim=1).indices
        states = candidates.take_along_dim(chosen[..., None], 1)
        if self.boxes_of_masks is None:
            return states, (self.box_embed(states) + proposals[chosen]).sigmoid()
        embedded = self.mask_embed(self.decoder_norm(states))
        masks = torch.einsum("bqc,bchw->bqhw", embedded, mask_features) > 0
        # Quirk: through the logit and back, which cuts boxes off at 1e-5 from the edges.
        return states, inverse_sigmoid(self.boxes_of_masks(masks)).sigmoid()


class _Layer(nn.Module):
    """Attention among queries, to the maps, then a perceptron; norms come after the sums."""

    def __init__(self, levels: int, feedforward: int) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.cross_attn = DeformableAttention(levels)
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.linear1 = nn.Linear(HIDDEN, feedforward)
        self.linear2 = nn.Linear(feedforward, HIDDEN)
        self.norm3 = nn.LayerNorm(HIDDEN)

    def forward(
        self,
        states: Tensor,
        positions: Tensor,
        boxes: Tensor,
        tokens: Tensor,
        sizes: Sequence[tuple[int, int]],
    ) -> Tensor:
        # Quirk: the first norm is called norm2 and the second norm1, because Deformable DETR,
        # from which the layer comes, had the two attentions the other way round.
        placed = states + positions
        seen, _ = self.self_attn(placed, placed, states, need_weights=False)
        states = self.norm2(states + seen)
        seen = self.cross_attn(states + positions, boxes, tokens, sizes)
        states = self.norm1(states + seen)
        return self.norm3(states + self.linear2(self.linear1(states).relu_()))


def propose_boxes(sizes: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """A box around each token, as logits.

    Quirk: its sides are 0.05 of the picture on the coarsest map and twice as large on each *finer*
    one, since levels are counted from the coarsest. Quirk: the box of a token whose centre or side
    is not inside (0.01, 0.99) is infinite.

    Args:
        sizes: of the maps, coarsest first.
        device: where the boxes go.

    Returns:
        float32 [S, 4].
    """
    levels = []
    for level, size in enumerate(sizes):
        centres = pixel_centres(*size, device)
        sides = torch.full_like(centres, _COARSEST_SIDE * 2**level)
        levels.append(torch.cat([centres, sides], -1))
    boxes = torch.cat(levels)
    inside = ((boxes > _MARGIN) & (boxes < 1 - _MARGIN)).all(-1, keepdim=True)
    return torch.logit(boxes).masked_fill(~inside, torch.inf)
