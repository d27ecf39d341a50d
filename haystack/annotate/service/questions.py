"""The questions of a campaign: what is asked next, answers, undoing, and how far it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated
from urllib.parse import urlencode

from fastapi import FastAPI, Query

from haystack.annotate.records import Claim, Proposal
from haystack.annotate.service.errors import OtherAnnotatorError, OtherCampaignError
from haystack.annotate.service.identity import Annotator, Asker
from haystack.annotate.service.media import Media
from haystack.annotate.service.messages import (
    Addressed,
    AnswerRequest,
    CampaignProgress,
    PredicateProgress,
    Question,
    Queue,
    ReleaseRequest,
    Undone,
    UndoRequest,
)
from haystack.annotate.store.store import AnnotationStore
from haystack.annotate.store.wordings import PredicateName, PredicateNames
from haystack.errors import InputError


class Desk:
    """Turns proposals into what the page shows.

    Args:
        store: the campaign's store.
        media: names of classes.
        names: what predicates are called for annotators, and what their help texts say; a lead
            may change them at any time.
        version: of the media; part of their URLs.
        ahead: how many questions a queue holds.
    """

    def __init__(
        self,
        store: AnnotationStore,
        media: Media,
        names: PredicateNames,
        version: str,
        ahead: int,
    ) -> None:
        self.store = store
        self.media = media
        self.names = names
        self.version = version
        self.ahead = ahead

    def question(self, proposal: Proposal, given: PredicateName) -> Question:
        """A proposal with its names and the addresses of its pictures.

        Args:
            proposal: what is asked.
            given: what its predicate is called now.
        """
        caption = self.media.caption(proposal)
        image = urlencode({"key": proposal.image_key, "v": self.version})
        overlay = urlencode({"proposal": proposal.id, "v": self.version})
        return Question(
            id=proposal.id,
            image_id=proposal.image_id,
            subject=proposal.subject,
            object=proposal.object,
            predicate=proposal.predicate,
            subject_name=caption.subject,
            object_name=caption.object,
            predicate_name=given.name,
            help=given.help,
            image_url=f"/media/image?{image}",
            overlay_url=f"/media/overlay?{overlay}",
            origin=proposal.origin,
        )

    def claim(self, predicate: int, annotator: str) -> Queue:
        """Hand out what an annotator is asked next about a predicate.

        Raises:
            InputError: the vocabulary has no such predicate.
        """
        if predicate >= len(self.names):
            raise InputError(
                f"expected a predicate below {len(self.names)}, got {predicate}; "
                "load the page again"
            )
        return self.queue(predicate, self.store.claim(predicate, annotator, self.ahead))

    def queue(self, predicate: int, claim: Claim) -> Queue:
        """What was handed out, with names and pictures."""
        given = self.names.current()[predicate]
        return Queue(
            predicate=predicate,
            questions=[self.question(proposal, given) for proposal in claim.questions],
            held=claim.held,
            free_in=claim.free_in,
        )

    def progress(self, annotator: str) -> CampaignProgress:
        """Counts of every predicate that has proposals."""
        rows = self.store.progress(annotator).values()
        names = self.names.current()
        return CampaignProgress(
            campaign=self.store.campaign,
            annotator=annotator,
            predicates=[
                PredicateProgress(name=names[row.predicate].name, **asdict(row)) for row in rows
            ],
        )

    def check_addressee(self, message: Addressed, asker: Annotator) -> None:
        """Refuse what was meant for another campaign or comes from somebody else's page."""
        check_addressee(message, self.store.campaign, asker)


def check_addressee(message: Addressed, campaign: str, asker: Annotator) -> None:
    """Refuse what a page sends that was opened for another campaign or by somebody else.

    Args:
        message: what it sends.
        campaign: the one that is served.
        asker: who is logged in.

    Raises:
        OtherCampaignError: the page was opened for another campaign.
        OtherAnnotatorError: somebody else was logged in when it was opened.
    """
    if message.campaign is not None and message.campaign != campaign:
        raise OtherCampaignError(
            "this address serves another campaign now; start the service of the campaign that "
            "this page was opened for, or load the page again"
        )
    if message.annotator is not None and message.annotator != asker.name:
        raise OtherAnnotatorError(
            f"this page was opened by {message.annotator[:40]!r}, and {asker.name!r} is logged in "
            f"now; what it holds is saved when {message.annotator[:40]!r} logs in again"
        )


def add_questions(app: FastAPI, desk: Desk) -> None:
    """Add the routes of the page that asks."""

    @app.get("/api/next")
    def get_next(asker: Asker, predicate: Annotated[int, Query(ge=0, lt=2**31)]) -> Queue:
        """The next questions about a predicate, first one first."""
        return desk.claim(predicate, asker.name)

    @app.post("/api/answer")
    def post_answer(asker: Asker, answer: AnswerRequest) -> Queue:
        """Save an answer; gives the next questions about the same predicate."""
        desk.check_addressee(answer, asker)
        saved, claim = desk.store.answer_and_claim(
            answer.proposal_id,
            answer.verdict,
            asker.name,
            answer.key,
            answer.dwell_ms,
            limit=desk.ahead,
        )
        return desk.queue(saved.proposal.predicate, claim)

    @app.post("/api/undo")
    def post_undo(asker: Asker, undo: UndoRequest) -> Undone:
        """Retract one's latest answer; can be repeated until none is left."""
        desk.check_addressee(undo, asker)
        proposal = desk.store.undo(asker.name, undo.key)
        if proposal is None:
            return Undone(undone=None, queue=None)
        queue = desk.claim(proposal.predicate, asker.name)
        given = desk.names.current()[proposal.predicate]
        return Undone(undone=desk.question(proposal, given), queue=queue)

    @app.post("/api/release", status_code=204)
    def post_release(asker: Asker, release: ReleaseRequest | None = None) -> None:
        """Let others have questions that one holds, as when a page is closed."""
        desk.store.release(asker.name, None if release is None else release.proposals)

    @app.get("/api/progress")
    def get_progress(asker: Asker) -> CampaignProgress:
        """Counts of every predicate that has proposals."""
        return desk.progress(asker.name)
