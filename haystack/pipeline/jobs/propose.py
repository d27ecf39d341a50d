"""The propose stage as a job: which files it reads and writes, and what its output depends on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from haystack import files
from haystack.errors import InputError
from haystack.executors.base import Counts, Outputs
from haystack.pipeline import tables
from haystack.pipeline.jobs.gather import best_of, common_notes
from haystack.pipeline.jobs.upstream import ALL, upstream_checksums
from haystack.pipeline.propose import Answered, is_known, propose
from haystack.pipeline.scoring.candidates import Candidates, FaultySegment, Ints
from haystack.pipeline.workspace import GATHERED, PROPOSALS, Workspace


class ProposeJob:
    """The queue, from all that was gathered.

    Args:
        workspace: where to read and write; its ``config.propose`` holds.
        blocks: names of the gathered blocks.
        answered: questions that have an answer.
        faulty: segments that annotators or the data call wrong.
    """

    name: ClassVar[str] = "propose"

    def __init__(
        self,
        workspace: Workspace,
        blocks: Sequence[str],
        *,
        answered: Collection[Answered] = (),
        faulty: Collection[FaultySegment] = (),
    ) -> None:
        self._workspace = workspace
        self._config = workspace.config.propose
        self._blocks = list(blocks)
        self._answered = sorted(set(answered))
        self._faulty = sorted(set(faulty))

    def shards(self) -> Sequence[str]:
        """One: all shards."""
        return [ALL]

    def inputs(self, shard: str) -> Mapping[str, str]:
        """All candidates."""
        return upstream_checksums(self._workspace, "gather", self._blocks)

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """Settings, what is included, and what is known by now."""
        return {
            "config": asdict(self._config),
            "predicates": self._workspace.predicate_indices(),
            "included": [cluster.included for cluster in self._workspace.clusters()],
            "candidates": common_notes(self._workspace, "gather", self._blocks),
            "answered": files.sha256_text(files.canonical_json(self._answered)),
            "faulty": files.sha256_text(files.canonical_json(self._faulty)),
        }

    def run(self, shard: str, out: Outputs) -> Counts:
        """Merge the blocks, rank their candidates, and order those that are not known.

        The notes name the models under ``models`` and the clusters under ``included``, and list
        under ``exhausted`` each [cluster, predicate, candidates] that has nothing left although
        the score stage held back more than its best.

        Raises:
            InputError: a cluster is included that was not when it was scored.
        """
        notes = common_notes(self._workspace, "gather", self._blocks)
        included = np.array([cluster.included for cluster in self._workspace.clusters()])
        self._refuse_unscored(np.flatnonzero(included).tolist(), notes["included"])
        paths = (self._workspace.path(GATHERED, block=block) for block in self._blocks)
        merged = best_of(paths, notes)
        merged = merged.take(included[merged.cluster])
        known = is_known(merged, answered=self._answered, faulty=self._faulty)
        queue = propose(
            merged,
            top=notes["top"],
            predicates=self._workspace.predicate_indices(),
            limit=self._config.limit,
            seed=self._config.seed,
            known=known,
        )
        tables.write_proposals(out.path(PROPOSALS), queue)
        exhausted = self._exhausted(merged, known, notes)
        return Counts(
            inputs=len(merged),
            ok=len(merged),
            extra={"proposals": len(queue), "exhausted_groups": len(exhausted)},
            notes={
                "exhausted": exhausted,
                "models": notes["models"],
                "included": np.flatnonzero(included).tolist(),
            },
        )

    def _refuse_unscored(self, included: list[int], scored: list[int]) -> None:
        missing = sorted(set(included) - set(scored))
        if missing:
            clusters = f"cluster{'s'[: len(missing) > 1]} {', '.join(map(str, missing))}"
            raise InputError(
                f"{clusters} had not been included when the images were scored; "
                f"run again: haystack score {self._workspace.root}"
            )

    def _exhausted(
        self, merged: Candidates, known: npt.NDArray[np.bool_], notes: Mapping[str, Any]
    ) -> list[list[int]]:
        """Groups of which no candidate is left, and that were cut."""
        asked = set(self._workspace.predicate_indices())
        held = _group_sizes(merged, notes["shape"])
        dry = (held >= notes["top"]) & (_group_sizes(merged.take(~known), notes["shape"]) == 0)
        return [
            [cluster, predicate, int(held[cluster, predicate])]
            for cluster, predicate in np.argwhere(dry).tolist()
            if predicate in asked
        ]


def _group_sizes(candidates: Candidates, shape: Sequence[int]) -> Ints:
    """Candidates of each cluster and predicate: int64 [clusters, predicates]."""
    sizes = np.zeros(shape, dtype=np.int64)
    np.add.at(sizes, (candidates.cluster, candidates.predicate), 1)
    return sizes
