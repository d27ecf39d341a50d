"""Running a stage over shards, resumable, on one process, many, or many machines.

An executor knows nothing of what a stage computes: it is handed a job (``base.Job``), and a recipe
by which other processes build the same job (``base.Recipe``).
"""

from __future__ import annotations

from haystack.executors.base import (
    Counts,
    Executor,
    FailedShard,
    Job,
    Outputs,
    Quarantined,
    Recipe,
    RunSummary,
)
from haystack.executors.local import LocalExecutor
from haystack.executors.status import StageStatus, read_status

__all__ = [
    "Counts",
    "Executor",
    "FailedShard",
    "Job",
    "LocalExecutor",
    "Outputs",
    "Quarantined",
    "Recipe",
    "RunSummary",
    "StageStatus",
    "read_status",
]
