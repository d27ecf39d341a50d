from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.detection import PanopticQuality as TorchmetricsPanopticQuality

from haystack.errors import InputError
from haystack.io.panoptic_png import read_panoptic_png, segment_geometry
from haystack.metrics import PanopticQuality, SceneGraphMetrics
from haystack.metrics.functional.panoptic_quality import _units
from haystack.metrics.functional.recall import UNIT

SEEDS = st.integers(0, 2**32 - 1)
THINGS, STUFF = 2, 2
CLASSES = THINGS + STUFF
NAMES = ("PQ", "SQ", "RQ")


def coco(images, num_classes):
    """PQ, SQ, RQ [C] as COCO's evaluation defines them; images are (prediction, truth) dicts."""
    iou_sum, hits, wrong, missed = np.zeros((4, num_classes))
    for predicted, truth in images:
        truths, predictions = (
            [
                {"mask": side["id_map"] == id_, "label": label, "crowd": crowd, "matched": False}
                for id_, label, crowd in zip(
                    side["segment_ids"].tolist(),
                    side["labels"].tolist(),
                    side.get("iscrowd", np.zeros_like(side["labels"])).tolist(),
                    strict=True,
                )
            ]
            for side in (truth, predicted)
        )
        void = ~np.isin(truth["id_map"], truth["segment_ids"])
        for g in truths:
            for p in predictions:
                if g["label"] != p["label"] or g["crowd"]:
                    continue
                union = (g["mask"] | (p["mask"] & ~void)).sum()
                common = (g["mask"] & p["mask"]).sum()
                if union and common / union > 0.5:
                    iou_sum[g["label"]] += common / union
                    hits[g["label"]] += 1
                    g["matched"] = p["matched"] = True
        for g in truths:
            missed[g["label"]] += not g["matched"] and not g["crowd"]
        for p in predictions:
            ignored = void.copy()
            for g in truths:
                if g["crowd"] and g["label"] == p["label"]:
                    ignored |= g["mask"]
            free = 2 * (p["mask"] & ignored).sum() > p["mask"].sum()
            wrong[p["label"]] += not p["matched"] and not free
    with np.errstate(invalid="ignore"):
        occurs = np.where(hits + wrong + missed > 0, 1.0, np.nan)
        all_ = hits + wrong / 2 + missed / 2
        return occurs * iou_sum / all_, occurs * iou_sum / np.maximum(hits, 1), occurs * hits / all_


def random_image(generator, *, void=True, crowd=True, repeated_stuff=True):
    """A ground truth of stripes, and a prediction that is the same but for some columns."""
    height, width, segments = generator.integers(1, 4), 12, int(generator.integers(0, 6))
    if not void:
        segments = max(segments, 1)
    ids = generator.choice(np.arange(1, 1000), segments, replace=False)
    values = np.append(ids, 0) if void else ids
    truth_map = np.repeat(generator.choice(values, (height, width // 2)), 2, axis=1)
    predicted_map = truth_map.copy()
    changed = generator.random(width) < generator.choice([0.1, 0.4])
    predicted_map[:, changed] = generator.choice(values, int(changed.sum()))
    labels = generator.integers(0, CLASSES, segments)
    if not repeated_stuff:
        labels = np.where(np.arange(segments) < CLASSES, np.arange(segments), 0)
    # Some segments have another class in the prediction.
    other = generator.permutation(labels) if generator.random() < 0.4 else labels
    sides = [
        {"id_map": predicted_map, "segment_ids": ids, "labels": other},
        {"id_map": truth_map, "segment_ids": ids, "labels": labels},
    ]
    if crowd:
        sides[1]["iscrowd"] = generator.integers(0, 2, segments)
    return tuple(sides)


def batch(images):
    """The two lists of ``update``."""
    return tuple(
        [
            {key: torch.from_numpy(np.asarray(x)) for key, x in image[side].items()}
            for image in images
        ]
        for side in range(2)
    )


@settings(max_examples=100)
@given(seed=SEEDS, images=st.integers(0, 4), crowd=st.booleans())
def test_equal_to_cocos_definition(seed, images, crowd):
    generator = np.random.default_rng(seed)
    data = [random_image(generator, crowd=crowd) for _ in range(images)]
    vectors = PanopticQuality(THINGS, STUFF, average=None)
    means = PanopticQuality(THINGS, STUFF)
    vectors.update(*batch(data))
    means.update(*batch(data))
    values, named = vectors.compute(), means.compute()
    for name, expected in zip(NAMES, coco(data, CLASSES), strict=True):
        np.testing.assert_allclose(values[name], expected, atol=1e-11, err_msg=name)
        for suffix, part in (("", slice(0, 4)), ("_th", slice(0, 2)), ("_st", slice(2, 4))):
            defined = expected[part][~np.isnan(expected[part])]
            mean = defined.mean() if len(defined) else np.nan
            np.testing.assert_allclose(named[name + suffix], mean, atol=1e-11)


def without_empty_segments(side):
    on_pixels = np.isin(side["segment_ids"], side["id_map"])
    return {
        "id_map": side["id_map"],
        "segment_ids": side["segment_ids"][on_pixels],
        "labels": side["labels"][on_pixels],
    }


def as_colours(side):
    """torchmetrics' form: (class, instance) of every pixel; class 99 is void."""
    label_of = dict(zip(side["segment_ids"].tolist(), side["labels"].tolist(), strict=True))
    labels = np.vectorize(lambda x: label_of.get(x, 99))(side["id_map"])
    return torch.from_numpy(np.stack([labels, side["id_map"]], axis=-1))[None]


@settings(max_examples=40)
@given(seed=SEEDS, images=st.integers(1, 4))
def test_equal_to_torchmetrics_where_it_has_the_same_definition(seed, images):
    """No crowd, nothing void in the predictions, one segment of a stuff class in an image."""
    generator = np.random.default_rng(seed)
    ours = PanopticQuality(THINGS, STUFF, average=None)
    theirs = TorchmetricsPanopticQuality(
        things=set(range(THINGS)),
        stuffs=set(range(THINGS, CLASSES)),
        return_sq_and_rq=True,
        return_per_class=True,
    )
    for _ in range(images):
        image = random_image(generator, void=False, crowd=False, repeated_stuff=False)
        image[1]["id_map"][:, :1] = 0  # void in the ground truth is the same to both
        image = [without_empty_segments(side) for side in image]
        ours.update(*batch([image]))
        theirs.update(*map(as_colours, image))
    found, expected = ours.compute(), theirs.compute()
    for position, name in enumerate(NAMES):
        torch.testing.assert_close(
            found[name].nan_to_num(0), expected[:, position], atol=1e-6, rtol=0
        )


def test_real_segments_against_a_shifted_copy():
    folder = files("haystack") / "data" / "psg_mini" / "panoptic"
    paths = sorted((x for x in folder.iterdir() if x.name.endswith(".png")), key=lambda x: x.name)
    images, metric = [], PanopticQuality(3, 2, average=None)
    for number, path in enumerate(paths[:6]):
        ids = read_panoptic_png(path.read_bytes(), path=path.name)
        segments = segment_geometry(ids).ids
        common = {"segment_ids": segments, "labels": segments % 5}
        truth = {**common, "id_map": ids, "iscrowd": (np.arange(len(segments)) == number) * 1}
        images.append(({**common, "id_map": np.roll(ids, (9 * number, 12), (0, 1))}, truth))
    metric.update(*batch(images))
    found = metric.compute()
    for name, expected in zip(NAMES, coco(images, 5), strict=True):
        np.testing.assert_allclose(found[name], expected, atol=1e-11)
    assert 0 < found["PQ"].nanmean() < found["RQ"].nanmean() < 1


def test_a_perfect_segmentation_scores_exactly_one_and_an_absent_class_is_nan():
    generator = np.random.default_rng(1)
    data = []
    while len(data) < 3:
        truth = without_empty_segments(random_image(generator, crowd=False)[1])
        truth["labels"] = np.minimum(truth["labels"], 1)
        data.append((truth, truth))
    metric = PanopticQuality(THINGS, STUFF)
    metric.update(*batch(data))
    assert {name: value.item() for name, value in metric.compute().items()} == pytest.approx(
        {
            name + suffix: float("nan") if suffix == "_st" else 1.0
            for name in NAMES
            for suffix in ("", "_th", "_st")
        },
        abs=0,
        nan_ok=True,
    )


def one_segment(crowd, truth_pixels, predicted_pixels):
    """False positives, false negatives, true positives of two segments on a line of ten pixels."""
    metric = PanopticQuality(1, 0)
    line = np.arange(10)
    ids, labels = np.array([1]), np.array([0])
    predicted, truth = (
        {"id_map": np.isin(line, pixels).astype(int)[None], "segment_ids": ids, "labels": labels}
        for pixels in (predicted_pixels, truth_pixels)
    )
    metric.update(*batch([(predicted, {**truth, "iscrowd": np.array([crowd])})]))
    return tuple(
        getattr(metric, name).item()
        for name in ("false_positives", "false_negatives", "true_positives")
    )


@pytest.mark.parametrize(
    ("crowd", "truth_pixels", "predicted_pixels", "expected"),
    [
        (0, range(4), range(10), (0, 0, 1)),  # void outside the segment does not count
        (0, range(4), range(2), (1, 1, 0)),  # an IoU of exactly one half is too little
        (0, range(4), range(3, 6), (0, 1, 0)),  # mostly void: missed, but not wrong
        (0, range(4), range(2, 6), (1, 1, 0)),  # exactly half void: wrong
        (1, range(10), range(10), (0, 0, 0)),  # a crowd never matches and is never missed
        (0, [], [], (1, 1, 0)),  # listed segments without pixels: missed, and wrong
        (0, [], range(4), (0, 1, 0)),  # that of the prediction lies on void alone
        (0, range(4), [], (1, 1, 0)),
        (1, [], [], (1, 0, 0)),  # a crowd is not missed without pixels either
    ],
)
def test_void_and_crowd(crowd, truth_pixels, predicted_pixels, expected):
    assert one_segment(crowd, list(truth_pixels), list(predicted_pixels)) == expected


def test_segments_without_pixels_change_no_other():
    generator = np.random.default_rng(3)
    data = [random_image(generator) for _ in range(4)]
    more = [
        tuple(
            {
                **side,
                "segment_ids": np.append(side["segment_ids"], 10**6),
                "labels": np.append(side["labels"], 1),
                **({"iscrowd": np.append(side["iscrowd"], 0)} if "iscrowd" in side else {}),
            }
            for side in image
        )
        for image in data
    ]
    one, other = PanopticQuality(THINGS, STUFF), PanopticQuality(THINGS, STUFF)
    one.update(*batch(data))
    other.update(*batch(more))
    added = {"false_positives": 4, "false_negatives": 4}
    for name in ("iou_sum", "true_positives", "false_positives", "false_negatives"):
        expected = getattr(one, name).clone()
        expected[1] += added.get(name, 0)
        assert torch.equal(getattr(other, name), expected)


def test_any_split_into_batches_gives_the_same_bits():
    generator = np.random.default_rng(0)
    data = [random_image(generator) for _ in range(9)]
    whole, parts = PanopticQuality(THINGS, STUFF), PanopticQuality(THINGS, STUFF)
    whole.update(*batch(data))
    for image in reversed(data):
        parts.update(*batch([image]))
    assert {k: v.item() for k, v in whole.compute().items()} == {
        k: v.item() for k, v in parts.compute().items()
    }
    assert whole.iou_sum.sum() > 0


@given(whole=st.integers(1, 2**43), share=st.floats(0, 1))
def test_shares_are_rounded_in_whole_numbers(whole, share):
    part = min(int(whole * share), whole)
    found = _units(torch.tensor(part), torch.tensor(whole)).item()
    assert found == (part * UNIT + whole // 2) // whole


def image_of(**changes):
    record = {
        "id_map": torch.ones(2, 2, dtype=torch.int32),
        "segment_ids": torch.tensor([1]),
        "labels": torch.tensor([0]),
    }
    return {key: value for key, value in {**record, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("predicted", "truth", "words"),
    [
        ({}, {"labels": torch.tensor([4])}, r"image x.*class in 0\.\.C-1"),
        ({"labels": torch.tensor([-1])}, {}, r"image x.*class in 0\.\.C-1"),
        (
            {"segment_ids": torch.tensor([1, 1]), "labels": torch.tensor([0, 0])},
            {},
            "image x.*got one twice",
        ),
        ({"labels": torch.tensor([0, 0])}, {}, r"image 0 of the batch.*labels \[1\]"),
        ({}, {"segment_ids": torch.tensor([[1]])}, r"image x.*segment_ids \[N\]"),
        ({}, {"id_map": None}, "image x.*key 'id_map'"),
        ({}, {"iscrowd": torch.tensor([0, 0])}, "image x.*iscrowd"),
        ({"id_map": "ab"}, {}, "array of numbers under 'id_map', got str"),
        ({"id_map": torch.ones(2)}, {}, r"expected an id_map int \[H, W\], got \[2\]"),
        ({"id_map": torch.ones(2, 3)}, {}, "image x: expected two id maps of one shape"),
    ],
)
def test_what_does_not_fit_is_an_error(predicted, truth, words):
    with pytest.raises(InputError, match=words):
        PanopticQuality(THINGS, STUFF).update(
            [image_of(**predicted)], [image_of(image_id="x", **truth)]
        )


def test_both_sides_must_hold_the_same_images():
    with pytest.raises(InputError, match="as many"):
        PanopticQuality().update([image_of()], [])


def test_there_must_be_a_class():
    with pytest.raises(InputError, match="thing and stuff classes"):
        PanopticQuality(0, 0)


def test_plot_shows_every_value():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("agg")
    metric = PanopticQuality(THINGS, STUFF)
    metric.update([image_of()], [image_of()])
    _, axes = metric.plot()
    assert {line.get_label() for line in axes.lines} >= set(metric.compute())


def scene(prediction, truth, image_id="x"):
    """A prediction and a target of SceneGraphMetrics from those of PanopticQuality."""
    ids = prediction["segment_ids"].tolist()
    positions = torch.full_like(prediction["id_map"], -1)
    for number, own in enumerate(ids):
        positions[prediction["id_map"] == own] = number
    pred = {
        "image_id": image_id,
        "pairs": torch.empty(0, 2, dtype=torch.int64),
        "scores": torch.empty(0, 2),
        "labels": prediction["labels"],
        "id_map": positions,
    }
    target = {**truth, "relations": torch.empty(0, 3, dtype=torch.int64)}
    return pred, target


def scene_metrics(**options):
    options = {"metrics": ("R", *NAMES), "num_classes": CLASSES, "num_things": THINGS} | options
    return SceneGraphMetrics(2, per_predicate=True, **options)


@settings(max_examples=30)
@given(seed=SEEDS)
def test_scene_graph_metrics_give_the_same_bits(seed):
    """Also for images whose objects are the annotated ones, and for those without prediction."""
    generator = np.random.default_rng(seed)
    images = [random_image(generator) for _ in range(6)]
    images[5] = tuple(map(without_empty_segments, images[5]))
    images[5][1]["iscrowd"] = generator.integers(0, 2, len(images[5][1]["labels"]))
    preds, targets = batch(images)
    vectors, means = (PanopticQuality(THINGS, STUFF, average=a) for a in (None, "macro"))
    scenes = [scene(*sides) for sides in zip(preds, targets, strict=True)]
    nothing = [torch.empty(0, dtype=torch.int64) for _ in range(2)]
    own = [{**preds[0], **dict(zip(("segment_ids", "labels"), nothing, strict=True))}, *preds[1:5]]
    scenes[0][0]["labels"] = nothing[0]
    del scenes[0][0]["id_map"]
    for metric in (vectors, means):
        metric.update(own, targets[:5])
        crowd = targets[5]["iscrowd"] != 0
        shown = {k: targets[5][k] for k in ("segment_ids", "labels")}
        metric.update([{**targets[5], **{k: v[~crowd] for k, v in shown.items()}}], [targets[5]])
    found = scene_metrics()
    found.update([s[0] for s in scenes[:3]], [s[1] for s in scenes[:3]])
    found.update([s[0] for s in scenes[3:5]], [s[1] for s in scenes[3:5]])
    predcls = {k: scenes[5][0][k] for k in ("pairs", "scores")}
    found.update([predcls], [scenes[5][1]])
    values = found.compute()
    for name, expected in means.compute().items():
        np.testing.assert_array_equal(values[name], expected, err_msg=name)
    for name, expected in vectors.compute().items():
        np.testing.assert_array_equal(values[f"per_class/{name}"], expected, err_msg=name)


def test_a_missing_image_lacks_all_segments_and_predcls_alone_is_undefined():
    pred, target = scene(image_of(), image_of())
    crowded = {**target, "iscrowd": torch.tensor([1])}
    metric = scene_metrics()
    metric.update([pred], [target])
    metric.update([None, None, None], [target, target, crowded])
    assert metric.compute()["PQ"] == 1 / (1 + 2 / 2)
    metric = scene_metrics(metrics=("PQ",))
    metric.update([{k: pred[k] for k in ("pairs", "scores")}], [target])
    values = metric.compute()
    assert values["PQ"].isnan()
    assert values["PQ_th"].isnan()
    assert "SQ" not in values


@pytest.mark.parametrize(
    ("pred", "target", "words"),
    [
        (
            {"id_map": None, "masks": torch.ones(1, 2, 2) > 0},
            {},
            "image x: PQ.*predictions have no",
        ),
        ({}, {"id_map": None}, "image x: PQ.*annotations have no id_map"),
        ({}, {"iscrowd": torch.tensor([0, 0])}, r"iscrowd \[1\]"),
        ({}, {"segment_ids": torch.tensor([1, 2])}, r"segment_ids \[1\]"),
        ({"id_map": torch.ones(2, 3)}, {}, "image x: expected two id maps of one shape"),
    ],
)
def test_what_scene_graph_metrics_cannot_compare_is_an_error(pred, target, words):
    good = scene(image_of(), image_of(image_id="x"))
    boxes = {"boxes": torch.tensor([[0.0, 0, 2, 2]])}
    changed = [{**r, **boxes, **c} for r, c in zip(good, (pred, target), strict=True)]
    changed = [{k: v for k, v in r.items() if v is not None} for r in changed]
    first = scene(image_of(), image_of(image_id="first"), "first")
    metric = scene_metrics(protocol="openpsg")
    with pytest.raises(InputError, match=words):
        metric.update(*([{**one, **boxes}, two] for one, two in zip(first, changed, strict=True)))


def test_scene_graph_metrics_must_know_the_classes():
    with pytest.raises(InputError, match="num_classes and num_things"):
        SceneGraphMetrics(2, metrics=("PQ",), num_classes=4)
    assert "PQ" not in SceneGraphMetrics(2).names
