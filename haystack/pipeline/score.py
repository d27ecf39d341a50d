"""Which pairs are most likely to show a predicate (Haystack paper, section 3.1).

The score of predicate p for a pair is log p(p) - log p(no relation) = logit_p - logit_none, since
both come from one softmax. It is never computed through exponentials and a division, which
overflow or lose everything where a model is sure of itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.models.relation.answers import ask
from haystack.models.relation.inputs import SceneInput
from haystack.models.relation.protocol import RelationModel
from haystack.pipeline.candidates import Candidates, TopCandidates
from haystack.scene_graph import NO_RELATION
from haystack.statistics import TripletStatistics

logger = logging.getLogger(__name__)

Scores = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SceneInCluster:
    """An image that takes part in scoring.

    Args:
        image_key: the image in its source.
        cluster: the cluster that it belongs to.
        scene: its segments, as the relation model sees them.
        faulty: positions of segments that must not be proposed.
        answered: (subject, object, predicate) that need not be asked; predicate -1: the pair
            need not be asked about at all.
    """

    image_key: str
    cluster: int
    scene: SceneInput
    faulty: Collection[int] = ()
    answered: Collection[tuple[int, int, int]] = ()


@dataclass(frozen=True)
class PlausibleTriplets:
    """Which predicates are worth proposing, by the classes of subject and object.

    A triplet that was never seen as a whole passes if both of its halves pass.

    Args:
        subject: bool [C, P], the predicate goes with this subject class.
        object: bool [C, P], the predicate goes with this object class.
    """

    subject: Mask
    object: Mask

    @classmethod
    def from_statistics(
        cls, statistics: TripletStatistics, *, min_count: int = 2
    ) -> PlausibleTriplets:
        """Both halves seen at least ``min_count`` times in the training annotations."""
        seen_with_object = statistics.predicate_object.T
        return cls(
            subject=statistics.subject_predicate >= min_count,
            object=seen_with_object >= min_count,
        )

    def mask(
        self, subject_classes: npt.NDArray[np.int64], object_classes: npt.NDArray[np.int64]
    ) -> Mask:
        """Bool [R, P] for R pairs, given by their subjects' and objects' classes [R]."""
        mask: Mask = self.subject[subject_classes] & self.object[object_classes]
        return mask


@dataclass(frozen=True)
class ScoreCounts:
    """What was looked at.

    Args:
        images, pairs: scored images and their ordered pairs.
        candidates: (pair, predicate) that passed the filter.
        without_no_relation: images for which the model gave no no-relation score.
    """

    images: int = 0
    pairs: int = 0
    candidates: int = 0
    without_no_relation: int = 0


def log_ratio(logits: npt.ArrayLike, no_relation: npt.ArrayLike | None) -> Scores:
    """Log of p(predicate) / p(no relation), from logits.

    Without a no-relation output it is the log-odds of the predicate's own probability among the
    P, log p / (1 - p) = logit_p - log sum_{q != p} exp logit_q.

    Args:
        logits: [R, P], before the softmax.
        no_relation: [R], or None where the model has no such output.

    Returns:
        float32 [R, P].

    Raises:
        InputError: without a no-relation output, one predicate alone has no odds.
    """
    values = np.asarray(logits, dtype=np.float64)
    if no_relation is not None:
        none = np.asarray(no_relation, dtype=np.float64)
        return (values - none[:, None]).astype(np.float32)
    if values.shape[1] < 2:
        raise InputError(
            "expected a no-relation output, or at least two predicates to compare, got one "
            "predicate alone"
        )
    return (values - _log_sum_of_others(values)).astype(np.float32)


def _log_sum_of_others(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if not len(values):
        return values
    best = values.argmax(axis=1, keepdims=True)
    peak = np.take_along_axis(values, best, axis=1)
    rest = values.copy()
    np.put_along_axis(rest, best, -np.inf, axis=1)
    runner_up = rest.max(axis=1, keepdims=True)
    of_best = runner_up + np.log(np.exp(rest - runner_up).sum(axis=1, keepdims=True))
    # The best one's term of 1 stays in all sums but its own, which is done apart: subtracting
    # there could cancel to nothing.
    shares = np.exp(values - peak)
    with np.errstate(divide="ignore"):
        others = peak + np.log(shares.sum(axis=1, keepdims=True) - shares)
    return np.where(np.arange(values.shape[1]) == best, of_best, others)


def score_images(
    images: Iterable[SceneInCluster],
    model: RelationModel,
    plausible: PlausibleTriplets,
    best: TopCandidates,
    *,
    batch_size: int = 8,
) -> ScoreCounts:
    """Score every ordered pair of distinct segments and keep the best candidates.

    Args:
        images: of included clusters only.
        model: the relation model.
        plausible: which class combinations pass.
        best: collects the candidates.
        batch_size: images handed to the model at once.

    Raises:
        HaystackError: the model answers for other pairs than it was asked for.
        InputError: a score is not finite.
    """
    counts = ScoreCounts()
    for batch in _batches(images, batch_size):
        answers = ask(model, [image.scene for image in batch])
        for image, answer in zip(batch, answers, strict=True):
            if answer.no_relation is None and not counts.without_no_relation:
                logger.warning(
                    "the relation model has no 'no relation' output; candidates are ranked by the "
                    "log-odds of the predicate's own score instead"
                )
            pairs, scores = answer.pairs, log_ratio(answer.logits, answer.no_relation)
            allowed = _allowed(image, pairs, plausible)
            best.add(_candidates(image, pairs, scores, allowed, best.floor[image.cluster]))
            counts = ScoreCounts(
                images=counts.images + 1,
                pairs=counts.pairs + len(pairs),
                candidates=counts.candidates + int(allowed.sum()),
                without_no_relation=counts.without_no_relation + (answer.no_relation is None),
            )
    return counts


def _allowed(
    image: SceneInCluster, pairs: npt.NDArray[np.int64], plausible: PlausibleTriplets
) -> Mask:
    """Which (pair, predicate) may be proposed: bool [R, P]."""
    labels = image.scene.labels
    allowed = plausible.mask(labels[pairs[:, 0]], labels[pairs[:, 1]])
    allowed[np.isin(pairs, list(image.faulty)).any(axis=1)] = False
    for subject, target, predicate in image.answered:
        rows = (pairs == (subject, target)).all(axis=1)
        allowed[rows, slice(None) if predicate == NO_RELATION else predicate] = False
    return allowed


def _candidates(
    image: SceneInCluster,
    pairs: npt.NDArray[np.int64],
    scores: Scores,
    allowed: Mask,
    floor: Scores,
) -> Candidates:
    rows, predicates = np.nonzero(allowed & (scores >= floor))
    return Candidates.of_image(
        image.image_key,
        image.scene.image_id,
        image.cluster,
        predicate=predicates,
        subject=pairs[rows, 0],
        object=pairs[rows, 1],
        score=scores[rows, predicates],
    )


def _batches(images: Iterable[SceneInCluster], size: int) -> Iterator[Sequence[SceneInCluster]]:
    batch: list[SceneInCluster] = []
    for image in images:
        batch.append(image)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
