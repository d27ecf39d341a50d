"""Metrics as pure tensor functions: no state, no files, any device, no wait for the device.

Inputs are flat: the pairs of all images of a batch in one tensor, an index says which image each
belongs to. Nothing is padded, and nothing loops over images, pairs, predicates or K.
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
from haystack.metrics.functional.ranking import (
    NEVER,
    TripletRanks,
    predicate_ranks,
    ranks_of,
    relation_probabilities,
    triplet_ranks,
)
from haystack.metrics.functional.recall import grouped_recall, mean_recall

__all__ = [
    "NEVER",
    "TripletRanks",
    "discrimination_disadvantage_from_histogram",
    "dominance_overestimation_from_histogram",
    "grouped_recall",
    "mean_recall",
    "predicate_auroc",
    "predicate_auroc_of_samples",
    "predicate_discrimination_disadvantage",
    "predicate_dominance_overestimation",
    "predicate_ranks",
    "rank_histogram",
    "ranks_of",
    "relation_probabilities",
    "triplet_ranks",
]
