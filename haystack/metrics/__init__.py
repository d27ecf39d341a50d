"""Metrics of scene-graph models as torchmetrics classes; ``functional`` holds the bare functions.

Importing the package imports no PyTorch; naming a class does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from haystack.metrics.predicates import PredicateAUROC, PredicateDisplacement
    from haystack.metrics.protocols import PROTOCOLS, Protocol, get_protocol
    from haystack.metrics.recall import TripletRecall
    from haystack.metrics.scene_graph import SceneGraphMetrics

_HOMES = {
    "PredicateAUROC": "predicates",
    "PredicateDisplacement": "predicates",
    "TripletRecall": "recall",
    "SceneGraphMetrics": "scene_graph",
    "PROTOCOLS": "protocols",
    "Protocol": "protocols",
    "get_protocol": "protocols",
}

__all__ = [
    "PROTOCOLS",
    "PredicateAUROC",
    "PredicateDisplacement",
    "Protocol",
    "SceneGraphMetrics",
    "TripletRecall",
    "get_protocol",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
