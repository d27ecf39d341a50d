"""Scene graphs of pictures: segments in, relation scores out, image by image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.io.images import Content
from haystack.io.panoptic_png import segment_positions
from haystack.models.relation.answers import ask
from haystack.models.relation.inputs import RelationLogits, guessed_scene, scene_input
from haystack.models.relation.predict import relation_scores
from haystack.models.relation.protocol import RelationModel
from haystack.pipeline.segment import segment_each
from haystack.pipeline.segmenters.base import Segmentation, Segmenter
from haystack.scene_graph import (
    MaskRuns,
    PredictedObjects,
    RelationScores,
    SceneGraph,
)
from haystack.vocabulary import Vocabulary


@dataclass(frozen=True)
class PredictedImage:
    """A picture with its segments and the scores of its pairs.

    Args:
        image_key: the image in its source.
        picture: uint8 [H, W, 3], RGB.
        segmentation: its segments.
        numbers: int32 [H, W], position of the segment of each pixel, -1 = none; None where only
            boxes are known.
        scores: of all ordered pairs of segments.
    """

    image_key: str
    picture: npt.NDArray[np.uint8]
    segmentation: Segmentation
    numbers: npt.NDArray[np.int32] | None
    scores: RelationScores

    @property
    def graph(self) -> SceneGraph:
        """The segments, without relations; ``file_name`` is the image's key."""
        return self.segmentation.graph(self.image_key, self.picture.shape[:2])


def predict_images(
    images: Iterable[tuple[str, Content]],
    segmenter: Segmenter,
    model: RelationModel,
    vocabulary: Vocabulary,
    *,
    set_aside: Callable[[str, str], None],
    as_objects: bool = True,
    guess_classes: bool = False,
    batch_size: int = 8,
) -> Iterator[PredictedImage]:
    """Score every ordered pair of segments of every image.

    ``batch_size`` images are in memory at a time.

    Args:
        images: image key and encoded bytes, or why there are none.
        segmenter: gives the segments.
        model: the relation model.
        vocabulary: numbers the classes.
        set_aside: called with image key and reason for every image that cannot be used.
        as_objects: whether the segments are part of the prediction (SGDet); False where they are
            those of the annotations, to which pairs then refer (PredCls).
        guess_classes: let the model classify the segments itself, knowing nothing of the classes of
            annotated ones (SGCls) and starting from those of detected ones (SGDet).
        batch_size: images handed to the model at once.

    Raises:
        HaystackError: the model does not answer what it was asked.
        InputError: it cannot classify objects, and should.
    """
    classes = vocabulary.num_objects if guess_classes else None
    ready = _segmented(images, segmenter, vocabulary, set_aside)
    while batch := list(islice(ready, batch_size)):
        scenes = []
        for key, picture, segmentation in batch:
            graph = segmentation.graph(key, picture.shape[:2])
            seen = picture if model.reads_images else None
            scene = scene_input(graph, segmentation.id_map, seen)
            if classes is not None:
                scene = guessed_scene(scene, classes, known=as_objects)
            scenes.append(scene)
        answers = ask(model, scenes)
        for (key, picture, segmentation), answer in zip(batch, answers, strict=True):
            if guess_classes:
                segmentation = _classified(segmentation, answer)
            graph = segmentation.graph(key, picture.shape[:2])
            numbers = None
            if segmentation.id_map is not None:
                numbers = segment_positions(segmentation.id_map, graph.segment_ids)
            objects = None
            if as_objects or guess_classes:
                objects = _objects(graph, segmentation.masks, numbers)
            scores = relation_scores(answer, objects)
            yield PredictedImage(key, picture, segmentation, numbers, scores)


_Segmented = tuple[str, npt.NDArray[np.uint8], Segmentation]


def _segmented(
    images: Iterable[tuple[str, Content]],
    segmenter: Segmenter,
    vocabulary: Vocabulary,
    set_aside: Callable[[str, str], None],
) -> Iterator[_Segmented]:
    taken: dict[str, str] = {}
    each = segment_each(images, segmenter, vocabulary, set_aside, boxes_suffice=True)
    for key, image, result in each:
        other = taken.setdefault(result.image_id, key)
        if other != key:
            set_aside(key, f"its image id {result.image_id} is that of {other} too")
            continue
        yield key, np.asarray(image), result


def _classified(segmentation: Segmentation, answer: RelationLogits) -> Segmentation:
    if answer.objects is None or answer.objects.scores is None:
        raise InputError(
            "the model was asked to classify the objects and gave no classes; use a model that "
            "does, such as a converted one of OpenPSG's",
            record=f"image {answer.image_id}",
        )
    found = zip(answer.objects.labels.tolist(), answer.objects.scores.tolist(), strict=True)
    segments = tuple(
        replace(segment, category=label, score=score)
        for segment, (label, score) in zip(segmentation.segments, found, strict=True)
    )
    return replace(segmentation, segments=segments)


def _objects(
    graph: SceneGraph, masks: MaskRuns | None, numbers: npt.NDArray[np.int32] | None
) -> PredictedObjects:
    if masks is None and numbers is not None:
        masks = MaskRuns.from_id_map(numbers, len(graph.segments))
    scores = [segment.score for segment in graph.segments]
    known = [score for score in scores if score is not None]
    # A file may score its things and not its stuff, as detectron2's do: those count as certain.
    filled = [1.0 if score is None else score for score in scores]
    return PredictedObjects(
        labels=graph.labels,
        scores=np.array(filled, dtype=np.float32) if known else None,
        boxes=graph.boxes,
        masks=masks,
    )
