from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from PIL import Image

from haystack.errors import InputError
from haystack.models.maskdino.panoptic import PanopticSettings
from haystack.models.maskdino.predictor import MaskDINOPredictor
from haystack.models.maskdino.preprocessing import fitted_size, resize, to_batch

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
    pictures = [picture(90, 120), picture(120, 90, 1), picture(64, 85, 2)]
    results = predictor(thin, batch_size=2).predict(pictures)
    assert [one.id_map.shape for one in results] == [(90, 120), (120, 90), (64, 85)]
    for one in results:
        assert len(one.segments) > 0
        assert set(np.unique(one.id_map)) - {0} == {segment.id for segment in one.segments}
        assert all(segment.is_thing == (segment.category < 80) for segment in one.segments)
    (larger,) = predictor(thin).predict(pictures[:1], [(30, 40)])
    assert larger.id_map.shape == (30, 40)


def test_only_pictures_that_are_padded_alike_share_a_batch(thin):
    pictures = [picture(90, 120), picture(120, 90, 1), picture(91, 121, 2), picture(90, 120, 3)]
    shapes = []
    hook = thin.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    try:
        batches = predictor(thin, batch_size=2)
        together = batches.predict(pictures)
    finally:
        hook.remove()
    assert sorted(shapes) == [(1, 3, 64, 96), (1, 3, 96, 64), (2, 3, 64, 96)]
    for one, alone in zip(together, map(batches.predict, [[p] for p in pictures]), strict=True):
        assert [s.category for s in one.segments] == [s.category for s in alone[0].segments]
        assert (one.id_map == alone[0].id_map).mean() > 0.99


def test_out_of_memory_halves_the_batch_and_says_so(thin, caplog):
    full = predictor(thin, batch_size=4)

    def hungry(_, given):
        if len(given[0]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = thin.register_forward_pre_hook(hungry)
    try:
        with caplog.at_level(logging.WARNING):
            results = full.predict([picture(90, 120, seed) for seed in range(3)])
    finally:
        hook.remove()
    assert len(results) == 3
    assert full.batch_size == 1
    assert "going on with batches of 1" in caplog.text


def test_one_picture_that_is_too_large_is_an_error(thin):
    def hungry(_, given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    hook = thin.register_forward_pre_hook(hungry)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            predictor(thin).predict([picture(90, 120)])
    finally:
        hook.remove()


def test_lower_precision_finds_the_same(thin):
    pictures = [picture(90, 120)]
    (plain,), (lower,) = (
        predictor(thin, precision=precision).predict(pictures)
        for precision in ("float32", "bfloat16")
    )
    assert lower.id_map.shape == plain.id_map.shape
    assert len(lower.segments) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int8"}, "precision expects one of float32, bfloat16, float16, got 'int8'"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_options_that_are_none(thin, options, message):
    with pytest.raises(InputError, match=message):
        MaskDINOPredictor(thin, **options)
