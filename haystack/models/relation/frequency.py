"""The frequency baseline: how often a predicate holds between two classes, and no picture.

FREQ of Zellers et al. (Neural Motifs, 2018, section 4); with an ``OverlapFilter`` around it, and
the background counted on overlapping pairs only, FREQ+OVERLAP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.models.relation.inputs import RelationLogits, SceneInput, all_pairs
from haystack.scene_graph import SceneGraph
from haystack.vocabulary import Vocabulary

Counts = npt.NDArray[np.int32]
Meets = Callable[[SceneGraph], npt.NDArray[np.bool_]]


def count_predicates(
    graphs: Iterable[SceneGraph],
    vocabulary: Vocabulary,
    *,
    faulty: Mapping[str, Collection[int]] | None = None,
    meets: Meets | None = None,
) -> Counts:
    """Count what holds between objects of two classes.

    Args:
        graphs: training annotations; a repeated row counts once an image.
        vocabulary: numbers the classes.
        faulty: image id -> positions of segments known wrong; their pairs are no background.
        meets: bool [N, N] of an image: which pairs may be background; None = all.

    Returns:
        int32 [C, C, P + 1] by subject class, object class and output: column 0 = pairs without a
        positive, column p + 1 = predicate p.
    """
    size = vocabulary.num_objects
    counts = np.zeros((size, size, vocabulary.num_predicates + 1), dtype=np.int32)
    for graph in graphs:
        labels = graph.labels
        relations = np.unique(graph.relations, axis=0)
        subject, target, predicate = relations.T
        np.add.at(counts, (labels[subject], labels[target], predicate + 1), 1)
        free = ~np.eye(len(labels), dtype=np.bool_) if meets is None else meets(graph).copy()
        np.fill_diagonal(free, False)
        free[subject, target] = False
        wrong = list((faulty or {}).get(graph.image_id, ()))
        free[wrong] = free[:, wrong] = False
        first, second = np.nonzero(free)
        np.add.at(counts[:, :, 0], (labels[first], labels[second]), 1)
    return counts


class FrequencyModel:
    """Scores a pair by the classes of its objects alone; a ``RelationModel``.

    The logit of output k for classes (i, j) is log(n_ijk / sum_k n_ijk + epsilon), with one pair
    without relation added to each (i, j): two classes that training never showed together are
    most likely not related.

    Args:
        counts: int32 [C, C, P + 1], see ``count_predicates``.
        vocabulary: object classes and predicates.
        epsilon: probability of what training never showed.

    Raises:
        InputError: the counts have another shape.
    """

    reads_images = False

    def __init__(self, counts: Counts, vocabulary: Vocabulary, *, epsilon: float = 1e-3) -> None:
        size = vocabulary.num_objects
        shape = (size, size, vocabulary.num_predicates + 1)
        if counts.shape != shape:
            raise InputError(f"expected counts of shape {list(shape)}, got {list(counts.shape)}")
        if not epsilon > 0:
            raise InputError(f"expected a positive epsilon, got {epsilon}")
        self.counts = counts
        self.vocabulary = vocabulary
        self.epsilon = epsilon
        smoothed = counts.astype(np.float32)
        smoothed[:, :, 0] += 1
        share = smoothed / smoothed.sum(axis=2, keepdims=True)
        self._logits: npt.NDArray[np.float32] = np.log(share + np.float32(epsilon))

    @property
    def num_predicates(self) -> int:
        """P, the number of predicates."""
        return self.vocabulary.num_predicates

    def predict(self, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
        """Logits for all ordered pairs of every scene; see ``RelationModel``.

        Raises:
            InputError: an object class is not one of the vocabulary's.
        """
        answers = []
        for scene in scenes:
            if len(scene) and int(scene.labels.max()) >= self.vocabulary.num_objects:
                raise InputError(
                    f"expected object classes below {self.vocabulary.num_objects}, got "
                    f"{int(scene.labels.max())}",
                    record=scene.image_id,
                )
            pairs = all_pairs(len(scene))
            rows = self._logits[scene.labels[pairs[:, 0]], scene.labels[pairs[:, 1]]]
            answers.append(
                RelationLogits(
                    image_id=scene.image_id,
                    pairs=pairs,
                    logits=np.ascontiguousarray(rows[:, 1:]),
                    no_relation=np.ascontiguousarray(rows[:, 0]),
                )
            )
        return answers
