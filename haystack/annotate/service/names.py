"""The names page: annotators describe pictures in their own words, leads name predicates.

An annotator sees pictures that share a relation, without its name, and never what others wrote.
A lead sees all words beside the pictures and settles on a name and a help text, which the questions
show from then on (Haystack paper, section 3.1). What is exported keeps the original names.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Annotated, Protocol
from urllib.parse import urlencode

from fastapi import FastAPI, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from haystack.annotate.service.errors import sentence
from haystack.annotate.service.identity import Asker, Lead
from haystack.annotate.service.media import media_headers, picture_of
from haystack.annotate.service.messages import Addressed
from haystack.annotate.service.pages import add_page
from haystack.annotate.service.questions import check_addressee
from haystack.annotate.store.store import AnnotationStore
from haystack.annotate.store.wordings import (
    LONGEST_HELP,
    LONGEST_NAME,
    LONGEST_WORDS,
    PredicateName,
    PredicateNames,
    SharedWords,
    Wordings,
)
from haystack.errors import InputError


class Example(Protocol):
    """A pair that is known to have a predicate; nothing in it tells which one."""

    @property
    def id(self) -> str:
        """Stands for it in addresses; must not tell the predicate."""

    @property
    def image_id(self) -> str:
        """Its image."""

    @property
    def subject(self) -> int:
        """Position of the subject among the image's segments."""

    @property
    def object(self) -> int:
        """Position of the object."""

    @property
    def subject_name(self) -> str:
        """Class of the subject."""

    @property
    def object_name(self) -> str:
        """Class of the object."""

    @property
    def picture(self) -> bytes:
        """A JPEG with the subject outlined in blue, A, and the object in orange, B."""


class Examples(Protocol):
    """Known examples of predicates. Methods are called from several threads at once."""

    def predicates(self) -> Sequence[int]:
        """Numbers of the predicates that there are examples of."""
        ...

    def of(self, predicate: int) -> Sequence[Example]:
        """Some examples of a predicate; none where there are none."""
        ...


class ExamplePicture(BaseModel):
    """One example as the page shows it."""

    image_url: str
    subject_name: str | None = Field(description="Class of A; null where classes are hidden.")
    object_name: str | None = Field(description="Class of B; null where classes are hidden.")


class Task(BaseModel):
    """A set of pictures to be described."""

    predicate: int
    words: str | None = Field(description="What the asker wrote, and nobody else; null: nothing.")


class Tasks(BaseModel):
    """All that the asker can describe, in the asker's own order."""

    campaign: str
    annotator: str
    longest: int = Field(description="Characters that words may have.")
    tasks: list[Task]


class Pictures(BaseModel):
    """The pictures of one task."""

    predicate: int
    pictures: list[ExamplePicture]


class WordingRequest(Addressed):
    """Words for the pictures of one task."""

    predicate: int = Field(ge=0, lt=2**31)
    words: str = Field(description=f"1 to {LONGEST_WORDS} characters on one line.")


class NameRequest(BaseModel):
    """Another name and help text for a predicate."""

    model_config = ConfigDict(extra="forbid", strict=True)

    predicate: int = Field(ge=0, lt=2**31)
    name: str = Field(description=f"1 to {LONGEST_NAME} characters on one line.")
    help: str = Field(description=f"At most {LONGEST_HELP} characters.")
    edition: int = Field(ge=0, lt=2**63, description="Of the name that was changed; 409 if stale.")


class NameGiven(BaseModel):
    """What a predicate was called from some time on."""

    name: str
    help: str
    set_by: str
    set_at: str


class WordsCounted(BaseModel):
    """The same words from one annotator or several."""

    words: str
    annotators: list[str]


class NameRow(BaseModel):
    """One predicate as a lead sees it."""

    predicate: int
    original: str = Field(description="Its name in the data set: what is exported.")
    name: str
    help: str
    edition: int
    words: list[WordsCounted]
    history: list[NameGiven] = Field(description="The earliest first.")
    has_examples: bool


class NameList(BaseModel):
    """Every predicate of the campaign, with what annotators call it."""

    longest_name: int
    longest_help: int
    names: list[NameRow]


class NamesDesk:
    """Puts examples, words and names together.

    Args:
        store: the campaign's store.
        examples: pictures of each predicate.
        originals: predicate number -> its name in the data set.
        vocabulary_names: predicate number -> the wording as long as no lead has set another.
        hide_classes: do not tell what the two segments are.
    """

    def __init__(
        self,
        store: AnnotationStore,
        examples: Examples,
        originals: Sequence[str],
        vocabulary_names: Sequence[str],
        *,
        hide_classes: bool = False,
    ) -> None:
        self.store = store
        self.examples = examples
        self.originals = tuple(originals)
        self.hide_classes = hide_classes
        self.wordings = Wordings(store.database)
        self.names = PredicateNames(store.database, vocabulary_names)
        self._version = secrets.token_hex(8)
        self._pictures: dict[str, bytes] = {}

    def tasks(self, annotator: str) -> Tasks:
        """What an annotator can describe; everyone has an order of their own."""
        said = self.wordings.of(annotator)

        def place(predicate: int) -> bytes:
            seed = f"{self.store.campaign}\n{annotator}\n{predicate}"
            return hashlib.sha256(seed.encode("utf-8", "replace")).digest()

        return Tasks(
            campaign=self.store.campaign,
            annotator=annotator,
            longest=LONGEST_WORDS,
            tasks=[
                Task(
                    predicate=predicate,
                    words=said[predicate].words if predicate in said else None,
                )
                for predicate in sorted(self.examples.predicates(), key=place)
            ],
        )

    def shown(self, predicate: int) -> Sequence[Example]:
        """The examples of a predicate.

        Raises:
            InputError: there are none.
        """
        examples = self.examples.of(predicate) if predicate < len(self.originals) else ()
        if not examples:
            raise InputError(f"there are no pictures of predicate {predicate}; load the page again")
        self._pictures.update({example.id: example.picture for example in examples})
        return examples

    def pictures(self, predicate: int) -> Pictures:
        """The pictures of one task."""

        def picture(example: Example) -> ExamplePicture:
            address = urlencode({"id": example.id, "v": self._version})
            return ExamplePicture(
                image_url=f"/media/example?{address}",
                subject_name=None if self.hide_classes else example.subject_name,
                object_name=None if self.hide_classes else example.object_name,
            )

        return Pictures(predicate=predicate, pictures=list(map(picture, self.shown(predicate))))

    def picture(self, example_id: str, version: str) -> Response:
        """The JPEG of an example that is shown."""
        content = self._pictures.get(example_id)
        if content is None:
            return sentence(404, "there is no such example; load the page again")
        headers = media_headers("image/jpeg", is_current=version == self._version)
        return Response(content, headers=headers)

    def describe(self, annotator: str, request: WordingRequest) -> Task:
        """Save an annotator's words, with the pairs that they are about."""
        shown = [
            (each.image_id, each.subject, each.object) for each in self.shown(request.predicate)
        ]
        saved = self.wordings.add(request.predicate, request.words, annotator, request.key, shown)
        return Task(predicate=saved.predicate, words=saved.words)

    def rows(self) -> list[NameRow]:
        """Every predicate that is asked about, described or named."""
        words, history = self.wordings.shared(), self.names.history()
        examples = set(self.examples.predicates())
        asked = {*examples, *words, *history, *self.store.progress()}
        return [
            self._row(
                name, words.get(name.predicate, []), history.get(name.predicate, []), examples
            )
            for name in self.names.current()
            if name.predicate in asked
        ]

    def _row(
        self,
        name: PredicateName,
        words: Sequence[SharedWords],
        history: Sequence[PredicateName],
        examples: set[int],
    ) -> NameRow:
        return NameRow(
            predicate=name.predicate,
            original=self.originals[name.predicate],
            name=name.name,
            help=name.help,
            edition=name.edition,
            words=[
                WordsCounted(words=same.words, annotators=list(same.annotators)) for same in words
            ],
            history=[
                NameGiven(name=was.name, help=was.help, set_by=was.set_by, set_at=was.set_at)
                for was in history
            ],
            has_examples=name.predicate in examples,
        )


PredicateNumber = Annotated[int, Path(ge=0, lt=2**31)]


def add_names(app: FastAPI, desk: NamesDesk) -> None:
    """Add the names page and its requests.

    Args:
        app: the application.
        desk: puts examples, words and names together.
    """
    add_page(app, "/names", "names.html")

    @app.get("/api/wordings")
    def get_tasks(asker: Asker) -> Tasks:
        """Sets of pictures to be described, with what the asker wrote about them."""
        return desk.tasks(asker.name)

    @app.get("/api/wordings/{predicate}")
    def get_pictures(asker: Asker, predicate: PredicateNumber) -> Pictures:
        """The pictures of one set."""
        return desk.pictures(predicate)

    @app.post("/api/wordings")
    def post_words(asker: Asker, wording: WordingRequest) -> Task:
        """Save the asker's words for a set; later ones replace them."""
        check_addressee(wording, desk.store.campaign, asker)
        return desk.describe(asker.name, wording)

    @app.get("/media/example", response_class=Response, responses=picture_of("image/jpeg"))
    def get_example(id: str, v: str = "") -> Response:
        """A picture of an example, with its pair outlined (JPEG)."""
        return desk.picture(id, v)

    @app.get("/api/names")
    def get_names(lead: Lead) -> NameList:
        """Predicates with everybody's words, their names, and what they were called before."""
        return NameList(longest_name=LONGEST_NAME, longest_help=LONGEST_HELP, names=desk.rows())

    @app.post("/api/names")
    def post_name(lead: Lead, request: NameRequest) -> NameRow:
        """Name a predicate for annotators; the next questions show it."""
        desk.names.set(
            request.predicate, request.name, request.help, lead.name, edition=request.edition
        )
        return next(row for row in desk.rows() if row.predicate == request.predicate)
