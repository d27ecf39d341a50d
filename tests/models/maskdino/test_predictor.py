from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from PIL import Image

from haystack.errors import InputError
from haystack.models.maskdino.panoptic import PanopticSettings
from haystack.models.maskdino.predictor import MaskDINOPredictor
from haystack.models.maskdino.preprocessing import fitted_size, padded_size_of, to_batch
from haystack.models.pictures import resize

LOOSE = PanopticSettings(score_threshold=0.0, overlap_threshold=0.0)


def picture(height, width, seed=0):
    generator = np.random.default_rng(seed)
    levels = generator.integers(0, 256, (height // 10 + 1, width // 10 + 1, 3), dtype=np.uint8)
    return Image.fromarray(levels).resize((width, height))


def predictor(network, **options):
    return MaskDINOPredictor(network, settings=LOOSE, short_side=64, long_side=107, **options)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1500, 2250), (800, 1200)),
        ((480, 640), (800, 1067)),
        ((640, 480), (1067, 800)),
        ((500, 500), (800, 800)),
        ((333, 1000), (444, 1333)),
        ((1, 5000), (1, 1333)),
    ],
)
def test_the_sizes_of_detectron2(size, expected):
    assert fitted_size(*size) == expected


def test_pictures_are_averaged_when_they_shrink():
    """A fine chequerboard becomes grey; four neighbours alone would leave a pattern."""
    board = np.indices((60, 60)).sum(0) % 2 * 255
    small = resize(Image.fromarray(np.repeat(board[..., None], 3, 2).astype(np.uint8)), (20, 20))
    assert small.shape == (3, 20, 20)
    assert small.dtype == torch.uint8
    assert (small.int() - 127).abs().max() < 20


def test_padding_is_zero_after_normalising():
    levels = torch.full((3, 40, 33), 200, dtype=torch.uint8)
    batch = to_batch([levels, levels], torch.device("cpu"))
    assert batch.shape == (2, 3, 64, 64)
    assert batch[0, 0, 39, 32] == pytest.approx((200 - 123.675) / 58.395)
    assert batch[1, 2, 0, 0] == pytest.approx((200 - 103.53) / 57.375)
    assert (batch[:, :, 40:] == 0).all()
    assert (batch[..., 33:] == 0).all()


def test_results_come_in_order_at_the_pictures_sizes_and_at_others(thin):
    pictures = [picture(90, 120), picture(180, 241, 1), picture(64, 85, 2)]
    results = predictor(thin).predict(pictures)
    assert [one.id_map.shape for one in results] == [(90, 120), (180, 241), (64, 85)]
    for one in results:
        assert len(one.segments) > 0
        assert set(np.unique(one.id_map)) - {0} == {segment.id for segment in one.segments}
        assert all(segment.is_thing == (segment.category < 80) for segment in one.segments)
    (larger,) = predictor(thin).predict(pictures[:1], [(30, 40)])
    assert larger.id_map.shape == (30, 40)
    assert predictor(thin).predict([]) == []


def test_a_batch_gives_what_its_pictures_give(thin):
    pictures = [picture(90, 120), picture(91, 121, 2), picture(90, 120, 3)]
    together = predictor(thin).predict(pictures)
    for one, alone in zip(together, pictures, strict=True):
        (single,) = predictor(thin).predict([alone])
        assert [s.category for s in one.segments] == [s.category for s in single.segments]
        assert (one.id_map == single.id_map).mean() > 0.99


def test_only_pictures_that_are_padded_alike_share_a_batch(thin):
    assert padded_size_of(picture(90, 120)) == (800, 1088)
    assert padded_size_of(picture(91, 121), 64, 107) == padded_size_of(picture(90, 120), 64, 107)
    with pytest.raises(InputError, match=r"padded alike, got \[\(64, 96\), \(96, 64\)\]"):
        predictor(thin).predict([picture(90, 120), picture(120, 90)])


def test_lower_precision_finds_the_same(thin):
    pictures = [picture(90, 120)]
    (plain,), (lower,) = (
        predictor(thin, precision=precision).predict(pictures)
        for precision in ("float32", "bfloat16")
    )
    assert lower.id_map.shape == plain.id_map.shape
    assert len(lower.segments) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_finds_the_same(thin, precision, compiled):
    pictures = [picture(90, 120), picture(91, 121, 2)]
    expected = predictor(copy.deepcopy(thin)).predict(pictures)
    there = predictor(copy.deepcopy(thin), device="cuda", precision=precision, compiled=compiled)
    for one, other in zip(there.predict(pictures), expected, strict=True):
        assert one.id_map.shape == other.id_map.shape
        assert len(one.segments) > 0
        if precision == "float32":
            assert [s.category for s in one.segments] == [s.category for s in other.segments]
            assert (one.id_map == other.id_map).mean() > 0.98


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int8"}, "precision expects one of float32, bfloat16, float16, got 'int8'"),
        ({"short_side": 0}, "short_side must be at least 1, got 0"),
    ],
)
def test_options_that_are_none(thin, options, message):
    with pytest.raises(InputError, match=message):
        MaskDINOPredictor(thin, **options)
