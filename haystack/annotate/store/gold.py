"""Gold items: proposals whose answer is known, hidden among the questions."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from haystack.annotate.records import GoldItem, Proposal, Verdict, check_names, check_verdict
from haystack.annotate.store.events import touched_by
from haystack.annotate.store.queue import Queue
from haystack.annotate.store.rows import find_proposal, to_proposal
from haystack.annotate.store.schema import gold, proposals
from haystack.annotate.store.tallies import Tallies
from haystack.errors import InputError

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import Connection, delete, select  # isort: skip


class Gold:
    """The gold items of a campaign. A gold item is not asked to be labelled.

    Args:
        insert: of the database's dialect.
        queue: that gold items leave.
        tallies: counts to keep.
    """

    def __init__(self, insert: Callable[..., Any], queue: Queue, tallies: Tallies) -> None:
        self._insert = insert
        self._queue = queue
        self._tallies = tallies

    def set(
        self,
        connection: Connection,
        verdicts: Mapping[str, Verdict],
        lead: str,
        set_at: str,
    ) -> None:
        """Say the true answers of proposals, by id; see :meth:`AnnotationStore.set_gold`."""
        check_names(lead)
        for proposal_id, verdict in sorted(verdicts.items()):
            check_verdict(verdict)
            if verdict == "skip":
                raise InputError("expected the true answer of a gold item, got 'skip'")
            asked = find_proposal(connection, proposal_id)
            row = {"verdict": verdict, "set_by": lead, "set_at": set_at}
            scope = touched_by(connection, asked, verdict)
            with self._tallies.following(connection, lead, scope):
                connection.execute(
                    self._insert(gold)
                    .values(proposal_id=proposal_id, **row)
                    .on_conflict_do_update(index_elements=["proposal_id"], set_=row)
                )
                self._queue.reopen(connection, scope)

    def remove(self, connection: Connection, proposal_id: str, lead: str) -> None:
        """Ask a proposal like any other again; nothing happens where it is no gold item."""
        check_names(lead)
        scope = touched_by(connection, find_proposal(connection, proposal_id))
        with self._tallies.following(connection, lead, scope):
            connection.execute(delete(gold).where(gold.c.proposal_id == proposal_id))
            self._queue.reopen(connection, scope)


def read_gold(connection: Connection) -> list[GoldItem]:
    """Every gold item, by the proposal's id."""
    query = (
        select(proposals, gold.c.verdict, gold.c.set_by, gold.c.set_at)
        .join_from(gold, proposals, proposals.c.id == gold.c.proposal_id)
        .order_by(proposals.c.id)
    )
    return [
        GoldItem(to_proposal(row), row.verdict, row.set_by, row.set_at)
        for row in connection.execute(query)
    ]


def choose_gold(
    asked: Iterable[Proposal], truth: Callable[[Proposal], Verdict | None], per_predicate: int
) -> dict[str, Verdict]:
    """Choose gold items among proposals whose answer is known.

    Needles are rare, so up to half of them are: somebody who always says no is then found out.

    Args:
        asked: the proposals to choose from.
        truth: the true answer to a proposal; None where it is not known.
        per_predicate: at most so many of each predicate.

    Returns:
        Proposal id -> true answer. Which are chosen follows from the ids, whatever the order.
    """
    known: dict[int, dict[bool, list[tuple[str, Verdict]]]] = defaultdict(lambda: defaultdict(list))
    for proposal in asked:
        verdict = truth(proposal)
        if verdict in ("correct", "incorrect", "no_relation"):
            known[proposal.predicate][verdict == "correct"].append((proposal.id, verdict))
    chosen: dict[str, Verdict] = {}
    for kinds in known.values():
        needles = sorted(kinds[True], key=_drawn)[: (per_predicate + 1) // 2]
        others = sorted(kinds[False], key=_drawn)[: per_predicate - len(needles)]
        chosen.update((*needles, *others))
    return chosen


def _drawn(item: tuple[str, Verdict]) -> str:
    return hashlib.sha256(f"gold {item[0]}".encode()).hexdigest()
