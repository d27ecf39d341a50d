"""The order in which candidates are shown to people (Haystack paper, section 3.1).

For one predicate: draw a cluster uniformly among those that still have candidates, take that
cluster's best candidate, repeat. Diversity comes from the draw, relevance from the ranking.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from haystack.pipeline.scoring.candidates import Candidates, FaultySegment, Ints, Scores
from haystack.scene_graph import NO_RELATION

Answered = tuple[str, int, int, int]
"""(image id, subject, object, predicate); predicate -1: the pair shows no relation at all."""


@dataclass(frozen=True)
class Proposal:
    """One question to an annotator.

    Args:
        predicate: index of the predicate asked for.
        rank: place in that predicate's queue, from 0.
        cluster: the cluster that was drawn.
        image_key: the image in its source.
        image_id: its id in annotations.
        subject, object: positions among the image's segments.
        score: log p(predicate) / p(no relation).
        model_rank: place among the candidates of its cluster and predicate, from 1, best first.
        second_score: the second model's, where there is one.
        second_rank: as ``model_rank``, by the second model.
        segments: identity of the image's segments, in which ``subject`` and ``object`` are
            positions.
    """

    predicate: int
    rank: int
    cluster: int
    image_key: str
    image_id: str
    subject: int
    object: int
    score: float
    model_rank: int
    second_score: float | None = None
    second_rank: int | None = None
    segments: str = ""

    def origin(self, models: Sequence[str]) -> str:
        """In words: the cluster, and each model's name with the rank in it and the score it gave.

        Args:
            models: names of the models that scored, the second opinion last.
        """
        ranks = (self.model_rank, self.second_rank)
        scores = (self.score, self.second_score)
        said = (
            f"{name} rank {rank} (score {score:.3g})"
            for name, rank, score in zip(models, ranks, scores, strict=False)
        )
        return f"cluster {self.cluster}: {', '.join(said)}"


@dataclass(frozen=True)
class Ranks:
    """Places of N candidates within their (cluster, predicate), from 1.

    Args:
        model: int64 [N], in the total order of the model's scores.
        second: int64 [N], in that of the second model's; None without one.
    """

    model: Ints
    second: Ints | None = None

    def order(self, candidates: Candidates) -> Ints:
        """Row numbers by cluster, predicate, mean of the ranks, then the first of them."""
        total = self.model if self.second is None else self.model + self.second
        columns = (self.model, total, candidates.predicate, candidates.cluster)
        return np.lexsort(columns).astype(np.int64)


def rank(candidates: Candidates, top: int) -> Ranks:
    """The places that each model gives to candidates.

    Each model's best ``top`` of a group are known; a candidate that is only among the other
    model's has the rank ``top + 1``, the best that it can have. So ranks, their means and the
    queue follow from the two lists alone, and these merge in any order: see ``TopCandidates``.

    Args:
        candidates: the union of both models' best, or the one model's.
        top: M of each list.
    """
    if candidates.second_score is None:
        return Ranks(_places(candidates, candidates.score))
    scores = (candidates.score, candidates.second_score)
    model, second = (np.minimum(_places(candidates, score), top + 1) for score in scores)
    return Ranks(model, second)


def _places(candidates: Candidates, score: Scores) -> Ints:
    order = np.lexsort(
        (
            candidates.object,
            candidates.subject,
            candidates.image,
            -score,
            candidates.predicate,
            candidates.cluster,
        )
    )
    cluster, predicate = candidates.cluster[order], candidates.predicate[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (cluster[1:] != cluster[:-1]) | (predicate[1:] != predicate[:-1])
    number = np.arange(len(order))
    places = np.empty(len(order), dtype=np.int64)
    places[order] = number - np.maximum.accumulate(np.where(first, number, 0)) + 1
    return places


def propose(
    candidates: Candidates,
    *,
    top: int,
    predicates: Sequence[int],
    limit: int,
    seed: int,
    known: npt.NDArray[np.bool_] | None = None,
) -> list[Proposal]:
    """The queue of each predicate: uniform over clusters, best first inside a cluster.

    With a second opinion, best is the smallest mean of both models' ranks; see ``rank``.

    Args:
        candidates: of included clusters.
        top: M of the candidates; see ``rank``.
        predicates: which predicates to propose for, in this order.
        limit: proposals per predicate.
        seed: each predicate draws from its own stream, so that adding one changes no other.
        known: bool [N], rows to leave out; see ``is_known``. Ranks count them, so that an answer
            changes no other candidate's rank.
    """
    ranks = rank(candidates, top)
    order = ranks.order(candidates)
    if known is not None:
        order = order[~known[order]]
    proposals: list[Proposal] = []
    for predicate in predicates:
        rows = order[candidates.predicate[order] == predicate]
        drawn = _draw_clusters(candidates.cluster[rows], limit, _stream(seed, predicate))
        proposals.extend(_proposals(candidates, ranks, predicate, rows[drawn]))
    return proposals


def is_known(
    candidates: Candidates,
    *,
    answered: Collection[Answered] = (),
    faulty: Collection[FaultySegment] = (),
) -> npt.NDArray[np.bool_]:
    """Bool [N]: which candidates are answered, or use a faulty segment.

    Args:
        candidates: to look at.
        answered: (image id, subject, object, predicate); predicate -1 answers for all of them.
        faulty: (image id, segment position).
    """
    answers, segments = set(answered), set(faulty)
    touched = sorted({row[0] for row in answers} | {row[0] for row in segments})
    image_ids = candidates.images["image_id"]
    touched_images = pc.is_in(image_ids, pa.array(touched, pa.string())).to_numpy()
    known = np.zeros(len(candidates), dtype=np.bool_)
    for row in np.flatnonzero(touched_images[candidates.image]):
        image_id = image_ids[int(candidates.image[row])].as_py()
        subject, target = int(candidates.subject[row]), int(candidates.object[row])
        known[row] = (
            (image_id, subject) in segments
            or (image_id, target) in segments
            or (image_id, subject, target, int(candidates.predicate[row])) in answers
            or (image_id, subject, target, NO_RELATION) in answers
        )
    return known


def _stream(seed: int, predicate: int) -> np.random.Generator:
    return np.random.default_rng([seed, predicate])


def _draw_clusters(clusters: Ints, limit: int, random: np.random.Generator) -> Ints:
    """Positions in ``clusters`` (sorted by cluster, best first) in the order of the draw."""
    _, starts, counts = np.unique(clusters, return_index=True, return_counts=True)
    following = starts.tolist()
    ends = (starts + counts).tolist()
    live = list(range(len(following)))
    drawn: list[int] = []
    while live and len(drawn) < limit:
        place = int(random.integers(len(live)))
        cluster = live[place]
        drawn.append(following[cluster])
        following[cluster] += 1
        if following[cluster] == ends[cluster]:
            del live[place]
    return np.array(drawn, dtype=np.int64)


def _proposals(
    candidates: Candidates, ranks: Ranks, predicate: int, rows: Ints
) -> Iterator[Proposal]:
    images = candidates.images.take(candidates.image[rows]).to_pylist()
    second_score, second_rank = candidates.second_score, ranks.second
    for number, (row, image) in enumerate(zip(rows.tolist(), images, strict=True)):
        yield Proposal(
            predicate=predicate,
            rank=number,
            cluster=int(candidates.cluster[row]),
            subject=int(candidates.subject[row]),
            object=int(candidates.object[row]),
            score=float(candidates.score[row]),
            model_rank=int(ranks.model[row]),
            second_score=None if second_score is None else float(second_score[row]),
            second_rank=None if second_rank is None else int(second_rank[row]),
            **image,
        )
