"""The disagreements page: a lead settles what annotators dispute, and names gold items."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI, Path
from pydantic import BaseModel, ConfigDict, Field

from haystack.annotate.records import Dispute, Purpose, Verdict
from haystack.annotate.service.identity import Lead, lead_only
from haystack.annotate.service.messages import KEY, Question
from haystack.annotate.service.pages import add_page
from haystack.annotate.service.questions import Desk
from haystack.annotate.store.store import AnnotationStore

_DECISIONS: tuple[Purpose, ...] = ("adjudication",)
_MOST = 200
"""Disputes that the page gets at a time; what is left comes when it is loaded again."""


class Vote(BaseModel):
    """What one annotator said."""

    annotator: str
    verdict: Verdict


class Disputed(BaseModel):
    """A question that annotators answered differently."""

    question: Question
    votes: list[Vote]
    is_tied: bool = Field(description="As many said yes as said no; else the majority is right.")
    gold: Verdict | None = Field(description="Its true answer, where it is a gold item.")


class DisputeList(BaseModel):
    """What there is to settle, ties first."""

    disputes: list[Disputed]
    more: bool = Field(description="Whether there are further ones.")


class Decision(BaseModel):
    """What a lead decides."""

    model_config = ConfigDict(extra="forbid", strict=True)

    verdict: Verdict = Field(description="Any but skip.")
    key: str = KEY


class UndoneDecision(BaseModel):
    """Take the latest decision back."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = KEY


class GoldChoice(BaseModel):
    """Make a question a gold item, or an ordinary one again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    verdict: Verdict | None = Field(description="Its true answer; null for an ordinary question.")


ProposalId = Annotated[str, Path(pattern="^[0-9a-f]{20}$")]


def add_disagreements(app: FastAPI, store: AnnotationStore, desk: Desk) -> None:
    """Add the page at ``/disagreements`` and its routes, which are for leads.

    Args:
        app: the application.
        store: the campaign's store.
        desk: turns proposals into what a page shows.
    """
    add_page(app, "/disagreements", "disagreements.html")
    only_leads = [Depends(lead_only)]

    def shown(disputes: list[Dispute]) -> list[Disputed]:
        names = desk.names.current()
        gold = {item.proposal.id: item.verdict for item in store.gold_items()}
        return [
            Disputed(
                question=desk.question(dispute.proposal, names[dispute.proposal.predicate]),
                votes=[Vote(annotator=who, verdict=said) for who, said in dispute.votes],
                is_tied=dispute.is_tied,
                gold=gold.get(dispute.proposal.id),
            )
            for dispute in disputes
        ]

    @app.get("/api/disagreements", dependencies=only_leads)
    def get_disagreements() -> DisputeList:
        """What annotators dispute and no lead has settled, ties first."""
        found = store.disagreements(_MOST + 1)
        return DisputeList(disputes=shown(found[:_MOST]), more=len(found) > _MOST)

    @app.post("/api/disagreements/{proposal_id}/decision")
    def post_decision(lead: Lead, proposal_id: ProposalId, decision: Decision) -> None:
        """Settle a question; the decision outweighs every vote."""
        store.adjudicate(proposal_id, decision.verdict, lead.name, decision.key)

    @app.post("/api/disagreements/undo", dependencies=only_leads)
    def post_undo(lead: Lead, undo: UndoneDecision) -> str | None:
        """Take one's latest decision back; the id of its question, null if there is none."""
        undone = store.undo(lead.name, undo.key, purposes=_DECISIONS)
        return None if undone is None else undone.id

    @app.put("/api/gold/{proposal_id}")
    def put_gold(lead: Lead, proposal_id: ProposalId, choice: GoldChoice) -> None:
        """Hide a question among others to measure annotators by it, or ask it as before."""
        if choice.verdict is None:
            store.remove_gold(proposal_id, lead.name)
        else:
            store.set_gold({proposal_id: choice.verdict}, lead.name)
