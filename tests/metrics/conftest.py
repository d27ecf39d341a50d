"""The metrics once more, as slowly and as literally as their definitions read."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

NAN = float("nan")


def rank(row: np.ndarray, predicate: int) -> int:
    """Number of predicates with a higher score, or the same and a lower index."""
    return sum(
        other > row[predicate] or (other == row[predicate] and index < predicate)
        for index, other in enumerate(row)
    )


def auroc(positives: list[float], negatives: list[float]) -> float:
    if not positives or not negatives:
        return NAN
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    return wins / (len(positives) * len(negatives))


def displacement(positives: list[int], negatives: list[int], n: int) -> tuple[float, float]:
    """PDD and PDO of one predicate from the ranks of its labelled pairs."""
    if n == 1:
        return NAN, NAN
    recalls, precisions = [], []
    for k in range(1, n):
        hits = sum(r < k for r in positives)
        top = hits + sum(r < k for r in negatives)
        recalls.append(hits / len(positives) if positives else NAN)
        precisions.append(hits / top if top else 1.0)
    pdd = 1 - sum(recalls) / (n - 1)
    pdo = 1 - sum(precisions) / (n - 1) if positives or negatives else NAN
    return pdd, pdo


def predicate_metrics(scores: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """P-AUC, PDD and PDO [P] from dense scores and labels [R, P]."""
    count = scores.shape[1]
    values = {"P-AUC": [], "PDD": [], "PDO": []}
    for p in range(count):
        rows = {sign: np.flatnonzero(labels[:, p] == sign) for sign in (1, -1)}
        values["P-AUC"].append(auroc(*([scores[r, p] for r in rows[s]] for s in (1, -1))))
        pdd, pdo = displacement(*([rank(scores[r], p) for r in rows[s]] for s in (1, -1)), count)
        values["PDD"].append(pdd)
        values["PDO"].append(pdo)
    return {name: np.array(value, dtype=float) for name, value in values.items()}


def candidates(pairs: np.ndarray, scores: np.ndarray, constrained: bool) -> list[tuple]:
    """(subject, object, predicate) in the order in which a model gives them."""
    found = []
    for row, (pair, values) in enumerate(zip(pairs.tolist(), scores.tolist(), strict=True)):
        best = values.index(max(values))
        for predicate, value in enumerate(values):
            if not constrained or predicate == best:
                found.append((-value, row, predicate, (*pair, predicate)))
    return [triplet for *_, triplet in sorted(found)]


def recalls(images: list[dict], num_predicates: int, ks: tuple[int, ...]) -> dict[str, float]:
    """All recalls; images are dicts with ``pairs``, ``scores``, ``relations``."""
    named = {}
    for kind, mean_kind, constrained in (("R", "mR", True), ("ngR", "ng-mR", False)):
        for k in ks:
            per_image, per_predicate = [], [[] for _ in range(num_predicates)]
            for image in images:
                truth = {tuple(row) for row in image["relations"].tolist() if row[2] >= 0}
                first = set(candidates(image["pairs"], image["scores"], constrained)[:k])
                if truth:
                    per_image.append(len(truth & first) / len(truth))
                for p in range(num_predicates):
                    mine = {triplet for triplet in truth if triplet[2] == p}
                    if mine:
                        per_predicate[p].append(len(mine & first) / len(mine))
            means = [np.mean(values) for values in per_predicate if values]
            named[f"{kind}@{k}"] = np.mean(per_image) if per_image else NAN
            named[f"{mean_kind}@{k}"] = np.mean(means) if means else NAN
    return named


def labelled(images: list[dict], num_predicates: int) -> dict[str, np.ndarray]:
    """P-AUC, PDD, PDO [P] of whole images under the protocol ``paper``, missing pairs worst."""
    rows = {(p, sign): [] for p in range(num_predicates) for sign in (1, -1)}
    for image in images:
        row_of = {tuple(pair): row for row, pair in enumerate(image["pairs"].tolist())}
        labels = {}
        for sign, key in ((1, "relations"), (-1, "neg_relations")):
            for subject, target, p in image[key].tolist():
                for q in range(num_predicates) if p == -1 else (p,):
                    labels[subject, target, q] = sign if p != -1 else -1
        for (subject, target, p), sign in labels.items():
            row = row_of.get((subject, target))
            values = None if row is None else image["scores"][row]
            rows[p, sign].append(
                (-np.inf, num_predicates - 1) if row is None else (values[p], rank(values, p))
            )
    result = {"P-AUC": [], "PDD": [], "PDO": []}
    for p in range(num_predicates):
        positives, negatives = rows[p, 1], rows[p, -1]
        result["P-AUC"].append(auroc([s for s, _ in positives], [s for s, _ in negatives]))
        pdd, pdo = displacement(
            [r for _, r in positives], [r for _, r in negatives], num_predicates
        )
        result["PDD"].append(pdd)
        result["PDO"].append(pdo)
    return {name: np.array(value, dtype=float) for name, value in result.items()}


def random_images(
    seed: int, num_images: int, num_predicates: int, decimals: int | None = 1
) -> list[dict]:
    """Images with ties, missing pairs, self relations, duplicates and 'no relation' rows."""
    generator = np.random.default_rng(seed)
    images = []
    for number in range(num_images):
        objects = int(generator.integers(1, 5))
        every = np.array([(s, o) for s in range(objects) for o in range(objects)])
        pairs = generator.permutation(every)[: generator.integers(0, len(every) + 1)]
        scores = generator.random((len(pairs), num_predicates)).astype(np.float32)
        if decimals is not None:
            scores = scores.round(decimals)
        relations, negatives = [], []
        for subject, target in every.tolist():
            if generator.random() < 0.2:
                negatives.append((subject, target, -1))
                continue
            for p in range(num_predicates):
                sign = generator.choice([-1, 0, 1], p=[0.15, 0.7, 0.15])
                if sign:
                    (relations if sign > 0 else negatives).append((subject, target, p))
        images.append(
            {
                "image_id": str(number),
                "labels": np.zeros(objects, dtype=np.int64),
                "pairs": pairs.reshape(-1, 2),
                "scores": scores,
                "relations": np.array(relations + relations[:1], dtype=np.int64).reshape(-1, 3),
                "neg_relations": np.array(negatives + negatives[:1], np.int64).reshape(-1, 3),
            }
        )
    return images


@pytest.fixture(scope="session")
def brute() -> SimpleNamespace:
    return SimpleNamespace(
        predicate_metrics=predicate_metrics,
        candidates=candidates,
        recalls=recalls,
        labelled=labelled,
        random_images=random_images,
    )
