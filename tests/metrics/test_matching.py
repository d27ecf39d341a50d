from __future__ import annotations

import sys
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import box_iou as torchvision_box_iou

from haystack.errors import InputError, MissingDependencyError
from haystack.metrics.functional import (
    box_iou,
    id_map_overlaps,
    mask_overlaps,
    match_objects,
    object_pairs,
    rle_iou,
)
from haystack.metrics.functional.matching import id_maps, masks, repeated_ids
from haystack.metrics.functional.matching import runs as runs_module
from haystack.metrics.functional.matching.runs import runs

SEEDS = st.integers(0, 2**32 - 1)


@contextmanager
def as_on_an_accelerator(tile=2**18):
    """Counts pixels where the CPU would count runs, and looks at no value."""
    with (
        mock.patch.object(id_maps, "runs_pay", return_value=False),
        mock.patch.object(id_maps, "on_host", return_value=False),
        mock.patch.object(masks, "runs_pay", return_value=False),
        mock.patch.object(masks, "_TILE", tile),
    ):
        yield


def every_pair(num_truths, num_predictions):
    """(image, ground truth, prediction) inside the image, in the order of the layout."""
    return [
        (image, g, p)
        for image, (truths, predictions) in enumerate(zip(num_truths, num_predictions, strict=True))
        for g in range(truths)
        for p in range(predictions)
    ]


def dense_iou(truth, predicted):
    """Of two boolean masks; 0 where both are empty."""
    union = np.logical_or(truth, predicted).sum()
    return np.logical_and(truth, predicted).sum() / union if union else 0.0


def check_overlaps(overlaps, truth_masks, predicted_masks):
    """Against dense boolean masks, lists of [objects, H, W]."""
    pairs = every_pair(map(len, truth_masks), map(len, predicted_masks))
    both = [(truth_masks[i][g], predicted_masks[i][p]) for i, g, p in pairs]
    assert overlaps.intersections.tolist() == [int((t & p).sum()) for t, p in both]
    assert overlaps.iou().tolist() == [dense_iou(t, p) for t, p in both]
    for areas, side in (
        (overlaps.truth_areas, truth_masks),
        (overlaps.predicted_areas, predicted_masks),
    ):
        assert areas.tolist() == [int(mask.sum()) for image in side for mask in image]


def random_sizes(generator, images):
    return [tuple(generator.integers(1, 9, 2).tolist()) for _ in range(images)]


def random_id_maps(generator, sizes):
    """Id maps, and ids of which some are on no pixel; some pixels have an id that is not listed."""
    maps, ids = [], []
    for size in sizes:
        # Neighbouring numbers, as well as the largest and negative ones.
        known = generator.choice([-1, 0, 1, 2, 3, 255, 256, 2**24 - 1], 6, replace=False)
        coarse = generator.choice(known, (size[0], -(-size[1] // 3)))
        maps.append(np.repeat(coarse, 3, axis=1)[:, : size[1]].astype(np.int32))
        ids.append(generator.permutation(known)[: generator.integers(0, 6)])
    return maps, ids


@settings(max_examples=30)
@given(seed=SEEDS, images=st.integers(0, 4))
def test_pairs_are_every_pair_inside_an_image(seed, images):
    generator = np.random.default_rng(seed)
    truths, predictions = generator.integers(0, 4, (2, images)).tolist()
    pairs = object_pairs(truths, predictions)
    first_truth, first_prediction = np.cumsum([0, *truths]), np.cumsum([0, *predictions])
    expected = [
        (first_truth[i] + g, first_prediction[i] + p) for i, g, p in every_pair(truths, predictions)
    ]
    assert list(zip(pairs.truth.tolist(), pairs.predicted.tolist(), strict=True)) == expected
    assert pairs.row(pairs.truth, pairs.predicted).tolist() == list(range(len(expected)))
    assert pairs.truth_images.tolist() == np.repeat(np.arange(images), truths).tolist()
    assert pairs.predicted_images.tolist() == np.repeat(np.arange(images), predictions).tolist()


def test_runs_end_where_either_map_changes_and_go_on_over_the_end_of_a_row():
    first = torch.tensor([[1, 1, 2], [2, 2, 2]]).reshape(-1)
    second = torch.tensor([[0, 0, 0], [0, 0, 9]]).reshape(-1)
    [(values, lengths)] = runs([first, second])
    assert [x.tolist() for x in values] == [[1, 2, 2], [0, 0, 9]]
    assert lengths.tolist() == [2, 3, 1]
    [(values, lengths)] = runs([first[:0], second[:0]])
    assert [len(x) for x in (*values, lengths)] == [0, 0, 0]


@settings(max_examples=60)
@given(seed=SEEDS, pixels=st.integers(1, 40), block=st.integers(1, 12), maps=st.integers(1, 3))
def test_runs_of_blocks_put_together_are_the_maps(seed, pixels, block, maps):
    generator = np.random.default_rng(seed)
    rows = torch.from_numpy(generator.integers(0, 2, (maps, pixels)).astype(np.int32))
    with mock.patch.object(runs_module, "_BLOCK", block):
        found = list(runs(list(rows)))
    assert len(found) == -(-pixels // block)
    for number, row in enumerate(rows):
        parts = [values[number].repeat_interleave(lengths) for values, lengths in found]
        assert torch.equal(torch.cat(parts), row)
    for begin, (_, lengths) in zip(range(0, pixels, block), found, strict=True):
        part = rows[:, begin : begin + block]
        changes = int((part[:, 1:] != part[:, :-1]).any(0).sum())
        assert len(lengths) == changes + 1  # no run is cut without need


@settings(max_examples=60)
@given(seed=SEEDS, images=st.integers(0, 4), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_id_maps_by_runs_and_by_pixels_equal_dense_masks(seed, images, dtype):
    generator = np.random.default_rng(seed)
    sizes = random_sizes(generator, images)
    sides = [random_id_maps(generator, sizes) for _ in range(2)]
    dense = [
        [map_ == ids[:, None, None] for map_, ids in zip(*side, strict=True)] for side in sides
    ]
    (truth_maps, truth_ids), (predicted_maps, predicted_ids) = (
        ([torch.from_numpy(x).to(dtype) for x in maps], [torch.from_numpy(x) for x in ids])
        for maps, ids in sides
    )
    arguments = (truth_maps, predicted_maps, truth_ids, predicted_ids)
    check_overlaps(id_map_overlaps(*arguments), *dense)
    with as_on_an_accelerator():
        check_overlaps(id_map_overlaps(*arguments), *dense)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("first", ["least", "middle", "greatest"])
def test_ids_next_to_the_ends_of_a_type_are_told_from_void(dtype, first):
    limits = torch.iinfo(dtype)
    if dtype == torch.int64:
        limits = torch.iinfo(torch.int32)  # ids have 32 bits
    begin = {"least": limits.min, "middle": 7, "greatest": limits.max - 2}[first]
    ids = torch.arange(begin, begin + 3)
    around = torch.arange(max(begin - 2, limits.min), min(begin + 5, limits.max + 1))
    values = torch.cat([around, torch.tensor([limits.min, limits.max])]).to(dtype)[None]
    dense = [np.asarray(values == ids[:, None, None])] * 2
    check_overlaps(id_map_overlaps([values], [values], [ids], [ids]), *([x] for x in dense))
    with as_on_an_accelerator():
        check_overlaps(id_map_overlaps([values], [values], [ids], [ids]), *([x] for x in dense))


def test_id_maps_may_be_stacked_transposed_and_of_unlike_types():
    generator = np.random.default_rng(0)
    truth, predicted = generator.integers(0, 3, (2, 2, 5, 4))
    ids = [torch.arange(3)] * 2
    stacked = (torch.from_numpy(truth), torch.from_numpy(predicted).to(torch.uint8))
    dense = [[x == np.arange(3)[:, None, None] for x in side] for side in (truth, predicted)]
    check_overlaps(id_map_overlaps(*stacked, ids, ids), *dense)
    turned = [x.transpose(1, 2) for x in stacked]
    check_overlaps(id_map_overlaps(*turned, ids, ids), *([x.mT for x in side] for side in dense))


@settings(max_examples=60)
@given(seed=SEEDS, images=st.integers(0, 3), filled=st.sampled_from([0.0, 0.3, 0.8]))
def test_overlapping_masks_by_runs_and_by_tiles_equal_dense_masks(seed, images, filled):
    generator = np.random.default_rng(seed)
    sides = [[], []]
    for size in random_sizes(generator, images):
        for side in sides:
            side.append(generator.random((generator.integers(0, 4), *size)) < filled)
    arguments = [[torch.from_numpy(x) for x in side] for side in sides]
    check_overlaps(mask_overlaps(*arguments), *sides)
    with mock.patch.object(masks, "_TILE", 3):
        check_overlaps(mask_overlaps(*arguments), *sides)
    with as_on_an_accelerator(tile=7):
        check_overlaps(mask_overlaps(*arguments), *sides)


def test_products_of_masks_are_exact_where_float32_is_not():
    """One more pixel than 2^24, the last whole number before float32 skips one."""
    whole = torch.ones(1, 4097, 4096, dtype=torch.bool)
    part = whole.clone()
    part[0, 0, :4095] = False
    overlaps = mask_overlaps([whole], [part])
    assert overlaps.intersections.tolist() == [2**24 + 1]
    assert overlaps.truth_areas.tolist() == [2**24 + 4096]


def rle(mask, form):
    """COCO's dict for a boolean mask [H, W], in one of the forms in circulation."""
    coco = pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")
    if form == "list":
        column = mask.T.reshape(-1)
        ends = np.flatnonzero(np.diff(column, prepend=False))
        counts = np.diff([0, *ends, column.size]).tolist()
        return {"size": list(mask.shape), "counts": counts}
    encoded = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {**encoded, "counts": encoded["counts"].decode()} if form == "text" else encoded


@settings(max_examples=30)
@given(seed=SEEDS, images=st.integers(0, 3), form=st.sampled_from(["bytes", "text", "list"]))
def test_run_length_encoded_masks_equal_dense_masks(seed, images, form):
    generator = np.random.default_rng(seed)
    sides = [[], []]
    for size in random_sizes(generator, images):
        filled = generator.choice([0.0, 0.5])
        for side in sides:
            side.append(generator.random((generator.integers(0, 4), *size)) < filled)
    encoded = [[[rle(mask, form) for mask in image] for image in side] for side in sides]
    expected = [
        dense_iou(sides[0][i][g], sides[1][i][p])
        for i, g, p in every_pair(*(map(len, side) for side in sides))
    ]
    assert rle_iou(*encoded).tolist() == expected


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ({"size": [2, 2]}, "expected a mask"),
        ({"size": [2], "counts": [4]}, "expected a mask"),
        ({"size": [2, 2], "counts": 4}, "expected a mask"),
        ({"size": [2, 2], "counts": [1, 2]}, "sum to 2 x 2"),
        ({"size": [1, 4], "counts": [0, 4]}, "one size"),
    ],
)
def test_a_broken_run_length_encoding_is_an_error(mask, words):
    pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")
    with pytest.raises(InputError, match=f"image 1 of the batch.*{words}"):
        rle_iou([[], [{"size": [2, 2], "counts": [0, 4]}]], [[], [mask]])


def test_without_pycocotools_the_error_names_it():
    with (
        mock.patch.dict(sys.modules, {"pycocotools.mask": None}),
        pytest.raises(MissingDependencyError, match="pycocotools"),
    ):
        rle_iou([[]], [[]])


def literal_box_iou(first, second, plus_one):
    """Of two boxes, in float32 as the peers."""
    one = np.float32(plus_one)

    def area(x1, y1, x2, y2):
        return (x2 - x1 + one) * (y2 - y1 + one)

    width = max(min(first[2], second[2]) - max(first[0], second[0]) + one, np.float32(0))
    height = max(min(first[3], second[3]) - max(first[1], second[1]) + one, np.float32(0))
    common = width * height
    return common / max(area(*first) + area(*second) - common, np.float32(1e-6))


def random_boxes(generator, count):
    """Of whole and half pixels; some of them have no width or no height."""
    corners = generator.integers(0, 9, (count, 2, 2)) / generator.choice([1, 2])
    return np.sort(corners, axis=1).reshape(count, 4).astype(np.float32)


@settings(max_examples=60)
@given(seed=SEEDS, images=st.integers(0, 4), plus_one=st.booleans())
def test_boxes_equal_the_loop_over_pairs(seed, images, plus_one):
    generator = np.random.default_rng(seed)
    truths, predictions = generator.integers(0, 4, (2, images)).tolist()
    boxes = [[random_boxes(generator, n) for n in side] for side in (truths, predictions)]
    pairs = object_pairs(truths, predictions)
    flat = [torch.from_numpy(np.concatenate([np.zeros((0, 4), "f4"), *side])) for side in boxes]
    expected = [
        literal_box_iou(boxes[0][i][g], boxes[1][i][p], plus_one)
        for i, g, p in every_pair(truths, predictions)
    ]
    found = box_iou(*flat, pairs, plus_one=plus_one)
    assert found.dtype == torch.float32
    assert found.tolist() == [float(x) for x in expected]


def test_boxes_without_plus_one_equal_torchvision():
    generator = np.random.default_rng(0)
    truth, predicted = (torch.from_numpy(random_boxes(generator, n)) for n in (5, 7))
    found = box_iou(truth, predicted, object_pairs([5], [7]), plus_one=False)
    expected = torchvision_box_iou(truth, predicted).nan_to_num(0).flatten()
    torch.testing.assert_close(found, expected)


def test_a_box_without_width_matches_itself_with_plus_one_only():
    box, pairs = torch.tensor([[3, 1, 3, 8]]), object_pairs([1], [1])
    assert box_iou(box, box, pairs, plus_one=False).tolist() == [0]
    assert box_iou(box, box, pairs, plus_one=True).tolist() == [1]


@pytest.mark.parametrize(
    "box", [[4.0, 0, 3, 1], [0, 4, 1, 3], [0, 0, torch.nan, 1], [0, -torch.inf, 1, 1]]
)
@pytest.mark.parametrize("side", ["annotated", "predicted"])
def test_boxes_that_are_none_are_refused(box, side):
    good, bad = torch.tensor([[0.0, 0, 1, 1]] * 2), torch.tensor([[0.0, 0, 1, 1], box])
    given = (bad, good) if side == "annotated" else (good, bad)
    message = rf"x1 <= x2 and y1 <= y2, got \[.*\] for the {side} object 1; convert x, y, width"
    with pytest.raises(InputError, match=message):
        box_iou(*given, object_pairs([2], [2]), plus_one=False)


@pytest.mark.parametrize("side", ["annotated", "predicted"])
def test_negative_classes_are_refused(side):
    good, bad = torch.tensor([3]), torch.tensor([-1])
    given = (bad, good) if side == "annotated" else (good, bad)
    with pytest.raises(InputError, match=f"from 0 on, got -1 for the {side} object 0"):
        match_objects(torch.ones(1), object_pairs([1], [1]), *given, rule="many-to-many")


def literal_matches(iou, truth_labels, predicted_labels, rule, threshold, inclusive):
    """Matched (ground truth, prediction) of one image; iou [G, P]."""

    def enough(g, p):
        passes = iou[g, p] >= threshold if inclusive else iou[g, p] > threshold
        return truth_labels[g] == predicted_labels[p] and passes

    truths, predictions = range(len(truth_labels)), range(len(predicted_labels))
    if rule == "many-to-many":
        return {(g, p) for g in truths for p in predictions if enough(g, p)}
    chosen = {}
    for p in predictions:
        best = None
        for g in truths:
            if enough(g, p) and (best is None or iou[g, p] > iou[best, p]):
                best = g
        if best is not None:
            chosen[p] = best
    if rule == "many-to-one":
        return {(g, p) for p, g in chosen.items()}
    kept = {}
    for p, g in chosen.items():
        if g not in kept or iou[g, p] > iou[g, kept[g]]:
            kept[g] = p
    return set(kept.items())


@settings(max_examples=150)
@given(
    seed=SEEDS,
    images=st.integers(0, 4),
    rule=st.sampled_from(["many-to-many", "many-to-one", "one-to-one"]),
    threshold=st.sampled_from([0.25, 0.5, 1.0]),
    inclusive=st.booleans(),
)
def test_the_rules_equal_their_loops(seed, images, rule, threshold, inclusive):
    generator = np.random.default_rng(seed)
    truths, predictions = generator.integers(0, 5, (2, images)).tolist()
    pairs = object_pairs(truths, predictions)
    # Few values, so that ties and IoUs of exactly the threshold abound.
    tables = [
        generator.choice([0, 0.25, 0.5, 0.75, 1], (g, p))
        for g, p in zip(truths, predictions, strict=True)
    ]
    labels = [[generator.integers(0, 2, n) for n in side] for side in (truths, predictions)]
    empty = np.zeros(0, dtype=np.int64)
    truth_labels, predicted_labels = (
        torch.from_numpy(np.concatenate([empty, *side])) for side in labels
    )
    iou = torch.from_numpy(np.concatenate([np.zeros(0), *(x.reshape(-1) for x in tables)]))
    found = match_objects(
        iou,
        pairs,
        truth_labels,
        predicted_labels,
        rule=rule,
        threshold=threshold,
        inclusive=inclusive,
    )
    expected, assigned = [], []
    for image, table in enumerate(tables):
        image_labels = (labels[0][image], labels[1][image])
        matches = literal_matches(table, *image_labels, rule, threshold, inclusive)
        expected += [(g, p) in matches for g in range(len(table)) for p in range(table.shape[1])]
        first = sum(truths[:image])
        owners = {p: first + g for g, p in matches}
        assigned += [owners.get(p, -1) for p in range(table.shape[1])]
    assert found.matched.tolist() == expected
    if rule == "many-to-many":
        assert found.truth_of_prediction is None
    else:
        assert found.truth_of_prediction.tolist() == assigned


def test_a_prediction_that_loses_its_best_object_gets_no_other():
    pairs, labels = object_pairs([2], [2]), torch.zeros(2, dtype=torch.int64)
    iou = torch.tensor([0.9, 0.8, 0.0, 0.7])  # both prefer the first object
    found = match_objects(iou, pairs, labels, labels, rule="one-to-one", inclusive=False)
    assert found.truth_of_prediction.tolist() == [0, -1]


def test_empty_masks_never_match():
    nothing = torch.zeros(1, 2, 2, dtype=torch.bool)
    overlaps = mask_overlaps([nothing], [nothing])
    label = torch.tensor([0])
    for rule in ("many-to-many", "many-to-one", "one-to-one"):
        assert not match_objects(overlaps.iou(), overlaps.pairs, label, label, rule=rule).matched


def test_repeated_ids_are_found_in_their_image():
    ids = [torch.tensor([5, -1]), torch.tensor([5, 7, 5]), torch.tensor([], dtype=torch.int64)]
    images = torch.tensor([0, 0, 1, 1, 1])
    assert repeated_ids(ids, images).tolist() == [False, True, False]


IDS = [torch.tensor([1])]
MAP = torch.ones(2, 2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: object_pairs([1], [1, 2]), "same images"),
        (lambda: id_map_overlaps([MAP], [], IDS, []), "same images"),
        (lambda: id_map_overlaps([MAP], [MAP], [], []), "for each id map"),
        (lambda: id_map_overlaps([MAP], [MAP], IDS, []), "same images"),
        (lambda: id_map_overlaps([MAP], [MAP[:1]], IDS, IDS), "one shape"),
        (lambda: id_map_overlaps([MAP], [MAP.numpy()], IDS, IDS), "maps as tensors, got ndarray"),
        (lambda: id_map_overlaps([MAP], [MAP], IDS, [[1]]), "ids as tensors, got list"),
        (lambda: mask_overlaps([MAP.numpy()], [MAP]), "masks as tensors, got ndarray"),
        (lambda: mask_overlaps([MAP[None]], [MAP[None]]), "bool"),
        (lambda: mask_overlaps([MAP[None] > 0], [MAP[None, :1] > 0]), "one size"),
        (lambda: mask_overlaps([MAP[None] > 0], []), "same images"),
        (lambda: rle_iou([[]], []), "same images"),
        (
            lambda: box_iou(MAP, MAP, object_pairs([2], [2]), plus_one=False),
            r"boxes \[objects, 4\]",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rule": "hungarian"}, "match rule"),
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": 1.5}, "threshold"),
        ({"iou": torch.zeros(2)}, "an IoU for every pair"),
        ({"truth_labels": torch.zeros(2)}, "ground-truth object"),
        ({"predicted_labels": torch.zeros(2)}, "predicted object"),
    ],
)
def test_rules_say_what_does_not_fit(change, words):
    arguments = {
        "iou": torch.zeros(1),
        "pairs": object_pairs([1], [1]),
        "truth_labels": torch.zeros(1),
        "predicted_labels": torch.zeros(1),
        "rule": "one-to-one",
    }
    with pytest.raises(InputError, match=words):
        match_objects(**{**arguments, **change})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_an_accelerator_gives_what_the_cpu_gives():
    generator = np.random.default_rng(0)
    maps = torch.from_numpy(generator.integers(0, 5, (2, 3, 40, 60)).astype(np.int32))
    ids = [torch.tensor([3, 1, 4])] * 3
    dense = [[x == torch.tensor([3, 1, 4])[:, None, None] for x in side] for side in maps]
    labels = torch.zeros(9, dtype=torch.int64)
    for on_cpu, on_device in (
        (id_map_overlaps(*maps, ids, ids), id_map_overlaps(*maps.cuda(), ids, ids)),
        (mask_overlaps(*dense), mask_overlaps(*([x.cuda() for x in side] for side in dense))),
    ):
        for name in ("intersections", "truth_areas", "predicted_areas"):
            assert torch.equal(getattr(on_cpu, name), getattr(on_device, name).cpu())
        for rule in ("many-to-many", "many-to-one", "one-to-one"):
            matches = [
                match_objects(
                    x.iou(),
                    x.pairs,
                    *[labels.to(x.intersections.device)] * 2,
                    rule=rule,
                    threshold=0.05,
                )
                for x in (on_cpu, on_device)
            ]
            assert torch.equal(matches[0].matched, matches[1].matched.cpu())
