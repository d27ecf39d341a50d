"""The order in which candidates are shown to people (Haystack paper, section 3.1).

For one predicate: draw a cluster uniformly among those that still have candidates, take that
cluster's best candidate, repeat. Diversity comes from the draw, relevance from the ranking.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from haystack.pipeline.candidates import Candidates, FaultySegment
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
    """

    predicate: int
    rank: int
    cluster: int
    image_key: str
    image_id: str
    subject: int
    object: int
    score: float


def propose(
    candidates: Candidates,
    *,
    predicates: Sequence[int],
    limit: int,
    seed: int,
) -> list[Proposal]:
    """The queue of each predicate: uniform over clusters, best first inside a cluster.

    Args:
        candidates: of included clusters, without what is answered or faulty.
        predicates: which predicates to propose for, in this order.
        limit: proposals per predicate.
        seed: each predicate draws from its own stream, so that adding one changes no other.
    """
    proposals: list[Proposal] = []
    for predicate, rows in _by_predicate(candidates, predicates):
        order = _draw_clusters(candidates.cluster[rows], limit, _stream(seed, predicate))
        proposals.extend(_proposals(candidates, predicate, rows[order]))
    return proposals


def drop_known(
    candidates: Candidates,
    *,
    answered: Collection[Answered] = (),
    faulty: Collection[FaultySegment] = (),
) -> Candidates:
    """Candidates without answered questions and without faulty segments.

    Args:
        candidates: to filter.
        answered: (image id, subject, object, predicate); predicate -1 answers for all of them.
        faulty: (image id, segment position).
    """
    answers, segments = set(answered), set(faulty)
    touched = {row[0] for row in answers} | {row[0] for row in segments}
    touched_images = np.array(
        [image_id in touched for image_id in candidates.image_ids], dtype=bool
    )
    keep = np.ones(len(candidates), dtype=bool)
    if not touched_images.any():
        return candidates
    for row in np.flatnonzero(touched_images[candidates.image]):
        image_id = candidates.image_ids[candidates.image[row]]
        subject, target = int(candidates.subject[row]), int(candidates.object[row])
        keep[row] = not (
            (image_id, subject) in segments
            or (image_id, target) in segments
            or (image_id, subject, target, int(candidates.predicate[row])) in answers
            or (image_id, subject, target, NO_RELATION) in answers
        )
    return candidates.take(keep)


def _by_predicate(
    candidates: Candidates, predicates: Sequence[int]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    order = candidates.order()
    for predicate in predicates:
        yield predicate, order[candidates.predicate[order] == predicate]


def _stream(seed: int, predicate: int) -> np.random.Generator:
    return np.random.default_rng([seed, predicate])


def _draw_clusters(
    clusters: npt.NDArray[np.int64], limit: int, random: np.random.Generator
) -> npt.NDArray[np.int64]:
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
    candidates: Candidates, predicate: int, rows: npt.NDArray[np.int64]
) -> Iterator[Proposal]:
    for rank, row in enumerate(rows.tolist()):
        image = int(candidates.image[row])
        yield Proposal(
            predicate=predicate,
            rank=rank,
            cluster=int(candidates.cluster[row]),
            image_key=candidates.image_keys[image],
            image_id=candidates.image_ids[image],
            subject=int(candidates.subject[row]),
            object=int(candidates.object[row]),
            score=float(candidates.score[row]),
        )
