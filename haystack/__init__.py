"""Haystack: find rare predicates in unlabelled images, and measure scene-graph models honestly.

Importing the package imports neither PyTorch nor anything else that is heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Comparison", "Report", "__version__", "compare", "evaluate"]

if TYPE_CHECKING:
    from haystack.evaluation import Comparison, Report, compare, evaluate


def __getattr__(name: str) -> Any:
    if name in ("Comparison", "Report", "compare", "evaluate"):
        from haystack import evaluation

        return getattr(evaluation, name)
    raise AttributeError(f"module 'haystack' has no attribute {name!r}")
