"""Each protocol reproduces its peer, oddities included."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from haystack.errors import InputError
from haystack.metrics import SceneGraphMetrics

FIXTURE = Path(__file__).parents[1] / "data" / "openpsg" / "openpsg_eval_fixture.json"
NAMES = {"recall": "R", "mean": "mR", "accuracy": "A"}
UNCONSTRAINED = {"R": "ngR", "mR": "ng-mR", "A": "ng-A"}


def openpsg_images(mode):
    """The fixture as the two lists of dicts."""
    content = json.loads(FIXTURE.read_text())

    def masks(boxes):
        filled = torch.zeros(len(boxes), content["H"], content["W"], dtype=torch.bool)
        for mask, (x1, y1, x2, y2) in zip(filled, boxes, strict=True):
            mask[y1:y2, x1:x2] = True
        return filled

    preds, targets = [], []
    for image in content["images"]:
        scores = torch.tensor(image["dists"], dtype=torch.float64)[:, 1:]
        relations = torch.tensor(image["rels"], dtype=torch.int64).reshape(-1, 3)
        relations[:, 2] -= 1
        boxes = image["boxes"]
        preds.append({"pairs": torch.tensor(image["pairs"]), "scores": scores})
        targets.append(
            {
                "labels": torch.tensor(image["labels"]),
                "relations": relations,
                "boxes": torch.tensor(boxes),
                "masks": masks(boxes),
            }
        )
        if mode == "sgdet":
            preds[-1] |= {
                "labels": torch.tensor(image["det_labels"]),
                "object_scores": torch.tensor(image["det_scores"]),
                "boxes": torch.tensor(image["det_boxes"]),
                "masks": masks(image["det_boxes"]),
            }
    return preds, targets, content["expected"]


@pytest.mark.parametrize("mode", ["predcls", "sgdet"])
@pytest.mark.parametrize("kind", ["bbox", "pan_seg"])
def test_openpsg_equals_its_evaluator(mode, kind):
    preds, targets, expected = openpsg_images(mode)
    metric = SceneGraphMetrics(protocol="openpsg" if kind == "bbox" else "openpsg-pan_seg")
    for begin in range(0, len(preds), 5):
        metric.update(preds[begin : begin + 5], targets[begin : begin + 5])
    found = metric.compute()
    wanted = expected[f"{mode}/{kind}"]
    for key, value in wanted["metrics"].items():
        _, name, *_, k = key.split("_")
        assert found[f"{NAMES[name]}@{k}"].item() == pytest.approx(value, abs=1e-9), key
    lines = [line for line in wanted["lines"] if "phrdet" not in line]
    assert len(lines) == (6 if mode == "predcls" else 4)
    check_printed(lines, found)


@pytest.mark.parametrize("protocol", ["openpsg-phrdet", "openpsg-pan_seg-phrdet"])
def test_phrase_detection_equals_openpsgs(protocol):
    preds, targets, expected = openpsg_images("sgdet")
    metric = SceneGraphMetrics(protocol=protocol)
    for begin in range(0, len(preds), 5):
        metric.update(preds[begin : begin + 5], targets[begin : begin + 5])
    kind = "pan_seg" if "pan_seg" in protocol else "bbox"
    lines = [line for line in expected[f"sgdet/{kind}"]["lines"] if "phrdet" in line]
    assert len(lines) == 4
    check_printed(lines, metric.compute())


def check_printed(lines, found):
    """Four decimals are all that the evaluator prints."""
    for line in lines:
        printed = re.findall(r"(\w+) @ (\d+): ([\d.]+|nan);", line)
        assert [k for _, k, _ in printed] == ["20", "50", "100"]
        for name, k, value in printed:
            name = UNCONSTRAINED[name] if "NoGraphConstraint" in line else name
            assert f"{found[f'{name}@{k}'].item():.4f}" == value, line


def target(relations, labels=(0, 0, 1), boxes=None):
    record = {"labels": torch.tensor(labels), "relations": torch.tensor(relations).reshape(-1, 3)}
    boxes = [[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]] if boxes is None else boxes
    return record | {"boxes": torch.tensor(boxes, dtype=torch.float32)}


def pred(pairs, scores, **more):
    return {"pairs": torch.as_tensor(pairs), "scores": torch.as_tensor(scores), **more}


NOTHING = {"pairs": torch.empty(0, 2, dtype=torch.int64), "scores": torch.empty(0, 2)}


def compute(protocol, preds, targets, ks=(1, 2), num_predicates=2, **options):
    metric = SceneGraphMetrics(num_predicates, ks=ks, protocol=protocol, **options)
    metric.update(preds, targets)
    return {name: value.item() for name, value in metric.compute().items() if "/" not in name}


@pytest.mark.parametrize(
    ("protocol", "empty", "missing", "mean_missing"),
    [
        ("paper", 0.5, 0.5, 0.5),
        ("openpsg", 1.0, 1.0, 0.5),  # mR: half of the predicates are absent
        ("openpsg-pan_seg", 1.0, 1.0, 0.5),
        ("sgbench", 0.5, 0.5, math.nan),
        ("kt", 1.0, 1.0, 0.5),
        ("vctree", 0.5, 0.5, 0.25),
        ("single-mpo", 0.5, 0.5, math.nan),
    ],
)
def test_images_without_prediction(protocol, empty, missing, mean_missing):
    hit = pred([[0, 2]], [[0.9, 0.1]])
    truth = [target([[0, 2, 0]])] * 2
    assert compute(protocol, [hit, NOTHING], truth)["R@1"] == empty
    found = compute(protocol, [hit, None], truth)
    assert found["R@1"] == missing
    assert found["mR@1"] == pytest.approx(mean_missing, nan_ok=True)


@pytest.mark.parametrize("name", ["paper", "sgbench", "single-mpo", "openpsg", "kt"])
def test_annotated_pairs_of_images_without_any_prediction_are_missed(name):
    """A@K like R@K: an image that the predictions lack counts as the worst, or is skipped."""
    skipped = name in ("openpsg", "kt")
    found = compute(name, [None, None], [target([[0, 2, 0]])] * 2)
    for metric in ("R@1", "A@1", "ng-A@1"):
        assert found[metric] == pytest.approx(math.nan if skipped else 0, nan_ok=True), metric


@pytest.mark.parametrize("batches", [[[0, 1]], [[0], [1]], [[1], [0]]])
def test_annotated_pairs_are_undefined_once_objects_are_detected(batches):
    """However images are batched: those without a prediction do not define A@K alone."""
    truth = target([[0, 2, 0]])
    own = {"labels": truth["labels"], "boxes": truth["boxes"]}
    images = [None, pred([[0, 2]], [[0.9, 0.1]], **own)]
    metric = SceneGraphMetrics(2, ks=(1,))
    for batch in batches:
        metric.update([images[i] for i in batch], [truth for _ in batch])
    found = metric.compute()
    assert found["R@1"] == 0.5
    assert found["A@1"].isnan()
    assert found["ng-A@1"].isnan()


def test_openpsg_with_masks_has_no_imr_without_graph_constraint():
    metric = SceneGraphMetrics(
        2, ks=(1,), protocol="openpsg-pan_seg", training=[[0, 1, 0]], per_predicate=True
    )
    masks = torch.eye(3, dtype=torch.bool)[:, None]
    metric.update([pred([[0, 2]], [[0.9, 0.1]])], [target([[0, 2, 0]]) | {"masks": masks}])
    found = metric.compute()
    assert found["IMR@1"] == found["mR@1"] == 0.5  # an absent predicate counts as 0
    assert found["ng-mR@1"] == 0
    assert found["support/predicates/ng-mR"] == 2
    for name in ("ng-IMR@1", "ng-wIMR@1", "per_predicate/ng-IMR@1"):
        assert found[name].isnan().all(), name
    assert found["support/predicates/ng-IMR"] == 0


def test_sgbench_ignores_missing_images_in_mr_but_not_empty_ones():
    hit = pred([[0, 2], [1, 2]], [[0.9, 0.1], [0.1, 0.8]])
    truth = [target([[0, 2, 0], [1, 2, 1]])] * 2
    assert compute("sgbench", [hit, None], truth)["mR@2"] == 1
    assert compute("sgbench", [hit, NOTHING], truth)["mR@2"] == 0.5
    assert compute("paper", [hit, None], truth)["mR@2"] == 0.5


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [("paper", 1), ("openpsg", 0.5), ("kt", 0.5), ("vctree", 0.5), ("sgbench", math.nan)],
)
def test_absent_predicates(protocol, expected):
    found = compute(protocol, [pred([[0, 2]], [[0.9, 0.1]])], [target([[0, 2, 0]])])
    assert found["mR@1"] == pytest.approx(expected, nan_ok=True)
    assert found["IMR@1"] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [("paper", 0.5), ("openpsg", 0.5), ("kt", 2 / 3), ("vctree", 2 / 3), ("single-mpo", 2 / 3)],
)
def test_repeated_annotations(protocol, expected):
    truth = target([[0, 2, 0], [0, 2, 0], [2, 0, 1]])
    found = compute(protocol, [pred([[0, 2]], [[0.9, 0.1]])], [truth])
    assert found["R@1"] == pytest.approx(expected)
    assert found["A@1"] == pytest.approx(expected)


@pytest.mark.parametrize("protocol", ["paper", "openpsg", "kt", "single-mpo"])
def test_relations_of_an_object_with_itself_count(protocol):
    truth = target([[0, 2, 0], [1, 1, 0]])
    assert compute(protocol, [pred([[0, 2]], [[0.9, 0.1]])], [truth])["R@1"] == 0.5
    hit = pred([[0, 2], [1, 1]], [[0.9, 0.1], [0.8, 0.1]])
    assert compute(protocol, [hit], [truth])["R@2"] == 1


def test_vctree_pools_the_hits_of_a_predicate_and_kt_averages_images():
    hit = pred([[0, 2], [1, 2], [2, 0]], [[0.9, 0.1], [0.8, 0.1], [0.7, 0.1]])
    miss = pred([[0, 2]], [[0.1, 0.9]])
    truth = [target([[0, 2, 0], [1, 2, 0], [2, 0, 0]]), target([[0, 2, 0]])]
    averaged, pooled = (compute(p, [hit, miss], truth, ks=(3,)) for p in ("kt", "vctree"))
    assert averaged["R@3"] == pooled["R@3"] == 0.5
    assert averaged["mR@3"] == 0.25
    assert pooled["mR@3"] == 0.375


@pytest.mark.parametrize(
    ("protocol", "expected"), [("paper", 1), ("openpsg", 0), ("kt", 0), ("openpsg-pan_seg", None)]
)
def test_the_cut_at_100_candidates(protocol, expected):
    # The true predicate is the second of the last of 100 pairs: candidate number 101 or later.
    pairs = [[i, j] for i in range(11) for j in range(11) if i != j][:100]
    scores = torch.cat([torch.linspace(1, 0.6, 100)[:, None], torch.zeros(100, 1)], dim=1)
    scores[99, 1] = 0.5
    boxes = [[20 * i, 0, 20 * i + 10, 10] for i in range(11)]
    truth = target([[*pairs[99], 1]], labels=range(11), boxes=boxes)
    found = compute(protocol, [pred(pairs, scores)], [truth], ks=(100, 200))
    if expected is None:
        assert math.isnan(found["ngR@200"])
        assert found["ng-mR@200"] == 0
    else:
        assert found["ngR@200"] == expected


def test_predcls_by_overlap_lets_another_instance_hit():
    # Objects 0 and 1 are of one class and their boxes overlap by 80 of 120 pixels.
    boxes = [[0, 0, 10, 10], [0, 2, 10, 12], [40, 0, 50, 10]]
    truth = target([[0, 2, 0]], boxes=boxes)
    other = pred([[1, 2]], [[0.9, 0.1]])
    for protocol, expected in (("paper", 0), ("openpsg", 1), ("kt", 1), ("openpsg-pan_seg", 0)):
        assert compute(protocol, [other], [truth])["R@1"] == expected
    # A@K asks for annotated pairs by index, so the other pair is no candidate.
    assert compute("kt", [other], [truth])["A@1"] == 0


def test_an_empty_box_is_never_hit_without_plus_one():
    boxes = [[5, 5, 5, 9], [20, 0, 30, 10], [40, 0, 50, 10]]
    truth, hit = target([[0, 2, 0]], boxes=boxes), pred([[0, 2]], [[0.9, 0.1]])
    for protocol, expected in (("openpsg", 0), ("kt", 1), ("paper", 1)):
        assert compute(protocol, [hit], [truth])["R@1"] == expected


def test_plus_one_decides_at_the_threshold():
    # Without +1 the overlap is 4 of 8 pixels high, with it 5 of 9.
    truth = target([[0, 2, 0]], boxes=[[0, 0, 9, 9], [20, 0, 30, 10], [40, 0, 50, 10]])
    labels, pairs = torch.tensor([0, 1]), [[0, 1]]
    boxes = torch.tensor([[0.0, 0.0, 9.0, 4.0], [40.0, 0.0, 50.0, 10.0]])
    found = pred(pairs, [[0.9, 0.1]], labels=labels, boxes=boxes)
    assert compute("openpsg", [found], [truth])["R@1"] == 0  # 4/9
    assert compute("kt", [found], [truth])["R@1"] == 1  # 5/10


def test_single_mpo_wants_more_than_half():
    masks = torch.zeros(3, 1, 12, dtype=torch.bool)
    masks[0, 0, :4] = masks[1, 0, 4:6] = masks[2, 0, 8:] = True
    truth = target([[0, 2, 0]]) | {"masks": masks}
    half = torch.zeros(2, 1, 12, dtype=torch.bool)
    half[0, 0, :2] = half[1, 0, 8:] = True
    found = pred([[0, 1]], [[0.9, 0.1]], labels=torch.tensor([0, 1]), masks=half)
    assert compute("single-mpo", [found], [truth])["R@1"] == 0
    assert compute("paper", [found], [truth])["R@1"] == 1


def test_single_mpo_compares_boxes_where_asked():
    """The script without ``--seg``: more than half of the box, whatever the masks."""
    truth = target([[0, 2, 0]], boxes=[[0, 0, 2, 8], [4, 0, 6, 8], [8, 0, 10, 8]])
    truth["masks"] = torch.zeros(3, 1, 12, dtype=torch.bool)
    for height, expected in ((8, 1), (5, 1), (4, 0)):
        boxes = torch.tensor([[0.0, 0, 2, height], [8, 0, 10, 8]])
        own = {"boxes": boxes, "masks": torch.ones(2, 1, 12, dtype=torch.bool)}
        found = pred([[0, 1]], [[0.9, 0.1]], labels=torch.tensor([0, 1]), **own)
        assert compute("single-mpo-boxes", [found], [truth])["R@1"] == expected


def test_several_masks_for_one_object_are_no_way_to_several_predicates():
    """What SGBench and OpenPSG allow, and one to one does not."""
    truth = target([[0, 2, 0], [0, 2, 1]])
    boxes = truth["boxes"][[0, 0, 2]]
    twice = pred(
        [[0, 2], [1, 2]],
        [[0.9, 0.1], [0.1, 0.8]],
        labels=torch.tensor([0, 0, 1]),
        boxes=boxes,
    )
    for protocol, expected in (("paper", 0.5), ("sgbench", 1), ("openpsg", 1), ("kt", 1)):
        assert compute(protocol, [twice], [truth])["R@2"] == expected


@pytest.mark.parametrize("protocol", ["openpsg", "openpsg-pan_seg", "kt", "vctree"])
def test_each_row_of_a_pair_that_comes_again_is_a_candidate(protocol):
    """In PredCls: the second row hits what the first does not, in A@K too."""
    truth = target([[0, 2, 1]], labels=(0, 0, 1))
    again = pred([[0, 2], [2, 0], [0, 2]], [[0.9, 0.1], [0.8, 0.1], [0.2, 0.7]])
    values = compute(protocol, [again], [truth], ks=(1, 2, 3))
    assert [values[f"R@{k}"] for k in (1, 2, 3)] == [0, 0, 1]
    assert [values[f"A@{k}"] for k in (1, 2, 3)] == [0, 1, 1]
    assert values["mR@3"] == 0.5  # the other predicate is absent, and counts as 0


def test_openpsg_takes_a_pair_that_comes_again():
    truth = target([[0, 2, 0], [0, 2, 1]])
    again = pred(
        [[0, 1], [0, 1]],
        [[0.9, 0.1], [0.1, 0.8]],
        labels=torch.tensor([0, 1]),
        boxes=truth["boxes"][[0, 2]],
    )
    assert compute("openpsg", [again], [truth])["R@2"] == 1
    with pytest.raises(InputError, match="given twice"):
        compute("paper", [again], [truth])


def test_single_mpo_ranks_by_what_is_related_without_graph_constraint():
    hit = pred([[0, 2], [1, 2]], [[0.6, 0.0], [0.0, 0.5]], no_relation=torch.tensor([0.9, 0.1]))
    truth = [target([[1, 2, 1]])]
    single, paper = (compute(p, [hit], truth) for p in ("single-mpo", "paper"))
    assert (single["ngR@1"], paper["ngR@1"]) == (1, 0)
    assert single["R@1"] == paper["R@1"] == 0


def test_sgbench_cuts_the_annotated_pairs_to_k():
    pairs = [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0]]
    truth = target([[*pair, 0] for pair in pairs])
    hit = pred(pairs[:1], [[0.9, 0.1]])
    found = compute("sgbench", [hit], [truth], ks=(1, 2, 9))
    assert [found[f"PR@{k}"] for k in (1, 2, 9)] == pytest.approx([1, 0.5, 0.2])
    found = compute("paper", [hit], [truth], ks=(1, 2, 9))
    assert [found[f"PR@{k}"] for k in (1, 2, 9)] == pytest.approx([0.2, 0.2, 0.2])


def test_a_protocol_of_boxes_asks_for_them():
    truth = {k: v for k, v in target([[0, 2, 0]]).items() if k != "boxes"}
    with pytest.raises(InputError, match="boxes of objects, which the annotations and predictions"):
        compute("kt", [pred([[0, 2]], [[0.9, 0.1]])], [truth])
