"""The flat layout that all overlaps and matches share."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.functional.tensors import ratio


@dataclass(frozen=True)
class ObjectPairs:
    """Every pair of a ground-truth and a predicted object of one image, for a batch of images.

    Objects are numbered through the batch, image after image, as are the Q pairs: by image, then
    ground truth, then prediction. No pair spans two images, and nothing is padded.

    Args:
        truth: int64 [Q], the ground-truth object of each pair, 0..G-1.
        predicted: int64 [Q], its predicted object, 0..P-1.
        truth_images: int64 [G], the image of each ground-truth object.
        predicted_images: int64 [P], the image of each predicted object.
        begins: int64 [G]; the pair (g, p) stands at ``begins[g] + p``.
    """

    truth: Tensor
    predicted: Tensor
    truth_images: Tensor
    predicted_images: Tensor
    begins: Tensor

    def row(self, truth: Tensor, predicted: Tensor) -> Tensor:
        """Where pairs stand in the table, int64; both objects must be of one image."""
        return self.begins[truth] + predicted


@dataclass(frozen=True)
class Overlaps:
    """Pixels that ground-truth and predicted segments have, and have in common.

    Args:
        pairs: the layout.
        intersections: int64 [Q], pixels that both segments of a pair hold.
        truth_areas: int64 [G], pixels of each ground-truth segment.
        predicted_areas: int64 [P], pixels of each predicted segment.
    """

    pairs: ObjectPairs
    intersections: Tensor
    truth_areas: Tensor
    predicted_areas: Tensor

    def iou(self) -> Tensor:
        """Intersection over union, float64 [Q] (float32 on MPS); 0 where both are empty."""
        areas = self.truth_areas[self.pairs.truth] + self.predicted_areas[self.pairs.predicted]
        return ratio(self.intersections, (areas - self.intersections).clamp(min=1))


def object_pairs(
    num_truths: Sequence[int],
    num_predictions: Sequence[int],
    device: torch.device | str | None = None,
) -> ObjectPairs:
    """The pairs of a batch, from the numbers of objects in each image.

    The numbers are plain integers, so that no accelerator is asked for them.

    Args:
        num_truths: ground-truth objects of each image.
        num_predictions: predicted objects of each image.
        device: of the tensors returned.

    Raises:
        InputError: not one number of each kind for every image.

    Example:
        >>> pairs = object_pairs([2, 1], [1, 2])
        >>> pairs.truth.tolist(), pairs.predicted.tolist()
        ([0, 1, 2, 2], [0, 0, 1, 2])
        >>> pairs.row(torch.tensor([2]), torch.tensor([1]))
        tensor([2])
    """
    check_images("numbers of objects", num_truths, num_predictions)
    truths, predictions = (np.asarray(n, dtype=np.int64) for n in (num_truths, num_predictions))
    images = np.arange(len(truths))
    truth_images, predicted_images = np.repeat(images, truths), np.repeat(images, predictions)
    widths = predictions[truth_images]
    ends = np.cumsum(widths)
    begins = ends - widths - (np.cumsum(predictions) - predictions)[truth_images]
    truth = np.repeat(np.arange(len(widths)), widths)
    predicted = np.arange(len(truth)) - begins[truth]
    tensors = (truth, predicted, truth_images, predicted_images, begins)
    return ObjectPairs(*(torch.from_numpy(x).to(device, non_blocking=True) for x in tensors))


def check_tensors(
    what: str, truths: Sequence[Tensor] | Tensor, predictions: Sequence[Tensor] | Tensor
) -> None:
    """Raise InputError unless there are as many images on either side, of tensors alone."""
    check_images(what, truths, predictions)
    for side in (truths, predictions):
        for image, value in enumerate(() if isinstance(side, Tensor) else side):
            if not isinstance(value, Tensor):
                raise InputError(
                    f"expected {what} as tensors, got {type(value).__name__}",
                    record=f"image {image} of the batch",
                )


def check_images(what: str, truths: Sized, predictions: Sized) -> None:
    """Raise InputError unless there are as many images on either side."""
    if len(truths) != len(predictions):
        raise InputError(
            f"expected {what} of the same images, got {len(truths)} images of ground truth "
            f"and {len(predictions)} of predictions"
        )
