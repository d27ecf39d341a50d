"""What the page and the service say to each other; the OpenAPI schema follows from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from haystack.annotate.records import Verdict
from haystack.annotate.store.accounts import Role

KEY = Field(
    pattern=r"^[A-Za-z0-9._:-]{1,128}$",
    description="Idempotency key: a request that is repeated under the same key changes nothing.",
)


_CAMPAIGN = Field(
    default=None,
    max_length=64,
    description="The campaign it is meant for; 421 if the service serves another one by now.",
)


_WHOSE = Field(
    default=None,
    max_length=200,
    description="Whose page sends it; 421 if somebody else is logged in by now. Answers are saved "
    "under the name of who is logged in, whatever stands here.",
)


class Addressed(BaseModel):
    """What a page sends to be saved: once, for its campaign, by whom it was opened."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = KEY
    campaign: str | None = _CAMPAIGN
    annotator: str | None = _WHOSE


class AnswerRequest(Addressed):
    """One answer."""

    proposal_id: str = Field(pattern="^[0-9a-f]{20}$")
    verdict: Verdict
    dwell_ms: int | None = Field(
        default=None, ge=0, lt=2**31, description="From picture shown to answer, milliseconds."
    )


class UndoRequest(Addressed):
    """Retract the latest answer."""


class ReleaseRequest(BaseModel):
    """Which questions others may have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    proposals: list[Annotated[str, Field(max_length=64)]] | None = Field(
        default=None, max_length=200, description="Their ids; without them all that one holds."
    )


class Question(BaseModel):
    """One proposal as the page shows it.

    Without rank and round: they would tell gold items and repeats from the questions around them.
    """

    id: str
    image_id: str
    subject: int = Field(description="Segment index of the subject.")
    object: int = Field(description="Segment index of the object.")
    predicate: int
    subject_name: str
    object_name: str
    predicate_name: str = Field(description="The wording for annotators.")
    help: str = Field(description="What the predicate means, in the lead's words; or empty.")
    image_url: str
    overlay_url: str
    origin: str = Field(description="Which models proposed it, ranks and scores; or empty.")


class Queue(BaseModel):
    """The next questions about one predicate, first one first."""

    predicate: int
    questions: list[Question]
    held: int = Field(
        default=0, description="How many further ones others hold; they may come free."
    )
    free_in: float | None = Field(
        default=None, description="Seconds until the first of those comes free, if none is left."
    )


class Undone(BaseModel):
    """The question whose answer was retracted, if there was one, and what follows it."""

    undone: Question | None
    queue: Queue | None


class PredicateProgress(BaseModel):
    """Counts of one predicate."""

    predicate: int
    name: str
    total: int
    open: int
    correct: int
    incorrect: int
    no_relation: int
    skip: int
    faulty: int


class CampaignProgress(BaseModel):
    """Counts of every predicate that has proposals."""

    campaign: str
    annotator: str
    predicates: list[PredicateProgress]


class Me(BaseModel):
    """Who asks, and what the header shows to them."""

    name: str
    role: Role
    login: bool = Field(description="Whether there is a login, which can be ended.")
    pages: list[str] = Field(description="Paths of the pages that this service serves.")


class LoginRequest(BaseModel):
    """Who wants to come in."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: str = Field(min_length=1, max_length=200)


class Welcome(BaseModel):
    """Who has come in."""

    name: str
    role: Role


class LogoutRequest(BaseModel):
    """Who wants to go; the cookie says it."""

    model_config = ConfigDict(extra="forbid", strict=True)


class LoggedOut(BaseModel):
    """Nobody is logged in any more."""


class Refusal(BaseModel):
    """Why a request was refused, in one sentence."""

    detail: str


class Life(BaseModel):
    """The service works."""

    status: Literal["ok"]


class Health(BaseModel):
    """The service works and can store answers."""

    status: Literal["ok"]
    schema_version: int
