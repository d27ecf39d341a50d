"""Backbone Swin, positions, and boxes: against upstream's outputs and plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from seeded_maskdino import DATA, seeded

from haystack.models.maskdino.boxes_of_masks import boxes_of_first_and_last, tight_boxes
from haystack.models.maskdino.positions import embed_boxes, embed_pixels, inverse_sigmoid
from haystack.models.maskdino.query_decoder import propose_boxes
from haystack.models.maskdino.swin import Swin

CPU = torch.device("cpu")


class SmallSwin(Swin):
    channels = (16, 32, 64, 128)
    depths = (2, 2, 4, 2)
    heads = (1, 2, 4, 8)


def test_swin_is_upstreams():
    """Sides that are no multiples of a window, maps smaller than one, and shifts of both."""
    swin = SmallSwin().eval()
    for name, tensor in swin.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(seeded(name, tuple(tensor.shape)))
    drawn = np.random.RandomState(5).standard_normal((1, 3, 160, 224))
    picture = torch.from_numpy(drawn.astype(np.float32))
    with torch.inference_mode():
        maps = swin(picture.expand(2, -1, -1, -1))
    with np.load(DATA / "swin_small.npz") as known:
        for name, found in (("res4", maps[2]), ("res5", maps[3])):
            expected = torch.from_numpy(known[name])
            torch.testing.assert_close(found[0], expected, rtol=0, atol=5e-5)
            torch.testing.assert_close(found[1], expected, rtol=0, atol=5e-5)


def test_positions_of_pixels():
    height, width = 3, 5
    found = embed_pixels(height, width, CPU).view(height, width, 2, 128)
    for row, column, wave in ((0, 0, 0), (2, 4, 1), (1, 3, 10), (2, 0, 127)):
        frequency = 10000 ** (2 * (wave // 2) / 128)
        shape = math.cos if wave % 2 else math.sin
        y = (row + 1) / (height + 1e-6) * 2 * math.pi
        x = (column + 1) / (width + 1e-6) * 2 * math.pi
        assert found[row, column, 0, wave] == pytest.approx(shape(y / frequency), abs=1e-5)
        assert found[row, column, 1, wave] == pytest.approx(shape(x / frequency), abs=1e-5)


def test_positions_of_boxes_begin_with_y():
    x, y, width, height = 0.2, 0.7, 0.1, 0.4
    found = embed_boxes(torch.tensor([[x, y, width, height]])).view(4, 128)
    for part, value in zip(found, (y, x, width, height), strict=True):
        assert part[0] == pytest.approx(math.sin(2 * math.pi * value), abs=1e-6)
        assert part[1] == pytest.approx(math.cos(2 * math.pi * value), abs=1e-6)


def test_inverse_sigmoid_is_cut_off():
    shares = torch.tensor([-1.0, 0.0, 0.25, 1.0, 2.0])
    cut = math.log(1 / 1e-5)
    expected = torch.tensor([-cut, -cut, math.log(1 / 3), cut, cut])
    torch.testing.assert_close(inverse_sigmoid(shares), expected)


def test_proposals_grow_towards_the_finest_map():
    """And those at the margin, or too large, are infinite."""
    boxes = propose_boxes([(1, 2), (2, 3), (60, 60)], CPU)
    assert boxes.shape == (2 + 6 + 3600, 4)
    shares = boxes.sigmoid()
    torch.testing.assert_close(shares[1], torch.tensor([0.75, 0.5, 0.05, 0.05]))
    torch.testing.assert_close(shares[2 + 3], torch.tensor([1 / 6, 0.75, 0.1, 0.1]))
    finest = boxes[8:].view(60, 60, 4)
    assert finest[0].isinf().all()
    assert finest[:, -1].isinf().all()
    assert finest[1:-1, 1:-1].isfinite().all()
    torch.testing.assert_close(finest[1, 1].sigmoid()[2:], torch.tensor([0.2, 0.2]))
    many = propose_boxes([(1, 1)] * 5 + [(3, 3)], CPU)
    assert many[:5].isfinite().all()
    assert many[5:].isinf().all()  # 0.05 * 2^5 is larger than the picture


def test_boxes_around_masks():
    masks = torch.zeros(2, 2, 10, 20, dtype=torch.bool)
    masks[0, 0, 2:5, 4:10] = True
    masks[1, 1, 9, 19] = True
    exact = torch.tensor([7 / 20, 3.5 / 10, 6 / 20, 3 / 10])
    torch.testing.assert_close(tight_boxes(masks)[0, 0], exact)
    torch.testing.assert_close(
        tight_boxes(masks)[1, 1], torch.tensor([19.5 / 20, 9.5 / 10, 1 / 20, 1 / 10])
    )
    assert (tight_boxes(masks)[0, 1] == 0).all()
    short = torch.tensor([6.5 / 20, 3 / 10, 5 / 20, 2 / 10])
    torch.testing.assert_close(boxes_of_first_and_last(masks)[0, 0], short)
    empty = boxes_of_first_and_last(masks)[0, 1].clamp(0, 1)
    assert empty.tolist() == [1, 1, 0, 0]
