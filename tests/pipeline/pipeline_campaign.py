"""A small campaign that runs every stage in a moment: generated images, fake models, real files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image

from haystack import files
from haystack.executors import LocalExecutor
from haystack.executors.base import Job
from haystack.io import read_psg, write_psg
from haystack.io.images import decode_image, open_source
from haystack.io.panoptic_png import segment_geometry, write_panoptic_png
from haystack.models.relation.inputs import RelationLogits, SceneInput, all_pairs
from haystack.pipeline.export import ExportLabels
from haystack.pipeline.jobs.cluster import ClusterJob
from haystack.pipeline.jobs.embed import EmbedJob
from haystack.pipeline.jobs.export import ExportJob
from haystack.pipeline.jobs.gather import GatherJob
from haystack.pipeline.jobs.propose import ProposeJob
from haystack.pipeline.jobs.score import ScoreJob, ScoringModel
from haystack.pipeline.jobs.segment import SegmentJob
from haystack.pipeline.propose import Answered
from haystack.pipeline.segmenters.precomputed import PrecomputedSegmenter
from haystack.pipeline.workspace import CLUSTERS, Workspace
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.statistics import TripletStatistics
from haystack.vocabulary import Vocabulary

STAGES = ("embed", "cluster", "segment", "score", "gather", "propose", "export")
HEIGHT, WIDTH = 36, 48
NUM_IMAGES = 11
BROKEN = "image-03.jpg"
UNMASKED = "image-07.jpg"

VOCABULARY = Vocabulary(
    thing_classes=("person", "dog", "ball"),
    stuff_classes=("grass", "sky"),
    predicate_classes=("holding", "chasing", "over", "kissing"),
)


class ColourEncoder:
    """Mean colours of a 2 x 2 grid: cheap, real, deterministic."""

    dimension = 12

    def read(self, image_key: str, content: bytes) -> torch.Tensor:
        picture = decode_image(content, image_key)
        return torch.from_numpy(np.asarray(picture.resize((2, 2), Image.Resampling.BOX)).copy())

    def encode(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [pixels.flatten().float() for pixels in batch]


class ColourEncoderSpec:
    fingerprint: dict[str, str] = {"encoder": "colours"}  # noqa: RUF012

    def load(self) -> ColourEncoder:
        return ColourEncoder()


class FakeRelationModel:
    """Logits drawn from a stream that the image id seeds."""

    reads_images = False

    def __init__(self, num_predicates: int = 4, *, no_relation: bool = True) -> None:
        self.num_predicates = num_predicates
        self.no_relation = no_relation

    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        answers = []
        for scene in scenes:
            pairs = all_pairs(len(scene))
            seed = [ord(letter) for letter in scene.image_id]
            draw = np.random.default_rng(seed).normal(size=(len(pairs), self.num_predicates + 1))
            logits = np.round(draw * 4).astype(np.float32) / 4  # coarse, so that ties occur
            none = logits[:, -1] if self.no_relation else None
            answers.append(RelationLogits(scene.image_id, pairs, logits[:, :-1], none))
        return answers


def build_source(root: Path) -> Path:
    """Images (one truncated), panoptic PNGs (one missing) and annotations under ``root``."""
    random = np.random.default_rng(7)
    graphs = []
    for number in range(NUM_IMAGES):
        name = f"image-{number:02d}"
        ids = np.zeros((HEIGHT, WIDTH), dtype=np.int32)
        ids[: HEIGHT // 2] = 11
        ids[HEIGHT // 2 :] = 300
        ids[4:12, 5 : 15 + number] = 70_000
        ids[20:30, 8:20] = 5
        colours = {key: random.integers(0, 255, 3) for key in np.unique(ids).tolist()}
        pixels = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
        for key, colour in colours.items():
            pixels[ids == key] = colour // (1 + 2 * (number % 3))
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, format="JPEG", quality=95)
        content = stream.getvalue()
        if f"{name}.jpg" == BROKEN:
            content = content[: len(content) // 2]
        files.write_bytes(root / "images" / f"{name}.jpg", content)
        if f"{name}.jpg" != UNMASKED:
            write_panoptic_png(root / "panoptic" / f"{name}.png", ids)
        geometry = segment_geometry(ids)
        categories = {5: number % 3, 11: 4, 300: 3, 70_000: (number + 1) % 3}
        segments = tuple(
            Segment(int(key), categories[int(key)], int(area), tuple(map(float, box)))
            for key, area, box in zip(*geometry, strict=True)
        )
        graphs.append(
            SceneGraph(
                image_id=str(1000 + number),
                height=HEIGHT,
                width=WIDTH,
                file_name=f"images/{name}.jpg",
                pan_seg_file_name=f"panoptic/{name}.png",
                segments=segments,
                relations=as_triplets([(0, 3, number % 3), (3, 1, 2), (0, 2, 2)]),
            )
        )
    dataset = SceneGraphDataset(VOCABULARY, tuple(graphs), root=root)
    write_psg(dataset, root / "annotation.json")
    return root


@dataclass
class Campaign:
    """All jobs over one workspace."""

    root: Path
    source_root: Path
    overrides: tuple[str, ...] = ()
    model: FakeRelationModel = field(default_factory=FakeRelationModel)
    model_hash: str = "fake"
    second: ScoringModel | None = None
    shard_size: int = 4
    labelled: int = 5
    answered: list[Answered] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workspace = Workspace.create(
            self.root,
            overrides=(
                f"source.images={self.source_root / 'images'}",
                f"source.shard_size={self.shard_size}",
                f"vocabulary={self.source_root / 'annotation.json'}",
                "cluster.k=3",
                "cluster.seed=0",
                "embed.batch_size=2",
                "score.top=7",
                "score.batch_size=3",
                "propose.limit=20",
                "propose.seed=0",
                *self.overrides,
            ),
        )
        self.source = open_source(self.source_root / "images", shard_size=self.shard_size)

    @cached_property
    def dataset(self) -> SceneGraphDataset:
        return read_psg(self.source_root / "annotation.json")

    @property
    def labels(self) -> dict[str, ExportLabels]:
        """Answers on the first images that have segments."""
        return {
            str(1000 + number): ExportLabels(
                relations=as_triplets([(2, 0, 1), (0, 1, number % 4)]),
                neg_relations=as_triplets([(1, 2, -1), (1, 0, 3)]),
                faulty=(3,) if number == 1 else (),
            )
            for number in (0, 1, 2, 4, 5, 6, 8)[: self.labelled]
        }

    def job(self, stage: str) -> Job:
        if stage == "embed":
            return EmbedJob(self.workspace, self.source, ColourEncoderSpec())  # type: ignore[arg-type]
        if stage == "cluster":
            return ClusterJob(self.workspace, self.source)
        if stage == "segment":
            segmenter = PrecomputedSegmenter(self.dataset, self.source.keys())
            return SegmentJob(self.workspace, self.source, segmenter)
        if stage == "score":
            return ScoreJob(
                self.workspace,
                self.source.shards(),
                model=ScoringModel("fake", self.model_hash, lambda: self.model),
                second=self.second,
                statistics=TripletStatistics.from_graphs(self.dataset.graphs, 5, 4),
                answered=self.answered,
            )
        if stage == "gather":
            return GatherJob(self.workspace, self.source.shards())
        if stage == "propose":
            return ProposeJob(self.workspace, self.job("gather").shards(), answered=self.answered)
        return ExportJob(self.workspace, self.labels)

    def run(self, *stages: str) -> dict[str, object]:
        executor = LocalExecutor(self.root, progress=False)
        return {stage: executor.run(self.job(stage)) for stage in stages or STAGES}


def edit_clusters(campaign: Campaign, **changes: object) -> None:
    """Change the entry of cluster 1 in ``clusters.yaml``."""
    path = campaign.workspace.path(CLUSTERS)
    content = yaml.safe_load(path.read_text())
    content["clusters"][1].update(changes)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
