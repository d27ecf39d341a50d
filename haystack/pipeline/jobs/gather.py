"""The gather stage as a job: the best candidates of many score shards in one file.

A thousand shards hold a thousand times clusters x predicates x M rows. They are merged once, block
by block, so that ``propose``, which runs again with every round of answers, reads little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from haystack.errors import InputError
from haystack.executors.base import Counts, Outputs
from haystack.pipeline import tables
from haystack.pipeline.jobs.upstream import finished, upstream_checksums
from haystack.pipeline.scoring.candidates import Candidates
from haystack.pipeline.segment_index import SegmentIndex
from haystack.pipeline.workspace import CANDIDATES, GATHERED, Workspace

BLOCK = 32
"""Score shards a block: a thousand shards make as many blocks as a block has shards."""


class GatherJob:
    """The best candidates per (cluster, predicate) of each block of score shards.

    One row group of one shard is in memory beside the best so far, and what cannot be among them
    is passed over before anything is sorted.

    Args:
        workspace: where to read and write.
        shards: names of the score shards, in their order.
    """

    name: ClassVar[str] = "gather"

    def __init__(self, workspace: Workspace, shards: Sequence[str]) -> None:
        self._workspace = workspace
        self._blocks = {
            f"block-{start // BLOCK:04d}": list(shards[start : start + BLOCK])
            for start in range(0, len(shards), BLOCK)
        }

    def shards(self) -> Sequence[str]:
        """The blocks."""
        return list(self._blocks)

    def inputs(self, shard: str) -> Mapping[str, str]:
        """The scores of the block's shards."""
        return upstream_checksums(self._workspace, "score", self._blocks[shard])

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """What its score shards say of themselves."""
        return {"notes": self._notes(shard)}

    def run(self, shard: str, out: Outputs) -> Counts:
        """Merge the block's shards; its notes are theirs.

        Raises:
            InputError: two images of the campaign have one image id.
        """
        # Here as in the score stage, of which several machines may each have seen a part.
        SegmentIndex(self._workspace.root)
        notes = self._notes(shard)
        paths = [self._workspace.path(CANDIDATES, shard=name) for name in self._blocks[shard]]
        best = best_of(paths, notes)
        tables.write_candidates(out.path(GATHERED.format(block=shard)), best)
        rows = sum(tables.count_rows(path) for path in paths)
        return Counts(inputs=rows, ok=rows, extra={"kept": len(best)}, notes=notes)

    def _notes(self, shard: str) -> dict[str, Any]:
        return common_notes(self._workspace, "score", self._blocks[shard])


def best_of(paths: Iterable[Path], notes: Mapping[str, Any]) -> Candidates:
    """The best candidates per (cluster, predicate) of several files.

    Args:
        paths: the files, in any order.
        notes: what they have in common; see ``common_notes``.
    """
    # Here, because it imports PyTorch, without which the annotation page does.
    from haystack.pipeline.scoring.top_candidates import TopCandidates

    clusters, predicates = notes["shape"]
    best = TopCandidates(clusters, predicates, notes["top"], opinions=len(notes["models"]))
    for path in paths:
        for part in tables.stream_candidates(path, best.hopeful):
            best.add(part)
    return best.result()


def common_notes(workspace: Workspace, stage: str, shards: Sequence[str]) -> dict[str, Any]:
    """What holds for the candidates of several shards of a stage.

    Returns:
        ``top``: M for which all lists are complete; ``included``: clusters that were scored in
        all; ``shape``: numbers of clusters and predicates; ``models``: name and hash of each.

    Raises:
        InputError: they were scored by different models.
    """
    notes = [finished(workspace, stage, shard).notes for shard in shards]
    for shard, note in zip(shards, notes, strict=True):
        hashes = [[model["hash"] for model in each["models"]] for each in (notes[0], note)]
        if hashes[0] != hashes[1]:
            raise InputError(
                f"the shards {shards[0]} and {shard} were scored by different models, so their "
                f"scores do not compare; run again: haystack score {workspace.root}"
            )
    return {
        "top": min(int(note["top"]) for note in notes),
        "included": sorted(set.intersection(*(set(note["included"]) for note in notes))),
        "shape": list(notes[0]["shape"]),
        "models": notes[0]["models"],
    }
