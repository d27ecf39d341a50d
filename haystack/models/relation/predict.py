"""From annotated or segmented images on disk to relation scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.io.images import read_rgb
from haystack.io.panoptic_png import read_panoptic_png
from haystack.models.relation.answers import ask
from haystack.models.relation.inputs import RelationLogits, SceneInput, scene_input
from haystack.models.relation.protocol import RelationModel
from haystack.scene_graph import (
    PredictedObjects,
    RelationScores,
    SceneGraph,
    SceneGraphDataset,
    Split,
)

_CHUNK = 16


def read_scene(
    dataset: SceneGraphDataset, graph: SceneGraph, *, with_image: bool = False
) -> SceneInput:
    """A scene graph's objects and its panoptic PNG, where its record names one.

    Args:
        dataset: where the graph comes from; files are read from beside it.
        graph: the image.
        with_image: whether to read the picture as well.

    Raises:
        InputError: a file is missing, broken or of another size than its record says.
    """
    size = (graph.height, graph.width)
    id_map = None
    if graph.pan_seg_file_name is not None:
        id_map = read_panoptic_png(dataset.path_of(graph.pan_seg_file_name), size=size)
    image = read_rgb(dataset.path_of(graph.file_name), size=size) if with_image else None
    return scene_input(graph, id_map, image)


def predict_dataset(
    model: RelationModel, dataset: SceneGraphDataset, split: Split = "test"
) -> Iterator[RelationScores]:
    """Predicate probabilities of every ordered pair of every image of a split, image by image.

    Raises:
        InputError: the model's predicates are not as many as the vocabulary's, or see
            ``read_scene`` and ``ask``.
    """
    if model.num_predicates != dataset.vocabulary.num_predicates:
        raise InputError(
            f"the model has {model.num_predicates} predicates, the annotations have "
            f"{dataset.vocabulary.num_predicates}; use a model trained on this vocabulary"
        )
    graphs = dataset.split(split)
    return (
        relation_scores(answer)
        for chunk in _chunks(graphs)
        for answer in ask(
            model, [read_scene(dataset, graph, with_image=model.reads_images) for graph in chunk]
        )
    )


def relation_scores(
    answer: RelationLogits, objects: PredictedObjects | None = None
) -> RelationScores:
    """Softmax over the P + 1 outputs of each pair, the no-relation column apart.

    Without a no-relation output the softmax runs over the P predicates.

    Args:
        answer: of the model.
        objects: what the pairs refer to, where a detector found it; None = what the answer says
            the objects were taken for, or else the annotated segments.
    """
    objects = answer.objects if objects is None else objects
    if answer.no_relation is None:
        probabilities = _softmax(answer.logits)
        return RelationScores(answer.image_id, answer.pairs, probabilities, objects=objects)
    probabilities = _softmax(np.concatenate([answer.logits, answer.no_relation[:, None]], axis=1))
    return RelationScores(
        image_id=answer.image_id,
        pairs=answer.pairs,
        scores=np.ascontiguousarray(probabilities[:, :-1]),
        no_relation=np.ascontiguousarray(probabilities[:, -1]),
        objects=objects,
    )


def _softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    return (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(np.float32)


def _chunks(graphs: Iterable[SceneGraph]) -> Iterator[list[SceneGraph]]:
    rest = iter(graphs)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk
