"""From candidates to a map of instances: suppression, order of placing, thresholds, resolution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from haystack.errors import InputError
from haystack.models.yolo.network import YOLOOutput
from haystack.models.yolo.predictor import InstanceSettings, YOLOPredictor, input_size


class Given(torch.nn.Module):
    """Finds what it is told: boxes in pixels of the input, each filled by its mask."""

    def __init__(self, *rows):
        super().__init__()
        self.rows, self.seen = rows, []

    def forward(self, pictures):
        self.seen.append(pictures)
        batch, _, height, width = pictures.shape
        boxes = torch.tensor([box for box, _, _ in self.rows]).float().expand(batch, -1, -1)
        scores = torch.zeros(batch, len(self.rows), 2)
        for place, (_, category, score) in enumerate(self.rows):
            scores[:, place, category] = score
        # One prototype a candidate: +10 in its box, -10 outside.
        prototypes = torch.full((batch, len(self.rows), height // 4, width // 4), -10.0)
        for place, (box, _, _) in enumerate(self.rows):
            x1, y1, x2, y2 = (-int(-value // 4) for value in box)
            prototypes[:, place, y1:y2, x1:x2] = 10
        return YOLOOutput(
            boxes, scores, torch.eye(len(self.rows)).expand(batch, -1, -1), prototypes
        )


def find(*rows, size=(640, 480), **settings):
    picture = Image.new("RGB", size, "blue")
    return YOLOPredictor(Given(*rows), settings=InstanceSettings(**settings)).predict([picture])[0]


def test_the_surer_instance_takes_its_pixels_first():
    found = find(((0, 0, 320, 480), 0, 0.5), ((240, 0, 640, 480), 1, 0.9))
    assert [(s.id, s.category, round(s.score, 3)) for s in found.segments] == [
        (1, 1, 0.9),
        (2, 0, 0.5),
    ]
    assert all(segment.is_thing for segment in found.segments)
    assert found.id_map.dtype == np.int32
    assert (found.id_map[:, 242:] == 1).all()
    assert (found.id_map[:, :238] == 2).all()


def test_what_surer_ones_leave_too_little_of_is_dropped():
    rows = ((0, 0, 320, 480), 0, 0.9), ((100, 0, 400, 480), 1, 0.8)
    assert len(find(*rows).segments) == 1, "80 of 300 columns are left"
    assert len(find(*rows, overlap_threshold=0.2).segments) == 2
    assert find(((8, 8, 16, 16), 0, 0.9)).segments == (), "64 pixels are too few"
    assert len(find(((8, 8, 20, 16), 0, 0.9)).segments) == 1


def test_doubles_are_suppressed_within_a_class():
    same = ((0, 0, 320, 480), 0, 0.9), ((0, 0, 316, 480), 0, 0.8)
    assert len(find(*same, overlap_threshold=0.0).segments) == 1
    other = same[0], ((0, 0, 640, 480), 1, 0.8)
    assert len(find(*other).segments) == 1, "half of it is left, no more than half"
    assert len(find(*other, overlap_threshold=0.4).segments) == 2


def test_unsure_candidates_and_empty_pictures():
    assert find(((0, 0, 320, 480), 0, 0.35)).segments == ()
    assert len(find(((0, 0, 320, 480), 0, 0.35), score_threshold=0.3).segments) == 1
    nothing = find(((700, 0, 800, 480), 0, 0.9))
    assert nothing.segments == ()
    assert not nothing.id_map.any()


@pytest.mark.parametrize("size", [(2250, 1500), (333, 500), (64, 48)])
def test_masks_have_the_resolution_of_the_picture(size):
    width, height = size
    rows, columns = input_size(Image.new("RGB", size))
    assert max(rows, columns) == 640
    half = columns // 8 * 4
    found = find(((0, 0, half, rows), 0, 0.9), size=size)
    assert found.id_map.shape == (height, width)
    edge = half * width / columns
    covered = (found.id_map == 1).sum(1)
    assert abs(covered - edge).max() <= 1 + width / columns


def test_input_is_padded_with_grey_below_and_to_the_right():
    network = Given(((0, 0, 32, 32), 0, 0.9))
    predictor = YOLOPredictor(network)
    predictor.predict([Image.new("RGB", (320, 250), (255, 0, 0))] * 2)
    (seen,) = network.seen
    assert seen.shape == (2, 3, 512, 640)
    assert (seen[:, 0, :500] == 1).all()
    torch.testing.assert_close(seen[:, :, 500:], torch.full((2, 3, 12, 640), 114 / 255))
    assert predictor.predict([]) == []
    with pytest.raises(InputError, match="padded alike"):
        predictor.predict([Image.new("RGB", (64, 64)), Image.new("RGB", (64, 32))])
    with pytest.raises(InputError, match="precision expects one of"):
        YOLOPredictor(network, precision="int8")


def test_lower_precision(tmp_path):
    from tiny_yolo import build, save

    from haystack.models.yolo.network import read_yolo

    path = save(build({0: "person"}), tmp_path / "x.pt")
    picture = Image.new("RGB", (64, 64), "red")
    settings = InstanceSettings(score_threshold=0.0)
    for precision in ("float32", "bfloat16"):
        predictor = YOLOPredictor(read_yolo(path), settings=settings, precision=precision)
        assert predictor.predict([picture])[0].id_map.shape == (64, 64)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_gpu_finds_the_same(tmp_path, precision):
    from tiny_yolo import build, save

    from haystack.models.yolo.network import read_yolo

    path = save(build({0: "person"}), tmp_path / "x.pt")
    picture = Image.new("RGB", (64, 64), "red")
    settings = InstanceSettings(score_threshold=0.0, overlap_threshold=0.0)
    (expected,) = YOLOPredictor(read_yolo(path), settings=settings).predict([picture])
    there = YOLOPredictor(read_yolo(path), settings=settings, device="cuda", precision=precision)
    (found,) = there.predict([picture])
    assert found.id_map.shape == expected.id_map.shape
    if precision == "float32":
        assert (found.id_map == expected.id_map).mean() > 0.95
