"""OpenPSG's results: what its ``tools/test.py --out`` pickles, read without executing it.

A list of ``Result`` objects, one an image, without image ids: the order is that of the test split
of the annotation file, whose records without relations OpenPSG leaves out. A result holds, for n
objects and r pairs: ``refine_bboxes`` [n, 5], the fifth column the object's score; ``labels`` [n],
counted from 1; ``masks`` bool [n, H, W], which may overlap, or none; ``rel_pair_idxes`` [r, 2], the
best pair first; ``rel_dists`` [r, 1 + P], the softmax with "no relation" in column 0. Where nothing
was found, ``refine_bboxes`` is None. Models built on OpenPSG write the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.io.prediction_checks import (
    RepeatedPairs,
    integers,
    located,
    numbers,
    predicted_objects,
    relation_scores,
)
from haystack.io.restricted_pickle import PickledList, Record
from haystack.scene_graph import (
    NO_RELATION,
    MaskRuns,
    PredictedObjects,
    RelationScores,
    SceneGraph,
    SceneGraphDataset,
)

_ROUNDING = 1e-3


class OpenPsgResult:
    """Predictions of an OpenPSG result; iterate over it for one ``RelationScores`` an image.

    One image is in memory at a time. The pairs of an image keep the file's order, which is the
    model's ranking.

    Args:
        path: the pickle.
        dataset: the annotations that the model was tested on.
        repeated_pairs: what becomes of a pair that an image gives again.

    Attributes:
        from_logits: whether ``rel_dists`` holds logits, as some forks write it, and no
            probabilities; the first image with pairs decides.

    Raises:
        InputError: no such pickle, or another number of images than the test split has; and, when
            an image is read, its arrays do not fit each other or the vocabulary.
    """

    def __init__(
        self,
        path: str | Path,
        dataset: SceneGraphDataset,
        *,
        repeated_pairs: RepeatedPairs = "refuse",
    ) -> None:
        self.path = Path(path)
        self._vocabulary = dataset.vocabulary
        self._repeated_pairs: RepeatedPairs = repeated_pairs
        self._results = PickledList(self.path)
        self._image_ids = _image_ids(dataset, len(self._results), self.path)
        self.from_logits = False
        self.from_logits = self._first_scores_are_logits()

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[RelationScores]:
        for image_id, result in zip(self._image_ids, self._results, strict=True):
            with located(self.path, f"image {image_id}"):
                image = self._image(image_id, result)
                if not self.from_logits:
                    _refuse_logits(image)
            yield image

    def _first_scores_are_logits(self) -> bool:
        for image_id, result in zip(self._image_ids, self._results, strict=True):
            with located(self.path, f"image {image_id}"):
                image = self._image(image_id, result)
            if len(image.pairs):
                return _outside(image) is not None
        return False

    def _image(self, image_id: str, result: Any) -> RelationScores:
        if not isinstance(result, Record):
            raise InputError(f"expected a Result, got a value of type {type(result).__name__}")
        found = result.attributes
        columns = 1 + self._vocabulary.num_predicates
        if found.get("refine_bboxes") is None:
            nothing = PredictedObjects(np.empty(0, np.int64))
            pairs, scores = np.empty((0, 2), np.int64), np.empty((0, columns), np.float32)
            return RelationScores(image_id, pairs, scores[:, 1:], scores[:, 0], nothing)
        labels = integers(found.get("labels"), "labels") - 1
        masks = _masks(found.get("masks")) if len(labels) else None
        pairs = integers(found.get("rel_pair_idxes"), "rel_pair_idxes", 2)
        return relation_scores(
            image_id,
            pairs,
            numbers(found.get("rel_dists"), "rel_dists", columns),
            predicted_objects(labels, found["refine_bboxes"], masks, self._vocabulary.num_objects),
            repeated_pairs=self._repeated_pairs,
            pair_ranking=-np.arange(len(pairs), dtype=np.float32),  # the order of rows is the rank
        )


def read_openpsg_result(
    path: str | Path, dataset: SceneGraphDataset, *, repeated_pairs: RepeatedPairs = "refuse"
) -> OpenPsgResult:
    """Open an OpenPSG result; see :class:`OpenPsgResult`."""
    return OpenPsgResult(path, dataset, repeated_pairs=repeated_pairs)


def _image_ids(dataset: SceneGraphDataset, count: int, path: Path) -> Sequence[str]:
    """Ids of the images of a result, by its length."""
    graphs = dataset.split("test" if dataset.test_image_ids else "all")
    # OpenPSG keeps the records whose list of relations is not empty. A -1 that a file has among
    # its relations counts there, while it is read as a negative here.
    choices = {
        "with relations": [graph for graph in graphs if len(graph.relations)],
        "with relations or a -1": [graph for graph in graphs if _has_row(graph)],
        "in all": list(graphs),
    }
    for chosen in choices.values():
        if len(chosen) == count:
            return [graph.image_id for graph in chosen]
    have = ", ".join(f"{len(chosen)} {name}" for name, chosen in choices.items())
    raise InputError(
        f"expected a result for each image of the test split ({have}), got {count} results; give "
        "the annotation file that the model was tested on",
        path=path,
    )


def _has_row(graph: SceneGraph) -> bool:
    return bool(len(graph.relations) or (graph.neg_relations[:, 2] == NO_RELATION).any())


def _masks(value: Any) -> MaskRuns | None:
    if isinstance(value, Record):  # mmdet's BitmapMasks
        value = value.attributes.get("masks")
    if value is None:
        return None
    masks: Sequence[npt.NDArray[Any]] | npt.NDArray[Any] = value
    fits = isinstance(masks, (list, np.ndarray)) and all(
        isinstance(mask, np.ndarray) and mask.ndim == 2 and mask.dtype.kind in "bu"
        for mask in masks
    )
    if not fits:
        raise InputError("expected booleans [N, H, W] under 'masks'")
    height, width = masks[0].shape if len(masks) else (0, 0)
    return MaskRuns.from_masks((mask.astype(np.bool_) for mask in masks), height, width)


def _outside(image: RelationScores) -> float | None:
    """A score that is no probability, if there is one."""
    for values in (image.scores, image.no_relation):
        if values is not None:
            wrong = (values < -_ROUNDING) | (values > 1 + _ROUNDING)
            if wrong.any():
                return float(values[wrong][0])
    return None


def _refuse_logits(image: RelationScores) -> None:
    score = _outside(image)
    if score is not None:
        raise InputError(
            f"expected probabilities under 'rel_dists' as in the images before, got {score}"
        )
