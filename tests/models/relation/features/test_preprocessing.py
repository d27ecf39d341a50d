"""The resize against OpenCV's own results and against real-valued interpolation."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from haystack.io.datasets import BUNDLED
from haystack.io.images import read_rgb
from haystack.models.relation.features.preprocessing import (
    fit_scene,
    fitted_size,
    prepare_image,
    resize_bilinear,
)
from haystack.models.relation.inputs import SceneInput

CPU = torch.device("cpu")
PHOTOGRAPHS = sorted((BUNDLED["psg-mini"].parent / "images").iterdir())[::18]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((427, 640), (800, 1199)),  # the short side decides
        ((640, 427), (1199, 800)),
        ((480, 640), (800, 1067)),
        ((300, 1000), (400, 1333)),  # the long side decides
        ((1500, 2250), (800, 1200)),
        ((800, 1333), (800, 1333)),
        ((1, 5000), (1, 1333)),
    ],
)
def test_pictures_fit_both_sides(size, expected):
    assert fitted_size(*size, 1333, 800) == expected


# SHA-256 of cv2.resize(image, (width, height)), OpenCV 4.5.5, image =
# np.random.default_rng([h, w]).integers(0, 256, (h, w, 3), dtype=np.uint8).
OPENCV = [
    ((213, 320), (800, 1202), "d11267177c03d26f"),
    ((320, 213), (1202, 800), "578add0608f05bf9"),
    ((750, 1125), (400, 600), "10901cc1aea7a6b2"),
    ((37, 53), (74, 106), "fc5bf539d53501b3"),
    ((100, 80), (50, 40), "eab7b7bb8e7564f4"),
    ((7, 5), (3, 2), "aa65fccd3246f2d6"),
    ((1, 1), (5, 4), "8e1aaf05e3e6684a"),
    ((33, 64), (17, 200), "8c4eebaeb54a3d69"),
]


@pytest.mark.parametrize(("before", "after", "digest"), OPENCV)
def test_resize_is_opencvs_bit_by_bit(before, after, digest):
    image = np.random.default_rng(before).integers(0, 256, (*before, 3), dtype=np.uint8)
    resized = resize_bilinear(torch.from_numpy(image), *after).numpy()
    assert resized.shape == (*after, 3)
    assert hashlib.sha256(resized.tobytes()).hexdigest()[:16] == digest


def interpolation(before, after):
    """Real-valued weights of bilinear interpolation along one axis, float64 [after, before]."""
    weights = np.zeros((after, before))
    for new in range(after):
        at = (new + 0.5) * before / after - 0.5
        low = int(np.floor(at))
        for old, weight in ((low, low + 1 - at), (low + 1, at - low)):
            weights[new, min(max(old, 0), before - 1)] += weight
    return weights


def test_photographs_are_interpolated_without_antialias():
    """Real numbers give the same level for seven values in eight, else the next one."""
    equal = []
    for path in PHOTOGRAPHS:
        image = read_rgb(path)
        for scale in (1.0, 0.4):  # enlarged, and made smaller, where an antialias would blur
            height, width = fitted_size(*image.shape[:2], int(1333 * scale), int(800 * scale))
            ours = resize_bilinear(torch.tensor(image), height, width).numpy()
            rows = interpolation(image.shape[0], height) @ image.reshape(len(image), -1)
            columns = interpolation(image.shape[1], width)
            exact = columns @ rows.reshape(height, image.shape[1], 3)
            # Half a level is the rounding, the rest what OpenCV's integers cut off.
            assert np.abs(ours - exact).max() < 0.85
            equal.append((ours == np.rint(exact)).mean())
    assert min(equal) > 0.85, equal


def test_pictures_are_normalised_as_rgb_then_padded():
    image = np.zeros((40, 50, 3), np.uint8)
    image[..., 0], image[..., 1], image[..., 2] = 200, 100, 50  # red, green, blue
    picture = prepare_image(image, 80, 100, CPU)
    assert picture.shape == (3, 96, 128)
    expected = [(200 - 123.675) / 58.395, (100 - 116.28) / 57.12, (50 - 103.53) / 57.375]
    inside = picture[:, :80, :100]
    torch.testing.assert_close(
        inside,
        torch.tensor(expected, dtype=torch.float32)[:, None, None].expand_as(inside),
        rtol=0,
        atol=1e-6,
    )
    assert not picture[:, 80:].any()
    assert not picture[:, :, 100:].any()


def test_a_picture_that_fits_is_only_normalised_and_read_only_arrays_are_fine():
    image = np.arange(32 * 64 * 3, dtype=np.uint8).reshape(32, 64, 3)
    image.setflags(write=False)
    picture = prepare_image(image, 32, 64, CPU)
    levels = picture * torch.tensor([58.395, 57.12, 57.375])[:, None, None]
    levels += torch.tensor([123.675, 116.28, 103.53])[:, None, None]
    np.testing.assert_allclose(levels.permute(1, 2, 0).numpy(), image, atol=1e-4)


def test_boxes_are_scaled_by_axis_and_cut_at_the_borders():
    boxes = np.array([[0, 0, 640, 427], [10, 20, 30, 40], [-5, 3, 700, 500]], np.float32)
    scene = SceneInput("a", 427, 640, np.zeros(3, np.int64), boxes, None, np.arange(1, 4))
    fitted = fit_scene(scene, 1333, 800)
    assert (fitted.height, fitted.width) == (800, 1199)
    factors = np.float32([1199 / 640, 800 / 427])
    np.testing.assert_array_equal(fitted.boxes[0], [0, 0, 1199, 800])
    np.testing.assert_array_equal(fitted.boxes[1], boxes[1] * np.tile(factors, 2))
    np.testing.assert_array_equal(fitted.boxes[2], [0, 3 * factors[1], 1199, 800])
    assert fitted.boxes.dtype == np.float32
    assert scene.boxes is boxes
