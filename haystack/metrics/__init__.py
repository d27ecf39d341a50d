"""Metrics of scene-graph models as torchmetrics classes; ``functional`` holds the bare functions.

Importing the package imports no PyTorch; naming a class does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from haystack.metrics.kinds import METRICS, RECALLS
    from haystack.metrics.panoptic_quality import PanopticQuality
    from haystack.metrics.predicates import PredicateAUROC, PredicateDisplacement
    from haystack.metrics.protocols import PROTOCOLS, Protocol, get_protocol
    from haystack.metrics.recall import (
        IndependentRecall,
        InstanceRecall,
        PairRecall,
        PredicateRank,
        TripletRecall,
        WeightedTripletRecall,
        ZeroShotRecall,
    )
    from haystack.metrics.scene_graph import SceneGraphMetrics

_HOMES = {
    "PanopticQuality": "panoptic_quality",
    "PredicateAUROC": "predicates",
    "PredicateDisplacement": "predicates",
    "METRICS": "kinds",
    "RECALLS": "kinds",
    "IndependentRecall": "recall",
    "InstanceRecall": "recall",
    "PairRecall": "recall",
    "PredicateRank": "recall",
    "TripletRecall": "recall",
    "WeightedTripletRecall": "recall",
    "ZeroShotRecall": "recall",
    "SceneGraphMetrics": "scene_graph",
    "PROTOCOLS": "protocols",
    "Protocol": "protocols",
    "get_protocol": "protocols",
}

__all__ = [
    "METRICS",
    "PROTOCOLS",
    "RECALLS",
    "IndependentRecall",
    "InstanceRecall",
    "PairRecall",
    "PanopticQuality",
    "PredicateAUROC",
    "PredicateDisplacement",
    "PredicateRank",
    "Protocol",
    "SceneGraphMetrics",
    "TripletRecall",
    "WeightedTripletRecall",
    "ZeroShotRecall",
    "get_protocol",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
