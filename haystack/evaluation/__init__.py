"""From files of annotations and predictions to a report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from haystack.evaluation.benchmark import (
        Benchmark,
        BenchmarkResult,
        leaderboard,
        read_result,
        run_benchmark,
    )
    from haystack.evaluation.comparison import Comparison, compare
    from haystack.evaluation.detectron2 import SceneGraphEvaluator
    from haystack.evaluation.evaluator import evaluate
    from haystack.evaluation.predictions import READERS, PredictionSource, open_predictions
    from haystack.evaluation.report import Report
    from haystack.evaluation.uncertainty import Uncertainty

_HOMES = {
    "Benchmark": "benchmark",
    "BenchmarkResult": "benchmark",
    "leaderboard": "benchmark",
    "read_result": "benchmark",
    "run_benchmark": "benchmark",
    "Comparison": "comparison",
    "compare": "comparison",
    "SceneGraphEvaluator": "detectron2",
    "evaluate": "evaluator",
    "READERS": "predictions",
    "PredictionSource": "predictions",
    "open_predictions": "predictions",
    "Report": "report",
    "Uncertainty": "uncertainty",
}

__all__ = [
    "READERS",
    "Benchmark",
    "BenchmarkResult",
    "Comparison",
    "PredictionSource",
    "Report",
    "SceneGraphEvaluator",
    "Uncertainty",
    "compare",
    "evaluate",
    "leaderboard",
    "open_predictions",
    "read_result",
    "run_benchmark",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
