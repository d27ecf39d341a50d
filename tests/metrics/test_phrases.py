"""Phrase detection: the region of subject and object together is what must overlap."""

from __future__ import annotations

from contextlib import ExitStack
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.errors import InputError
from haystack.evaluation import evaluate
from haystack.metrics import SceneGraphMetrics
from haystack.metrics import phrases as phrases_module
from haystack.metrics.functional import hits as hits_module
from haystack.metrics.functional import orders as orders_module
from haystack.metrics.functional import tensors as tensors_module
from haystack.metrics.functional.matching import masks as masks_module
from haystack.metrics.functional.matching import phrases as unions_module
from haystack.scene_graph import (
    PredictedObjects,
    RelationScores,
    SceneGraph,
    SceneGraphDataset,
    Segment,
    as_triplets,
)
from haystack.vocabulary import Vocabulary

KS = (1, 3, 10)
SEEDS = st.integers(0, 2**32 - 1)
SIDE = 12


def pixels(box):
    x1, y1, x2, y2 = box
    return {(x, y) for x in range(x1, x2) for y in range(y1, y2)}


def around(one, other):
    return (*map(min, one[:2], other[:2]), *map(max, one[2:], other[2:]))


def phrase(boxes, pair, kind):
    one, other = (boxes[i].tolist() for i in pair)
    return pixels(around(one, other)) if kind == "boxes" else pixels(one) | pixels(other)


def hits_of(image, candidate, kind):
    """Which true triplets a candidate (subject, object, predicate) hits."""
    labels, own = image["labels"], image["own_labels"]
    mine = phrase(image["own_boxes"], candidate[:2], kind)
    found = set()
    for triplet in {tuple(row) for row in image["relations"].tolist()}:
        same = all(labels[t] == own[c] for t, c in zip(triplet[:2], candidate[:2], strict=True))
        theirs = phrase(image["boxes"], triplet[:2], kind)
        if same and triplet[2] == candidate[2]:
            overlap = Fraction(len(mine & theirs), max(len(mine | theirs), 1))
            found |= {triplet} if overlap >= Fraction(1, 2) else set()
    return found


def literal(images, kind, num_predicates):
    """R and ngR as they read; images without a pair are skipped, as OpenPSG skips them."""
    values = {f"{name}@{k}": [] for name in ("R", "ngR") for k in KS}
    for image in images:
        truth = {tuple(row) for row in image["relations"].tolist()}
        if not truth or not len(image["pairs"]):
            continue
        for name in ("R", "ngR"):
            ranked = []
            for row, (pair, scores) in enumerate(
                zip(image["pairs"].tolist(), image["scores"], strict=True)
            ):
                factor = np.float32(np.prod(image["own_scores"][pair]))
                chosen = range(num_predicates) if name == "ngR" else [int(scores.argmax())]
                ranked += [(-(scores[p] * factor), row, p, (*pair, p)) for p in chosen]
            found = [hits_of(image, c, kind) for *_, c in sorted(ranked)]
            for k in KS:
                values[f"{name}@{k}"].append(len(set().union(*found[:k])) / len(truth))
    return {name: np.mean(shares) if shares else np.nan for name, shares in values.items()}


def random_image(generator, num_predicates):
    objects, own = (int(generator.integers(1, 5)) for _ in range(2))
    corner = generator.integers(0, SIDE - 4, (objects, 2))
    boxes = np.concatenate([corner, corner + generator.integers(1, 5, (objects, 2))], axis=1)
    source = generator.integers(0, objects, own)
    own_boxes = (boxes[source] + generator.integers(-1, 2, (own, 4))).clip(0, SIDE)
    own_boxes[:, 2:] = np.maximum(own_boxes[:, 2:], own_boxes[:, :2])  # perhaps empty
    labels = generator.integers(0, 2, objects)
    pairs = np.argwhere(~np.eye(own, dtype=bool))
    triplets = int(generator.integers(0, 5))
    relations = [*generator.integers(0, objects, (2, triplets))]
    relations.append(generator.integers(0, num_predicates, triplets))
    return {
        "boxes": boxes,
        "labels": labels,
        "own_boxes": own_boxes,
        "own_labels": np.where(generator.random(own) < 0.8, labels[source], 1 - labels[source]),
        "own_scores": generator.random(own).astype(np.float32),
        "pairs": pairs,
        "scores": generator.random((len(pairs), num_predicates)).astype(np.float32),
        "relations": np.stack(relations, axis=1),
    }


def filled(boxes):
    masks = torch.zeros(len(boxes), SIDE, SIDE, dtype=torch.bool)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.tolist(), strict=True):
        mask[y1:y2, x1:x2] = True
    return masks


def compute(images, protocol, num_predicates, batch):
    metric = SceneGraphMetrics(num_predicates, ks=KS, protocol=protocol)
    for begin in range(0, len(images), batch):
        preds, targets = [], []
        for image in images[begin : begin + batch]:
            tensors = {name: torch.from_numpy(values) for name, values in image.items()}
            preds.append(
                {
                    "labels": tensors["own_labels"],
                    "object_scores": tensors["own_scores"],
                    "boxes": tensors["own_boxes"],
                    "masks": filled(image["own_boxes"]),
                    "pairs": tensors["pairs"],
                    "scores": tensors["scores"],
                }
            )
            target = {name: tensors[name] for name in ("labels", "boxes", "relations")}
            targets.append(target | {"masks": filled(image["boxes"])})
        metric.update(preds, targets)
    return {name: value.item() for name, value in metric.compute().items()}


@settings(max_examples=50)
@given(seed=SEEDS, num_predicates=st.integers(1, 3), kind=st.sampled_from(["boxes", "masks"]))
def test_equal_to_the_definition(seed, num_predicates, kind):
    generator = np.random.default_rng(seed)
    images = [random_image(generator, num_predicates) for _ in range(5)]
    protocol = "openpsg-phrdet" if kind == "boxes" else "openpsg-pan_seg-phrdet"
    found = compute(images, protocol, num_predicates, batch=2)
    for name, value in literal(images, kind, num_predicates).items():
        if kind == "boxes" or not name.startswith("ng"):  # which pan_seg does not compute
            np.testing.assert_allclose(found[name], value, atol=1e-9, err_msg=name)
    assert not found["R@inf"] < found["R@10"]


@settings(max_examples=25)
@given(seed=SEEDS, protocol=st.sampled_from(["openpsg-phrdet", "openpsg-pan_seg-phrdet"]))
def test_an_accelerators_way_gives_the_same(seed, protocol):
    """There all combinations are listed, since their number could not be known without a wait."""
    generator = np.random.default_rng(seed)
    images = [random_image(generator, 3) for _ in range(4)]
    expected = compute(images, protocol, 3, batch=3)
    modules = (hits_module, orders_module, tensors_module, phrases_module)
    with ExitStack() as patches:
        for module in modules:
            patches.enter_context(mock.patch.object(module, "on_host", return_value=False))
        for name, value in (("runs_pay", lambda _: False), ("_TILE", 7)):
            patches.enter_context(mock.patch.object(masks_module, name, value))
        patches.enter_context(mock.patch.object(unions_module, "_PHRASES", 2))
        np.testing.assert_equal(compute(images, protocol, 3, batch=3), expected)


def apart():
    """The union of two boxes is found, and neither box."""
    target = {
        "labels": torch.tensor([0, 1]),
        "boxes": torch.tensor([[0.0, 0, 4, 10], [4, 0, 10, 10]]),
        "relations": torch.tensor([[0, 1, 0]]),
    }
    pred = {
        "labels": torch.tensor([0, 1]),
        "boxes": torch.tensor([[0.0, 0, 1, 10], [8, 0, 9, 10]]),
    }
    return pred, target


SCORED = {"pairs": torch.tensor([[0, 1]]), "scores": torch.tensor([[0.9, 0.1]])}
RANKED = {"triplets": torch.tensor([[0, 1, 0]])}


def values(protocol, pred, target):
    metric = SceneGraphMetrics(2, ks=(1,), protocol=protocol)
    metric.update([pred], [target])
    return {name: value.item() for name, value in metric.compute().items()}


@pytest.mark.parametrize("content", [SCORED, RANKED])
def test_a_phrase_may_be_found_where_no_object_is(content):
    pred, target = apart()
    objects, found = (values(p, pred | content, target) for p in ("openpsg", "openpsg-phrdet"))
    assert (objects["R@1"], found["R@1"]) == (0, 1)
    assert (objects["PR@1"], found["PR@1"]) == (0, 1)
    assert (objects["R@inf"], found["R@inf"]) == (0, 1)
    assert objects["InstR"] == found["InstR"] == 0
    other = pred | content | {"labels": torch.tensor([1, 0])}
    assert values("openpsg-phrdet", other, target)["R@1"] == 0


def test_masks_are_joined_pixel_by_pixel():
    """The gap between two masks belongs to the box around them, and not to the phrase."""
    pred, target = apart()
    target["masks"] = torch.zeros(2, 1, 10, dtype=torch.bool)
    target["masks"][0, 0, :4] = target["masks"][1, 0, 4:] = True
    masks = torch.zeros(2, 1, 10, dtype=torch.bool)
    masks[0, 0, :1] = masks[1, 0, 8:9] = True
    found = values("openpsg-pan_seg-phrdet", pred | SCORED | {"masks": masks}, target)
    assert found["R@1"] == 0  # 2 of 10 pixels
    masks[0, 0, :3] = True
    found = values("openpsg-pan_seg-phrdet", pred | SCORED | {"masks": masks}, target)
    assert found["R@1"] == 0
    masks[1, 0, 2:5] = True
    found = values("openpsg-pan_seg-phrdet", pred | SCORED | {"masks": masks}, target)
    assert found["R@1"] == 1  # 6 of 10


@pytest.mark.parametrize("both", [False, True])
def test_run_lengths_are_joined_too(both):
    pytest.importorskip("pycocotools", reason="run lengths are decoded by pycocotools")
    pred, target = apart()
    encoded = [{"size": [1, 10], "counts": [0, 3, 7]}, {"size": [1, 10], "counts": [2, 3, 5]}]
    target["masks"] = [{"size": [1, 10], "counts": c} for c in ([0, 4, 6], [4, 6])]
    if not both:
        del target["masks"]
        target["id_map"] = torch.tensor([[0] * 4 + [1] * 6])
    found = values("openpsg-pan_seg-phrdet", pred | SCORED | {"masks": encoded}, target)
    assert found["R@1"] == 1  # 5 of 10


def test_phrases_are_detected():
    _, target = apart()
    words = (
        "no objects of their own; give labels .*predict PICTURES --segments .* protocol 'openpsg'"
    )
    with pytest.raises(InputError, match=f"image 0 .*{words}$"):
        values("openpsg-phrdet", SCORED, target)
    metric = SceneGraphMetrics(2, ks=(1,), protocol="openpsg-phrdet")
    pred, target = apart()
    metric.update([pred | SCORED, None], [target, target])
    metric.update([None], [target])
    assert metric.compute()["R@1"].item() == 1  # images without prediction are skipped


def test_files_are_graded_by_phrases():
    """Objects that repeat the annotated ones stay detections."""
    vocabulary = Vocabulary(("person", "dog"), (), ("on", "beside"))
    boxes = np.array([[0, 0, 4, 10], [4, 0, 10, 10]], np.float32)
    segments = tuple(Segment(k + 1, k, 1, tuple(box)) for k, box in enumerate(boxes.tolist()))
    relations = as_triplets(((0, 1, 0),))
    graph = SceneGraph("1", 10, 10, "1.jpg", segments=segments, relations=relations)
    data = SceneGraphDataset(vocabulary, (graph,))
    pairs, scores = SCORED["pairs"].numpy(), SCORED["scores"].numpy()
    for found in (boxes, np.array([[0, 0, 1, 10], [8, 0, 9, 10]], np.float32)):
        objects = PredictedObjects(np.array([0, 1]), boxes=found)
        report = evaluate(
            data, [RelationScores("1", pairs, scores, objects=objects)], "openpsg-phrdet"
        )
        assert (report.protocol, report.metrics["R@20"]) == ("openpsg-phrdet", 1)
        assert report.support["own_objects"] == 1
