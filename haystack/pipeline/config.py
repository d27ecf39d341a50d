"""Settings of a proposal campaign: one dataclass a stage, YAML, and ``key=value`` overrides.

Precedence: the defaults below, then the YAML file, then the overrides. Unknown keys and values of
the wrong type are errors that name the key. What a run used is saved as ``workspace.yaml``.

Example of a file::

    source: {images: /data/sa-1b}
    embed: {encoder: vit_large_patch14_dinov2.lvd142m, device: cuda}
    cluster: {k: 50}

and of overrides: ``cluster.k=16 propose.predicates=[kissing,cooking]``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from haystack import config
from haystack.errors import InputError
from haystack.io.datasets import BUNDLED
from haystack.models.relation.references import absolute_reference
from haystack.weights import NAMES

RESOLVED = "resolved"
"""Top-level key of ``workspace.yaml`` for what is recorded, not configured; readers drop it."""

SEGMENTERS = ("precomputed", "maskdino", "detectron2", "transformers", "yolo-seg")
"""Where segments may come from, by ``segment.kind``."""

_PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class SourceConfig:
    """Where the images come from.

    Args:
        images: a folder of images, a folder of SA-1B-style ``.tar`` shards, or one tar.
        shard_size: images a shard, for loose images; a tar is always one shard. Smaller shards
            lose less when a run is killed, larger ones make fewer files.
    """

    images: str = ""
    shard_size: int = 1000

    def __post_init__(self) -> None:
        _at_least("source.shard_size", self.shard_size, 1)


@dataclass(frozen=True)
class EmbedConfig:
    """One feature vector an image.

    Args:
        encoder: a DINOv2 by upstream's name (``dinov2_vitl14_reg``), any timm model by timm's, or
            ``efficientnet-lite0``, the small ImageNet encoder whose weights come inside a package.
        weights: a weight file (upstream's or timm's), or a name of ``haystack weights list``; empty
            = the encoder's own, where they are on this machine. Random weights are never used.
        image_size: side of the square that the encoder sees, in pixels; null = the model's own
            (518 for DINOv2; 224 costs a fifth).
        pooling: ``cls`` = the class token, as in the paper (the encoder's own feature where it has
            no such token); ``patches`` = the mean of the patch tokens.
        precision: of the encoder's numbers: ``float32``, ``bfloat16`` or ``float16``.
        dtype: how features are stored: ``float32``, or ``float16`` for half the space.
        batch_size: images a forward pass; more is faster until memory runs out, then it is halved.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        decode: ``pillow`` on the CPU, or ``nvjpeg`` on the encoder's CUDA device, which leaves to
            Pillow what is no plain JPEG. Pixels, hence features, differ a little between the two.
        draft: decode JPEGs at a half, a quarter or an eighth of their size where that is still no
            smaller than what the encoder sees (SA-1B's at a half for 518 px, at a quarter for 224).
            Saves one half to three quarters of the time; features differ a little.
        threads: that decode while the encoder works; null = as many as PyTorch computes with
            (``OMP_NUM_THREADS``), under torchrun this process's share of the cores; 0 = decode and
            encode in turn. Changes nothing but speed.
    """

    encoder: str = "vit_large_patch14_dinov2.lvd142m"
    weights: str = ""
    image_size: int | None = None
    pooling: str = "cls"
    precision: str = "float32"
    dtype: str = "float32"
    batch_size: int = 16
    device: str = "cpu"
    decode: str = "pillow"
    draft: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        _one_of("embed.pooling", self.pooling, ("cls", "patches"))
        _one_of("embed.precision", self.precision, _PRECISIONS)
        _one_of("embed.decode", self.decode, ("pillow", "nvjpeg"))
        _one_of("embed.dtype", self.dtype, ("float32", "float16"))
        if self.decode == "nvjpeg" and self.draft:
            raise InputError(
                "embed.draft is Pillow's way to decode; use it with embed.decode=pillow"
            )
        if self.threads is not None:
            _at_least("embed.threads", self.threads, 0)
        _at_least("embed.batch_size", self.batch_size, 1)
        if self.image_size is not None:
            _at_least("embed.image_size", self.image_size, 1)


@dataclass(frozen=True)
class ClusterConfig:
    """k-means over the features (Haystack paper, section 3.1: k = 50).

    Args:
        k: number of clusters; at most the number of images.
        iterations: rounds of Lloyd's algorithm.
        seed: of the sample and of the initial centroids.
        sample_per_cluster: k-means trains on at most ``k * sample_per_cluster`` points, drawn at
            random; null = on all. All points are then assigned. FAISS's own limit of 256 never
            applies; the manifest says how many points were used.
        algorithm: ``faiss`` holds the training points in memory, 4 bytes a number; ``streaming``
            reads them anew in every iteration, in chunks; ``auto``: FAISS where they fill half of
            the available memory at most. Both start from the same centroids and reach the same
            sum of squared distances, within rounding.
        normalise: centre the features and scale them to length one first, so that clusters follow
            directions. Helps features whose length says little, as those of ImageNet classifiers;
            the paper clusters DINOv2's as they are.
        gpu: run on the GPUs (FAISS on all, the rest on the first); an error where there is none
            that works, never a silent fall to CPU.
        sheet_images: images on each cluster's contact sheet, those nearest to its centroid.
    """

    k: int = 50
    iterations: int = 25
    seed: int = 0
    sample_per_cluster: int | None = 20_000
    algorithm: str = "auto"
    normalise: bool = False
    gpu: bool = False
    sheet_images: int = 24

    def __post_init__(self) -> None:
        for key in ("k", "iterations", "sample_per_cluster", "sheet_images"):
            if getattr(self, key) is not None:
                _at_least(f"cluster.{key}", getattr(self, key), 1)
        _one_of("cluster.algorithm", self.algorithm, ("auto", "faiss", "streaming"))
        _at_least("cluster.seed", self.seed, 0)


@dataclass(frozen=True)
class SegmentConfig:
    """Panoptic masks.

    Args:
        kind: ``precomputed`` = given by a file; ``maskdino`` = found by a MaskDINO; ``detectron2``
            = by any panoptic model of detectron2; ``transformers`` = by Mask2Former, OneFormer,
            EoMT; ``yolo-seg`` = things alone, by weights under GPL-3.0 that come in a package.
        annotations: what is in the images: a PSG JSON (or a bundled name), a COCO panoptic JSON,
            COCO detections with masks, or a folder of panoptic PNGs.
        weights: MaskDINO's official panoptic checkpoint, on ResNet-50 or Swin-L, a file or by name
            (``maskdino_r50``, ``maskdino_swinl``: see ``haystack weights``); a checkpoint of
            detectron2; a ``-seg.pt`` file of YOLOv5 or YOLOv7.
        model: a model of transformers, by its name or its folder, which must be on this machine;
            ``yolov5s-seg`` (the default) or ``yolov7-seg``.
        config: detectron2's configuration file.
        setup: functions that detectron2's configuration is handed to first, as
            ``package.module:function``; MaskDINO needs ``maskdino:add_maskdino_config``. Naming
            one says that its code may run.
        device: where a model runs: ``cpu``, ``cuda``, ``cuda:1``.
        precision: ``float32``, or ``bfloat16`` or ``float16`` for autocast; MaskDINO's backbone
            alone follows.
        batch_size: images of one shape that a model sees together; more is faster on a GPU until
            memory runs out, which halves it. detectron2 sees one.
        compile: use ``torch.compile``: minutes for each shape, faster from then on.
        score_threshold: probability above which an object counts; lower finds more. Null = the
            segmenter's own: 0.25 for MaskDINO, 0.35 for YOLO, what transformers says of a model.
        overlap_threshold: share of its mask that an object must win to stay; lower keeps more.
            Null = the segmenter's own: 0.8 for MaskDINO, 0.5 for YOLO.
    """

    kind: str = "precomputed"
    annotations: str = ""
    weights: str = ""
    model: str = ""
    config: str = ""
    setup: list[str] = field(default_factory=list)
    device: str = "cpu"
    precision: str = "float32"
    batch_size: int = 1
    compile: bool = False
    score_threshold: float | None = None
    overlap_threshold: float | None = None

    def __post_init__(self) -> None:
        _one_of("segment.kind", self.kind, SEGMENTERS)
        _one_of("segment.precision", self.precision, _PRECISIONS)
        _at_least("segment.batch_size", self.batch_size, 1)
        for key in ("score_threshold", "overlap_threshold"):
            value = getattr(self, key)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"'segment.{key}' expects a number in 0..1 or null, got {value}")

    def thresholds(self) -> dict[str, float]:
        """Those that are given, by name."""
        both = {
            "score_threshold": self.score_threshold,
            "overlap_threshold": self.overlap_threshold,
        }
        return {key: value for key, value in both.items() if value is not None}


@dataclass(frozen=True)
class ScoreConfig:
    """Relation scores, filtered and cut to the best.

    Args:
        model: the relation model: its file, its folder of training, or a class of one's own as
            ``package.module:factory`` or ``file.py:Class``.
        second_model: another one, whose opinion counts as much: candidates are then ordered by
            the mean of the ranks that both give them; empty = none.
        overlap: ``boxes`` or ``masks``: pairs whose boxes (or masks) do not meet count as not
            related; ``none``: every pair is scored as the model says.
        statistics: PSG annotations whose triplets say what is plausible.
        split: which images of ``statistics`` are counted: ``train``, ``test`` or ``all``. Counting
            test images would leak what the evaluation asks for.
        min_count: a candidate needs (subject class, predicate) and (predicate, object class) at
            least this often in the statistics. The paper drops pairs seen once or never as noise,
            hence 2; 0 switches the filter off.
        top: candidates kept per cluster and predicate, and per model. Memory is clusters x
            predicates x top rows; it must exceed the number of answers that are expected from one
            cluster.
        batch_size: images handed to the model at once.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
    """

    model: str = ""
    second_model: str = ""
    overlap: str = "none"
    statistics: str = ""
    split: str = "train"
    min_count: int = 2
    top: int = 1000
    batch_size: int = 8
    device: str = "cpu"

    def __post_init__(self) -> None:
        _one_of("score.overlap", self.overlap, ("none", "boxes", "masks"))
        _one_of("score.split", self.split, ("train", "test", "all"))
        _at_least("score.min_count", self.min_count, 0)
        _at_least("score.top", self.top, 1)
        _at_least("score.batch_size", self.batch_size, 1)


@dataclass(frozen=True)
class ProposeConfig:
    """The queue that annotators work through.

    Args:
        predicates: names of the predicates to propose for; empty = all.
        limit: proposals per predicate.
        seed: of the draw of clusters; each predicate has its own stream.
    """

    predicates: list[str] = field(default_factory=list)
    limit: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least("propose.limit", self.limit, 1)
        _at_least("propose.seed", self.seed, 0)


@dataclass(frozen=True)
class CampaignConfig:
    """How a round retrains on the answers, and what it measures.

    Args:
        train: configuration of the training, a YAML file or one of Haystack's own; empty = that
            of the model that proposed.
        settings: ``key=value`` laid over it, for example ``[steps=500, device=cuda]``.
        annotations: what is learned from beside the answers; empty = as the configuration says.
        start: ``last`` = go on from the model that proposed, ``scratch`` = new weights.
        on_conflict: what holds where an answer contradicts ``annotations``: ``addition`` = the
            answer, ``base`` = the annotation; ``error`` = neither, and the round stops.
        measure: annotations on which the models before and after are measured; empty = what is
            learned from, if it lists test images. No image of them is learned from.
        measure_split: which of their images: ``train``, ``test`` or ``all``.
        protocol: of the measurement.
    """

    train: str = ""
    settings: list[str] = field(default_factory=list)
    annotations: str = ""
    start: str = "last"
    on_conflict: str = "error"
    measure: str = ""
    measure_split: str = "test"
    protocol: str = "paper"

    def __post_init__(self) -> None:
        _one_of("campaign.start", self.start, ("last", "scratch"))
        _one_of("campaign.on_conflict", self.on_conflict, ("error", "base", "addition"))
        _one_of("campaign.measure_split", self.measure_split, ("train", "test", "all"))
        for setting in self.settings:
            key = setting.partition("=")[0]
            if "=" not in setting or key in ("annotations", "mix", "init", "on_conflict"):
                raise InputError(
                    "'campaign.settings' expects key=value of a training, without annotations, "
                    f"mix, init and on_conflict, which a round sets itself; got {setting!r}"
                )


@dataclass(frozen=True)
class AnnotateConfig:
    """How the questions are shared out among annotators.

    Args:
        copies: how many annotators answer a question that is shared.
        share: share of the questions that is shared, 0 to 1; the others are answered once. Which
            ones follows from the questions alone.
        copies_of: ``predicate=copies`` for predicates that are to differ from both.
        adjudication: who settles a tie: ``lead``, or ``annotator`` = one more of them, first.
        lease_seconds: how long a question that was handed out is kept from others.
        gold_rate: share of hidden gold items among the questions, 0 to 1 (``--gold``).
        gold_items: at most so many gold items of each predicate are taken from ``--gold``.
        repeat_rate: share of questions that an annotator has answered before, 0 to 1.
        repeat_after: after how many further answers a question may be repeated.
    """

    copies: int = 1
    share: float = 1.0
    copies_of: list[str] = field(default_factory=list)
    adjudication: str = "lead"
    lease_seconds: float = 300.0
    gold_rate: float = 0.0
    gold_items: int = 30
    repeat_rate: float = 0.0
    repeat_after: int = 50

    def __post_init__(self) -> None:
        _one_of("annotate.adjudication", self.adjudication, ("lead", "annotator"))
        _at_least("annotate.gold_items", self.gold_items, 1)
        self.copies_by_name()

    def copies_by_name(self) -> dict[str, int]:
        """``copies_of`` as predicate -> copies.

        Raises:
            InputError: an entry that is not of the form ``predicate=copies``.
        """
        found = {}
        for entry in self.copies_of:
            name, equals, copies = entry.rpartition("=")
            if not (name and equals and copies.isdecimal()):
                raise InputError(
                    f"'annotate.copies_of' expects entries such as eating=2, got {entry!r}"
                )
            found[name] = int(copies)
        return found


@dataclass(frozen=True)
class WorkspaceConfig:
    """Settings of all stages.

    Args:
        vocabulary: ``psg``, or a JSON or YAML file with the class lists.
        source, embed, cluster, segment, score, propose, campaign, annotate: see their classes.
    """

    vocabulary: str = "psg"
    source: SourceConfig = field(default_factory=SourceConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    segment: SegmentConfig = field(default_factory=SegmentConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    propose: ProposeConfig = field(default_factory=ProposeConfig)
    campaign: CampaignConfig = field(default_factory=CampaignConfig)
    annotate: AnnotateConfig = field(default_factory=AnnotateConfig)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for YAML or JSON."""
        return dataclasses.asdict(self)


def load_config(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    base: WorkspaceConfig | None = None,
) -> WorkspaceConfig:
    """Merge a base, a YAML file and ``stage.key=value`` overrides, in this order.

    Args:
        file: a YAML file, or None. A ``workspace.yaml`` is one.
        overrides: ``stage.key=value``; the value is read as YAML.
        base: what the others are laid over; the defaults if None.

    Raises:
        InputError: unreadable file, unknown key (the nearest is named), or wrong type.
    """
    return config.load_config(base or WorkspaceConfig(), file, overrides, ignore=(RESOLVED,))


def with_absolute_paths(settings: WorkspaceConfig) -> WorkspaceConfig:
    """The same settings with every path absolute, so that they hold in any current folder.

    Names of bundled data sets, of the bundled vocabulary and of known weights stay names.
    """

    def absolute(value: str, names: Collection[str] = ()) -> str:
        return value if not value or value in names else os.path.abspath(value)

    replace = dataclasses.replace
    model = settings.segment.model  # a folder, or a name
    train = settings.campaign.train  # a file, or one of Haystack's own
    return replace(
        settings,
        vocabulary=absolute(settings.vocabulary, ("psg",)),
        source=replace(settings.source, images=absolute(settings.source.images)),
        embed=replace(settings.embed, weights=absolute(settings.embed.weights, NAMES)),
        segment=replace(
            settings.segment,
            annotations=absolute(settings.segment.annotations, BUNDLED),
            weights=absolute(settings.segment.weights, NAMES),
            model=os.path.abspath(model) if os.path.isdir(model) else model,
            config=absolute(settings.segment.config),
        ),
        score=replace(
            settings.score,
            model=settings.score.model and absolute_reference(settings.score.model),
            second_model=settings.score.second_model
            and absolute_reference(settings.score.second_model),
            statistics=absolute(settings.score.statistics, BUNDLED),
        ),
        campaign=replace(
            settings.campaign,
            train=os.path.abspath(train) if os.path.isfile(train) else train,
            annotations=absolute(settings.campaign.annotations, BUNDLED),
            measure=absolute(settings.campaign.measure, BUNDLED),
        ),
    )


def dump_config(settings: WorkspaceConfig, resolved: Mapping[str, Any]) -> str:
    """The text of ``workspace.yaml``: all settings, then what was recorded beside them."""
    content = {**settings.to_dict(), RESOLVED: dict(resolved)}
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100))


def _one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"'{key}' expects one of {', '.join(choices)}, got {value!r}")


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"'{key}' expects an integer of at least {least}, got {value}")
