"""What a relation model is given, and what it gives back. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.scene_graph import PredictedObjects, SceneGraph

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SceneInput:
    """One image and its objects, as a relation model sees it.

    Args:
        image_id: the image.
        height, width: of the image, in pixels.
        labels: int64 [N], object classes; the likeliest ones where they are only guessed.
        boxes: float32 [N, 4], x1, y1, x2, y2 in pixels; right and bottom exclusive.
        id_map: int32 [height, width], segment id of every pixel, 0 = void; None where no masks
            are known, then boxes stand for them.
        segment_ids: int64 [N], the ids that the objects have in ``id_map``.
        image: uint8 [height, width, 3], RGB; None where nobody reads the picture.
        class_scores: float32 [N, C], the probability of each class where classes are only guessed,
            equal ones where nothing is known (SGCls, SGDet); the model then classifies the objects
            itself. None where ``labels`` are certain (PredCls).

    Raises:
        InputError: the arrays disagree about N, map or picture about the size, or an id comes
            twice.
    """

    image_id: str
    height: int
    width: int
    labels: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float32]
    id_map: npt.NDArray[np.int32] | None
    segment_ids: npt.NDArray[np.int64]
    image: npt.NDArray[np.uint8] | None = None
    class_scores: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        count = len(self.labels)
        shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
            "labels": (self.labels.shape, (count,)),
            "boxes": (self.boxes.shape, (count, 4)),
            "segment_ids": (self.segment_ids.shape, (count,)),
        }
        if self.id_map is not None:
            shapes["id_map"] = (self.id_map.shape, (self.height, self.width))
        if self.image is not None:
            shapes["image"] = (self.image.shape, (self.height, self.width, 3))
        if self.class_scores is not None:
            classes = self.class_scores.shape[-1:]
            shapes["class_scores"] = (self.class_scores.shape, (count, *classes))
        for name, (came, expected) in shapes.items():
            if came != expected:
                raise InputError(
                    f"expected {name} of shape {list(expected)}, got {list(came)}",
                    record=self.image_id,
                )
        if len(np.unique(self.segment_ids)) != count:
            raise InputError("expected every segment id once, got one twice", record=self.image_id)

    def __len__(self) -> int:
        return len(self.labels)

    def flipped(self) -> SceneInput:
        """The mirror image: left and right swapped."""
        boxes = self.boxes.copy()
        boxes[:, [0, 2]] = self.width - self.boxes[:, [2, 0]]
        id_map = None if self.id_map is None else np.ascontiguousarray(self.id_map[:, ::-1])
        image = None if self.image is None else np.ascontiguousarray(self.image[:, ::-1])
        return replace(self, boxes=boxes, id_map=id_map, image=image)


def guessed_scene(scene: SceneInput, num_objects: int, *, known: bool) -> SceneInput:
    """The scene with its classes as guesses, so that a model classifies the objects itself.

    Args:
        scene: with certain classes.
        num_objects: C, the number of classes.
        known: start from the scene's classes (SGDet); False = from nothing, every class being
            equally probable (SGCls).
    """
    if known:
        scores = np.eye(num_objects, dtype=np.float32)[scene.labels]
        return replace(scene, class_scores=scores)
    equal = np.full((len(scene), num_objects), 1 / num_objects, dtype=np.float32)
    return replace(scene, labels=np.zeros_like(scene.labels), class_scores=equal)


def scene_input(
    graph: SceneGraph,
    id_map: npt.NDArray[np.int32] | None,
    image: npt.NDArray[np.uint8] | None = None,
) -> SceneInput:
    """The objects of a scene graph as model input; relations are left behind.

    Args:
        graph: annotations of the image.
        id_map: int32 [height, width], its panoptic PNG, or None.
        image: uint8 [height, width, 3], the picture, or None.

    Raises:
        InputError: see ``SceneInput``.
    """
    return SceneInput(
        image_id=graph.image_id,
        height=graph.height,
        width=graph.width,
        labels=graph.labels,
        boxes=graph.boxes,
        id_map=id_map,
        segment_ids=graph.segment_ids,
        image=image,
    )


def all_pairs(count: int) -> npt.NDArray[np.int64]:
    """Every ordered pair of distinct objects, row-major: int64 [count * (count - 1), 2]."""
    subject, target = np.divmod(np.arange(count * count, dtype=np.int64), max(count, 1))
    return np.stack([subject, target], axis=1)[subject != target]


@dataclass(frozen=True)
class RelationLogits:
    """A relation model's answer for one image.

    Args:
        image_id: the image.
        pairs: int64 [R, 2], rows (subject, object); normally ``all_pairs`` of its objects.
        logits: float32 [R, P], before the softmax.
        no_relation: float32 [R], the logit that no predicate holds, or None where the model has
            no such output.
        objects: what the model takes the objects for where their classes were only guessed; None
            where they were certain.
    """

    image_id: str
    pairs: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    no_relation: npt.NDArray[np.float32] | None
    objects: PredictedObjects | None = None


@dataclass(frozen=True)
class PairLogits:
    """A relation model's answer for several images, on the device that computed it.

    Rows are the ``all_pairs`` of each image, image after image.

    Args:
        logits: float [R, P], before the softmax.
        no_relation: float [R], or None where the model has no such output.
    """

    logits: Tensor
    no_relation: Tensor | None
