"""Annotation of proposals: a store of questions and answers, a page that asks them, labels out.

It imports nothing of Haystack but its errors and files. What it needs of a workspace is handed
in: proposals as records, pictures as a :class:`~haystack.annotate.service.media.Media`, the truth
of a simulated run as a function.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from haystack.annotate.labels import Labels, resolve
    from haystack.annotate.records import VERDICTS, Answer, Progress, Proposal, Purpose, Verdict
    from haystack.annotate.service.app import create_app
    from haystack.annotate.service.media import OVERLAY_PALETTE, Caption, Media
    from haystack.annotate.service.server import serve
    from haystack.annotate.service.site import Site
    from haystack.annotate.simulate import SimulationReport, SteppingClock, answer_from_truth
    from haystack.annotate.store.accounts import Account, Accounts
    from haystack.annotate.store.store import AnnotationStore

_HOMES = {
    "labels": ("Labels", "resolve"),
    "records": ("VERDICTS", "Answer", "Progress", "Proposal", "Purpose", "Verdict"),
    "service.app": ("create_app",),
    "service.media": ("OVERLAY_PALETTE", "Caption", "Media"),
    "service.server": ("serve",),
    "service.site": ("Site",),
    "simulate": ("SimulationReport", "SteppingClock", "answer_from_truth"),
    "store.accounts": ("Account", "Accounts"),
    "store.store": ("AnnotationStore",),
}

__all__ = [
    "OVERLAY_PALETTE",
    "VERDICTS",
    "Account",
    "Accounts",
    "AnnotationStore",
    "Answer",
    "Caption",
    "Labels",
    "Media",
    "Progress",
    "Proposal",
    "Purpose",
    "SimulationReport",
    "Site",
    "SteppingClock",
    "Verdict",
    "answer_from_truth",
    "create_app",
    "resolve",
    "serve",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
