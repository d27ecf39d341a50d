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
from haystack.pipeline.candidates import Candidates, FaultySegment, TopCandidates
from haystack.pipeline.propose import Answered, drop_known, propose
from haystack.pipeline.upstream import (
    ALL,
    finished,
    refuse_shared_image_ids,
    upstream_checksums,
)
from haystack.pipeline.workspace import PROPOSALS, Workspace


class ProposeJob:
    """The queue, from all shards.

    Args:
        workspace: where to read and write; its ``config.propose`` holds.
        shards: names of the score shards.
        answered: questions that have an answer.
        faulty: segments that annotators or the data call wrong.
    """

    name: ClassVar[str] = "propose"

    def __init__(
        self,
        workspace: Workspace,
        shards: Sequence[str],
        *,
        answered: Collection[Answered] = (),
        faulty: Collection[FaultySegment] = (),
    ) -> None:
        self._workspace = workspace
        self._config = workspace.config.propose
        self._score_shards = list(shards)
        self._answered = sorted(set(answered))
        self._faulty = sorted(set(faulty))

    def shards(self) -> Sequence[str]:
        """One: all shards."""
        return [ALL]

    def inputs(self, shard: str) -> Mapping[str, str]:
        """All scores."""
        return upstream_checksums(self._workspace, "score", self._score_shards)

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """Settings, what is included, and what is known by now."""
        return {
            "config": asdict(self._config),
            "predicates": self._workspace.predicate_indices(),
            "top": self._workspace.config.score.top,
            "included": [cluster.included for cluster in self._workspace.clusters()],
            "answered": files.sha256_text(files.canonical_json(self._answered)),
            "faulty": files.sha256_text(files.canonical_json(self._faulty)),
        }

    def run(self, shard: str, out: Outputs) -> Counts:
        """Merge the shards' candidates, drop what is known, and order the rest.

        The notes list under ``exhausted`` each [cluster, predicate, candidates] that has nothing
        left although the score stage held back more than its best.

        Raises:
            InputError: a cluster is included that was not when it was scored, or two images have
                one image id.
        """
        refuse_shared_image_ids(self._workspace, self._score_shards)
        included = np.array([cluster.included for cluster in self._workspace.clusters()])
        shape = (len(included), self._workspace.vocabulary.num_predicates)
        best = TopCandidates(*shape, self._workspace.config.score.top)
        scored = np.zeros(shape, dtype=np.int64)
        cut = np.zeros(shape, dtype=bool)
        for name in self._score_shards:
            top = self._top_of(name, included)
            candidates = self._workspace.candidates(name)
            candidates = candidates.take(included[candidates.cluster])
            rows = _group_sizes(candidates, shape)
            scored += rows
            cut |= rows >= top
            best.add(drop_known(candidates, answered=self._answered, faulty=self._faulty))
        merged = best.result()
        exhausted = self._exhausted(scored, cut & (_group_sizes(merged, shape) == 0))
        queue = propose(
            merged,
            predicates=self._workspace.predicate_indices(),
            limit=self._config.limit,
            seed=self._config.seed,
        )
        tables.write_proposals(out.path(PROPOSALS), queue)
        return Counts(
            inputs=len(merged),
            ok=len(merged),
            extra={"proposals": len(queue), "exhausted_groups": len(exhausted)},
            notes={"exhausted": exhausted},
        )

    def _top_of(self, shard: str, included: npt.NDArray[np.bool_]) -> int:
        """The size of the cut in a scored shard; refuses one that lacks an included cluster."""
        notes = finished(self._workspace, "score", shard).notes
        missing = sorted(set(np.flatnonzero(included).tolist()) - set(notes.get("included", ())))
        if missing:
            clusters = f"cluster{'s'[: len(missing) > 1]} {', '.join(map(str, missing))}"
            raise InputError(
                f"{clusters} had not been included when the images were scored; "
                f"run again: haystack score {self._workspace.root}"
            )
        return int(notes["top"])

    def _exhausted(
        self, scored: npt.NDArray[np.int64], dry: npt.NDArray[np.bool_]
    ) -> list[list[int]]:
        asked = set(self._workspace.predicate_indices())
        return [
            [cluster, predicate, int(scored[cluster, predicate])]
            for cluster, predicate in np.argwhere(dry).tolist()
            if predicate in asked
        ]


def _group_sizes(candidates: Candidates, shape: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Candidates of each cluster and predicate: int64 [clusters, predicates]."""
    sizes = np.zeros(shape, dtype=np.int64)
    np.add.at(sizes, (candidates.cluster, candidates.predicate), 1)
    return sizes
