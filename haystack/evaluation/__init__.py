"""From files of annotations and predictions to a report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from haystack.evaluation.evaluator import evaluate
    from haystack.evaluation.predictions import READERS, PredictionSource, open_predictions
    from haystack.evaluation.report import Report

_HOMES = {
    "evaluate": "evaluator",
    "READERS": "predictions",
    "PredictionSource": "predictions",
    "open_predictions": "predictions",
    "Report": "report",
}

__all__ = ["READERS", "PredictionSource", "Report", "evaluate", "open_predictions"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
