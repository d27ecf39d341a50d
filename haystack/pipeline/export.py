"""Export: answered proposals as a PSG-compatible data set with explicit negatives.

Only images about which something is known are exported, with their panoptic PNGs at image
resolution. File names are image keys: they resolve against the folder of the campaign's images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from haystack.errors import InputError
from haystack.io.psg_writer import mask_file
from haystack.pipeline.tables import SegmentedImage
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Triplets, empty_triplets
from haystack.vocabulary import Vocabulary


@dataclass(frozen=True)
class ExportLabels:
    """What people said of one image.

    Args:
        relations: int64 [T, 3], rows (subject, object, predicate) that hold.
        neg_relations: int64 [N, 3], rows that do not; predicate -1 = no predicate at all.
        faulty: positions of segments reported faulty; no row uses one.
    """

    relations: Triplets = field(default_factory=empty_triplets)
    neg_relations: Triplets = field(default_factory=empty_triplets)
    faulty: tuple[int, ...] = ()


def export_dataset(
    images: Iterable[SegmentedImage],
    labels: Mapping[str, ExportLabels],
    vocabulary: Vocabulary,
    *,
    as_test_split: bool = False,
) -> SceneGraphDataset:
    """The labelled images as a data set, ordered by image id, rows sorted.

    Args:
        images: segmented images; those without labels are passed over. What they know of faulty
            segments joins what was reported, and no exported row uses one (paper, section 3.1).
        labels: image id -> labels.
        vocabulary: of the campaign.
        as_test_split: list the images in ``test_image_ids``, as Haystack itself is a test set.

    Raises:
        InputError: labels of an image that is not there, or of a segment that it does not have.
    """
    graphs, faulty = {}, {}
    for image in images:
        if image.image_id in labels:
            wrong = tuple(sorted({*labels[image.image_id].faulty, *image.faulty}))
            graphs[image.image_id] = _graph(image, labels[image.image_id], wrong)
            if wrong:
                faulty[image.image_id] = wrong
    lost = sorted(set(labels) - set(graphs))
    if lost:
        raise InputError(
            f"{len(lost)} answered images are not among the segmented ones any more, the first is "
            f"{lost[0]}; export before the source or the segmentation changes"
        )
    ordered = tuple(graphs[image_id] for image_id in sorted(graphs))
    return SceneGraphDataset(
        vocabulary=vocabulary,
        graphs=ordered,
        test_image_ids=tuple(graph.image_id for graph in ordered) if as_test_split else (),
        faulty_segments={
            graph.image_id: faulty[graph.image_id] for graph in ordered if graph.image_id in faulty
        },
    )


def _graph(image: SegmentedImage, labels: ExportLabels, faulty: Sequence[int]) -> SceneGraph:
    for rows in (labels.relations, labels.neg_relations):
        if len(rows) and int(rows[:, :2].max()) >= len(image.segments):
            raise InputError(
                f"an answer names segment {int(rows[:, :2].max())} but the image has "
                f"{len(image.segments)} segments; was it segmented anew after the answers?",
                record=f"image {image.image_id}",
            )
    return SceneGraph(
        image_id=image.image_id,
        height=image.height,
        width=image.width,
        file_name=image.image_key,
        pan_seg_file_name=mask_file(image.image_id),
        segments=image.segments,
        relations=_sound(labels.relations, faulty),
        neg_relations=_sound(labels.neg_relations, faulty),
    )


def _sound(rows: Triplets, faulty: Sequence[int]) -> Triplets:
    """Distinct rows, sorted, that use no faulty segment."""
    distinct = np.unique(rows, axis=0)
    return distinct[~np.isin(distinct[:, :2], faulty).any(axis=1)]
