"""What every relation head is built from, is given, and returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from haystack.models.relation.batch import SceneBatch


@dataclass(frozen=True)
class HeadDims:
    """Sizes of a relation head; the defaults are OpenPSG's. A head ignores those it has no use for.

    Args:
        num_objects: C, object classes.
        num_predicates: P, predicates.
        roi_dim: width of object and union features.
        embed_dim: width of a class embedding.
        hidden_dim: width of the object context; even.
        pooling_dim: width of a pair's representation.
        side_dim: width of the encodings of boxes and positions.
        dropout: on a pair's representation, in training.
        norm_momentum: of the batch normalisations.
        classifies_objects: whether the head has the part that classifies objects, which is idle
            where their classes are given.
        decoder_dropout: in that part, in training.
    """

    num_objects: int
    num_predicates: int
    roi_dim: int = 1024
    embed_dim: int = 200
    hidden_dim: int = 512
    pooling_dim: int = 4096
    side_dim: int = 128
    dropout: float = 0.0
    norm_momentum: float = 0.001
    classifies_objects: bool = True
    decoder_dropout: float = 0.2


@dataclass(frozen=True)
class HeadOutput:
    """What a relation head returns for a batch.

    Args:
        logits: float [R, P + 1]; column 0 = no relation, column p + 1 = predicate p.
        tree_logits: float [B, n, n], padded; the sigmoid of [b, i, j] says how much objects i and
            j of image b belong together. None where the head builds no trees.
        object_logits: float [N, C + 1]; column 0 = background, column c + 1 = class c. None where
            the classes were given.
    """

    logits: Tensor
    tree_logits: Tensor | None = None
    object_logits: Tensor | None = None


def likeliest_classes(object_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Likeliest class of each object and its probability, the background among the others.

    Args:
        object_logits: float [N, C + 1], column 0 = background.

    Returns:
        Probabilities float32 [N] and classes int64 [N], 0..C - 1.
    """
    scores, labels = object_logits.float().softmax(1)[:, 1:].max(1)
    return scores, labels


class RelationHead(nn.Module, ABC):
    """Predicate logits of object pairs, from object features, union features and classes."""

    @abstractmethod
    def forward(self, batch: SceneBatch, objects: Tensor, unions: Tensor) -> HeadOutput:
        """Score ``batch.pairs``; classify the objects first where ``batch.class_scores`` are given.

        Args:
            batch: labels or guesses of them, boxes, sizes and pairs.
            objects: float [N, roi_dim], a feature of each object.
            unions: float [R, roi_dim], a feature of each pair.

        Raises:
            InputError: the classes are guesses, and the head was built without
                ``classifies_objects``.
        """

    @abstractmethod
    def class_embeddings(self) -> Sequence[nn.Embedding]:
        """The tables of class embeddings, [C + 1, embed_dim] each; row 0 is the background.

        Those that stand for the objects of an image; a decoder's own table is not among them.
        """
