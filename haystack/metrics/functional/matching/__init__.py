"""Which predicted object is which annotated object: overlaps, and the rules that decide.

``pairs`` lays out the tables of a batch, ``id_maps``, ``masks`` and ``boxes`` fill them with
overlaps, ``rules`` reads matches off them. ``phrases`` compares subject and object taken together.
"""

from __future__ import annotations

from haystack.metrics.functional.matching.boxes import box_iou, improper_boxes
from haystack.metrics.functional.matching.id_maps import id_map_overlaps, repeated_ids
from haystack.metrics.functional.matching.masks import decode_rle, mask_overlaps, rle_iou
from haystack.metrics.functional.matching.pairs import ObjectPairs, Overlaps, object_pairs
from haystack.metrics.functional.matching.phrases import phrase_mask_iou, union_boxes
from haystack.metrics.functional.matching.rules import (
    RULES,
    Matches,
    MatchRule,
    match_objects,
    same_class,
)

__all__ = [
    "RULES",
    "MatchRule",
    "Matches",
    "ObjectPairs",
    "Overlaps",
    "box_iou",
    "decode_rle",
    "id_map_overlaps",
    "improper_boxes",
    "mask_overlaps",
    "match_objects",
    "object_pairs",
    "phrase_mask_iou",
    "repeated_ids",
    "rle_iou",
    "same_class",
    "union_boxes",
]
