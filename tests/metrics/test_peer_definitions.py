"""What SGBench and OpenPSG's evaluation of masks compute, once more as their code defines it."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.metrics import SceneGraphMetrics

KS = (1, 2, 5)
SIDE = 24
SEEDS = st.integers(0, 2**32 - 1)


def segmented_image(generator, num_predicates, *, detected):
    """Annotations that cut a picture into segments, and a model's own masks if it detects."""
    count = int(generator.integers(1, 5))
    cuts = np.sort(generator.choice(np.arange(1, SIDE), count - 1, replace=False))
    truth = np.searchsorted(cuts, np.arange(SIDE), side="right")[None].repeat(2, axis=0)
    labels = generator.integers(0, 2, count)
    triplets = int(generator.integers(0, 6))
    limits = [count, count, num_predicates]
    image = {
        "labels": labels,
        "masks": truth == np.arange(count)[:, None, None],
        "relations": generator.integers(0, limits, (triplets, 3)),
    }
    if detected:
        sources = generator.integers(0, count, int(generator.integers(0, 5)))
        own = [np.roll(image["masks"][s], generator.integers(-3, 4), axis=1) for s in sources]
        image |= {
            "own_masks": np.array(own, dtype=bool).reshape(-1, 2, SIDE),
            "own_labels": np.where(generator.random(len(own)) < 0.8, labels[sources], 1),
            "own_scores": generator.random(len(own)).astype(np.float32),
        }
    size = len(image["own_labels"]) if detected else count
    pairs = np.argwhere(~np.eye(size, dtype=bool))
    image["pairs"] = generator.permutation(pairs)[: generator.integers(0, len(pairs) + 1)]
    image["scores"] = generator.random((len(image["pairs"]), num_predicates)).astype(np.float32)
    return image


def compute(images, protocol, num_predicates, missing=(), batch=3):
    """Ours; predictions of the images that are missing are left out."""
    preds, targets = [], []
    for number, image in enumerate(images):
        tensors = {name: torch.from_numpy(value) for name, value in image.items()}
        targets.append({name: tensors[name] for name in ("labels", "masks", "relations")})
        pred = {name: tensors[name] for name in ("pairs", "scores")}
        if "own_labels" in image:
            pred |= {"labels": tensors["own_labels"], "masks": tensors["own_masks"]}
            pred["object_scores"] = tensors["own_scores"]
        preds.append(None if number in missing else pred)
    metric = SceneGraphMetrics(num_predicates, ks=KS, protocol=protocol, per_predicate=True)
    for begin in range(0, len(images), batch):
        metric.update(preds[begin : begin + batch], targets[begin : begin + batch])
    return metric.compute()


def overlaps(image):
    """IoU of each predicted (row) and each annotated object (column), 0 for different classes."""
    own = image.get("own_masks", image["masks"])
    labels = image.get("own_labels", image["labels"])
    values = np.zeros((len(own), len(image["masks"])))
    for p, mine in enumerate(own):
        for g, theirs in enumerate(image["masks"]):
            if labels[p] == image["labels"][g] and (mine | theirs).any():
                values[p, g] = (mine & theirs).sum() / (mine | theirs).sum()
    return values


def ranked(image, *, constrained):
    """The model's triplets, the most certain first."""
    scores = image["own_scores"] if "own_scores" in image else np.ones(len(image["labels"]))
    found = []
    for (s, o), values in zip(image["pairs"].tolist(), image["scores"], strict=True):
        for p in range(len(values)):
            if not constrained or p == values.argmax():
                found.append((float(values[p] * np.float32(scores[s] * scores[o])), s, o, p))
    found.sort(key=lambda row: -row[0])
    return [tuple(row[1:]) for row in found]


def sgbench(images, num_predicates, missing):
    """SGBench 1.0: ``metrics.py``, its images put together as in ``file.py``.

    Its ``pair_recall``, which ``file.py`` does not call, gets what ``recall`` gets.
    """
    kinds = ("R", "ngR", "PR")
    shares = {f"{name}@{k}": [] for name in kinds for k in KS} | {"InstR": []}
    vectors = {f"{name}@{k}": [] for name in ("mR", "ng-mR") for k in KS}
    ranks = []
    for number, image in enumerate(images):
        truth = np.unique(image["relations"], axis=0).tolist()
        if not truth:
            continue
        if number in missing:
            for name in shares:
                shares[name].append(0.0)
            continue
        assigned = {}
        for p, row in enumerate(overlaps(image)):
            assigned[p] = int(row.argmax()) if row.max() >= 0.5 else -1
        if "own_labels" not in image:
            assigned = {g: g for g in range(len(image["labels"]))}  # no question in PredCls
        listed = {
            name: [(assigned[s], assigned[o], p) for s, o, p in ranked(image, constrained=c)]
            for name, c in (("", True), ("ng", False))
        }
        for k in KS:
            for prefix, name, mean in (("", "R", "mR"), ("ng", "ngR", "ng-mR")):
                hits = {tuple(t) for t in truth} & set(listed[prefix][:k])
                shares[f"{name}@{k}"].append(len(hits) / len(truth))
                vector = np.full(num_predicates, np.nan)
                for p in {t[2] for t in truth}:
                    mine = [t for t in truth if t[2] == p]
                    vector[p] = sum(tuple(t) in hits for t in mine) / len(mine)
                vectors[f"{mean}@{k}"].append(vector)
            wanted = {tuple(t[:2]) for t in truth[:k]}
            predicted = {t[:2] for t in listed[""][:k]}
            shares[f"PR@{k}"].append(len(wanted & predicted) / len(wanted))
        found = {g for g in assigned.values() if g >= 0}
        shares["InstR"].append(len(found) / len(image["labels"]))
        ranks += predicate_ranks(truth, listed["ng"], num_predicates)
    values = {name: np.mean(each) if each else math.nan for name, each in shares.items()}
    for name, each in vectors.items():
        means = [
            np.mean(column[~np.isnan(column)]) if not np.isnan(column).all() else math.nan
            for column in np.array(each).reshape(-1, num_predicates).T
        ]
        values[name] = np.mean(means)  # undefined where one is
    return values | {"PRank": np.mean(ranks) if ranks else math.nan}


def predicate_ranks(truth, listed, num_predicates):
    """One mean an image and a predicate, of the places of its triplets that were listed."""
    places = {}
    for s, o, p in listed:
        if s >= 0 and o >= 0:
            of_pair = places.setdefault((s, o), [])
            if p not in of_pair:
                of_pair.append(p)
    means = []
    for p in range(num_predicates):
        each = [
            places[s, o].index(p) for s, o, q in truth if q == p and p in places.get((s, o), [])
        ]
        means += [np.mean(each)] if each else []
    return means


@settings(max_examples=80)
@given(
    seed=SEEDS,
    num_predicates=st.integers(1, 3),
    detected=st.booleans(),
    missing=st.sets(st.integers(0, 4), max_size=3),
)
def test_sgbench_as_its_code_defines_it(seed, num_predicates, detected, missing):
    generator = np.random.default_rng(seed)
    images = [segmented_image(generator, num_predicates, detected=detected) for _ in range(5)]
    found = compute(images, "sgbench", num_predicates, missing)
    for name, value in sgbench(images, num_predicates, missing).items():
        np.testing.assert_allclose(found[name].item(), value, atol=1e-9, err_msg=name)


def openpsg_masks(images, num_predicates):
    """OpenPSG's ``sgg_metrics.py`` with ``detection_method='pan_seg'``."""
    recalls = {k: [] for k in KS}
    by_predicate = {k: [[] for _ in range(num_predicates)] for k in KS}
    hits_of_pairs, triplets = dict.fromkeys(KS, 0), 0
    for image in images:
        truth = np.unique(image["relations"], axis=0).tolist()
        if not truth or not len(image["pairs"]):
            continue  # neither is evaluated
        match = overlaps(image) >= 0.5
        hit = [
            {i for i, (a, b, q) in enumerate(truth) if q == p and match[s, a] and match[o, b]}
            for s, o, p in ranked(image, constrained=True)
        ]
        annotated = {(a, b) for a, b, _ in truth}
        of_pairs = [
            found
            for found, (s, o, _) in zip(hit, ranked(image, constrained=True), strict=True)
            if (s, o) in annotated
        ]
        triplets += len(truth)
        for k in KS:
            found = set().union(*hit[:k])
            recalls[k].append(len(found) / len(truth))
            hits_of_pairs[k] += len(set().union(*of_pairs[:k]))
            for p in {t[2] for t in truth}:
                mine = [i for i, t in enumerate(truth) if t[2] == p]
                by_predicate[k][p].append(sum(i in found for i in mine) / len(mine))
    values = {}
    for k in KS:
        values[f"R@{k}"] = np.mean(recalls[k]) if recalls[k] else math.nan
        vector = [np.mean(each) if each else 0.0 for each in by_predicate[k]]
        values[f"per_predicate/R@{k}"] = vector
        values[f"mR@{k}"] = sum(vector) / num_predicates
        values[f"A@{k}"] = hits_of_pairs[k] / triplets if triplets else math.nan
        # Without graph constraint nothing is collected: means of empty lists, and of predicates
        # of which each lacks a recall, which counts as 0.
        values |= {f"ngR@{k}": math.nan, f"ng-A@{k}": math.nan, f"ng-mR@{k}": 0.0}
        values[f"per_predicate/ngR@{k}"] = [0.0] * num_predicates
    return values


@settings(max_examples=80)
@given(seed=SEEDS, num_predicates=st.integers(1, 3), detected=st.booleans())
def test_openpsg_with_masks_as_its_code_defines_it(seed, num_predicates, detected):
    generator = np.random.default_rng(seed)
    images = [segmented_image(generator, num_predicates, detected=detected) for _ in range(5)]
    found = compute(images, "openpsg-pan_seg", num_predicates)
    for name, value in openpsg_masks(images, num_predicates).items():
        if detected and name.startswith("A@"):
            value = math.nan  # not evaluated in SGDet
        np.testing.assert_allclose(found[name].numpy(), value, atol=1e-9, err_msg=name)


def phrases(images, num_predicates):
    """Its phrase detection with masks: the union of subject and object is what overlaps."""
    recalls = {k: [] for k in KS}
    by_predicate = {k: [[] for _ in range(num_predicates)] for k in KS}
    for image in images:
        truth = np.unique(image["relations"], axis=0).tolist()
        if not truth or not len(image["pairs"]):
            continue
        hit = []
        for s, o, p in ranked(image, constrained=True):
            mine = image["own_masks"][s] | image["own_masks"][o]
            classes = image["own_labels"][[s, o]].tolist()
            hit.append(set())
            for i, (a, b, q) in enumerate(truth):
                theirs = image["masks"][a] | image["masks"][b]
                overlap = (mine & theirs).sum() / (mine | theirs).sum()
                if q == p and classes == image["labels"][[a, b]].tolist() and overlap >= 0.5:
                    hit[-1].add(i)
        for k in KS:
            found = set().union(*hit[:k])
            recalls[k].append(len(found) / len(truth))
            for p in {t[2] for t in truth}:
                mine = [i for i, t in enumerate(truth) if t[2] == p]
                by_predicate[k][p].append(sum(i in found for i in mine) / len(mine))
    values = {}
    for k in KS:
        values[f"R@{k}"] = np.mean(recalls[k]) if recalls[k] else math.nan
        means = [np.mean(each) if each else 0.0 for each in by_predicate[k]]
        values[f"mR@{k}"] = sum(means) / num_predicates
        values |= {f"ngR@{k}": math.nan, f"ng-mR@{k}": 0.0}
    return values


@settings(max_examples=60)
@given(seed=SEEDS, num_predicates=st.integers(1, 3))
def test_phrase_detection_with_masks_as_openpsgs_code_defines_it(seed, num_predicates):
    generator = np.random.default_rng(seed)
    images = [segmented_image(generator, num_predicates, detected=True) for _ in range(5)]
    found = compute(images, "openpsg-pan_seg-phrdet", num_predicates)
    for name, value in phrases(images, num_predicates).items():
        np.testing.assert_allclose(found[name].item(), value, atol=1e-9, err_msg=name)
