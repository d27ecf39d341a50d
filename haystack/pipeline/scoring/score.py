"""Which pairs are most likely to show a predicate (Haystack paper, section 3.1).

The score of predicate p for a pair is log p(p) - log p(no relation) = logit_p - logit_none, since
both come from one softmax. It is never computed through exponentials and a division, which
overflow or lose everything where a model is sure of itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.models.relation.answers import ask_on_device
from haystack.models.relation.inputs import PairLogits, SceneInput, all_pairs
from haystack.models.relation.protocol import RelationModel
from haystack.pipeline.memory import InHalves
from haystack.pipeline.scoring.candidates import IMAGES
from haystack.pipeline.scoring.pair_batch import PairBatch
from haystack.pipeline.scoring.rows import Rows, pack
from haystack.pipeline.scoring.top_candidates import TopCandidates
from haystack.scene_graph import NO_RELATION
from haystack.statistics import TripletStatistics

logger = logging.getLogger(__name__)

Mask = npt.NDArray[np.bool_]

MOST_PAIRS = 1 << 15
"""Pairs that a batch may have, unless a single image has more: what bounds memory."""


@dataclass(frozen=True)
class SceneInCluster:
    """An image that takes part in scoring.

    Args:
        image_key: the image in its source.
        cluster: the cluster that it belongs to.
        scene: its segments, as the relation model sees them.
        segments: identity of its segments (``segments_identity``).
        faulty: positions of segments that must not be proposed.
        answered: (subject, object, predicate) that need not be asked; predicate -1: the pair
            need not be asked about at all.
    """

    image_key: str
    cluster: int
    scene: SceneInput
    segments: str = ""
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

    def __add__(self, other: ScoreCounts) -> ScoreCounts:
        return ScoreCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def log_ratio(logits: Tensor, no_relation: Tensor | None) -> Tensor:
    """Log of p(predicate) / p(no relation), from logits.

    Without a no-relation output it is the log-odds of the predicate's own probability among the
    P, log p / (1 - p) = logit_p - log sum_{q != p} exp logit_q.

    Args:
        logits: float [R, P], before the softmax.
        no_relation: float [R], or None where the model has no such output.

    Returns:
        float32 [R, P], on the same device.

    Raises:
        InputError: without a no-relation output, one predicate alone has no odds.
    """
    if no_relation is not None:
        return logits.float() - no_relation.float()[:, None]
    if logits.shape[1] < 2:
        raise InputError(
            "expected a no-relation output, or at least two predicates to compare, got one "
            "predicate alone"
        )
    wide = logits.float() if logits.device.type == "mps" else logits.double()
    return (wide - _log_sum_of_others(wide)).float()


def _log_sum_of_others(values: Tensor) -> Tensor:
    if not len(values):
        return values
    peak, best = values.max(dim=1, keepdim=True)
    of_best = values.scatter(1, best, -torch.inf).logsumexp(dim=1, keepdim=True)
    # The best one's term of 1 stays in all sums but its own, which is done apart: subtracting
    # there could cancel to nothing.
    shares = (values - peak).exp()
    others = peak + (shares.sum(dim=1, keepdim=True) - shares).log()
    return others.scatter(1, best, of_best)


def score_images(
    images: Iterable[SceneInCluster],
    model: RelationModel,
    plausible: PlausibleTriplets,
    best: TopCandidates,
    *,
    second: RelationModel | None = None,
    batch_size: int = 8,
    set_aside: Callable[[str, str], None] | None = None,
) -> ScoreCounts:
    """Score every ordered pair of distinct segments and keep the best candidates.

    Scores stay on the model's device; one batch of images is there at a time, which ends at
    ``batch_size`` images or ``MOST_PAIRS`` pairs. Where memory runs out, batches are halved.

    Args:
        images: of included clusters only.
        model: the relation model.
        plausible: which class combinations pass.
        best: collects the candidates; of two opinions where there is a second model.
        second: a second model, asked about the same pairs.
        batch_size: images handed to the model at once.
        set_aside: called with image key and reason for an image that does not fit into memory
            alone; without it such an image is an error.

    Raises:
        HaystackError: a model answers for other pairs than it was asked for, or a single image
            does not fit into memory, or three in a row.
        InputError: a score is not finite, or an image has too many segments.
    """
    scoring = _Scoring([model] if second is None else [model, second], plausible, best)
    in_halves = InHalves(
        scoring.survivors,
        what="image",
        lower="the number of segments an image (segment.score_threshold)",
        notify=logger.warning,
        unfit=None if set_aside is None else _leave_out(set_aside, best),
    )
    counts = ScoreCounts()
    for batch in _batches(images, batch_size):
        for found, rows, counted in in_halves(batch):
            best.add_rows(found, rows)
            counts += counted
    return counts


def _leave_out(
    set_aside: Callable[[str, str], None], best: TopCandidates
) -> Callable[[SceneInCluster, str], tuple[pa.Table, Rows, ScoreCounts]]:
    """What stands for an image that does not fit: no candidates, and a word to ``set_aside``."""

    def unfit(image: SceneInCluster, reason: str) -> tuple[pa.Table, Rows, ScoreCounts]:
        set_aside(image.image_key, reason)
        none = torch.empty(0, dtype=torch.int64)
        rows = Rows(none, none, torch.empty((best.opinions, 0)))
        return IMAGES.empty_table(), rows, ScoreCounts()

    return unfit


class _Scoring:
    """Scores batches against the floor that the best so far have set."""

    def __init__(
        self, models: Sequence[RelationModel], plausible: PlausibleTriplets, best: TopCandidates
    ) -> None:
        self._models = models
        self._plausible = plausible
        self._best = best
        self._subject = torch.from_numpy(plausible.subject)
        self._object = torch.from_numpy(plausible.object)
        # How many predicates pass, by subject and object class; floats, as these multiply faster.
        self._passing = plausible.subject.astype(np.float64) @ plausible.object.T
        self._warned = False

    def survivors(self, batch: Sequence[SceneInCluster]) -> tuple[pa.Table, Rows, ScoreCounts]:
        """The batch's images, its candidates that may be among the best, and what was looked at."""
        scenes = [image.scene for image in batch]
        answers = [ask_on_device(model, scenes) for model in self._models]
        self._move(answers[0].logits.device)
        device = self._subject.device
        scores = [log_ratio(each.logits, each.no_relation).to(device) for each in answers]
        ranges = [score.aminmax() for score in scores if len(score)]
        pairs = PairBatch.of([scene.labels for scene in scenes], device)
        left_out = self._leave_out_known(batch, pairs, scores)
        cluster = torch.tensor([image.cluster for image in batch], device=device)[pairs.image]
        hopeful = self._hopeful(scores, pairs, cluster)
        place = _nonzero(hopeful)
        if ranges:
            _refuse_infinite(ranges, answers, batch, pairs)
        pair, predicate = place // hopeful.shape[1], place % hopeful.shape[1]
        subject, target = pairs.subject[pair], pairs.object[pair]
        rows = Rows(
            cluster[subject] * hopeful.shape[1] + predicate,
            pack(pairs.image[subject], pairs.position[subject], pairs.position[target]),
            torch.stack([score.view(-1)[place] for score in scores]),
        )
        counts = ScoreCounts(
            images=len(batch),
            pairs=len(pairs),
            candidates=self._count_passing(batch) - left_out,
            without_no_relation=self._without_no_relation(batch, answers),
        )
        return _table(batch), rows, counts

    def _move(self, device: torch.device) -> None:
        """Work where the model does; models of one's own may answer from the host."""
        self._best.to(device)
        self._subject, self._object = self._subject.to(device), self._object.to(device)

    def _hopeful(self, scores: Sequence[Tensor], pairs: PairBatch, cluster: Tensor) -> Tensor:
        """Bool [R, P]: the filter passes it, and some model's score may be among its best."""
        excluded = ~self._subject[pairs.label]
        hopeful: Tensor | None = None
        for score, floor in zip(scores, self._best.floor, strict=True):
            # By objects first: there are far fewer of them than of pairs.
            least = floor[cluster].masked_fill_(excluded, torch.inf)
            above = score >= least.index_select(0, pairs.subject)
            hopeful = above if hopeful is None else hopeful.logical_or_(above)
        assert hopeful is not None
        hopeful &= self._object[pairs.label].index_select(0, pairs.object)
        return hopeful

    def _leave_out_known(
        self, batch: Sequence[SceneInCluster], pairs: PairBatch, scores: Sequence[Tensor]
    ) -> int:
        """Give what is known of a few images the score -inf; the number of such candidates."""
        left_out = 0
        num_predicates = self._subject.shape[1]
        parts = [score.split(pairs.pair_counts) for score in scores]
        for number, image in enumerate(batch):
            if not image.faulty and not image.answered:
                continue
            known = _known(image, num_predicates)
            for part in parts:
                part[number].masked_fill_(
                    torch.from_numpy(known).to(part[number].device), -torch.inf
                )
            subject, target = image.scene.labels[all_pairs(len(image.scene))].T
            left_out += int((self._plausible.mask(subject, target) & known).sum())
        return left_out

    def _count_passing(self, batch: Sequence[SceneInCluster]) -> int:
        """How many (pair, predicate) the filter passes; from the classes' numbers in each image."""
        num_classes = len(self._passing)
        labels = np.concatenate([image.scene.labels for image in batch])
        image = np.repeat(np.arange(len(batch)), [len(image.scene.labels) for image in batch])
        counts = np.bincount(image * num_classes + labels, minlength=len(batch) * num_classes)
        counts = counts.reshape(len(batch), num_classes)
        with_itself = self._passing.diagonal()[labels].sum()
        return round(((counts @ self._passing) * counts).sum() - with_itself)

    def _without_no_relation(
        self, batch: Sequence[SceneInCluster], answers: Sequence[PairLogits]
    ) -> int:
        if all(answer.no_relation is not None for answer in answers):
            return 0
        if not self._warned:
            self._warned = True
            logger.warning(
                "the relation model has no 'no relation' output; candidates are ranked by the "
                "log-odds of the predicate's own score instead"
            )
        return len(batch)


def _table(batch: Sequence[SceneInCluster]) -> pa.Table:
    names = [(image.image_key, image.scene.image_id, image.segments) for image in batch]
    columns = [pa.array(column, pa.string()) for column in zip(*names, strict=True)]
    return pa.Table.from_arrays(columns, schema=IMAGES)


def _num_pairs(image: SceneInCluster) -> int:
    count = len(image.scene.labels)
    return count * (count - 1)


def _known(image: SceneInCluster, num_predicates: int) -> Mask:
    """Which (pair, predicate) must not be proposed: bool [R, P]."""
    pairs = all_pairs(len(image.scene))
    known = np.zeros((len(pairs), num_predicates), dtype=np.bool_)
    known[np.isin(pairs, list(image.faulty)).any(axis=1)] = True
    for subject, target, predicate in image.answered:
        rows = (pairs == (subject, target)).all(axis=1)
        known[rows, slice(None) if predicate == NO_RELATION else predicate] = True
    return known


def _nonzero(mask: Tensor) -> Tensor:
    """Flat positions of what is true in a mask of which little is: int64 [N]."""
    flat = mask.view(-1)
    words = len(flat) // 8
    if flat.device.type != "cpu" or not words:
        return flat.nonzero()[:, 0]
    # Eight at a time: looking at each byte would take as long as all the rest of scoring.
    used = flat[: 8 * words].view(torch.int64).nonzero()[:, 0]
    word, byte = flat[: 8 * words].view(words, 8)[used].nonzero(as_tuple=True)
    return torch.cat([8 * used[word] + byte, flat[8 * words :].nonzero()[:, 0] + 8 * words])


def _refuse_infinite(
    ranges: Sequence[tuple[Tensor, Tensor]],
    answers: Sequence[PairLogits],
    batch: Sequence[SceneInCluster],
    pairs: PairBatch,
) -> None:
    for (least, most), answer in zip(ranges, answers, strict=True):
        if math.isfinite(least.item()) and math.isfinite(most.item()):
            continue
        scores = log_ratio(answer.logits, answer.no_relation).cpu()
        for image, part in zip(batch, scores.split(pairs.pair_counts), strict=True):
            if not part.isfinite().all():
                raise InputError(
                    "the relation model gave logits that are NaN or infinite; its checkpoint or "
                    "its input is broken",
                    record=f"image {image.scene.image_id}",
                )


def _batches(images: Iterable[SceneInCluster], size: int) -> Iterator[Sequence[SceneInCluster]]:
    batch: list[SceneInCluster] = []
    pairs = 0
    for image in images:
        count = _num_pairs(image)
        if batch and (len(batch) == size or pairs + count > MOST_PAIRS):
            yield batch
            batch, pairs = [], 0
        batch.append(image)
        pairs += count
    if batch:
        yield batch
