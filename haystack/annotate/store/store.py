"""The store of an annotation campaign: a queue of proposals and the events that answer them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType

from haystack.annotate.records import (
    Answer,
    Claim,
    Dispute,
    GoldItem,
    Progress,
    Proposal,
    Purpose,
    Verdict,
    check_names,
)
from haystack.annotate.settings import QueueSettings
from haystack.annotate.store.database import Database
from haystack.annotate.store.events import Events
from haystack.annotate.store.gold import Gold, read_gold
from haystack.annotate.store.leases import CLAIMABLE, Leases
from haystack.annotate.store.queue import Queue
from haystack.annotate.store.reading import (
    read_answers,
    read_disputes,
    read_faulty_segments,
    read_measurements,
)
from haystack.annotate.store.rows import find_proposal, to_proposal
from haystack.annotate.store.schema import events, proposals
from haystack.annotate.store.tallies import Tallies, read_progress
from haystack.times import timestamp, utc_now

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import exists, func, select  # isort: skip
from sqlalchemy.dialects import postgresql, sqlite  # isort: skip

_CLAIM_TRIES = 20
_CLAIM_PAUSE_SECONDS = 0.02


class AnnotationStore:
    """Proposals to be asked, and every answer that was ever given.

    Answers are events that are only appended; undoing appends an event too. When a method that
    writes has returned, what it wrote survives the process being killed. Any number of threads
    may use one store; any number of processes may open the same database, with the same settings.

    Args:
        location: a file path (SQLite, made when it does not exist) or a ``postgresql://`` URL.
        clock: gives the time of an event, which never orders events, and of the end of a lease.
        settings: how questions are shared out.
        draw: gives a number of at least 0 and below 1; decides when gold and repeats are mixed in.

    Raises:
        InputError: the database is damaged, belongs to something else or to a newer Haystack.
        MissingDependencyError: SQLAlchemy, or for PostgreSQL psycopg, is not installed.
    """

    def __init__(
        self,
        location: str | Path,
        *,
        clock: Callable[[], datetime] = utc_now,
        settings: QueueSettings | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._database = Database(location)
        self._clock = clock
        settings = settings or QueueSettings()
        insert = sqlite.insert if self._database.is_sqlite else postgresql.insert
        self._queue = Queue(self._database, insert, clock, settings)
        self._leases = Leases(insert, clock, settings, draw)
        tallies = Tallies(insert)
        self._events = Events(self._database, insert, clock, self._queue, self._leases, tallies)
        self._gold = Gold(insert, self._queue, tallies)

    def __enter__(self) -> AnnotationStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up every connection to the database."""
        self._database.close()

    @property
    def database(self) -> Database:
        """The database, for what else is kept in it; it is closed together with this store."""
        return self._database

    @property
    def schema_version(self) -> int:
        """The number of the newest migration."""
        return self._database.version

    @property
    def campaign(self) -> str:
        """A random name that this database got when it was made: one database, one campaign."""
        return self._database.campaign

    # ------------------------------------------------------------------ the queue

    def load_proposals(
        self,
        rows: Iterable[Proposal],
        round: int,
        notes: str = "",
        *,
        asked: Collection[int] | None = None,
    ) -> int:
        """Make ``rows`` the queue; every answer given so far stays, and every lease.

        Loading the same queue again changes nothing. A proposal of an earlier queue that is not
        among ``rows`` is not asked any more, except of those who have it on their screens; one
        that enough annotators answered is not asked again. One that some answered and others
        should stays with the rank that it had, and so does one that was skipped: it is for those
        who did not skip it, until one of them judges it, or says of its pair that nothing relates
        it.

        Args:
            rows: the whole queue, of all predicates.
            round: the round of proposals it belongs to; recorded with every row.
            notes: kept with the round.
            asked: predicates that are still asked about: unfinished questions about others end.
                None: all.

        Returns:
            The number of rows.

        Raises:
            InputError: a question is asked twice in ``rows``, or an image was answered on other
                segments than it has now; nothing was changed then.
        """
        return self._queue.load(rows, round, notes, asked)

    def claim(self, predicate: int, annotator: str, limit: int) -> Claim:
        """Hand out the next questions about a predicate, and keep them from others for a while.

        Questions that the annotator holds already come first, in the same order as before, and
        their time starts anew. Not handed out are proposals that this annotator answered, those
        that enough others answered or hold, and those that use a segment which is known to be
        faulty. Gold items and repeats are mixed in as the settings say.

        Args:
            predicate: what they are about; what the annotator holds about others stays held.
            annotator: who asks.
            limit: at most so many.

        Raises:
            InputError: a malformed annotator.
        """
        check_names(annotator)
        for _ in range(_CLAIM_TRIES):
            with self._database.write() as connection:
                self._database.take_turns(connection, "annotator", annotator)
                claim = self._leases.claim(connection, predicate, annotator, limit)
            if claim.free_in != 0:
                break
            # Nobody holds a lease on what is left, but others were about to: that soon passes.
            time.sleep(_CLAIM_PAUSE_SECONDS)
        return claim

    def release(self, annotator: str, ids: Collection[str] | None = None) -> None:
        """Give up what this annotator holds, as when a page is closed.

        Args:
            annotator: who holds it.
            ids: of the proposals that are given up; None: all.
        """
        check_names(annotator)
        with self._database.write() as connection:
            self._database.take_turns(connection, "annotator", annotator)
            self._leases.release(connection, annotator, ids)

    def upcoming(self, predicate: int, annotator: str, limit: int) -> list[Proposal]:
        """What this annotator could be asked about ``predicate``, by rank; nothing is handed out.

        Leases, gold and repeats aside, these are the questions that :meth:`claim` hands out.
        """
        asker = {"predicate": predicate, "me": annotator, "besides": ()}
        with self._database.read() as connection:
            rows = connection.execute(CLAIMABLE.limit(limit), asker)
            return [to_proposal(row) for row in rows]

    def next_proposal(self, predicate: int, annotator: str) -> Proposal | None:
        """The first of :meth:`upcoming`; None when there is none."""
        return next(iter(self.upcoming(predicate, annotator, 1)), None)

    def queued(self) -> list[Proposal]:
        """The proposals of the newest round, by predicate and rank, answered or not."""
        order = (proposals.c.predicate, proposals.c.rank, proposals.c.id)
        query = select(proposals).where(proposals.c.is_queued).order_by(*order)
        with self._database.read() as connection:
            return [to_proposal(row) for row in connection.execute(query)]

    def proposal(self, proposal_id: str) -> Proposal:
        """The proposal with this id, in the queue or not.

        Raises:
            UnknownProposalError: there is none.
        """
        with self._database.read() as connection:
            return find_proposal(connection, proposal_id)

    def has_image(self, image_key: str) -> bool:
        """Whether any proposal is about the image with this key."""
        if "\0" in image_key:  # PostgreSQL refuses to look for it
            return False
        query = select(exists().where(proposals.c.image_key == image_key))
        with self._database.read() as connection:
            return bool(connection.execute(query).scalar_one())

    # ------------------------------------------------------------------ events

    def answer(
        self,
        proposal_id: str,
        verdict: Verdict,
        annotator: str,
        key: str,
        dwell_ms: int | None = None,
    ) -> Answer:
        """Save an answer; when this returns, it is on the disk.

        A later answer of the same annotator to the same proposal replaces this one. An answer to
        a proposal that has left the queue meanwhile, or whose lease has ended, is saved as well.

        Args:
            proposal_id: :attr:`Proposal.id` of the question.
            verdict: the answer.
            annotator: who answers.
            key: idempotency key; sending the same answer again under it saves nothing new.
            dwell_ms: milliseconds from the picture being shown to the answer.

        Raises:
            UnknownProposalError: there is no such proposal.
            KeyConflictError: the key already stands for another event.
            InputError: an unknown verdict, or a malformed key, annotator or time.
        """
        with self._database.write() as connection:
            return self._events.answer(connection, proposal_id, verdict, annotator, key, dwell_ms)

    def answer_and_claim(
        self,
        proposal_id: str,
        verdict: Verdict,
        annotator: str,
        key: str,
        dwell_ms: int | None = None,
        *,
        limit: int,
    ) -> tuple[Answer, Claim]:
        """Save an answer and hand out the next questions, in one transaction.

        Raises as :meth:`answer` does; see :meth:`claim` for what is handed out.
        """
        with self._database.write() as connection:
            saved = self._events.answer(connection, proposal_id, verdict, annotator, key, dwell_ms)
            predicate = saved.proposal.predicate
            claim = self._leases.claim(connection, predicate, annotator, limit)
        if claim.free_in == 0:
            claim = self.claim(predicate, annotator, limit)
        return saved, claim

    def undo(
        self,
        annotator: str,
        key: str | None = None,
        *,
        purposes: Collection[Purpose] = ("label", "gold", "repeat"),
    ) -> Proposal | None:
        """Retract the annotator's latest answer that still counts; can be repeated without end.

        Args:
            annotator: whose answer.
            key: idempotency key; undoing again under it retracts nothing more.
            purposes: which answers; ``("adjudication",)`` for a lead's decisions.

        Returns:
            The proposal that the annotator is asked again; None when nothing is left to undo.

        Raises:
            KeyConflictError: the key already stands for another event.
            InputError: a malformed key or annotator.
        """
        with self._database.write() as connection:
            return self._events.undo(connection, annotator, key, purposes)

    def adjudicate(self, proposal_id: str, verdict: Verdict, lead: str, key: str) -> Answer:
        """Settle what a proposal's label is, whatever annotators said; nobody is asked it again.

        Args:
            proposal_id: of a proposal that somebody answered.
            verdict: any but ``skip``.
            lead: who decides.
            key: idempotency key.

        Raises:
            UnknownProposalError: there is no such proposal.
            KeyConflictError: the key already stands for another event.
            InputError: nobody answered it, an unknown verdict, or a malformed key or name.
        """
        with self._database.write() as connection:
            return self._events.adjudicate(connection, proposal_id, verdict, lead, key)

    def event_count(self) -> int:
        """The number of events, undone ones and undos included."""
        with self._database.read() as connection:
            return connection.execute(select(func.count()).select_from(events)).scalar_one()

    # ------------------------------------------------------------------ gold items

    def set_gold(self, verdicts: Mapping[str, Verdict], lead: str) -> None:
        """Make proposals gold items: they are asked to measure annotators, not to be labelled.

        Answers that they have already stay labels.

        Args:
            verdicts: proposal id -> its true answer; replaces what it was before.
            lead: who says so.

        Raises:
            UnknownProposalError: there is no such proposal; none was set then.
            InputError: a verdict that is none, or ``skip``.
        """
        with self._database.write() as connection:
            self._gold.set(connection, verdicts, lead, timestamp(self._clock()))

    def remove_gold(self, proposal_id: str, lead: str) -> None:
        """Make a gold item a proposal like any other; nothing happens where it is none.

        Raises:
            UnknownProposalError: there is no such proposal.
        """
        with self._database.write() as connection:
            self._gold.remove(connection, proposal_id, lead)

    def gold_items(self) -> list[GoldItem]:
        """Every gold item, by the id of its proposal."""
        with self._database.read() as connection:
            return read_gold(connection)

    # ------------------------------------------------------------------ what is known

    def answers(self) -> Iterator[Answer]:
        """Every annotator's current answer to every proposal, and leads' adjudications.

        Ordered by image id, subject, object, predicate and annotator, so that the order does not
        depend on who answered first, nor on the database.
        """
        with self._database.read() as connection:
            return iter(read_answers(connection))

    def measurements(self) -> list[Answer]:
        """Answers to gold items and repeats, which are no labels, first one first."""
        with self._database.read() as connection:
            return read_measurements(connection)

    def disagreements(self, limit: int | None = None) -> list[Dispute]:
        """Proposals that some affirm and some deny, and that no lead has settled; ties first."""
        with self._database.read() as connection:
            return read_disputes(connection, limit)

    def faulty_segments(self) -> set[tuple[str, int]]:
        """(image id, segment index) of every segment that an answer or a gold item calls faulty."""
        with self._database.read() as connection:
            return read_faulty_segments(connection)

    def progress(self, annotator: str | None = None) -> dict[int, Progress]:
        """Counts per predicate, in the order of the predicates; costs the same at any size.

        Args:
            annotator: leave what this annotator answered or skipped out of ``open``.
        """
        with self._database.read() as connection:
            return read_progress(connection, annotator)
