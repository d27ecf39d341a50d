"""What Haystack's torchmetrics classes have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from operator import index
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from haystack.errors import InputError
from haystack.metrics.functional.ranking import NEVER
from haystack.metrics.functional.tensors import on_host


class HaystackMetric(Metric):
    """A metric whose states keep their dtype and whose ``update`` never waits for the device.

    Values are checked where that is free: at once on the CPU; on an accelerator bad values are
    counted there and ``compute`` raises.

    Args:
        validate: raise in ``update`` on an accelerator too, which waits for it.
        **kwargs: as for ``torchmetrics.Metric`` (``sync_on_compute``, ``process_group``, ...).
    """

    is_differentiable: bool | None = False
    higher_is_better: bool | None = None
    full_state_update: bool | None = False
    PROBLEMS: ClassVar[tuple[str, ...]] = ("expected finite scores, got NaN or an infinity",)

    problems: Tensor

    def __init__(self, *, validate: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.validate = validate
        self._add_counts("problems", len(self.PROBLEMS))

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the value of ``compute``, or of ``val``; needs matplotlib.

        Args:
            val: what ``compute`` or ``forward`` gave, or a list of such values over time.
            ax: matplotlib axes to draw on.

        Returns:
            A figure and its axes.
        """
        return self._plot(val, ax)

    def _add_counts(self, name: str, *shape: int) -> None:
        """A state of int64 counts that add up over batches and processes."""
        self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    def _distinguish(self, *choices: object) -> None:
        """Keep a ``MetricCollection`` from merging metrics that make other choices.

        It merges metrics whose states are equal after the first batch, which those of different
        metrics are where the batch holds nothing that they count. The choices go into a state.
        """
        digest = hashlib.sha256(repr((type(self).__name__, choices)).encode()).digest()
        state = torch.tensor(list(digest[:16]), dtype=torch.int64)
        self.add_state("choices", state, dist_reduce_fx="max")

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the state of another metric that makes the same choices.

        Raises:
            InputError: it makes other choices, so that its sums mean something else.
        """
        states = (
            incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        )
        self._refuse_other_choices(states.get("choices"))
        super().merge_state(incoming_state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self._refuse_other_choices(state_dict.get(f"{prefix}choices"))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _refuse_other_choices(self, other: Any) -> None:
        own = self._defaults.get("choices")
        if not isinstance(own, Tensor) or not isinstance(other, Tensor):
            return
        if not torch.equal(own.cpu(), other.cpu()):
            raise InputError(
                "the state comes from a metric with another protocol, other cut-offs or other "
                "settings; make this metric with the same"
            )

    def _check(self, flags: Tensor, records: Sequence[str | None]) -> None:
        """Raise if any of ``flags``, bool [problems, records], is set, or note it for later."""
        if self.validate or on_host(flags):
            if bool(flags.any()):
                problem, record = flags.nonzero()[0].tolist()
                raise InputError(self.PROBLEMS[problem], record=records[record])
        else:
            self.problems = self.problems + flags.sum(1)

    def _raise_problems(self) -> None:
        for problem, count in zip(self.PROBLEMS, self.problems.tolist(), strict=True):
            if count:
                raise InputError(
                    f"{problem} (in {count} records since the last reset; "
                    "validate=True names the first)"
                )

    def _wrap_compute(self, compute: Callable) -> Callable:
        # torchmetrics makes a scalar of whatever has one element: values of one predicate would
        # lose their shape [P]. The shapes are kept beside the value that it caches.
        def noting(*args: Any, **kwargs: Any) -> Any:
            value = compute(*args, **kwargs)
            self._shapes = (
                {name: part.shape for name, part in value.items()}
                if isinstance(value, Mapping)
                else value.shape
            )
            return value

        squeezing = super()._wrap_compute(noting)

        @wraps(compute)
        def shaped(*args: Any, **kwargs: Any) -> Any:
            value = squeezing(*args, **kwargs)
            if isinstance(value, Mapping):
                return {name: part.reshape(self._shapes[name]) for name, part in value.items()}
            return value.reshape(self._shapes)

        return shaped

    def _apply(
        self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ""
    ) -> nn.Module:
        # `module.to(torch.bfloat16)` must move the states but never round scores or counts.
        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(keep_dtype, exclude_state)


def mean_of_defined(values: Tensor) -> Tensor:
    """Mean of the entries that are not NaN; NaN if all are."""
    return torch.nanmean(values)


def check_average(average: object) -> None:
    """Raise InputError unless ``average`` is ``"macro"`` or None."""
    if average is not None and average != "macro":
        raise InputError(
            f"expected average='macro' or None for each class or predicate, got {average!r}"
        )


def check_cutoffs(ks: Sequence[int]) -> Tensor:
    """The cut-offs K of a recall, ascending, int64 [K].

    Raises:
        InputError: none, one that is no integer of 1..``NEVER`` - 1, or one twice.
    """
    try:
        cutoffs = sorted(map(index, ks))
    except TypeError:
        cutoffs = []
    if not cutoffs or not 1 <= cutoffs[0] <= cutoffs[-1] < NEVER:
        raise InputError(f"expected cut-offs K, integers from 1 to 2^62 - 1, got {ks!r}")
    if len(set(cutoffs)) != len(cutoffs):
        raise InputError(f"each cut-off K must be given once, got {ks!r}")
    return torch.tensor(cutoffs, dtype=torch.int64)
