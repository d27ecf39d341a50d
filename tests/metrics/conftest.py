"""The metrics once more, as slowly and as literally as their definitions read."""

from __future__ import annotations

from collections.abc import Callable
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


def hit(order: list[tuple], k: int, wanted: set[tuple]) -> int:
    """How many of ``wanted`` are among the first k of an order."""
    return len(wanted & set(order[:k]))


def over_predicates(
    images: list[dict], num_predicates: int, hits: Callable[[dict, set[tuple], int], int]
) -> list[float]:
    """Of each predicate the mean over the images that hold it; NaN if none does."""
    means = []
    for p in range(num_predicates):
        shares = []
        for image in images:
            mine = {triplet for triplet in truth(image) if triplet[2] == p}
            if mine:
                shares.append(hits(image, mine, p) / len(mine))
        means.append(np.mean(shares) if shares else NAN)
    return means


def mean_defined(values: list[float]) -> float:
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else NAN


def truth(image: dict) -> set[tuple]:
    return {tuple(row) for row in image["relations"].tolist() if row[2] >= 0}


def classes(image: dict, triplet: tuple) -> tuple:
    """(subject class, object class, predicate)."""
    return (int(image["labels"][triplet[0]]), int(image["labels"][triplet[1]]), triplet[2])


def recalls(
    images: list[dict],
    num_predicates: int,
    ks: tuple[int, ...],
    training: list[tuple] | None = None,
) -> dict[str, float]:
    """All recalls of PredCls under the protocol ``paper``, as the papers put them.

    Images are dicts with ``labels``, ``pairs``, ``scores``, ``relations``; training a list of
    (subject class, object class, predicate), as often as they occur.
    """
    named = {}
    for prefix, dash, constrained in (("", "", True), ("ng", "ng-", False)):
        orders = [candidates(i["pairs"], i["scores"], constrained) for i in images]
        for image, order in zip(images, orders, strict=True):
            image["order"] = order
            annotated = {triplet[:2] for triplet in truth(image)}
            image["annotated"] = [t for t in order if t[:2] in annotated]
        for k in ks:
            related = [i for i in images if truth(i)]
            shares = [hit(i["order"], k, truth(i)) / len(truth(i)) for i in related]
            named[f"{prefix}R@{k}"] = mean_defined(shares)
            named[f"{dash}mR@{k}"] = mean_defined(
                over_predicates(images, num_predicates, lambda i, t, _, k=k: hit(i["order"], k, t))
            )
            alone = over_predicates(
                images,
                num_predicates,
                lambda i, t, p, k=k: hit([c for c in i["order"] if c[2] == p], k, t),
            )
            named[f"{dash}IMR@{k}"] = mean_defined(alone)
            total = sum(len(truth(i)) for i in images)
            pooled = sum(hit(i["annotated"], k, truth(i)) for i in images)
            named[f"{dash}A@{k}"] = pooled / total if total else NAN
            if training is not None:
                named |= against_training(images, k, prefix, dash, alone, training)
            if constrained:
                pairs = [
                    (hit([t[:2] for t in i["order"]], k, goal), len(goal))
                    for i in related
                    for goal in [{t[:2] for t in truth(i)}]
                ]
                named[f"PR@{k}"] = mean_defined([hits / size for hits, size in pairs])
    named["PRank"] = predicate_rank(images, num_predicates)
    return named


def against_training(
    images: list[dict], k: int, prefix: str, dash: str, alone: list[float], training: list[tuple]
) -> dict[str, float]:
    """zR, wIMR and wR at k, with or without graph constraint."""
    seen = set(training)
    shares = []
    for image in images:
        unseen = {t for t in truth(image) if classes(image, t) not in seen}
        if unseen:
            shares.append(hit(image["order"], k, unseen) / len(unseen))
    diversity = [len({t[:2] for t in seen if t[2] == p}) for p in range(len(alone))]
    weights = [0 if np.isnan(v) else np.sqrt(n) for v, n in zip(alone, diversity, strict=True)]
    total = sum(w * (0 if np.isnan(v) else v) for w, v in zip(weights, alone, strict=True))
    named = {
        f"{dash}zR@{k}": mean_defined(shares),
        f"{dash}wIMR@{k}": total / sum(weights) if sum(weights) else NAN,
    }
    if not prefix:
        hits = norm = 0.0
        for image in images:
            for triplet in truth(image):
                weight = 1 / (training.count(classes(image, triplet)) + 1)
                norm += weight
                hits += weight * hit(image["order"], k, {triplet})
        named[f"wR@{k}"] = hits / norm if norm else NAN
    return named


def predicate_rank(images: list[dict], num_predicates: int) -> float:
    cells = []
    for image in images:
        rows = {tuple(pair): row for row, pair in enumerate(image["pairs"].tolist())}
        for p in range(num_predicates):
            ranks = [
                rank(image["scores"][rows[t[:2]]], p)
                for t in truth(image)
                if t[2] == p and t[:2] in rows
            ]
            if ranks:
                cells.append(np.mean(ranks))
    return mean_defined(cells)


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
                "labels": generator.integers(0, 2, objects),
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
