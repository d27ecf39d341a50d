"""Which pairs are most likely to show a predicate (Haystack paper, section 3.1).

The score of predicate p for a pair is log p(p) - log p(no relation) = logit_p - logit_none, since
both come from one softmax. It is never computed through exponentials and a division, which
overflow or lose everything where a model is sure of itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
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
from haystack.pipeline.candidates import IMAGES
from haystack.pipeline.memory import InHalves
from haystack.pipeline.top_candidates import Rows, TopCandidates, pack
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

    Raises:
        HaystackError: a model answers for other pairs than it was asked for, or a single image
            does not fit into memory.
        InputError: a score is not finite, or an image has too many segments.
    """
    scoring = _Scoring([model] if second is None else [model, second], plausible, best)
    in_halves = InHalves(
        scoring.survivors,
        what="image",
        lower="the number of segments an image (segment.score_threshold)",
        notify=logger.warning,
    )
    counts = ScoreCounts()
    for batch in _batches(images, batch_size):
        for found, rows, counted in in_halves(batch):
            best.add_rows(found, rows)
            counts += counted
    return counts


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
        # How many predicates pass, by subject and object class: counted without looking at pairs.
        self._passing = plausible.subject.astype(np.int64) @ plausible.object.T.astype(np.int64)
        self._warned = False

    def survivors(self, batch: Sequence[SceneInCluster]) -> tuple[pa.Table, Rows, ScoreCounts]:
        """The batch's images, its candidates that may be among the best, and what was looked at."""
        scenes = [image.scene for image in batch]
        answers = [ask_on_device(model, scenes) for model in self._models]
        scores = [log_ratio(answer.logits, answer.no_relation) for answer in answers]
        device = scores[0].device
        self._best.to(device)
        self._subject, self._object = self._subject.to(device), self._object.to(device)
        scores = [score.to(device) for score in scores]
        pairs = _Pairs.of(scenes, device)
        ranges = [score.aminmax() for score in scores if len(score)]
        known = [_known(image, scores[0].shape[1]) for image in batch]
        for score in scores:
            parts = score.split([_num_pairs(image) for image in batch])
            for part, mask in zip(parts, known, strict=True):
                if mask is not None:
                    part.masked_fill_(torch.from_numpy(mask).to(device), -torch.inf)
        clusters = torch.tensor([image.cluster for image in batch], device=device)
        hopeful = self._above_floor(scores, clusters[pairs.image])
        hopeful &= self._subject.index_select(0, pairs.subject_class)
        hopeful &= self._object.index_select(0, pairs.object_class)
        place = _nonzero(hopeful)
        if ranges:
            _refuse_infinite(ranges, answers, batch)
        num_predicates = hopeful.shape[1]
        pair, predicate = place // num_predicates, place % num_predicates
        number = pairs.image[pair]
        rows = Rows(
            clusters[number] * num_predicates + predicate,
            pack(number, pairs.subject[pair], pairs.object[pair]),
            torch.stack([score.view(-1)[place] for score in scores]),
        )
        names = [(image.image_key, image.scene.image_id, image.segments) for image in batch]
        columns = [pa.array(column, pa.string()) for column in zip(*names, strict=True)]
        return (
            pa.Table.from_arrays(columns, schema=IMAGES),
            rows,
            self._count(batch, answers, known),
        )

    def _above_floor(self, scores: Sequence[Tensor], cluster: Tensor) -> Tensor:
        """Bool [R, P]: some model's score may be among its best; ``cluster`` int64 [R]."""
        above = [
            score >= floor.index_select(0, cluster)
            for score, floor in zip(scores, self._best.floor, strict=True)
        ]
        return above[0] if len(above) == 1 else above[0].logical_or_(above[1])

    def _count(
        self,
        batch: Sequence[SceneInCluster],
        answers: Sequence[PairLogits],
        known: Sequence[Mask | None],
    ) -> ScoreCounts:
        without = any(answer.no_relation is None for answer in answers)
        if without and not self._warned:
            self._warned = True
            logger.warning(
                "the relation model has no 'no relation' output; candidates are ranked by the "
                "log-odds of the predicate's own score instead"
            )
        candidates = 0
        for image, mask in zip(batch, known, strict=True):
            labels = image.scene.labels
            passing = self._passing[labels[:, None], labels]
            candidates += int(passing.sum() - passing.trace())
            if mask is not None:
                subject, target = all_pairs(len(labels)).T
                plausible = self._plausible.mask(labels[subject], labels[target])
                candidates -= int((plausible & mask).sum())
        return ScoreCounts(
            images=len(batch),
            pairs=sum(_num_pairs(image) for image in batch),
            candidates=candidates,
            without_no_relation=len(batch) if without else 0,
        )


@dataclass(frozen=True)
class _Pairs:
    """The ordered pairs of a batch's images, on the device: int64 [R] each.

    Args:
        image: which image of the batch.
        subject, object: positions among the image's segments.
        subject_class, object_class: their classes.
    """

    image: Tensor
    subject: Tensor
    object: Tensor
    subject_class: Tensor
    object_class: Tensor

    @classmethod
    def of(cls, scenes: Sequence[SceneInput], device: torch.device) -> _Pairs:
        """All pairs of the scenes, in the order of ``all_pairs``."""
        sizes = np.array([len(scene) for scene in scenes], dtype=np.int64)
        pairs = sizes * (sizes - 1)
        labels = torch.from_numpy(np.concatenate([scene.labels for scene in scenes])).to(device)
        table = np.stack([sizes, np.cumsum(sizes) - sizes, pairs, np.cumsum(pairs) - pairs])
        size, first_object, count, first_pair = torch.from_numpy(table).to(device)
        total = int(pairs.sum())
        image = torch.arange(len(scenes), device=device).repeat_interleave(count, output_size=total)
        number = torch.arange(total, device=device) - first_pair[image]
        others = size[image] - 1
        subject = number // others
        target = number - subject * others
        target += target >= subject
        offset = first_object[image]
        return cls(image, subject, target, labels[offset + subject], labels[offset + target])


def _num_pairs(image: SceneInCluster) -> int:
    return len(image.scene) * (len(image.scene) - 1)


def _known(image: SceneInCluster, num_predicates: int) -> Mask | None:
    """Which (pair, predicate) must not be proposed: bool [R, P]; None where nothing is known."""
    if not image.faulty and not image.answered:
        return None
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
) -> None:
    for (least, most), answer in zip(ranges, answers, strict=True):
        if math.isfinite(least.item()) and math.isfinite(most.item()):
            continue
        scores = log_ratio(answer.logits, answer.no_relation).cpu()
        parts = scores.split([_num_pairs(image) for image in batch])
        for image, part in zip(batch, parts, strict=True):
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
        if batch and (len(batch) == size or pairs + _num_pairs(image) > MOST_PAIRS):
            yield batch
            batch, pairs = [], 0
        batch.append(image)
        pairs += _num_pairs(image)
    if batch:
        yield batch
