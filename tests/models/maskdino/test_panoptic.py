from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from seeded_maskdino import DATA

from haystack.errors import InputError
from haystack.models.maskdino.network import MaskDINOOutput
from haystack.models.maskdino.panoptic import (
    PanopticSettings,
    kept_queries,
    merge,
    segment_picture,
)


def merged(logits, masks, things=1, **settings):
    return merge(
        torch.tensor(logits),
        lambda number: torch.tensor(masks[number]),
        (1, len(masks[0])),
        things=things,
        settings=PanopticSettings(**settings),
    )


def rows(result):
    return [(one.id, one.category, one.is_thing) for one in result.segments]


def test_the_official_implementations_map():
    with np.load(DATA / "postprocess.npz") as known:
        arrays = {name: known[name] for name in known.files}
    logits, masks = torch.from_numpy(arrays["mask_cls"]), torch.from_numpy(arrays["mask_pred"])
    queries = kept_queries(logits, PanopticSettings())
    assert len(queries) == 39
    result = merge(
        logits[queries],
        lambda number: masks[queries[number]],
        (48, 64),
        things=80,
        settings=PanopticSettings(),
    )
    assert result.id_map.dtype == np.int32
    np.testing.assert_array_equal(result.id_map, arrays["panoptic_seg"])
    assert rows(result) == [(a, b, bool(c)) for a, b, c in arrays["segments_info"].tolist()]


def test_stuff_of_a_class_is_one_segment_and_has_its_best_score():
    result = merged(
        [[-9.0, 1.0], [2.0, -9.0], [-9.0, 3.0]],
        [[9.0, -9.0, -9.0, -9.0], [-9.0, 9.0, -9.0, -9.0], [-9.0, -9.0, 9.0, -9.0]],
        overlap_threshold=0.5,
    )
    assert result.id_map.tolist() == [[1, 2, 1, 0]]
    assert rows(result) == [(1, 1, False), (2, 0, True)]
    scores = [one.score for one in result.segments]
    assert scores == pytest.approx([1 / (1 + math.exp(-3)), 1 / (1 + math.exp(-2))])


def test_a_mask_that_loses_too_much_is_dropped_and_leaves_a_hole():
    strong, weak = [9.0, 9.0, 9.0, -9.0], [-9.0, 5.0, 5.0, 5.0]
    result = merged([[3.0, -9.0], [2.0, -9.0]], [strong, weak])
    assert result.id_map.tolist() == [[1, 1, 1, 0]]
    result = merged([[3.0, -9.0], [2.0, -9.0]], [strong, weak], overlap_threshold=0.3)
    assert result.id_map.tolist() == [[1, 1, 1, 2]]


def test_without_temperature_probabilities_compete():
    """Softmax makes two clear classes nearly equal, so that the masks decide."""
    logits, masks = [[4.0, -9.0], [0.5, -9.0]], [[0.5, -9.0], [2.0, -9.0]]
    assert merged(logits, masks, overlap_threshold=0.0).segments[0].score < 0.7
    plain = merged(logits, masks, overlap_threshold=0.0, temperature=None)
    assert plain.segments[0].score > 0.9


def test_nothing_found():
    result = merge(torch.zeros(0, 3), lambda _: None, (2, 3), things=1, settings=PanopticSettings())
    assert (result.id_map == np.zeros((2, 3))).all()
    assert result.segments == ()


def test_masks_are_enlarged_cut_and_resized_as_all_at_once():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 12, 7, generator=generator)
    logits[0, :3] = -9
    embeddings = torch.randn(2, 12, 256, generator=generator)
    features = torch.randn(2, 256, 8, 16, generator=generator) / 8
    output = MaskDINOOutput(logits, torch.zeros(2, 12, 4), embeddings, features)
    settings = PanopticSettings(overlap_threshold=0.2)
    found = segment_picture(
        output,
        1,
        padded=(32, 64),
        size=(30, 50),
        output_size=(45, 70),
        things=4,
        settings=settings,
    )
    keep = logits[1].sigmoid().amax(-1) > 0.25
    masks = torch.einsum("qc,chw->qhw", embeddings[1], features[1])[keep][None]
    large = F.interpolate(masks, (32, 64), mode="bilinear")[..., :30, :50]
    large = F.interpolate(large, (45, 70), mode="bilinear")[0].sigmoid()
    scores, labels = (logits[1].sigmoid() / 0.06).softmax(-1).max(-1)
    owner = (scores[keep][:, None, None] * large).argmax(0)
    expected = np.zeros((45, 70), dtype=np.int32)
    stuff, count = {}, 0
    for number, label in enumerate(labels[keep].tolist()):
        won, whole = owner == number, large[number] >= 0.5
        shown = won & whole
        if not (won.any() and whole.any() and shown.any()) or won.sum() / whole.sum() < 0.2:
            continue
        if label in stuff:
            expected[shown] = stuff[label]
            continue
        count += 1
        expected[shown] = count
        if label >= 4:
            stuff[label] = count
    assert count > 2
    np.testing.assert_array_equal(found.id_map, expected)
    assert len(found.segments) == count


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score_threshold": 1.5}, "score_threshold must be in 0..1, got 1.5"),
        ({"overlap_threshold": -0.1}, "overlap_threshold must be in 0..1, got -0.1"),
        ({"temperature": 0.0}, "temperature must be positive or null, got 0.0"),
    ],
)
def test_thresholds_that_are_none(settings, message):
    with pytest.raises(InputError, match=message):
        PanopticSettings(**settings)
