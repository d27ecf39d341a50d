"""The score stage as a job: which files it reads and writes, and what its output depends on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from haystack import files
from haystack.errors import InputError
from haystack.executors.base import Counts, Outputs
from haystack.io.images import read_rgb
from haystack.models.relation.inputs import SceneInput, scene_input
from haystack.models.relation.protocol import RelationModel
from haystack.pipeline import tables
from haystack.pipeline.jobs.upstream import ALL, upstream_checksums
from haystack.pipeline.propose import Answered
from haystack.pipeline.scoring.candidates import FaultySegment
from haystack.pipeline.scoring.score import PlausibleTriplets, SceneInCluster, score_images
from haystack.pipeline.scoring.top_candidates import TopCandidates
from haystack.pipeline.segment_index import SegmentIndex
from haystack.pipeline.workspace import ASSIGNMENTS, CANDIDATES, SEGMENTED, Workspace
from haystack.scene_graph import SceneGraph, segments_identity
from haystack.statistics import TripletStatistics


@dataclass(frozen=True)
class ScoringModel:
    """A relation model that gives its opinion.

    Args:
        name: for people; recorded with the scores.
        hash: changes when the model's answers may have changed.
        load: loads it; called when the first shard needs it.
    """

    name: str
    hash: str
    load: Callable[[], RelationModel]


class ScoreJob:
    """The best candidates per (cluster, predicate), by shard.

    Args:
        workspace: where to read and write; its ``config.score`` holds.
        shards: names of the segment shards.
        model: the relation model.
        second: a second model; its opinion counts as much.
        statistics: training counts for the plausibility filter.
        answered: questions that have an answer; what is known is no candidate, so that it takes
            no place among the best.
        faulty: (image id, segment position) that annotators call wrong; those that the
            annotations call wrong come with the segments.
    """

    name: ClassVar[str] = "score"

    def __init__(
        self,
        workspace: Workspace,
        shards: Sequence[str],
        *,
        model: ScoringModel,
        second: ScoringModel | None = None,
        statistics: TripletStatistics,
        answered: Collection[Answered] = (),
        faulty: Collection[FaultySegment] = (),
    ) -> None:
        self._workspace = workspace
        self._config = workspace.config.score
        self._shards = list(shards)
        self._opinions = [model] if second is None else [model, second]
        self._plausible = PlausibleTriplets.from_statistics(
            statistics, min_count=self._config.min_count
        )
        self._answered: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for image_id, subject, target, predicate in sorted(set(answered)):
            self._answered[image_id].append((subject, target, predicate))
        self._faulty: dict[str, list[int]] = defaultdict(list)
        for image_id, position in sorted(set(faulty)):
            self._faulty[image_id].append(position)

    @cached_property
    def _models(self) -> list[RelationModel]:
        expected = self._workspace.vocabulary.num_predicates
        models = [opinion.load() for opinion in self._opinions]
        for model in models:
            if model.num_predicates != expected:
                raise InputError(
                    f"the relation model scores {model.num_predicates} predicates and the "
                    f"vocabulary has {expected}; use a model that was trained on this vocabulary"
                )
        return models

    @cached_property
    def _clusters(self) -> dict[str, str]:
        # Once, as the assignments below: what a manifest names must be what was used.
        return upstream_checksums(self._workspace, "cluster", [ALL])

    @cached_property
    def _index(self) -> SegmentIndex:
        return SegmentIndex(self._workspace.root)

    @cached_property
    def _known_in(self) -> Mapping[str, Mapping[int, str]]:
        """Path of a segment shard -> ids of its images of which something is known, by row."""
        known = {*self._answered, *self._faulty}
        return self._index.by_shard(known) if known else {}

    @cached_property
    def _included(self) -> list[bool]:
        return [cluster.included for cluster in self._workspace.clusters()]

    @cached_property
    def _filter_hash(self) -> str:
        masks = self._plausible.subject.tobytes() + self._plausible.object.tobytes()
        return files.sha256_text(masks.hex())

    def shards(self) -> Sequence[str]:
        """The segment shards."""
        return self._shards

    def inputs(self, shard: str) -> Mapping[str, str]:
        """The shard's segments, and the cluster of every image."""
        segments = upstream_checksums(self._workspace, "segment", [shard])
        return {**segments, ASSIGNMENTS: self._clusters[ASSIGNMENTS]}

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """Model, filter, size of the cut, included clusters, and what is known of its images."""
        ids = self._known_in.get(SEGMENTED.format(shard=shard), {}).values()
        return {
            "models": [opinion.hash for opinion in self._opinions],
            "filter": self._filter_hash,
            "top": self._config.top,
            "answered": {i: self._answered[i] for i in ids if i in self._answered},
            "faulty": {i: self._faulty[i] for i in ids if i in self._faulty},
            "included": self._included,
        }

    def run(self, shard: str, out: Outputs) -> Counts:
        """Score the shard's images that lie in included clusters.

        The notes tell the later stages the size of the cut, the clusters that were included, and
        who scored.
        """
        _ = self._index  # which refuses two images with one id
        shape = (len(self._included), self._workspace.vocabulary.num_predicates)
        best = TopCandidates(*shape, self._config.top, opinions=len(self._opinions))
        left_out = {"excluded": 0, "unclustered": 0}
        with _one_thread():
            counts = score_images(
                self._scenes(shard, left_out, out),
                self._models[0],
                self._plausible,
                best,
                second=self._models[1] if len(self._models) > 1 else None,
                batch_size=self._config.batch_size,
                set_aside=out.quarantine,
            )
        result = best.result()
        tables.write_candidates(out.path(CANDIDATES.format(shard=shard)), result)
        return Counts(
            inputs=counts.images + len(out.quarantined),
            ok=counts.images,
            extra={
                **left_out,
                "pairs": counts.pairs,
                "candidates": counts.candidates,
                "kept": len(result),
                "full_groups": best.full_groups(),
                "without_no_relation": counts.without_no_relation,
            },
            notes={
                "top": self._config.top,
                "included": np.flatnonzero(self._included).tolist(),
                "shape": shape,
                "models": [{"name": each.name, "hash": each.hash} for each in self._opinions],
            },
        )

    def _scenes(
        self, shard: str, left_out: dict[str, int], out: Outputs
    ) -> Iterator[SceneInCluster]:
        keys = tables.read_segmented_ids(self._workspace.path(SEGMENTED, shard=shard))
        cluster_of = self._workspace.clusters_of(keys)
        for image in self._workspace.segmented(shard):
            out.advance()
            cluster = cluster_of.get(image.image_key)
            if cluster is None:  # the embed stage has quarantined it, with its reason
                left_out["unclustered"] += 1
            elif not self._included[cluster]:
                left_out["excluded"] += 1
            else:
                yield SceneInCluster(
                    image.image_key,
                    cluster,
                    segments=segments_identity(image.segments),
                    scene=scene_of(image, self._picture(image)),
                    faulty={*image.faulty, *self._faulty.get(image.image_id, ())},
                    answered=self._answered.get(image.image_id, ()),
                )

    def _picture(self, image: tables.SegmentedImage) -> npt.NDArray[np.uint8] | None:
        if not any(model.reads_images for model in self._models):
            return None
        content = self._workspace.source.read(image.image_key)
        return read_rgb(content, size=(image.height, image.width), path=image.image_key)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums on the CPU depend on how many threads share them; a queue must not."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def scene_of(
    image: tables.SegmentedImage, picture: npt.NDArray[np.uint8] | None = None
) -> SceneInput:
    """A segmented image as a relation model sees it; ``picture`` uint8 [height, width, 3]."""
    graph = SceneGraph(
        image.image_id,
        image.height,
        image.width,
        image.image_key,
        segments=tuple(image.segments),
    )
    return scene_input(graph, image.id_map(), picture)
