"""Export: answered proposals as a PSG-compatible data set with explicit negatives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from haystack.errors import InputError
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Triplets, empty_triplets
from haystack.vocabulary import Vocabulary


class ExportedImage(NamedTuple):
    """One image of an export: its record, and its panoptic PNG as bytes."""

    graph: SceneGraph
    panoptic_png: bytes


@dataclass(frozen=True)
class ImageLabels:
    """What people said of one image.

    Args:
        relations: int64 [T, 3], rows (subject, object, predicate) answered "correct".
        neg_relations: int64 [N, 3], rows answered "incorrect"; predicate -1 = "no relation".
        faulty: positions of segments reported faulty.
    """

    relations: Triplets = field(default_factory=empty_triplets)
    neg_relations: Triplets = field(default_factory=empty_triplets)
    faulty: tuple[int, ...] = ()

    def without_faulty(self) -> ImageLabels:
        """Without rows that touch a faulty segment: they are used for nothing (paper, 3.1)."""
        faulty = np.array(self.faulty, dtype=np.int64)

        def sound(rows: Triplets) -> Triplets:
            return rows[~np.isin(rows[:, :2], faulty).any(axis=1)]

        return ImageLabels(sound(self.relations), sound(self.neg_relations), self.faulty)


def export_image(graph: SceneGraph, panoptic_png: bytes, labels: ImageLabels) -> ExportedImage:
    """One segmented image with its labels, rows sorted; the masks keep the image's resolution.

    Raises:
        InputError: a row refers to a segment that the image does not have.
    """
    labels = labels.without_faulty()
    for rows in (labels.relations, labels.neg_relations):
        if len(rows) and int(rows[:, :2].max()) >= len(graph.segments):
            raise InputError(
                f"an answer names segment {int(rows[:, :2].max())} but the image has "
                f"{len(graph.segments)} segments; was it segmented anew after the answers?",
                record=f"image {graph.image_id}",
            )
    exported = SceneGraph(
        image_id=graph.image_id,
        height=graph.height,
        width=graph.width,
        file_name=graph.file_name,
        pan_seg_file_name=f"panoptic/{_safe(graph.image_id)}.png",
        segments=graph.segments,
        relations=np.unique(labels.relations, axis=0),
        neg_relations=np.unique(labels.neg_relations, axis=0),
    )
    return ExportedImage(exported, panoptic_png)


def export_dataset(
    images: Iterable[SceneGraph],
    labels: Mapping[str, ImageLabels],
    vocabulary: Vocabulary,
    *,
    as_test_split: bool = False,
) -> SceneGraphDataset:
    """The data set of all exported images, ordered by image id.

    Args:
        images: records made by :func:`export_image`.
        labels: image id -> labels, for the list of faulty segments.
        vocabulary: of the campaign.
        as_test_split: list the images in ``test_image_ids``, as Haystack itself is a test set.
    """
    graphs = sorted(images, key=lambda graph: graph.image_id)
    return SceneGraphDataset(
        vocabulary=vocabulary,
        graphs=tuple(graphs),
        test_image_ids=tuple(graph.image_id for graph in graphs) if as_test_split else (),
        faulty_segments={
            graph.image_id: labels[graph.image_id].faulty
            for graph in graphs
            if labels[graph.image_id].faulty
        },
    )


def _safe(image_id: str) -> str:
    """A file name for an image id; ids that are no plain file name are escaped one to one."""
    plain = "".join(c if c.isalnum() or c in "-_." else f"%{ord(c):x}" for c in image_id)
    return f"%2e{plain[1:]}" if plain.startswith(".") else plain
