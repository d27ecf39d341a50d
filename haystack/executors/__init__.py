"""Running a stage over shards, resumable: contracts in ``base``, one process in ``local``.

An executor knows nothing of what a stage computes: it is handed a job (``base.Job``).
"""

from __future__ import annotations

from haystack.executors.base import Counts, Job, Outputs, Quarantined, RunSummary
from haystack.executors.local import LocalExecutor
from haystack.executors.status import StageStatus, read_status

__all__ = [
    "Counts",
    "Job",
    "LocalExecutor",
    "Outputs",
    "Quarantined",
    "RunSummary",
    "StageStatus",
    "read_status",
]
