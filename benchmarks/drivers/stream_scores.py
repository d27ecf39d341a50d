"""Scores a stream of synthetic images and reports seconds, pairs, and the peak of memory.

``--by ours`` is the score stage's own function; ``--by numpy`` is the yardstick, what is written
down first: softmax, ratio, filter, all candidates in one table, one sort. Both see the same logits
in the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from time import process_time
from typing import Any

import numpy as np
import torch
from common import answer, parser
from measure import peak_memory_mib, reset_peak_memory

from haystack.models.relation.inputs import PairLogits, SceneInput, all_pairs
from haystack.pipeline.scoring.score import PlausibleTriplets, SceneInCluster, score_images
from haystack.pipeline.scoring.top_candidates import TopCandidates

CLASSES, CLUSTERS, PREDICATES = 133, 50, 56
BATCH = 64
PASSING = 0.35  # of (class, predicate), so that an eighth of all (pair, predicate) passes
ROW_BYTES = 8 + 8 + 4  # group, place and score of a row that is kept
STORED = 1 << 24  # logits; every batch is a stretch of them that begins elsewhere


class StoredLogits:
    """A model whose forward pass costs nothing: logits are a stretch of stored ones."""

    reads_images = False
    num_predicates = PREDICATES

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._stored = 3 * torch.randn(STORED, generator=generator)
        self._asked = 0

    def predict(self, scenes: Sequence[SceneInput]) -> list[Any]:
        """Unused: the score stage asks for tensors."""
        raise NotImplementedError

    def predict_on_device(self, scenes: Sequence[SceneInput]) -> PairLogits:
        """The next stretch."""
        rows = sum(len(scene) * (len(scene) - 1) for scene in scenes)
        size = rows * (PREDICATES + 1)
        start = self._asked * 7_368_787 % (STORED - size)
        self._asked += 1
        logits = self._stored[start : start + size].view(rows, PREDICATES + 1)
        return PairLogits(logits[:, 1:], logits[:, 0])


def main() -> None:
    arguments = parser()
    arguments.add_argument("--images", type=int, required=True)
    arguments.add_argument("--objects", type=int, required=True)
    arguments.add_argument("--top", type=int, required=True)
    arguments.add_argument("--by", choices=("ours", "numpy"), required=True)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    shape = (2, CLASSES, PREDICATES)
    plausible = PlausibleTriplets(*(random.random(shape) < PASSING))
    pool = [_scene(random, options.objects) for _ in range(1024)]
    model = StoredLogits()
    images = _images(pool, options.images)
    reset_peak_memory()
    libraries = peak_memory_mib()
    start = process_time()
    by = _ours if options.by == "ours" else _numpy
    pairs, candidates, scores, table = by(images, model, plausible, options.top)
    answer(
        options.output,
        seconds=process_time() - start,
        pairs=pairs,
        candidates=candidates,
        libraries_mib=libraries,
        peak_mib=peak_memory_mib(),
        table_mib=table / 2**20,
        kept=len(scores),
        # Enough to tell results apart: the scores, in the order of the groups.
        scores=[float(value) for value in scores[:: max(1, len(scores) // 1000)]],
    )


def _ours(
    images: Iterator[SceneInCluster], model: StoredLogits, plausible: PlausibleTriplets, top: int
) -> tuple[int, int, np.ndarray, int]:
    best = TopCandidates(CLUSTERS, PREDICATES, top)
    counts = score_images(images, model, plausible, best, batch_size=BATCH)
    result = best.result()
    table = ROW_BYTES * len(result) + result.images.nbytes
    return counts.pairs, counts.candidates, result.score, table


def _numpy(
    images: Iterator[SceneInCluster], model: StoredLogits, plausible: PlausibleTriplets, top: int
) -> tuple[int, int, np.ndarray, int]:
    ratios, groups, places, pairs, number = [], [], [], 0, 0
    while batch := list(islice(images, BATCH)):
        given = model.predict_on_device([image.scene for image in batch])
        outputs = np.concatenate([given.no_relation.numpy()[:, None], given.logits.numpy()], axis=1)
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        probabilities = powers / powers.sum(axis=1, keepdims=True)
        ratio = probabilities[:, 1:] / probabilities[:, :1]
        start = 0
        for image in batch:
            rows = all_pairs(len(image.scene))
            labels = image.scene.labels
            passes = plausible.mask(labels[rows[:, 0]], labels[rows[:, 1]])
            row, predicate = np.nonzero(passes)
            ratios.append(ratio[start : start + len(rows)][passes])
            groups.append(image.cluster * PREDICATES + predicate)
            places.append((number << 32) | (rows[row, 0] << 16) | rows[row, 1])
            start += len(rows)
            pairs += len(rows)
            number += 1
    every, group, place = (np.concatenate(parts) for parts in (ratios, groups, places))
    order = np.lexsort((place, -every, group))
    sorted_groups = group[order]
    first = np.searchsorted(sorted_groups, sorted_groups)
    kept = order[np.arange(len(order)) - first < top]
    return (
        pairs,
        len(every),
        np.log(every[kept]),
        sum(part.nbytes for part in (every, group, place)),
    )


def _images(pool: Sequence[SceneInput], count: int) -> Iterator[SceneInCluster]:
    for number in range(count):
        cluster = (number * 2_654_435_761 >> 7) % CLUSTERS
        yield SceneInCluster(f"{number:08d}.jpg", cluster, pool[number % len(pool)])


def _scene(random: np.random.Generator, objects: int) -> SceneInput:
    count = int(random.integers(objects // 2, objects + objects // 2 + 1))
    # A few classes are common, as in photographs.
    labels = np.minimum(random.zipf(1.3, count) - 1, CLASSES - 1).astype(np.int64)
    return SceneInput(
        image_id="",
        height=1,
        width=1,
        labels=labels,
        boxes=np.zeros((count, 4), dtype=np.float32),
        id_map=None,
        segment_ids=np.arange(count),
    )


if __name__ == "__main__":
    main()
