"""SGDet: the model's own objects, matched by overlap and class."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.errors import InputError
from haystack.metrics import SceneGraphMetrics
from haystack.metrics.functional import NEVER, match_objects, object_pairs
from haystack.metrics.functional import hits as hits_module
from haystack.metrics.functional import tensors as tensors_module
from haystack.metrics.functional.hits import first_hits, link_triplets, predicate_places

KS = (1, 3, 10)
RULES = {"paper": "one-to-one", "sgbench": "many-to-one", "openpsg": "many-to-many"}


def overlap(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return Fraction(int(common), int(sum(areas) - common))


def matched(image, rule):
    """Pairs (annotated object, predicted object) that match."""
    iou = {
        (g, p): overlap(a, b)
        for g, (a, c) in enumerate(zip(image["boxes"], image["labels"], strict=True))
        for p, (b, d) in enumerate(zip(image["own_boxes"], image["own_labels"], strict=True))
        if c == d and overlap(a, b) >= Fraction(1, 2)
    }
    if rule != "many-to-many":
        best = {}
        for (g, p), value in sorted(iou.items()):
            if p not in best or value > iou[best[p], p]:
                best[p] = g
        iou = {(g, p): iou[g, p] for p, g in best.items()}
    if rule == "one-to-one":
        kept = {}
        for (g, p), value in sorted(iou.items()):
            if g not in kept or value > iou[g, kept[g]]:
                kept[g] = p
        iou = {(g, p): iou[g, p] for g, p in kept.items()}
    return iou


def hit_by(image, candidates, found, predicate_matters=True):
    """For each candidate (subject, object, predicate), which true triplets it hits."""
    wanted = sorted({tuple(row) for row in image["relations"].tolist()})
    return [
        {
            t
            for t in wanted
            if (t[0], s) in found and (t[1], o) in found and (t[2] == p or not predicate_matters)
        }
        for s, o, p in candidates
    ]


def literal(images, rule, num_predicates):
    """Recalls at KS, PRank and InstR as their definitions read."""
    names = ("R", "mR", "ngR", "ng-mR", "IMR", "PR")
    values = {f"{name}@{k}": [] for name in names for k in KS}
    values |= {"InstR": [], "R@inf": []}
    predicates = {f"{n}@{k}": [[] for _ in range(num_predicates)] for n in names for k in KS}
    for image in images:
        truth = {tuple(row) for row in image["relations"].tolist()}
        if not truth:
            continue
        found = matched(image, rule)
        orders = {}
        for name, constrained in (("", True), ("ng", False)):
            ranked = []
            for row, (pair, scores) in enumerate(
                zip(image["pairs"].tolist(), image["scores"], strict=True)
            ):
                factor = image["own_scores"][pair[0]] * image["own_scores"][pair[1]]
                for p in range(num_predicates):
                    if not constrained or p == scores.argmax():
                        ranked.append((-(scores[p] * factor), row, p, (*pair, p)))
            orders[name] = [candidate for *_, candidate in sorted(ranked)]
        objects = {g for g, _ in found}
        values["InstR"].append(len(objects) / len(image["labels"]))
        reachable = [t for t in truth if t[0] in objects and t[1] in objects]
        values["R@inf"].append(len(reachable) / len(truth))
        for k in KS:
            for name, mean, order in (("R", "mR", ""), ("ngR", "ng-mR", "ng")):
                hits = set().union(*hit_by(image, orders[order][:k], found))
                values[f"{name}@{k}"].append(len(hits) / len(truth))
                for p in {t[2] for t in truth}:
                    mine = {t for t in truth if t[2] == p}
                    predicates[f"{mean}@{k}"][p].append(len(hits & mine) / len(mine))
            for p in {t[2] for t in truth}:
                mine = {t for t in truth if t[2] == p}
                alone = [c for c in orders[""] if c[2] == p][:k]
                hits = set().union(*hit_by(image, alone, found))
                predicates[f"IMR@{k}"][p].append(len(hits & mine) / len(mine))
            hits = set().union(*hit_by(image, orders[""][:k], found, predicate_matters=False))
            pairs = {t[:2] for t in truth}
            values[f"PR@{k}"].append(len({t[:2] for t in hits}) / len(pairs))
    result = {name: np.mean(shares) if shares else np.nan for name, shares in values.items()}
    for name, lists in predicates.items():
        if name.partition("@")[0] in ("mR", "ng-mR", "IMR"):
            means = [np.mean(shares) for shares in lists if shares]
            result[name] = np.mean(means) if means else np.nan
    return result


def random_image(generator, num_predicates, decimals=None):
    """A few objects, jittered and doubled detections, some of another class."""
    objects = int(generator.integers(1, 6))
    corner = generator.integers(0, 30, (objects, 2))
    boxes = np.concatenate([corner, corner + generator.integers(4, 20, (objects, 2))], axis=1)
    labels = generator.integers(0, 2, objects)
    own = int(generator.integers(0, 8))
    source = generator.integers(0, objects, own)
    own_boxes = boxes[source] + generator.integers(-2, 3, (own, 4))
    pairs = [(a, b) for a in range(own) for b in range(own) if a != b]
    pairs = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    scores = generator.random((len(pairs), num_predicates)).astype(np.float32)
    own_scores = generator.random(own).astype(np.float32)
    if decimals is not None:
        scores, own_scores = scores.round(decimals), np.ones_like(own_scores)
    triplets = int(generator.integers(0, 6))
    relations = np.stack(
        [
            *generator.integers(0, objects, (2, triplets)),
            generator.integers(0, num_predicates, triplets),
        ],
        axis=1,
    )
    return {
        "boxes": boxes,
        "labels": labels,
        "own_boxes": own_boxes,
        "own_labels": np.where(generator.random(own) < 0.8, labels[source], 1 - labels[source]),
        "own_scores": own_scores,
        "pairs": pairs,
        "scores": scores,
        "relations": relations,
    }


def lists(images):
    preds = [
        {
            "labels": torch.from_numpy(i["own_labels"]),
            "boxes": torch.from_numpy(i["own_boxes"]),
            "object_scores": torch.from_numpy(i["own_scores"]),
            "pairs": torch.from_numpy(i["pairs"]),
            "scores": torch.from_numpy(i["scores"]),
        }
        for i in images
    ]
    targets = [
        {k: torch.from_numpy(i[k]) for k in ("labels", "boxes", "relations")} for i in images
    ]
    return preds, targets


def compute(images, protocol, num_predicates, batch=100, **options):
    metric = SceneGraphMetrics(num_predicates, ks=KS, protocol=protocol, **options)
    for begin in range(0, len(images), batch):
        metric.update(*lists(images[begin : begin + batch]))
    return metric.compute()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_predicates=st.integers(1, 4),
    protocol=st.sampled_from(["paper", "sgbench"]),
    decimals=st.sampled_from([1, None]),
)
def test_equal_to_the_definitions(seed, num_predicates, protocol, decimals):
    generator = np.random.default_rng(seed)
    images = [random_image(generator, num_predicates, decimals) for _ in range(4)]
    found = compute(images, protocol, num_predicates, batch=3)
    for name, value in literal(images, RULES[protocol], num_predicates).items():
        kind = name.partition("@")[0]
        if protocol == "sgbench" and kind in ("mR", "ng-mR", "IMR", "PR"):
            continue  # other rules for absent predicates and for pairs: see test_protocols
        np.testing.assert_allclose(found[name].item(), value, atol=1e-9, err_msg=name)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_many_to_many_equal_to_the_definition(seed):
    generator = np.random.default_rng(seed)
    images = [random_image(generator, 3) for _ in range(4)]
    images = [image for image in images if len(image["pairs"])]  # OpenPSG skips the others
    found = compute(images, "openpsg", 3)
    expected = literal(images, "many-to-many", 3)
    for name in (f"{kind}@{k}" for kind in ("R", "ngR", "PR") for k in KS):
        np.testing.assert_allclose(found[name].item(), expected[name], atol=1e-9, err_msg=name)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 4))
def test_bit_equal_however_images_are_ordered_and_batched(seed, batch):
    generator = np.random.default_rng(seed)
    images = [random_image(generator, 3) for _ in range(5)]
    whole = compute(images, "paper", 3, per_predicate=True)
    turned = compute(images[::-1], "paper", 3, batch=batch, per_predicate=True)
    for name in whole:
        torch.testing.assert_close(whole[name], turned[name], rtol=0, atol=0, equal_nan=True)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), protocol=st.sampled_from(["sgbench", "paper", "openpsg"]))
def test_ranked_triplets_give_what_their_scores_give(seed, protocol):
    generator = np.random.default_rng(seed)
    images = [random_image(generator, 3) for _ in range(4)]
    preds, targets = lists(images)
    ranked = []
    for pred in preds:
        factor = pred["object_scores"][pred["pairs"]].prod(1, keepdim=True)
        scores = pred["scores"] * factor
        row = torch.sort(
            scores.amax(1) if len(scores) else factor[:, 0], descending=True, stable=True
        )
        best = scores.argmax(1) if len(scores) else row.indices
        every = torch.sort(scores.flatten(), descending=True, stable=True).indices
        own = torch.cat([pred["pairs"], best[:, None]], dim=1)[row.indices]
        everything = torch.cat([pred["pairs"][every // 3], (every % 3)[:, None]], dim=1)
        ranked.append(
            {
                "labels": pred["labels"],
                "boxes": pred["boxes"],
                "triplets": torch.cat([own, own[:1]]),  # a repetition counts for nothing
                "ng_triplets": everything,
            }
        )
    metrics = [SceneGraphMetrics(3, ks=KS, protocol=protocol) for _ in range(3)]
    metrics[0].update(preds, targets)
    metrics[1].update(ranked, targets)
    metrics[2].update([{k: v for k, v in r.items() if k != "ng_triplets"} for r in ranked], targets)
    scored, listed, short = (metric.compute() for metric in metrics)
    for name, value in scored.items():
        if name in ("P-AUC", "PDD", "PDO"):
            assert listed[name].isnan()
            continue
        torch.testing.assert_close(listed[name], value, rtol=0, atol=0, equal_nan=True, msg=name)
        if name.startswith("ng") or name == "PRank":
            assert short[name].isnan()
        else:
            torch.testing.assert_close(short[name], value, rtol=0, atol=0, equal_nan=True)


def regions(kind):
    """Two annotated and two predicted objects, the same in four forms."""
    ids = torch.tensor([[7, 7, 7, 0, 9, 9]])
    own = torch.tensor([[0, 0, -1, -1, 1, 1]])
    truth, mine = (ids == torch.tensor([[[7]], [[9]]])), (own == torch.tensor([[[0]], [[1]]]))
    if kind == "id map":
        return {"id_map": ids, "segment_ids": torch.tensor([7, 9])}, {"id_map": own}
    if kind == "masks":
        return {"masks": truth}, {"masks": mine}
    if kind == "id map and masks":
        return {"id_map": ids, "segment_ids": torch.tensor([7, 9])}, {"masks": mine}
    if kind == "run lengths":
        pytest.importorskip("pycocotools", reason="run lengths are compared by pycocotools")
        encoded = [[0, 3, 3], [4, 2]], [[0, 2, 4], [4, 2]]
        return tuple({"masks": [{"size": [1, 6], "counts": c} for c in side]} for side in encoded)
    boxes = [[0, 0, 3, 1], [4, 0, 6, 1]], [[0, 0, 2, 1], [4, 0, 6, 1]]
    return tuple({"boxes": torch.tensor(side)} for side in boxes)


@pytest.mark.parametrize("kind", ["id map", "masks", "id map and masks", "run lengths", "boxes"])
def test_regions_may_come_in_any_form(kind):
    truth, mine = regions(kind)
    metric = SceneGraphMetrics(2, ks=(1,))
    labels = torch.tensor([3, 4])
    pred = {"pairs": torch.tensor([[0, 1]]), "scores": torch.tensor([[0.9, 0.1]])}
    target = {"labels": labels, "relations": torch.tensor([[0, 1, 0]])}
    metric.update([pred | {"labels": labels} | mine], [target | truth])
    assert metric.compute()["R@1"].item() == 1


def mirrored(values):
    """The same array, over memory that runs backwards."""
    return values[..., ::-1].copy()[..., ::-1]


ARRAYS = {
    "array": lambda values: values,
    "mirrored": mirrored,
    "other byte order": lambda values: values.astype(values.dtype.newbyteorder(">")),
    "unsigned": lambda values: values.astype(np.uint16),
    "list": lambda values: values.tolist(),
}


@pytest.mark.parametrize("form", ARRAYS)
@pytest.mark.parametrize("kind", ["id map", "masks", "id map and masks", "boxes"])
@pytest.mark.parametrize("suffix", ["", "-phrdet"])
def test_regions_may_be_arrays(kind, form, suffix):
    protocol = ("openpsg" if kind == "boxes" else "openpsg-pan_seg") + suffix
    labels = torch.tensor([3, 4])
    pred = {"labels": labels, "pairs": torch.tensor([[0, 1]]), "scores": torch.tensor([[0.9]])}
    target = {"labels": labels, "relations": torch.tensor([[0, 1, 0]])}
    values = []
    for turn in (lambda tensor: tensor, lambda tensor: ARRAYS[form](tensor.numpy())):
        truth, mine = ({k: turn(v) for k, v in side.items()} for side in regions(kind))
        if form == "unsigned":  # which has no -1 for void
            mine = regions(kind)[1]
        metric = SceneGraphMetrics(1, ks=(1,), protocol=protocol)
        metric.update([pred | mine], [target | truth])
        values.append(metric.compute()["R@1"].item())
    assert values == [1, 1]


def test_labelled_pairs_take_the_scores_of_the_best_overlapping_objects():
    target = {
        "labels": torch.tensor([0, 1]),
        "boxes": torch.tensor([[0, 0, 10, 10], [20, 0, 30, 10]]),
        "relations": torch.tensor([[0, 1, 0]]),
        "neg_relations": torch.tensor([[1, 0, 0]]),
    }
    pred = {
        "labels": torch.tensor([1, 0, 0]),
        "boxes": torch.tensor([[20, 0, 30, 10], [0, 0, 10, 6], [0, 0, 10, 9]]),
        "pairs": torch.tensor([[1, 0], [2, 0], [0, 2]]),
        "scores": torch.tensor([[0.9, 0.1], [0.2, 0.4], [0.3, 0.1]]),
    }
    metric = SceneGraphMetrics(2, per_predicate=True, protocol="sgbench")
    metric.update([pred], [target])
    found = metric.compute()
    assert found["per_predicate/P-AUC"][0].item() == 0  # 0.2 of pair (2, 0) against 0.3
    assert found["per_predicate/PDD"][0].item() == 1
    assert found["support/missing_pairs"].item() == 0


@pytest.mark.parametrize(
    ("pred", "target", "message"),
    [
        ({"labels": None}, {}, r"expected the key 'labels'"),
        ({"boxes": torch.zeros(1, 4)}, {}, r"expected boxes \[2, 4\], got \[1, 4\]"),
        ({"boxes": None}, {}, "which the predictions lack"),
        ({}, {"boxes": None}, "which the annotations lack"),
        ({"object_scores": torch.ones(1)}, {}, r"expected object_scores \[2\], got \[1\]"),
        ({"masks": torch.ones(1, 2, 2)}, {"masks": torch.ones(2, 2, 2)}, r"masks \[2, height"),
        (
            {"id_map": torch.zeros(2, 2).long()},
            {"id_map": torch.zeros(2, 2).long(), "segment_ids": torch.tensor([1])},
            r"segment_ids \[2\]",
        ),
        ({"id_map": torch.tensor(3)}, {"id_map": torch.tensor(3)}, r"an id_map int \[H, W\]"),
        ({"masks": "ab"}, {"masks": "ab"}, "array of numbers under 'masks', got str"),
        ({"boxes": np.array([[None] * 4] * 2)}, {}, "under 'boxes', got an array of object"),
        ({"object_scores": "ab"}, {}, "array of numbers under 'object_scores', got str"),
        ({"triplets": torch.tensor([[0, 2, 0]])}, {}, "names an object or a predicate"),
        ({"triplets": torch.tensor([[0.0, 1.0, 0.0]])}, {}, "integer rows"),
    ],
)
def test_what_does_not_fit_is_an_error(pred, target, message):
    boxes = torch.tensor([[0, 0, 3, 1], [4, 0, 6, 1]])
    record = {
        "labels": torch.tensor([0, 1]),
        "boxes": boxes,
        "pairs": torch.tensor([[0, 1]]),
        "scores": torch.rand(1, 3),
    } | pred
    truth = {
        "labels": torch.tensor([0, 1]),
        "boxes": boxes,
        "relations": torch.tensor([[0, 1, 0]]),
    } | target
    preds = [{k: v for k, v in record.items() if v is not None}]
    targets = [{k: v for k, v in truth.items() if v is not None}]
    if "labels" not in preds[0]:  # another image says that this is SGDet
        preds.append(record | {"labels": torch.tensor([0, 1])})
        targets.append(truth)
    with pytest.raises(InputError, match=message):
        SceneGraphMetrics(3).update(preds, targets)


def test_masks_or_boxes_are_chosen_image_by_image():
    """Or the batch in which an image comes would change its result."""
    labels, pairs = torch.tensor([3, 4]), torch.tensor([[0, 1]])
    truth, mine = regions("masks")
    far = {"boxes": torch.tensor([[50, 50, 60, 60], [70, 70, 80, 80]])}
    near = regions("boxes")
    pred = {"labels": labels, "pairs": pairs, "scores": torch.tensor([[0.9, 0.1]])}
    target = {"labels": labels, "relations": torch.tensor([[0, 1, 0]])}
    preds = [pred | mine | far, pred | near[1], pred | far]
    targets = [target | truth | near[0], target | near[0], target | near[0]]
    together, apart = (SceneGraphMetrics(2, ks=(1,), metrics=("R",)) for _ in range(2))
    together.update(preds, targets)
    for one, other in zip(preds, targets, strict=True):
        apart.update([one], [other])
    assert together.compute()["R@1"] == apart.compute()["R@1"] == pytest.approx(2 / 3)


def test_ranked_triplets_need_the_models_objects():
    target = {"labels": torch.tensor([0, 1]), "relations": torch.tensor([[0, 1, 0]])}
    with pytest.raises(InputError, match="give their labels"):
        SceneGraphMetrics(2).update([{"triplets": torch.tensor([[0, 1, 0]])}], [target])


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_accelerator_lists_all_links_and_finds_the_same_hits(seed):
    generator = np.random.default_rng(seed)
    num_truths, num_own = (generator.integers(0, 4, 3).tolist() for _ in range(2))
    layout = object_pairs(num_truths, num_own)
    iou = torch.from_numpy(generator.random(len(layout.truth)))
    labels = [
        torch.zeros(len(x), dtype=torch.int64)
        for x in (layout.truth_images, layout.predicted_images)
    ]
    matches = match_objects(iou, layout, *labels, rule="many-to-many")
    truths = np.split(np.arange(sum(num_truths)), np.cumsum(num_truths)[:-1])
    owns = np.split(np.arange(sum(num_own)), np.cumsum(num_own)[:-1])
    pairs = [(i, a, b) for i, side in enumerate(owns) for a in side for b in side if a != b]
    triplets = [(i, s, o) for i, side in enumerate(truths) for s in side for o in side]
    pairs = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 3)
    triplets = torch.tensor(triplets, dtype=torch.int64).reshape(-1, 3)
    counts = [(pairs[:, 0] == i).sum() * (triplets[:, 0] == i).sum() for i in range(3)]
    image, subjects, targets = pairs.T.contiguous()
    arguments = (matches, subjects, targets, image, triplets[:, 1:])
    arguments += (triplets[:, 0].contiguous(), 3)
    scores = torch.from_numpy(generator.random((len(pairs), 2)).round(1).astype(np.float32))
    predicates = torch.from_numpy(generator.integers(0, 2, len(triplets)))
    found = []
    for on_host in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            for module in (hits_module, tensors_module):
                patch.setattr(module, "on_host", lambda _, answer=on_host: answer)
            links = link_triplets(*arguments, num_links=int(sum(counts)))
            hits = first_hits(links, scores, predicates)
            found.append([*hits, predicate_places(links, scores, predicates)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert all((x >= -1).all() and (x < NEVER).all() for x in found[0])
