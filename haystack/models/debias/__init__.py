"""Against the long tail: what is added to the logits of any relation model.

Importing the package imports no PyTorch; naming a class does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from haystack.models.debias.prior import LogitPrior, PKOPrior, add_prior

__all__ = ["LogitPrior", "PKOPrior", "add_prior"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.prior"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
