"""Metrics as pure tensor functions: no state, no files, any device, no wait for the device.

Inputs are flat: the pairs of all images of a batch in one tensor, an index says which image each
belongs to. Nothing is padded, and nothing loops over images, pairs, predicates or K; only id maps
and masks, which differ in size from image to image, are taken one image at a time.
"""

from __future__ import annotations

from haystack.metrics.functional.auroc import predicate_auroc, predicate_auroc_of_samples
from haystack.metrics.functional.displacement import (
    discrimination_disadvantage_from_histogram,
    dominance_overestimation_from_histogram,
    predicate_discrimination_disadvantage,
    predicate_dominance_overestimation,
    rank_histogram,
)
from haystack.metrics.functional.matching import (
    RULES,
    Matches,
    MatchRule,
    ObjectPairs,
    Overlaps,
    box_iou,
    id_map_overlaps,
    mask_overlaps,
    match_objects,
    object_pairs,
    rle_iou,
)
from haystack.metrics.functional.orders import (
    FirstHits,
    TripletRanks,
    annotated_pair_ranks,
    hits_of_rows,
    independent_ranks,
    triplet_ranks,
)
from haystack.metrics.functional.panoptic_quality import (
    PanopticCounts,
    Qualities,
    panoptic_counts,
    panoptic_quality,
    panoptic_rows,
)
from haystack.metrics.functional.ranking import (
    NEVER,
    predicate_ranks,
    ranks_of,
    relation_probabilities,
)
from haystack.metrics.functional.recall import (
    diversity_weighted_mean,
    frequency_weighted_recall,
    grouped_hits,
    instance_recall,
    instance_recall_rows,
    mean_predicate_rank,
    mean_recall,
    predicate_groups,
    reachable_ranks,
    recall_shares,
)
from haystack.metrics.functional.streaming_auroc import (
    BinnedAUROC,
    auroc_from_histogram,
    score_histogram,
)

__all__ = [
    "NEVER",
    "RULES",
    "BinnedAUROC",
    "FirstHits",
    "MatchRule",
    "Matches",
    "ObjectPairs",
    "Overlaps",
    "PanopticCounts",
    "Qualities",
    "TripletRanks",
    "annotated_pair_ranks",
    "auroc_from_histogram",
    "box_iou",
    "discrimination_disadvantage_from_histogram",
    "diversity_weighted_mean",
    "dominance_overestimation_from_histogram",
    "frequency_weighted_recall",
    "grouped_hits",
    "hits_of_rows",
    "id_map_overlaps",
    "independent_ranks",
    "instance_recall",
    "instance_recall_rows",
    "mask_overlaps",
    "match_objects",
    "mean_predicate_rank",
    "mean_recall",
    "object_pairs",
    "panoptic_counts",
    "panoptic_quality",
    "panoptic_rows",
    "predicate_auroc",
    "predicate_auroc_of_samples",
    "predicate_discrimination_disadvantage",
    "predicate_dominance_overestimation",
    "predicate_groups",
    "predicate_ranks",
    "rank_histogram",
    "ranks_of",
    "reachable_ranks",
    "recall_shares",
    "relation_probabilities",
    "rle_iou",
    "score_histogram",
    "triplet_ranks",
]
