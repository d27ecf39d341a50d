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
import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.models.relation.answers import ask_on_device
from haystack.models.relation.inputs import PairLogits, SceneInput, all_pairs
from haystack.models.relation.protocol import RelationModel
from haystack.pipeline.memory import InHalves
from haystack.pipeline.scoring.candidates import CandidateImage
from haystack.pipeline.scoring.pair_batch import PairBatch, PairChunk
from haystack.pipeline.scoring.rows import Rows, pack
from haystack.pipeline.scoring.top_candidates import TopCandidates
from haystack.scene_graph import NO_RELATION
from haystack.statistics import TripletStatistics

logger = logging.getLogger(__name__)

Mask = npt.NDArray[np.bool_]

MOST_PAIRS = 1 << 15
"""Pairs that a batch may have, unless a single image has more: what bounds a model's answers."""

_CHUNK = 1 << 14
"""Pairs whose scores are there at once, however many the batch has."""


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


_Scored = tuple[list[CandidateImage], Rows, ScoreCounts]


def log_ratio(logits: Tensor, no_relation: Tensor | None, *, out: Tensor | None = None) -> Tensor:
    """Log of p(predicate) / p(no relation), from logits.

    Without a no-relation output it is the log-odds of the predicate's own probability among the
    P, log p / (1 - p) = logit_p - log sum_{q != p} exp logit_q.

    Args:
        logits: float [R, P], before the softmax.
        no_relation: float [R], or None where the model has no such output.
        out: float32 [R, P] to put them into, on any device.

    Returns:
        float32 [R, P]: ``out``, or on the device of the logits.

    Raises:
        InputError: without a no-relation output, one predicate alone has no odds.
    """
    if no_relation is not None:
        wide, none = logits.float(), no_relation.float()[:, None]
        if out is not None and out.device == logits.device:
            return torch.sub(wide, none, out=out)
        return wide - none if out is None else out.copy_(wide - none)
    if logits.shape[1] < 2:
        raise InputError(
            "expected a no-relation output, or at least two predicates to compare, got one "
            "predicate alone"
        )
    wide = logits.float() if logits.device.type == "mps" else logits.double()
    ratios = wide - _log_sum_of_others(wide)
    return ratios.float() if out is None else out.copy_(ratios)


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

    Scores stay on the model's device. A model answers for one batch of images at a time, which
    ends at ``batch_size`` images or ``MOST_PAIRS`` pairs; scores are made of its answers a bounded
    number of pairs at a time. Where memory runs out, batches are halved.

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
        InputError: a score is not finite.
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
) -> Callable[[SceneInCluster, str], _Scored]:
    """What stands for an image that does not fit: no candidates, and a word to ``set_aside``."""

    def unfit(image: SceneInCluster, reason: str) -> _Scored:
        set_aside(image.image_key, reason)
        return [], Rows.none(best.opinions), ScoreCounts()

    return unfit


class _Room:
    """What scoring needs on a device: the filter, and where one chunk's numbers are put.

    Each chunk's take the place of those of the chunk before. Millions of tensors of ever other
    sizes, megabytes each, would let the C library's heap grow to many times of what is in use at
    once.

    Args:
        plausible: the filter.
        opinions: K models.
        device: where scores are.
    """

    def __init__(self, plausible: PlausibleTriplets, opinions: int, device: torch.device) -> None:
        self.device = device
        # int64 [C, C]: how many predicates pass, by the classes of subject and object. Multiplied
        # on the host, since CUDA does not multiply integers.
        passing = plausible.subject.astype(np.int64) @ plausible.object.T.astype(np.int64)
        self.passing = torch.from_numpy(passing).to(device)
        self.subject = torch.from_numpy(plausible.subject).to(device)
        self.object = torch.from_numpy(plausible.object).to(device)
        shape = (_CHUNK, plausible.subject.shape[1])
        self.scores = torch.empty((opinions, *shape), device=device)
        self.needed = torch.empty(shape, device=device)
        self.masks = torch.empty((2, *shape), dtype=torch.bool, device=device)


class _Scoring:
    """Scores batches against the floor that the best so far have set."""

    def __init__(
        self, models: Sequence[RelationModel], plausible: PlausibleTriplets, best: TopCandidates
    ) -> None:
        self._models = models
        self._plausible = plausible
        self._best = best
        self._num_predicates = plausible.subject.shape[1]
        self._room = _Room(plausible, len(models), best.floor.device)
        self._warned = False

    def survivors(self, batch: Sequence[SceneInCluster]) -> _Scored:
        """The batch's images, its candidates that may be among the best, and what was looked at."""
        scenes = [image.scene for image in batch]
        answers = [ask_on_device(model, scenes) for model in self._models]
        self._move(answers[0].logits.device)
        pairs = PairBatch([scene.labels for scene in scenes], self._room.device)
        cluster = torch.tensor([image.cluster for image in batch], device=self._room.device)
        cluster = cluster[pairs.image]
        known, left_out = self._known(batch)
        parts = []
        passing = torch.zeros((), dtype=torch.int64, device=self._room.device)
        for chunk in pairs.chunks(_CHUNK):
            labels = pairs.label[chunk.subject], pairs.label[chunk.object]
            passing += self._room.passing[labels].sum()
            scores = self._scores(answers, batch, pairs, chunk)
            place = _nonzero(self._hopeful(scores, *labels, cluster[chunk.subject]))
            if len(known):
                first = chunk.start * self._num_predicates
                place = place[~_are_among(known, place + first)]
            parts.append(self._rows(place, scores, pairs, chunk, cluster))
        counts = ScoreCounts(
            images=len(batch),
            pairs=len(pairs),
            candidates=int(passing) - left_out,
            without_no_relation=self._without_no_relation(batch, answers),
        )
        names = [CandidateImage(i.image_key, i.scene.image_id, i.segments) for i in batch]
        return names, Rows.cat(parts, self._best.opinions, self._room.device), counts

    def _move(self, device: torch.device) -> None:
        """Work where the model does; models of one's own may answer from the host."""
        if device != self._room.device:
            self._best.to(device)
            self._room = _Room(self._plausible, len(self._models), device)

    def _scores(
        self,
        answers: Sequence[PairLogits],
        batch: Sequence[SceneInCluster],
        pairs: PairBatch,
        chunk: PairChunk,
    ) -> Tensor:
        """Every model's finite scores of a chunk's pairs, float32 [K, R, P]."""
        scores = self._room.scores[:, : len(chunk)]
        for score, answer in zip(scores, answers, strict=True):
            none = None if answer.no_relation is None else chunk.of(answer.no_relation)
            log_ratio(chunk.of(answer.logits), none, out=score)
            least, most = score.aminmax()
            if not (math.isfinite(least.item()) and math.isfinite(most.item())):
                broken = (~score.isfinite().all(dim=1)).nonzero()[0, 0]
                image = batch[int(pairs.image[chunk.subject[broken]])]
                raise InputError(
                    "the relation model gave logits that are NaN or infinite; its checkpoint or "
                    "its input is broken",
                    record=f"image {image.scene.image_id}",
                )
        return scores

    def _hopeful(
        self, scores: Tensor, subject_label: Tensor, object_label: Tensor, cluster: Tensor
    ) -> Tensor:
        """Bool [R, P]: the filter passes it, and some model's score may be among its best."""
        needed = self._room.needed[: len(cluster)]
        hopeful, other = self._room.masks[:, : len(cluster)]
        for number, floor in enumerate(self._best.floor):
            torch.index_select(floor, 0, cluster, out=needed)
            torch.ge(scores[number], needed, out=other if number else hopeful)
            if number:
                hopeful |= other
        for passes, label in (
            (self._room.subject, subject_label),
            (self._room.object, object_label),
        ):
            torch.index_select(passes, 0, label, out=other)
            hopeful &= other
        return hopeful

    def _rows(
        self,
        place: Tensor,
        scores: Tensor,
        pairs: PairBatch,
        chunk: PairChunk,
        cluster: Tensor,
    ) -> Rows:
        """Rows of flat places in [R, P], int64 [N]."""
        pair, predicate = place // self._num_predicates, place % self._num_predicates
        subject, target = chunk.subject[pair], chunk.object[pair]
        return Rows(
            cluster[subject] * self._num_predicates + predicate,
            pack(pairs.image[subject], pairs.position[subject], pairs.position[target]),
            scores[:, pair, predicate],
        )

    def _known(self, batch: Sequence[SceneInCluster]) -> tuple[Tensor, int]:
        """Places in [pairs, P] of what is known of the batch's images, int64 [N], ascending.

        And how many of them the filter passes.
        """
        places = [np.empty(0, dtype=np.int64)]
        left_out = first = 0
        for image in batch:
            if image.faulty or image.answered:
                known = _known(image, self._num_predicates)
                places.append(np.flatnonzero(known) + first)
                subject, target = image.scene.labels[all_pairs(len(image.scene))].T
                left_out += int((self._plausible.mask(subject, target) & known).sum())
            first += _num_pairs(image) * self._num_predicates
        return torch.from_numpy(np.concatenate(places)).to(self._room.device), left_out

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


def _are_among(ascending: Tensor, numbers: Tensor) -> Tensor:
    """Bool [N]: which of the numbers int64 [N] are among those of a tensor that is not empty."""
    # torch.isin would sort them again: a batch with faulty segments knows a hundred thousand.
    place = torch.searchsorted(ascending, numbers).clamp_(max=len(ascending) - 1)
    return ascending[place] == numbers


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
