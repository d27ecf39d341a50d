"""What annotators call a predicate in their own words, and what a lead calls it for them.

The paper renames predicates so that people who do not know the data set's list understand them
(Haystack, section 3.1): annotators see pictures with a relation and no name, and write what they
see; somebody then settles on a name. Both are only appended to. What is exported is always the
original name: nothing here leaves the annotation database but as a record of what was shown.
"""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from haystack.annotate.records import KeyConflictError, Proposal
from haystack.annotate.store.database import Database
from haystack.annotate.store.rows import is_faulty
from haystack.annotate.store.schema import current_answers, predicate_names, proposals, wordings
from haystack.errors import ConflictError, InputError
from haystack.times import timestamp, utc_now

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import Connection, Row, exists, func, select  # isort: skip
from sqlalchemy.dialects import postgresql, sqlite  # isort: skip

LONGEST_WORDS = 120
"""Characters of an annotator's wording."""

LONGEST_NAME = 80
"""Characters of a predicate's name: it stands in a sentence above the picture."""

LONGEST_HELP = 2_000
"""Characters of a help text."""

Shown = tuple[str, int, int]
"""A pair that was shown: image id, position of the subject's segment, of the object's."""

_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that only change the direction of the text around them; letters need none."""


@dataclass(frozen=True)
class Wording:
    """One annotator's words for what pictures show.

    Args:
        predicate: the predicate that the pictures were examples of; the annotator was not told.
        words: the annotator's.
        annotator: who wrote them.
        shown: the pairs that were on screen.
        created_at: ISO 8601, UTC.
    """

    predicate: int
    words: str
    annotator: str
    shown: tuple[Shown, ...]
    created_at: str


@dataclass(frozen=True)
class SharedWords:
    """The same words from one annotator or several.

    Args:
        words: in the spelling that was used most.
        annotators: who wrote them, sorted.
    """

    words: str
    annotators: tuple[str, ...]


@dataclass(frozen=True)
class PredicateName:
    """What a predicate was called for annotators from some time on.

    Args:
        predicate: its number.
        name: the wording in questions.
        help: what it means, where it ends; may be empty, may have several lines.
        set_by: who decided so.
        set_at: ISO 8601, UTC.
        edition: grows with every decision; names the one that an edit starts from.
    """

    predicate: int
    name: str
    help: str
    set_by: str
    set_at: str
    edition: int


class Wordings:
    """What annotators wrote, one list of words a predicate.

    Args:
        database: an open annotation database; the caller closes it.
        clock: gives the time of an entry; only recorded.
    """

    def __init__(self, database: Database, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock
        self._insert = sqlite.insert if database.is_sqlite else postgresql.insert

    def add(
        self, predicate: int, words: str, annotator: str, key: str, shown: Iterable[Shown] = ()
    ) -> Wording:
        """Save an annotator's words; later ones about the same predicate replace them.

        Args:
            predicate: which one the pictures were examples of.
            words: 1 to 120 characters on one line; runs of blanks become one.
            annotator: who wrote them.
            key: idempotency key; sending the same again under it saves nothing new.
            shown: the pairs that were on screen.

        Raises:
            KeyConflictError: the key already stands for something else.
            InputError: no words, too many, or characters that are no text.
        """
        content = {
            "predicate": predicate,
            "annotator": annotator,
            "words": one_line(words, "words", LONGEST_WORDS),
        }
        statement = (
            self._insert(wordings)
            .values(
                **content,
                key=key,
                shown=json.dumps([list(pair) for pair in shown]),
                created_at=timestamp(self._clock()),
            )
            .on_conflict_do_nothing()
        )
        with self._database.write() as connection:
            connection.execute(statement)
            saved = connection.execute(select(wordings).where(wordings.c.key == key)).one()
            for name, value in content.items():
                if getattr(saved, name) != value:
                    raise KeyConflictError(
                        f"the key {key!r} already stands for other words ({name} was "
                        f"{getattr(saved, name)!r}, now {value!r}); give each a key of its own"
                    )
        return _wording(saved)

    def of(self, annotator: str) -> dict[int, Wording]:
        """Predicate -> the annotator's latest words."""
        query = select(wordings).where(wordings.c.annotator == annotator).order_by(wordings.c.id)
        with self._database.read() as connection:
            return {row.predicate: _wording(row) for row in connection.execute(query)}

    def history(self) -> list[Wording]:
        """All words ever written, the earliest first."""
        with self._database.read() as connection:
            rows = connection.execute(select(wordings).order_by(wordings.c.id))
            return [_wording(row) for row in rows]

    def shared(self) -> dict[int, list[SharedWords]]:
        """Predicate -> everybody's latest words, equal ones together, most annotators first.

        Words are equal when they differ in case and blanks alone.
        """
        latest = {(said.predicate, said.annotator): said for said in self.history()}
        groups: dict[int, dict[str, list[Wording]]] = defaultdict(lambda: defaultdict(list))
        for said in latest.values():
            groups[said.predicate][said.words.casefold()].append(said)
        return {
            predicate: sorted(
                map(_share, same.values()), key=lambda each: (-len(each.annotators), each.words)
            )
            for predicate, same in sorted(groups.items())
        }


class PredicateNames:
    """What predicates are called for annotators, and what their help texts say.

    The database is the truth once a lead has named a predicate there; until then the wording of
    the workspace's vocabulary holds. Names are read at each call, so that every process which
    serves the campaign shows a new one at its next question.

    Args:
        database: an open annotation database; the caller closes it.
        vocabulary_names: predicate number -> the wording as long as nobody has set another.
        clock: gives the time of a decision; only recorded.
    """

    def __init__(
        self,
        database: Database,
        vocabulary_names: Sequence[str],
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._vocabulary = tuple(vocabulary_names)
        self._clock = clock
        self._known: tuple[int, tuple[PredicateName, ...]] = (-1, ())

    def __len__(self) -> int:
        return len(self._vocabulary)

    def current(self) -> tuple[PredicateName, ...]:
        """The name and help of every predicate, by number; edition 0 where none was set."""
        newest = func.coalesce(func.max(predicate_names.c.id), 0)
        with self._database.read() as connection:
            edition = int(connection.execute(select(newest)).scalar_one())
            known, names = self._known
            if known != edition:
                names = self._read(connection)
                self._known = (edition, names)
        return names

    def name(self, predicate: int) -> str:
        """The wording for annotators of one predicate."""
        return self.current()[predicate].name

    def set(
        self, predicate: int, name: str, help: str, set_by: str, *, edition: int
    ) -> PredicateName:
        """Give a predicate another name and help text; what it was called before stays on record.

        Args:
            predicate: its number.
            name: 1 to 80 characters on one line.
            help: at most 2,000 characters.
            set_by: who decides so.
            edition: of the name that the lead saw and changed.

        Raises:
            ConflictError: somebody else has set another one since.
            InputError: there is no such predicate, the text is unsuitable, or another predicate is
                called so, whose questions nobody could tell from this one's.
        """
        if not 0 <= predicate < len(self):
            raise InputError(
                f"expected a predicate in 0..{len(self) - 1}, got {predicate}; load the page again"
            )
        name = one_line(name, "a name", LONGEST_NAME)
        help = paragraphs(help, "a help text", LONGEST_HELP)
        with self._database.write(exclusive=True) as connection:
            names = self._read(connection)
            before = names[predicate]
            if before.edition != edition:
                raise ConflictError(
                    f"{before.set_by} has called it {before.name!r} meanwhile; nothing was "
                    "changed, look at that and decide again"
                )
            for other in names:
                if other.predicate != predicate and other.name.casefold() == name.casefold():
                    raise InputError(
                        f"predicate {other.predicate} is called {other.name!r} already; choose a "
                        "name that tells the two apart"
                    )
            content = {
                "predicate": predicate,
                "name": name,
                "help": help,
                "set_by": set_by,
                "set_at": timestamp(self._clock()),
            }
            statement = predicate_names.insert().values(**content).returning(predicate_names.c.id)
            edition = int(connection.execute(statement).scalar_one())
        return PredicateName(**content, edition=edition)  # type: ignore[arg-type]

    def history(self) -> dict[int, list[PredicateName]]:
        """Predicate -> everything that it was called, the earliest first."""
        found: dict[int, list[PredicateName]] = defaultdict(list)
        with self._database.read() as connection:
            for row in connection.execute(select(predicate_names).order_by(predicate_names.c.id)):
                found[row.predicate].append(_name(row))
        return dict(found)

    def _read(self, connection: Connection) -> tuple[PredicateName, ...]:
        newest = select(func.max(predicate_names.c.id)).group_by(predicate_names.c.predicate)
        rows = connection.execute(select(predicate_names).where(predicate_names.c.id.in_(newest)))
        was_set = {row.predicate: _name(row) for row in rows}
        return tuple(
            was_set.get(number, PredicateName(number, name, "", "", "", 0))
            for number, name in enumerate(self._vocabulary)
        )


def one_line(text: str, what: str, longest: int) -> str:
    """Text for one line: composed (NFC), blanks around it gone, runs of blanks made one.

    Args:
        text: as it came.
        what: its name for the error.
        longest: characters that it may have.

    Raises:
        InputError: nothing is left, it is too long, or it holds characters that are no text.
    """
    line = _text(" ".join(unicodedata.normalize("NFC", text).split()), what)
    visible = any(unicodedata.category(character)[0] in "LNPS" for character in line)
    if not visible or len(line) > longest:
        raise InputError(
            f"expected {what} of 1 to {longest} characters, got {len(line) if visible else 0}"
        )
    return line


def paragraphs(text: str, what: str, longest: int) -> str:
    """Text of several lines, or none: composed (NFC), blanks around every line gone.

    Args:
        text: as it came.
        what: its name for the error.
        longest: characters that it may have.

    Raises:
        InputError: it is too long, or it holds characters that are no text.
    """
    lines = unicodedata.normalize("NFC", text).replace("\r\n", "\n").split("\n")
    joined = "\n".join(" ".join(line.split()) for line in lines).strip()
    if len(joined) > longest:
        raise InputError(f"expected {what} of at most {longest} characters, got {len(joined)}")
    return _text(joined, what)


def _text(text: str, what: str) -> str:
    """Refuse control characters, lone surrogates, and marks that turn the text around them."""
    for character in text:
        control = unicodedata.category(character) in ("Cc", "Cs") and character != "\n"
        if control or character in _REORDERING:
            raise InputError(
                f"expected {what} without control characters, got U+{ord(character):04X}; type it "
                "again, or paste it as plain text"
            )
    return text


def _share(same: Sequence[Wording]) -> SharedWords:
    spellings = Counter(said.words for said in same)
    # Of those used equally often one without capitals: it will stand within a sentence.
    words = min(spellings, key=lambda each: (-spellings[each], each != each.lower(), each))
    return SharedWords(words, tuple(sorted(said.annotator for said in same)))


def _wording(row: Row[Any]) -> Wording:
    shown = tuple((str(image), int(s), int(o)) for image, s, o in json.loads(row.shown))
    return Wording(row.predicate, row.words, row.annotator, shown, row.created_at)


def _name(row: Row[Any]) -> PredicateName:
    return PredicateName(row.predicate, row.name, row.help, row.set_by, row.set_at, row.id)


def affirmed_pairs(database: Database) -> dict[int, list[Proposal]]:
    """Predicate -> proposals that somebody called correct, nobody contradicted, none faulty.

    They show what a predicate looks like. In the order of their ids, which is as good as a draw.
    """
    contradiction = current_answers.alias("contradiction")
    contradicted = exists().where(
        contradiction.c.proposal_id == proposals.c.id,
        contradiction.c.verdict.not_in(("correct", "skip")),
    )
    correct = exists().where(
        current_answers.c.proposal_id == proposals.c.id, current_answers.c.verdict == "correct"
    )
    fields = [proposals.c[field.name] for field in dataclasses.fields(Proposal)]
    query = select(*fields).where(correct, ~contradicted, ~is_faulty()).order_by(proposals.c.id)
    found: dict[int, list[Proposal]] = defaultdict(list)
    with database.read() as connection:
        for row in connection.execute(query):
            found[row.predicate].append(Proposal(**row._mapping))
    return dict(found)
