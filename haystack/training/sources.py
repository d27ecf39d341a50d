"""The images of a run: of one annotation file or of several mixed, and those held out."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import cast

from haystack.errors import InputError
from haystack.files import canonical_json, sha256_text
from haystack.io import read_psg
from haystack.io.datasets import BUNDLED
from haystack.io.merge import merge_psg
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Split
from haystack.training.config import TrainConfig
from haystack.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingImage:
    """One annotated image.

    Args:
        graph: its annotations.
        dataset: beside which its files lie.
        faulty: positions of segments whose mask or class is known wrong.
        detected: what a detector found in it, with the paths of its files, where the task is
            SGDet; else None.
    """

    graph: SceneGraph
    dataset: SceneGraphDataset
    faulty: tuple[int, ...] = ()
    detected: SceneGraph | None = None

    @property
    def seen(self) -> SceneGraph:
        """The objects that the model sees: the detected ones where there are such."""
        return self.graph if self.detected is None else self.detected


@dataclass(frozen=True)
class TrainingImages:
    """What a run learns from, and what it is measured on while it learns.

    Args:
        vocabulary: of all of them.
        groups: images of ``annotations``, and where there are any, those of ``mix``.
        held_out: images of either that are kept for validation.
        left_out: how many images have no pair or no annotation.
        conflicts: triples about which files contradict each other; ``on_conflict`` decided.
    """

    vocabulary: Vocabulary
    groups: tuple[tuple[TrainingImage, ...], ...]
    held_out: tuple[TrainingImage, ...]
    left_out: int
    conflicts: int = 0

    @property
    def training(self) -> tuple[TrainingImage, ...]:
        """The images to learn from, group after group."""
        return tuple(image for group in self.groups for image in group)

    def shares(self, mix_share: float | None) -> tuple[Fraction, ...]:
        """Of each group among the images drawn."""
        if len(self.groups) == 1:
            return (Fraction(1),)
        if mix_share is None:
            total = len(self.training)
            return tuple(Fraction(len(group), total) for group in self.groups)
        return 1 - Fraction(mix_share), Fraction(mix_share)

    def fingerprint(self) -> str:
        """Of all annotations and their roles; a resumed run must find them unchanged."""
        digest = hashlib.sha256(canonical_json(self.vocabulary.to_dict()).encode())
        for number, images in enumerate((*self.groups, self.held_out)):
            for image in images:
                graph = image.graph
                content = [
                    number,
                    identity(graph),
                    graph.relations.tolist(),
                    graph.neg_relations.tolist(),
                    image.faulty,
                ]
                if image.detected is not None:
                    content.append(identity(image.detected))
                digest.update(canonical_json(content).encode())
        return digest.hexdigest()


def identity(graph: SceneGraph) -> list[object]:
    """An image and its objects, without what is said about them."""
    segments = [[segment.id, segment.category, *segment.box] for segment in graph.segments]
    return [graph.image_id, graph.height, graph.width, segments]


def read_annotations(config: TrainConfig) -> list[SceneGraphDataset]:
    """The annotation files of ``annotations`` and ``mix``, in this order.

    A folder stands for the ``annotation.json`` in it, as an export has it.

    Raises:
        InputError: a file is broken, or named twice.
    """
    taken: dict[str | Path, str] = {}
    for name in (config.annotations, *config.mix):
        place = annotation_place(name)
        if place in taken:
            role = "annotations" if taken[place] == config.annotations else "mix"
            raise InputError(
                f"these annotations are to be mixed in and are in use already, as {role}: an image "
                "is learned from once; leave one of the two out",
                path=name,
            )
        taken[place] = name
    return [read_psg(_annotation_file(name)) for name in (config.annotations, *config.mix)]


def read_detections(name: str) -> SceneGraphDataset:
    """The file of ``detections``; a folder stands for the ``scene_graphs.json`` in it.

    Raises:
        InputError: it is missing or broken.
    """
    inside = Path(name) / "scene_graphs.json"
    return read_psg(inside if inside.is_file() else _annotation_file(name))


def collect_images(config: TrainConfig, datasets: Sequence[SceneGraphDataset]) -> TrainingImages:
    """Choose the images, merge those that several files have, and hold some out.

    An image of several files has all their labels, and belongs to the first of them. Unless
    ``split`` asks for it, no image is used that any of the files lists as a test image.

    Args:
        config: ``split``, ``validation_fraction`` and ``validation_seed``.
        datasets: of ``annotations``, then of each of ``mix``.

    Raises:
        InputError: vocabularies differ, labels contradict each other, or no image is left.
    """
    blocked = set()
    if config.split == "train":
        blocked = {image_id for dataset in datasets for image_id in dataset.test_image_ids}
    chosen = []
    for number, dataset in enumerate(datasets):
        split = cast(Split, "train" if number else config.split)
        graphs = tuple(g for g in dataset.split(split) if g.image_id not in blocked)
        chosen.append(replace(dataset, graphs=graphs, test_image_ids=()))
    merged, conflicts = chosen[0], 0
    for number, addition in enumerate(chosen[1:]):
        try:
            merged, report = merge_psg(
                merged,
                addition,
                on_conflict=config.on_conflict,  # type: ignore[arg-type]  # by its class
            )
        except InputError as error:
            name = config.mix[number] if number < len(config.mix) else f"number {number + 1}"
            raise InputError(
                f"cannot be mixed with {config.annotations}: {error}; or say what holds with "
                "on_conflict=base or on_conflict=addition",
                path=name,
            ) from error
        conflicts += report["conflicts"]

    home: dict[str, int] = {}
    for number, dataset in enumerate(chosen):
        for graph in dataset.graphs:
            home.setdefault(graph.image_id, number)
    images = [
        TrainingImage(
            graph, chosen[home[graph.image_id]], merged.faulty_segments.get(graph.image_id, ())
        )
        for graph in merged.graphs
    ]
    usable = [image for image in images if _says_something(image.graph)]
    held_out = [image for image in usable if _is_held_out(image.graph.image_id, config)]
    rest = [image for image in usable if not _is_held_out(image.graph.image_id, config)]
    _check_counts(len(images), usable, held_out, rest, config)
    base = tuple(image for image in rest if home[image.graph.image_id] == 0)
    mixed = tuple(image for image in rest if home[image.graph.image_id] > 0)
    if len(datasets) > 1 and not (base and mixed) and config.mix_share is not None:
        logger.warning(
            "mix_share=%g has no effect: every image to learn from is one of %s",
            config.mix_share,
            "annotations, also those mixed in" if base else "those mixed in",
        )
    return TrainingImages(
        vocabulary=merged.vocabulary,
        groups=tuple(group for group in (base, mixed) if group),
        held_out=tuple(held_out),
        left_out=len(images) - len(usable),
        conflicts=conflicts,
    )


def _annotation_file(name: str) -> str | Path:
    inside = Path(name) / "annotation.json"
    return inside if name not in BUNDLED and inside.is_file() else name


def annotation_place(name: str) -> str | Path:
    """What tells annotation files apart, however they are spelled: the resolved path."""
    file = _annotation_file(name)
    return name if name in BUNDLED else Path(file).resolve()


def _says_something(graph: SceneGraph) -> bool:
    return len(graph.segments) > 1 and len(graph.relations) + len(graph.neg_relations) > 0


def _is_held_out(image_id: str, config: TrainConfig) -> bool:
    """By a hash of its id: whatever other images there are, an image stays on its side."""
    number = int(sha256_text(f"{config.validation_seed}:{image_id}")[:13], 16)
    return number < config.validation_fraction * 16**13


def _check_counts(
    found: int,
    usable: Sequence[TrainingImage],
    held_out: Sequence[TrainingImage],
    rest: Iterable[TrainingImage],
    config: TrainConfig,
) -> None:
    if not usable:
        raise InputError(
            f"expected images with two segments and an annotation to train on, got none among "
            f"{found} images; check the split"
        )
    if config.validation_fraction and not (held_out and rest):
        raise InputError(
            f"validation_fraction={config.validation_fraction:g} of {len(usable)} images holds out "
            f"{len(held_out)}; choose another fraction or another validation_seed"
        )
