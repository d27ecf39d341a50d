"""The stages as jobs: which files each reads and writes, and what its output depends on.

Embed and segment need the source's shards; cluster and propose work on all shards at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from haystack import files
from haystack.errors import InputError
from haystack.executors.base import Counts, Outputs, manifest_path
from haystack.executors.manifest import CurrentChecksums, read_manifest
from haystack.io.images import ImageSource, decode_image
from haystack.models.relation.inputs import SceneInput
from haystack.models.relation.protocol import RelationModel
from haystack.pipeline import tables
from haystack.pipeline.candidates import FaultySegment, TopCandidates
from haystack.pipeline.cluster import Clustering, cluster_features, nearest_to_centroid
from haystack.pipeline.contact_sheet import contact_sheet
from haystack.pipeline.embed import ImageEncoder, embed_images
from haystack.pipeline.encoders import EncoderSpec
from haystack.pipeline.propose import Answered, drop_known, propose
from haystack.pipeline.score import PlausibleTriplets, SceneInCluster, score_images
from haystack.pipeline.segment import Segmenter, segment_images
from haystack.pipeline.workspace import (
    ASSIGNMENTS,
    CANDIDATES,
    CENTROIDS,
    CLUSTERS,
    CONTACT_SHEET,
    FEATURES,
    PROPOSALS,
    SEGMENTED,
    Workspace,
    missing_stage,
)
from haystack.statistics import TripletStatistics

logger = logging.getLogger(__name__)

ALL = "all"
"""The one shard of a stage that works on all shards at once."""


class EmbedJob:
    """Features of every image, by shard.

    Args:
        workspace: where to write; its ``config.embed`` holds.
        source: the images.
        encoder: found weights; loaded when the first shard needs them.
    """

    name: ClassVar[str] = "embed"

    def __init__(self, workspace: Workspace, source: ImageSource, encoder: EncoderSpec) -> None:
        self._config = workspace.config.embed
        self._source = source
        self._spec = encoder

    @cached_property
    def _encoder(self) -> ImageEncoder:
        return self._spec.load()

    def shards(self) -> Sequence[str]:
        """The source's shards."""
        return self._source.shards()

    def inputs(self, shard: str) -> Mapping[str, str]:
        """None: it reads the source."""
        return {}

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """Encoder, weights, storage type, and the shard's images."""
        return {
            **self._spec.fingerprint,
            "dtype": self._config.dtype,
            "images": self._source.signature(shard),
        }

    def run(self, shard: str, out: Outputs) -> Counts:
        """Encode the shard's images; broken ones are quarantined."""
        features = embed_images(
            _images(self._source, shard, out),
            self._encoder,
            batch_size=self._config.batch_size,
            dtype=self._config.dtype,
            set_aside=out.quarantine,
        )
        tables.write_features(out.path(FEATURES.format(shard=shard)), features)
        return _counts(len(features.image_keys), out)


class ClusterJob:
    """Clusters of all images, with a contact sheet each.

    Args:
        workspace: where to read and write; its ``config.cluster`` holds.
        source: the images, for the contact sheets.
    """

    name: ClassVar[str] = "cluster"

    def __init__(self, workspace: Workspace, source: ImageSource) -> None:
        self._workspace = workspace
        self._config = workspace.config.cluster
        self._source = source

    def shards(self) -> Sequence[str]:
        """One: all images."""
        return [ALL]

    def inputs(self, shard: str) -> Mapping[str, str]:
        """All features."""
        return upstream_checksums(self._workspace, "embed", self._source.shards())

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """Settings."""
        settings = asdict(self._config)
        del settings["gpu"]  # where it runs, not what it means
        return settings

    def run(self, shard: str, out: Outputs) -> Counts:
        """Cluster, assign, and write ``clusters.yaml``; edits of it survive if nothing changed."""
        parts = [self._workspace.features(name) for name in self._source.shards()]
        keys = tuple(key for part in parts for key in part.image_keys)
        clustering = cluster_features(
            np.concatenate([part.features for part in parts]),
            k=self._config.k,
            iterations=self._config.iterations,
            seed=self._config.seed,
            sample_per_cluster=self._config.sample_per_cluster,
            normalise=self._config.normalise,
            gpu=self._config.gpu,
        )
        assignments = tables.Assignments(keys, clustering.cluster, clustering.distance)
        centroids_file, assignments_file = out.path(CENTROIDS), out.path(ASSIGNMENTS)
        tables.write_centroids(centroids_file, clustering.centroids)
        tables.write_assignments(assignments_file, assignments)
        identity = files.sha256_text(
            files.sha256_file(centroids_file) + files.sha256_file(assignments_file)
        )
        clusters = self._clusters(clustering, identity)
        text = tables.dump_clusters(clusters, identity)
        out.path(CLUSTERS, editable=True).write_text(text, encoding="utf-8")
        for number in range(self._config.k):
            self._sheet(number, keys, clustering, out)
        out.advance(len(keys))
        training = {"training_points": clustering.training_points}
        return Counts(inputs=len(keys), ok=len(keys), extra=training)

    def _clusters(self, clustering: Clustering, identity: str) -> list[tables.Cluster]:
        path = self._workspace.path(CLUSTERS)
        if path.is_file():
            edited, known = tables.load_clusters(path)
            if known == identity:
                return edited
            previous = path.with_name(path.name + ".previous")
            files.write_bytes(previous, path.read_bytes())
            logger.warning(
                "the clustering changed, so all clusters are included again; the file with your "
                "choices is kept as %s",
                previous,
            )
        sizes = np.bincount(clustering.cluster, minlength=self._config.k).tolist()
        return [
            tables.Cluster(number, f"cluster-{number:02d}", size)
            for number, size in enumerate(sizes)
        ]

    def _sheet(
        self, cluster: int, keys: Sequence[str], clustering: Clustering, out: Outputs
    ) -> None:
        rows = nearest_to_centroid(clustering, cluster, self._config.sheet_images)
        if not len(rows):
            return
        pictures = [decode_image(self._source.read(keys[row]), keys[row]) for row in rows]
        size = int((clustering.cluster == cluster).sum())
        content = contact_sheet(pictures, f"cluster {cluster}: {size} images")
        out.path(CONTACT_SHEET.format(cluster=cluster)).write_bytes(content)


class SegmentJob:
    """Panoptic segments of every image, by shard.

    Args:
        workspace: where to write; its vocabulary numbers the classes.
        source: the images.
        segmenter: gives the segments.
    """

    name: ClassVar[str] = "segment"

    def __init__(self, workspace: Workspace, source: ImageSource, segmenter: Segmenter) -> None:
        self._vocabulary = workspace.vocabulary
        self._source = source
        self._segmenter = segmenter

    @cached_property
    def _segmenter_fingerprint(self) -> dict[str, Any]:
        return self._segmenter.fingerprint()

    def shards(self) -> Sequence[str]:
        """The source's shards."""
        return self._source.shards()

    def inputs(self, shard: str) -> Mapping[str, str]:
        """None: it reads the source."""
        return {}

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """The segmenter, the class lists, and the shard's images."""
        return {
            "segmenter": self._segmenter_fingerprint,
            "classes": list(self._vocabulary.object_classes),
            "images": self._source.signature(shard),
        }

    def run(self, shard: str, out: Outputs) -> Counts:
        """Segment the shard's images; those that cannot be used are quarantined."""
        ok = 0

        def counted(images: Iterator[tables.SegmentedImage]) -> Iterator[tables.SegmentedImage]:
            nonlocal ok
            for image in images:
                ok += 1
                yield image

        images = segment_images(
            _images(self._source, shard, out),
            self._segmenter,
            self._vocabulary,
            set_aside=out.quarantine,
        )
        tables.write_segmented(out.path(SEGMENTED.format(shard=shard)), counted(images))
        return _counts(ok, out)


class ScoreJob:
    """The best candidates per (cluster, predicate), by shard.

    Args:
        workspace: where to read and write; its ``config.score`` holds.
        shards: names of the segment shards.
        load_model: loads the relation model; called when the first shard needs it.
        model_hash: changes when the model's answers may have changed.
        statistics: training counts for the plausibility filter.
        faulty: (image id, segment position) known to be wrong before anybody annotated.
    """

    name: ClassVar[str] = "score"

    def __init__(
        self,
        workspace: Workspace,
        shards: Sequence[str],
        *,
        load_model: Callable[[], RelationModel],
        model_hash: str,
        statistics: TripletStatistics,
        faulty: Collection[FaultySegment] = (),
    ) -> None:
        self._workspace = workspace
        self._config = workspace.config.score
        self._shards = list(shards)
        self._load_model = load_model
        self._model_hash = model_hash
        self._plausible = PlausibleTriplets.from_statistics(
            statistics, min_count=self._config.min_count
        )
        self._faulty = sorted(faulty)

    @cached_property
    def _model(self) -> RelationModel:
        model = self._load_model()
        expected = self._workspace.vocabulary.num_predicates
        if model.num_predicates != expected:
            raise InputError(
                f"the relation model scores {model.num_predicates} predicates and the vocabulary "
                f"has {expected}; use a model that was trained on this vocabulary"
            )
        return model

    @cached_property
    def _cluster_of(self) -> dict[str, int]:
        assignments = self._workspace.assignments()
        return dict(zip(assignments.image_keys, assignments.cluster.tolist(), strict=True))

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
        clusters = upstream_checksums(self._workspace, "cluster", [ALL])
        return {**segments, ASSIGNMENTS: clusters[ASSIGNMENTS]}

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """Model, filter, size of the cut, faulty segments, and which clusters are included."""
        return {
            "model": self._model_hash,
            "filter": self._filter_hash,
            "top": self._config.top,
            "faulty": self._faulty,
            "included": self._included,
        }

    def run(self, shard: str, out: Outputs) -> Counts:
        """Score the shard's images that lie in included clusters."""
        best = TopCandidates(
            len(self._included), self._workspace.vocabulary.num_predicates, self._config.top
        )
        left_out = {"excluded": 0, "unclustered": 0}
        counts = score_images(
            self._scenes(shard, left_out, out),
            self._model,
            self._plausible,
            best,
            faulty=self._faulty,
            batch_size=self._config.batch_size,
        )
        result = best.result()
        tables.write_candidates(out.path(CANDIDATES.format(shard=shard)), result)
        return Counts(
            inputs=counts.images,
            ok=counts.images,
            extra={
                **left_out,
                "pairs": counts.pairs,
                "candidates": counts.candidates,
                "kept": len(result),
                "full_groups": best.full_groups(),
                "without_no_relation": counts.without_no_relation,
            },
        )

    def _scenes(
        self, shard: str, left_out: dict[str, int], out: Outputs
    ) -> Iterator[SceneInCluster]:
        for image in self._workspace.segmented(shard):
            out.advance()
            cluster = self._cluster_of.get(image.image_key)
            if cluster is None:  # the embed stage has quarantined it, with its reason
                left_out["unclustered"] += 1
            elif not self._included[cluster]:
                left_out["excluded"] += 1
            else:
                yield SceneInCluster(image.image_key, cluster, _scene(image))


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
        """Merge the shards' candidates, drop what is known, and order the rest."""
        included = np.array([cluster.included for cluster in self._workspace.clusters()])
        best = TopCandidates(
            len(included),
            self._workspace.vocabulary.num_predicates,
            self._workspace.config.score.top,
        )
        for name in self._score_shards:
            candidates = self._workspace.candidates(name)
            candidates = candidates.take(included[candidates.cluster])
            best.add(drop_known(candidates, answered=self._answered, faulty=self._faulty))
        merged = best.result()
        queue = propose(
            merged,
            predicates=self._workspace.predicate_indices(),
            limit=self._config.limit,
            seed=self._config.seed,
        )
        tables.write_proposals(out.path(PROPOSALS), queue)
        return Counts(inputs=len(merged), ok=len(merged), extra={"proposals": len(queue)})


def _images(source: ImageSource, shard: str, out: Outputs) -> Iterator[tuple[str, bytes]]:
    """The shard's images; where the shard itself breaks off, its rest is quarantined."""
    try:
        for item in source.iterate(shard):
            out.advance()
            yield item
    except InputError as error:
        out.quarantine(shard, str(error))


def _counts(ok: int, out: Outputs) -> Counts:
    return Counts(inputs=ok + len(out.quarantined), ok=ok)


def _scene(image: tables.SegmentedImage) -> SceneInput:
    segments = image.segments
    return SceneInput(
        image_id=image.image_id,
        height=image.height,
        width=image.width,
        labels=np.array([segment.category for segment in segments], dtype=np.int64),
        boxes=np.array([segment.box for segment in segments], dtype=np.float32).reshape(-1, 4),
        id_map=image.id_map(),
        segment_ids=np.array([segment.id for segment in segments], dtype=np.int64),
    )


def upstream_checksums(workspace: Workspace, stage: str, shards: Sequence[str]) -> dict[str, str]:
    """Checksums of another stage's outputs, from its manifests.

    Raises:
        InputError: that stage is not complete, or was made from outputs that have changed since.
    """
    checksums: dict[str, str] = {}
    current = CurrentChecksums(workspace.root)
    for shard in shards:
        manifest = read_manifest(workspace.root, stage, shard)
        if manifest is None:
            raise missing_stage(workspace.root, stage, manifest_path(workspace.root, stage, shard))
        changed = current.outdated_stage(manifest)
        if changed is not None:
            raise InputError(
                f"the stage '{stage}' was made from an earlier '{changed}'; "
                f"run again: haystack {stage} {workspace.root}"
            )
        checksums.update(manifest.checksums())
    return checksums
