from __future__ import annotations

import copy
import gc
import pickle
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torchmetrics import MetricCollection

from haystack.errors import InputError
from haystack.metrics import (
    PROTOCOLS,
    SceneGraphMetrics,
    base,
    batch,
    get_protocol,
    objects,
    predictions,
    scene_graph,
)
from haystack.metrics import lists as lists_module
from haystack.metrics.batch import adjoining
from haystack.metrics.functional import hits, orders, relation_probabilities, tensors
from haystack.metrics.functional.matching import boxes, rules
from haystack.metrics.targets import Targets, flatten_targets

HOSTS = (base, batch, boxes, hits, lists_module, objects, orders, predictions, rules, tensors)
"""Modules that ask where values lie."""

KS = (1, 3, 8)
PREDICTED = ("image_id", "pairs", "scores", "no_relation")


def lists(images):
    """Images as the two lists of dicts that ``update`` takes; arrays stay NumPy."""
    preds = [{k: v for k, v in image.items() if k in PREDICTED} for image in images]
    targets = [{k: v for k, v in i.items() if k not in PREDICTED[1:]} for i in images]
    return preds, targets


def compute(images, num_predicates=4, batch=100, **options):
    metric = SceneGraphMetrics(num_predicates, ks=KS, **options)
    for begin in range(0, len(images), batch):
        metric.update(*lists(images[begin : begin + batch]))
    return metric.compute()


def seen_in_training(seed, num_predicates):
    """Triplets of classes, some of them several times."""
    generator = np.random.default_rng(seed)
    size = int(generator.integers(0, 8))
    columns = [generator.integers(0, 2, size) for _ in range(2)]
    return np.stack([*columns, generator.integers(0, num_predicates, size)], axis=1)


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0, equal_nan=True)


def image(**changes):
    """Two objects, both ordered pairs predicted, three predicates."""
    record = {
        "image_id": "42",
        "labels": torch.tensor([0, 1]),
        "pairs": torch.tensor([[0, 1], [1, 0]]),
        "scores": torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.1, 0.5]]),
        "relations": torch.tensor([[0, 1, 0]]),
        "neg_relations": torch.tensor([[1, 0, 2]]),
    }
    return {**record, **changes}


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_images=st.integers(1, 5),
    predicates=st.integers(1, 5),
    decimals=st.sampled_from([0, 1, None]),
)
def test_equal_to_the_definitions(brute, seed, num_images, predicates, decimals):
    images = brute.random_images(seed, num_images, predicates, decimals)
    training = seen_in_training(seed, predicates)
    found = compute(images, predicates, per_predicate=True, training=training)
    expected = brute.recalls(images, predicates, KS, [tuple(row) for row in training.tolist()])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].item(), value, atol=1e-9, err_msg=name)
    scalars = {name for name in found if "/" not in name}
    assert scalars - set(expected) == {"P-AUC", "PDD", "PDO", "R@inf", "mR@inf", "InstR"}
    for name, vector in brute.labelled(images, predicates).items():
        value = found[f"per_predicate/{name}"].numpy()
        np.testing.assert_allclose(value, vector, atol=1e-12, err_msg=name)
        mean = np.nan if np.isnan(vector).all() else np.nanmean(vector)
        np.testing.assert_allclose(found[name].item(), mean, atol=1e-12, err_msg=name)
        assert found[f"support/predicates/{name}"].item() == (~np.isnan(vector)).sum()


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 6))
def test_bit_equal_however_images_are_ordered_and_batched(brute, seed, batch):
    images = brute.random_images(seed, 7, 4)
    order = np.random.default_rng(seed).permutation(7)
    whole = compute(images, per_predicate=True)
    same(whole, compute([images[i] for i in order], batch=batch, per_predicate=True))


def test_the_order_of_pairs_matters_only_to_ties(brute):
    images = brute.random_images(3, 6, 4, decimals=None)
    turned = [
        {**i, "pairs": i["pairs"][::-1].copy(), "scores": i["scores"][::-1].copy()} for i in images
    ]
    same(compute(images), compute(turned))


def test_objects_may_be_renumbered(brute):
    def renumber(record):
        objects = len(record["labels"])
        moved = dict(record)
        for key in ("pairs", "relations", "neg_relations"):
            moved[key] = record[key].copy()
            moved[key][:, :2] = objects - 1 - moved[key][:, :2]
        return moved

    images = brute.random_images(4, 6, 4)
    same(compute(images), compute([renumber(i) for i in images]))


def test_missing_pairs_and_images_count_as_the_worst_and_are_counted():
    full = image()
    absent = image(pairs=torch.empty(0, 2), scores=torch.empty(0, 3))
    half = image(pairs=full["pairs"][1:], scores=full["scores"][1:])
    found = compute([full, half, absent], 3, per_predicate=True)
    assert found["R@8"].item() == pytest.approx(1 / 3)
    assert found["per_predicate/PDD"][0].item() == pytest.approx((0 + 1 + 1) / 3)
    assert found["support/missing_images"].item() == 1
    assert found["support/missing_pairs"].item() == 3
    assert found["support/images"].item() == 3
    assert found["support/images_with_relations"].item() == 3


def test_a_missing_pair_scores_below_every_score():
    lowest = image(scores=torch.tensor([[-1e30, 0.3, 0.1], [0.2, 0.1, 0.5]]))
    lowest["neg_relations"] = torch.tensor([[0, 1, 0]])
    lowest["relations"] = torch.tensor([[1, 0, 0]])
    lowest["pairs"] = lowest["pairs"][:1]
    lowest["scores"] = lowest["scores"][:1]
    found = compute([lowest], 3, per_predicate=True)
    assert found["per_predicate/P-AUC"][0].item() == 0


def test_an_image_without_annotations_changes_no_metric_and_is_not_missing():
    empty = image(
        relations=torch.empty(0, 3),
        neg_relations=None,
        pairs=torch.empty(0, 2),
        scores=torch.empty(0, 3),
    )
    alone, both = (compute(i, 3, per_predicate=True) for i in ([image()], [image(), empty]))
    assert both.pop("support/images").item() == alone.pop("support/images").item() + 1
    same(alone, both)


def test_no_images_at_all():
    metric = SceneGraphMetrics(3)
    metric.update([], [])
    assert all(value.isnan() for value in metric.compute().values())


def test_no_relation_rows_follow_the_protocol():
    record = image(relations=torch.tensor([[0, 1, 0], [1, 0, -1]]), neg_relations=None)
    paper = compute([record], 3, per_predicate=True)
    assert paper["support/negatives"].tolist() == [1, 1, 1]
    v1 = compute([record], 3, per_predicate=True, protocol="haystack-v1")
    assert v1["support/negatives"].tolist() == [0, 0, 0]


def test_repeated_labels_follow_the_protocol():
    record = image(relations=torch.tensor([[0, 1, 0]] * 5), neg_relations=torch.tensor([[0, 1, 0]]))
    with pytest.raises(InputError, match=r"image 42.*predicate 0\) is labelled both"):
        compute([record], 3)
    v1 = compute([record], 3, per_predicate=True, protocol="haystack-v1")
    assert v1["support/positives"].tolist() == [5, 0, 0]
    assert v1["support/negatives"].tolist() == [1, 0, 0]
    assert v1["per_predicate/P-AUC"][0].item() == 0.5
    assert v1["R@1"].item() == 1  # distinct triplets


def test_no_relation_contradicts_any_predicate():
    with pytest.raises(InputError, match="labelled both"):
        compute([image(neg_relations=torch.tensor([[0, 1, -1]]))], 3)


def test_v1_leaves_predicates_with_few_positives_undefined():
    records = [image() for _ in range(3)]
    three, four = (
        compute(r, 3, per_predicate=True, protocol="haystack-v1")
        for r in (records, [*records, image()])
    )
    assert three["per_predicate/PDD"].isnan().all()
    assert four["per_predicate/PDD"].isnan().tolist() == [False, True, True]
    assert four["support/predicates/PDD"].item() == 1
    # The script's plain mean is undefined as soon as one of its predicates lacks negatives.
    assert four["P-AUC"].isnan()
    assert four["PDD"].item() == 0


def test_v1_ranks_without_the_last_column():
    scores = torch.tensor([[0.3, 0.1, 0.6], [0.2, 0.1, 0.5]])
    relations, none = torch.tensor([[0, 1, 0], [0, 1, 2]]), torch.zeros(2)
    without = [image(scores=scores, relations=relations) for _ in range(4)]
    beside = [image(scores=scores, relations=relations, no_relation=none) for _ in range(4)]
    options = {"per_predicate": True, "protocol": "haystack-v1"}
    cut = compute(without, 3, **options)["per_predicate/PDD"]
    assert cut[0].item() == 0
    assert cut[2].isnan()
    whole = compute(beside, 3, **options)["per_predicate/PDD"]
    assert whole[0].item() == 0.5
    assert whole[2].item() == 0


def test_v1_scores_a_missing_pair_zero():
    # A negative with a score below 0 loses against a missing positive.
    scores = torch.tensor([[0.1, 0.1, 0.1], [-0.2, 0.1, 0.5]])
    record = image(
        scores=scores[1:],
        pairs=torch.tensor([[1, 0]]),
        relations=torch.tensor([[0, 1, 0]] * 4),
        neg_relations=torch.tensor([[1, 0, 0]]),
    )
    options = {"per_predicate": True, "num_predicates": 3}
    v1 = compute([record], protocol="haystack-v1", **options)
    assert v1["per_predicate/P-AUC"][0].item() == 1
    assert compute([record], protocol="paper", **options)["per_predicate/P-AUC"][0].item() == 0


def test_logits_become_the_softmax_over_predicates_and_no_relation():
    generator = torch.Generator().manual_seed(0)
    logits, none = torch.randn(2, 3, generator=generator), torch.randn(2, generator=generator)
    scores = relation_probabilities(logits, none)
    torch.testing.assert_close(
        scores, torch.cat([logits, none[:, None]], 1).softmax(1)[:, :3], rtol=0, atol=0
    )
    from_logits = compute([image(scores=logits, no_relation=none)], 3, from_logits=True)
    same(from_logits, compute([image(scores=scores)], 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": torch.tensor([[0.1, 0.2, float("nan")], [0.1, 0.2, 0.3]])}, "finite"),
        ({"scores": torch.tensor([[0.1, 0.2, -torch.inf], [0.1, 0.2, 0.3]])}, "finite"),
        ({"pairs": torch.tensor([[0, 1], [0, 2]])}, "object that the image does not have"),
        ({"pairs": torch.tensor([[0, 1], [-1, 0]])}, "object that the image does not have"),
        ({"pairs": torch.tensor([[0, 1], [0, 1]])}, "given twice"),
        ({"pairs": torch.tensor([[0, 1]])}, r"expected floating-point scores \[1, 3\]"),
        ({"pairs": torch.rand(2, 2)}, "expected integer pairs"),
        ({"scores": torch.rand(2, 5)}, r"scores \[2, 3\], one row for each pair, got \[2, 5\]"),
        (
            {"scores": torch.rand(2, 4)},
            r"scores \[2, 3\], .*drop the no-relation column and pass it as no_relation",
        ),
        ({"no_relation": torch.rand(3)}, r"expected no_relation \[2\]"),
        ({"relations": torch.tensor([[0, 2, 0]])}, r"object in the relation \[0, 2, 0\]"),
        ({"relations": torch.tensor([[0, 1, 3]])}, r"predicate in the relation \[0, 1, 3\]"),
        ({"neg_relations": torch.tensor([[0, 1, -2]])}, r"predicate in the relation"),
        ({"neg_relations": torch.tensor([[0, 1, 0]])}, "labelled both"),
        ({"relations": torch.tensor([[0, 1]])}, "expected integer rows"),
        ({"relations": torch.tensor([[0.0, 1.0, 0.0]])}, "expected integer rows"),
        ({"labels": torch.tensor([0, -1])}, r"0\.\.C-1 in the annotations, got -1 for object 1"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_image(changes, message):
    metric = SceneGraphMetrics(3, ks=KS)
    with pytest.raises(InputError, match=message) as caught:
        metric.update(*lists([image(image_id="1"), image(**changes)]))
    assert str(caught.value).startswith("image 42: ")
    # Nothing of the refused batch was counted.
    metric.update(*lists([image()]))
    same(metric.compute(), compute([image()], 3))


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2], [2, 0, 1], [1, 1, 2]])
def test_scores_that_lie_in_one_tensor_count_as_those_that_do_not(order):
    whole = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
    for scores in (whole[:, :3].contiguous(), whole[:, :3], whole[:, :3].contiguous()[1:]):
        parts = scores[:6].split([2, 2, len(scores) - 4])
        views = [part if len(part) == 2 else part.repeat(2, 1) for part in parts]
        images = [image(scores=views[i]) for i in order]
        copies = [image(scores=views[i].clone()) for i in order]
        same(compute(images, 3), compute(copies, 3))


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 3, 1, 2], [0, 2], [2, 0, 1]])
def test_values_that_lie_in_one_array_count_as_those_that_do_not(order):
    whole = np.random.default_rng(0).random((6, 3), np.float32)
    rows = [slice(0, 2), slice(2, 4), slice(4, 6), slice(2, 2)]
    ends = np.tile([[0, 1], [1, 0]], (3, 1))
    lying = [(torch.from_numpy(ends[r]), torch.from_numpy(whole[r])) for r in rows]
    copied = [(pairs.clone(), scores.clone()) for pairs, scores in lying]
    views, copies = (
        [image(pairs=parts[i][0], scores=parts[i][1]) for i in order] for parts in (lying, copied)
    )
    same(compute(views, 3), compute(copies, 3))


def test_rows_of_a_wider_table_are_a_view_without_its_other_columns():
    table = np.arange(15, dtype=np.float32).reshape(3, 5)
    parts = [torch.from_numpy(table[i : i + 1, 1:4]) for i in range(3)]
    view = adjoining(parts)
    assert view is not None
    assert torch.equal(view, torch.from_numpy(table[:, 1:4]))


def test_a_view_of_several_arrays_keeps_their_memory():
    whole = np.arange(12, dtype=np.float32).reshape(6, 2)
    parts = [torch.from_numpy(whole[:2]), torch.from_numpy(whole[2:])]
    address = whole.ctypes.data
    view = adjoining(parts)
    assert view is not None
    assert view.data_ptr() == address
    del whole, parts
    gc.collect()
    np.full((6, 2), -1, np.float32)
    assert torch.equal(view, torch.arange(12.0).view(6, 2))


@pytest.mark.parametrize("key", ["pairs", "scores", "labels", "relations"])
def test_a_missing_key_is_named(key):
    record = image()
    del record[key]
    with pytest.raises(InputError, match=f"expected the key '{key}'"):
        compute([record], 3)


def test_logits_without_no_relation_are_an_error():
    with pytest.raises(InputError, match="no_relation"):
        compute([image()], 3, from_logits=True)


def test_lists_of_two_lengths_are_an_error():
    with pytest.raises(InputError, match="as many preds as targets"):
        SceneGraphMetrics(3).update([], [image()])


def test_unknown_protocols_are_an_error_that_lists_those_there_are():
    with pytest.raises(InputError, match="haystack-v1"):
        SceneGraphMetrics(3, protocol="papper")
    openpsg = "openpsg openpsg-pan_seg openpsg-phrdet openpsg-pan_seg-phrdet"
    names = f"paper haystack-v1 {openpsg} sgbench kt vctree single-mpo single-mpo-boxes"
    assert list(PROTOCOLS) == names.split()


def test_bad_predictions_seen_on_an_accelerator_are_raised_by_compute():
    metric = SceneGraphMetrics(3)
    metric.update(*lists([image()]))
    metric.problems[2] += 1  # what `update` does there instead of raising
    with pytest.raises(InputError, match="a pair is given twice"):
        metric.compute()


NAN, INF = float("nan"), float("inf")
BAD_OBJECTS = [
    ("pred", "labels", [0, -1], r"object classes 0\.\.C-1 in the predictions"),
    ("pred", "labels", [0, 9], r"object classes 0\.\.C-1 in the predictions"),
    *(
        (side, "boxes", [[0, 0, 4, 4], box], f"x1 <= x2 and y1 <= y2 in the {name}; convert x, y")
        for side, name in (("pred", "predictions"), ("target", "annotations"))
        for box in (
            [5, 5, 3, 8],
            [5, 5, 8, 3],
            [NAN, 5, 8, 8],
            [5, 5, 8, NAN],
            [5, -INF, 8, 8],
            [INF, 5, INF, 8],
        )
    ),
]


def detected(image_id, **changes):
    """An image of two objects, found as they are, but for ``changes``: key = (side, value)."""
    where = {"labels": torch.tensor([0, 8]), "boxes": torch.tensor([[0.0, 0, 4, 4], [5, 5, 8, 8]])}
    pred = {**where, "pairs": torch.tensor([[0, 1]]), "scores": torch.tensor([[0.2, 0.3, 0.4]])}
    target = {**where, "relations": torch.tensor([[0, 1, 2]]), "image_id": image_id}
    for key, (side, value) in changes.items():
        record = pred if side == "pred" else target
        record[key] = torch.tensor(value, dtype=record[key].dtype)
    return pred, target


def parts(*images):
    """Predictions and targets of some :func:`detected`."""
    return [image[0] for image in images], [image[1] for image in images]


@pytest.mark.parametrize(("side", "key", "value", "message"), BAD_OBJECTS)
@pytest.mark.parametrize("where", ["cpu", "accelerator", "accelerator, validated"])
def test_bad_objects_are_refused(monkeypatch, where, side, key, value, message):
    given = parts(detected("1"), detected("42", **{key: (side, value)}))
    for module in HOSTS if where != "cpu" else ():
        monkeypatch.setattr(module, "on_host", lambda _: False)
    metric = SceneGraphMetrics(3, ks=KS, num_classes=9, validate="validated" in where)
    if where == "accelerator":
        metric.update(*given)
        with pytest.raises(InputError, match=rf"{message}.*\(in 1 records"):
            metric.compute()
    else:
        with pytest.raises(InputError, match=message) as caught:
            metric.update(*given)
        assert str(caught.value).startswith("image 42: ")
    metric.reset()
    metric.update(*parts(detected("1")))
    assert metric.compute()["R@1"] == 1


@pytest.mark.parametrize(
    ("side", "key", "value"),
    [
        ("pred", "labels", torch.tensor([0.0, 1.5])),
        ("pred", "labels", None),
        ("target", "labels", torch.tensor([0.0, 8.0])),
        ("target", "labels", torch.tensor([[0, 8]])),
        ("target", "labels", ["cat", "dog"]),
        ("target", "relations", None),
        ("pred", "scores", "many"),
    ],
)
def test_what_are_no_numbers_of_the_right_kind_is_refused(side, key, value):
    preds, targets = parts(detected("1"), detected("42"))
    (preds if side == "pred" else targets)[1].update({key: value, "image_id": "42"})
    with pytest.raises(InputError, match=rf"^image 42: expected .*{key}"):
        SceneGraphMetrics(3, ks=KS).update(preds, targets)


@pytest.mark.parametrize("row", [[0, 2, 0], [-1, 0, 0], [0, 1, 3], [0, 1, -1]])
@pytest.mark.parametrize("key", ["triplets", "ng_triplets"])
@pytest.mark.parametrize("where", ["cpu", "accelerator", "accelerator, validated"])
def test_bad_ranked_triplets_are_refused(monkeypatch, where, key, row):
    preds, targets = parts(detected("1"), detected("42"))
    for pred in preds:
        good = torch.tensor([[0, 1, 2], [1, 0, 1]])
        pred |= {"triplets": good, "ng_triplets": good}
    preds[1] |= {key: torch.tensor([[0, 1, 2], row]), "image_id": "42"}
    for module in HOSTS if where != "cpu" else ():
        monkeypatch.setattr(module, "on_host", lambda _: False)
    metric = SceneGraphMetrics(3, ks=KS, validate="validated" in where)
    message = "names an object or a predicate that is not there"
    if where == "accelerator":
        metric.update(preds, targets)
        with pytest.raises(InputError, match=rf"{message}.*\(in 1 records"):
            metric.compute()
    else:
        with pytest.raises(InputError, match=message) as caught:
            metric.update(preds, targets)
        assert str(caught.value).startswith("image 42: ")


def test_annotated_classes_beyond_the_last_are_refused():
    metric = SceneGraphMetrics(3, ks=KS, num_classes=8)
    with pytest.raises(InputError, match=r"image 1: .* 0\.\.7 in the .*, got 8 for object 1"):
        metric.update(*parts(detected("1")))
    SceneGraphMetrics(3, ks=KS).update(*parts(detected("1")))  # C is not known


def test_boxes_of_no_width_are_no_error():
    metric = SceneGraphMetrics(3, ks=KS)
    metric.update(*parts(detected("1", boxes=("pred", [[0, 0, 4, 4], [5, 5, 5, 8]]))))
    assert metric.compute()["R@1"] == 0


def test_boxes_that_are_not_compared_may_be_anything():
    pred, target = detected("1", boxes=("pred", [[NAN] * 4] * 2))
    id_map = torch.tensor([[0, 1], [0, 1]])
    metric = SceneGraphMetrics(3, ks=KS, protocol="openpsg-pan_seg")
    metric.update([{**pred, "id_map": id_map}], [{**target, "id_map": id_map}])
    assert metric.compute()["R@1"] == 1


def test_states_keep_their_dtype_when_a_model_is_cast(brute):
    images = brute.random_images(5, 6, 4, decimals=None)
    model = torch.nn.Module()
    model.metric = SceneGraphMetrics(4, ks=KS)
    model.metric.update(*lists(images[:3]))
    model.to(torch.bfloat16)
    model.metric.set_dtype(torch.float16)
    model.metric.update(*lists(images[3:]))
    assert {s.dtype for s in model.metric.samples} == {torch.float32}
    assert model.metric.rank_histogram.dtype == torch.int64
    same(model.metric.compute(), compute(images))


def test_half_precision_scores_are_read_as_float32(brute):
    images = brute.random_images(6, 4, 4)
    for record in images:
        record["scores"] = torch.from_numpy(record["scores"]).bfloat16()
    wide = [{**record, "scores": record["scores"].float()} for record in images]
    same(compute(images), compute(wide))


def test_survives_pickling_cloning_reset_and_a_collection(brute):
    images = brute.random_images(7, 4, 4)
    metric = SceneGraphMetrics(4, ks=KS)
    metric.update(*lists(images[:2]))
    copies = [pickle.loads(pickle.dumps(metric)), metric.clone(), copy.deepcopy(metric)]
    for other in copies:
        other.update(*lists(images[2:]))
        same(other.compute(), compute(images))
    metric.reset()
    metric.update(*lists(images[2:]))
    same(metric.compute(), compute(images[2:]))
    collection = MetricCollection({"graphs": SceneGraphMetrics(4, ks=KS)}, prefix="val/")
    collection.update(*lists(images))
    assert "val/R@3" in collection.compute()


def test_forward_gives_the_batch_and_keeps_the_total(brute):
    images = brute.random_images(8, 6, 4)
    metric = SceneGraphMetrics(4, ks=KS)
    same(metric(*lists(images[:3])), compute(images[:3]))
    same(metric(*lists(images[3:])), compute(images[3:]))
    same(metric.compute(), compute(images))


def with_objects(preds, targets, seed):
    """The same images as SGDet: the model's objects are the annotated ones."""
    generator = torch.Generator().manual_seed(seed)
    for pred, target in zip(preds, targets, strict=True):
        size = len(target["labels"])
        target["boxes"] = 100 * torch.rand(size, 4, generator=generator)
        target["boxes"][:, 2:] += 100
        pred |= {k: torch.as_tensor(target[k]) for k in ("labels", "boxes")}
        pred["object_scores"] = torch.rand(size, generator=generator)
    return preds, targets


MODES = ("predcls", "predcls by overlap", "sgdet", "ranked triplets")


def in_mode(preds, mode):
    """Predictions from :func:`with_objects` for one of ``MODES``."""
    if mode == "sgdet":
        return preds
    if mode == "ranked triplets":
        return [p | {"triplets": listed(p), "ng_triplets": listed(p)} for p in preds]
    return [{k: v for k, v in p.items() if k in PREDICTED} for p in preds]


def listed(pred):
    """Some triplets, pairs again with other predicates, and the first one again."""
    pairs = torch.as_tensor(pred["pairs"])
    pairs = torch.cat([pairs, pairs.flip(0), pairs])
    return torch.cat([pairs, torch.arange(len(pairs))[:, None] % 3], dim=1)


@pytest.mark.parametrize("mode", MODES)
def test_update_asks_an_accelerator_for_nothing(brute, mode, monkeypatch):
    # A fake tensor has a shape and no values: whoever asks for one gets an error.
    preds, targets = lists(brute.random_images(10, 6, 4))
    preds, targets = with_objects(preds, targets, 10)
    preds = in_mode(preds, mode)
    protocol = get_protocol("kt" if mode == "predcls by overlap" else "paper")
    annotated = flatten_targets(targets, 4, protocol)
    for module in HOSTS:
        monkeypatch.setattr(module, "on_host", lambda _: False)
    metric = SceneGraphMetrics(4, ks=KS, protocol=protocol.name, training=[[0, 1, 2]])
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        values = {f.name: getattr(annotated, f.name) for f in fields(annotated)}
        moved = {
            k: v if isinstance(v, tuple | int) else fake.from_tensor(v) for k, v in values.items()
        }
        monkeypatch.setattr(scene_graph, "flatten_targets", lambda *_: Targets(**moved))
        tensors_of = [
            {k: fake.from_tensor(torch.as_tensor(v)) for k, v in p.items() if k != "image_id"}
            for p in preds
        ]
        metric.update(tensors_of, targets)
    assert metric.image_hits.shape == (len(metric.image_columns), len(KS))


@pytest.mark.parametrize("mode", MODES)
def test_an_accelerator_gives_the_same(brute, mode, monkeypatch):
    preds, targets = with_objects(*lists(brute.random_images(11, 8, 4)), 11)
    preds = in_mode(preds, mode)
    values = []
    for patched in (False, True):
        for module in HOSTS if patched else ():
            monkeypatch.setattr(module, "on_host", lambda _: False)
        protocol = "kt" if mode == "predcls by overlap" else "paper"
        metric = SceneGraphMetrics(4, ks=KS, protocol=protocol, training=[[0, 1, 2]])
        metric.update(preds, targets)
        values.append(metric.compute())
    same(*values)


def test_two_metrics_in_a_collection_keep_their_own_values(brute):
    """Compute groups must not merge metrics whose states look alike after the first batch."""
    images = brute.random_images(12, 6, 4)
    collection = MetricCollection(
        {
            "paper": SceneGraphMetrics(4, ks=KS, metrics=("R", "P-AUC")),
            "pooled": SceneGraphMetrics(
                4, ks=KS, metrics=("R", "P-AUC"), protocol="openpsg-pan_seg"
            ),
        }
    )
    empty = {**images[0], "relations": torch.empty(0, 3), "neg_relations": None}
    collection.update(*lists([empty]))
    collection.update(*lists(images))
    found = collection.compute()
    paper = compute([empty, *images], metrics=("R", "P-AUC"))
    pooled = compute([empty, *images], metrics=("R", "P-AUC"), protocol="openpsg-pan_seg")
    assert paper["R@3"] != pooled["R@3"]
    # Both give one name for two values: the collection qualifies it by the metric's.
    assert found["paper_R@3"] == paper["R@3"]
    assert found["pooled_R@3"] == pooled["R@3"]


def test_scalars_can_be_drawn(brute):
    matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
    matplotlib.use("Agg")
    metric = SceneGraphMetrics(4, ks=KS, per_predicate=True)
    metric.update(*lists(brute.random_images(13, 3, 4)))
    figure, _ = metric.plot()
    assert figure is not None


def test_permuting_predicates_permutes_the_vectors(brute):
    images = brute.random_images(14, 6, 4, decimals=None)
    order = np.array([2, 0, 3, 1])  # new predicate -> old
    new = np.append(np.argsort(order), -1)  # old -> new; -1 stays

    def permuted(record):
        moved = {**record, "scores": record["scores"][:, order]}
        for key in ("relations", "neg_relations"):
            moved[key] = record[key].copy()
            moved[key][:, 2] = new[record[key][:, 2]]
        return moved

    one = compute(images, per_predicate=True)
    other = compute([permuted(i) for i in images], per_predicate=True)
    for name, value in one.items():
        moved = value[torch.from_numpy(order)] if value.ndim else value
        torch.testing.assert_close(other[name], moved, rtol=0, atol=1e-14, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_equal_on_cuda_without_waiting_for_it(brute):
    images = brute.random_images(9, 6, 4)
    metric = SceneGraphMetrics(4, ks=KS).cuda()
    preds, targets = lists(images)
    preds = [
        {k: torch.from_numpy(v).cuda() if isinstance(v, np.ndarray) else v for k, v in p.items()}
        for p in preds
    ]
    metric.update(preds, targets)
    metric.reset()
    torch.cuda.set_sync_debug_mode("error")
    try:
        metric.update(preds, targets)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    same({name: value.cpu() for name, value in metric.compute().items()}, compute(images))


def test_states_of_other_choices_are_refused(brute):
    ours, theirs = SceneGraphMetrics(2, ks=(1, 2)), SceneGraphMetrics(2, ks=(5, 9))
    with pytest.raises(InputError, match="another protocol, other cut-offs"):
        ours.merge_state(theirs)
    other = SceneGraphMetrics(2, ks=(1, 2), protocol="sgbench")
    other.persistent(True)
    ours.persistent(True)
    with pytest.raises(InputError, match="another protocol, other cut-offs"):
        ours.load_state_dict(other.state_dict())
    same = SceneGraphMetrics(2, ks=(1, 2))
    same.persistent(True)
    ours.load_state_dict(same.state_dict())
    ours.merge_state(same)


@pytest.mark.parametrize("key", ["object_scores", "pair_scores", "no_relation"])
def test_a_nan_beside_the_scores_is_an_error_too(key):
    prediction = {
        "pairs": torch.tensor([[0, 1], [0, 2], [1, 2]]),
        "scores": torch.tensor([[0.9, 0.1], [0.5, 0.1], [0.2, 0.1]]),
        key: torch.tensor([1.0, 1.0, float("nan")]),
    }
    if key == "object_scores":
        prediction["labels"] = torch.tensor([0, 1, 1])
        prediction["boxes"] = torch.tensor([[0.0, 0, 2, 2], [2, 0, 4, 2], [4, 0, 6, 2]])
    target = {
        "labels": torch.tensor([0, 1, 1]),
        "boxes": torch.tensor([[0.0, 0, 2, 2], [2, 0, 4, 2], [4, 0, 6, 2]]),
        "relations": torch.tensor([[0, 1, 0]]),
    }
    metrics = SceneGraphMetrics(2, ks=(1, 2))
    with pytest.raises(InputError, match="finite"):
        metrics.update([prediction], [target])
    prediction[key] = torch.ones(3)
    metrics.update([prediction], [target])


def test_values_of_a_single_predicate_keep_their_shape():
    """torchmetrics by itself makes scalars of them, also of a value that it kept."""
    metric = SceneGraphMetrics(num_predicates=1, ks=(5,), per_predicate=True)
    pairs = torch.tensor([[0, 1], [1, 0]])
    preds = [{"pairs": pairs, "scores": torch.tensor([[0.75], [0.25]])}]
    target = {"labels": torch.tensor([0, 0]), "relations": torch.tensor([[0, 1, 0]])}
    metric.update(preds, [{**target, "neg_relations": torch.tensor([[1, 0, 0]])}])
    for values in (metric.compute(), copy.deepcopy(metric).compute(), metric.compute()):
        assert values["P-AUC"].shape == ()
        assert values["per_predicate/P-AUC"].tolist() == [1.0]
        assert values["support/positives"].tolist() == [1]
