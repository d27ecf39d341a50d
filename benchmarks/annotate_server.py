"""The annotation service in a process of its own; says its address, then its CPU time on demand.

    python benchmarks/annotate_server.py DATABASE PROPOSALS [WORKSPACE]

Loads the queue, prints the address, and serves until SIGTERM. Every line on stdin is answered by
the CPU seconds so far.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from fastapi import FastAPI, Request

from haystack.annotate.records import Proposal
from haystack.annotate.service.app import create_app
from haystack.annotate.service.identity import Annotator, identify
from haystack.annotate.service.media import Caption, Media
from haystack.annotate.service.server import serve
from haystack.annotate.store.store import AnnotationStore

PREDICATES = 56
_PAIRS_AN_IMAGE = 20


def proposals(count: int, image: str = "image{}.jpg") -> list[Proposal]:
    """A queue of as many predicates as PSG has, 20 pairs an image, as many of each predicate."""
    return [
        Proposal(
            image_id=str(number // _PAIRS_AN_IMAGE),
            subject=number % _PAIRS_AN_IMAGE,
            object=_PAIRS_AN_IMAGE,
            predicate=number % PREDICATES,
            image_key=image.format(number // _PAIRS_AN_IMAGE),
            score=-float(number // PREDICATES),
            cluster=number % 50,
            rank=number // PREDICATES,
        )
        for number in range(count)
    ]


class _NoMedia:
    """Names, and no pictures: the parts about answers ask for none."""

    def image(self, image_key: str) -> tuple[bytes, str]:
        raise NotImplementedError

    def overlay(self, image_key: str, subject: int, object: int) -> bytes:
        raise NotImplementedError

    def caption(self, proposal: Proposal) -> Caption:
        return Caption(f"class {proposal.subject}", f"class {proposal.object}")


def main() -> None:
    database, count = sys.argv[1], int(sys.argv[2])
    media: Media = _NoMedia()
    queue = proposals(count)
    if len(sys.argv) > 3:
        media, queue = _of_workspace(Path(sys.argv[3]))
    names = [f"predicate {number}" for number in range(PREDICATES)]

    def report() -> None:
        for _ in sys.stdin:
            print(time.process_time(), flush=True)

    with AnnotationStore(database) as store:
        store.load_proposals(queue, round=0)
        threading.Thread(target=report, daemon=True).start()
        app = create_app(store, media, names, parts=[_trust_names])
        serve(app, port=0, announce=lambda url: print(url, flush=True))


def _trust_names(app: FastAPI) -> None:
    """Let annotators be told apart without tokens, whose check is not what is measured."""

    def named(request: Request) -> Annotator:
        return Annotator(request.headers.get("x-annotator", "annotator"), "annotator")

    app.dependency_overrides[identify] = named


def _of_workspace(root: Path) -> tuple[Media, list[Proposal]]:
    from haystack.pipeline.media import WorkspaceMedia
    from haystack.pipeline.workspace import Workspace

    workspace = Workspace.open(root)

    class CampaignMedia(WorkspaceMedia):
        def caption(self, proposal: Proposal) -> Caption:
            return Caption(*self.class_names(proposal.image_key, proposal.subject, proposal.object))

    (image,) = workspace.source.keys()
    asked = [
        Proposal("1", subject, object_, predicate, image, 0.0, 0, 0)
        for predicate in range(PREDICATES)
        for subject in range(4)
        for object_ in range(4)
        if subject != object_
    ]
    return CampaignMedia(workspace), asked


if __name__ == "__main__":
    main()
