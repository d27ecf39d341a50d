from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from haystack.errors import InputError
from haystack.models.maskdino.panoptic import PanopticResult, PanopticSegment
from haystack.pipeline.config import SegmentConfig, load_config
from haystack.pipeline.segmenters.base import check_segmentation
from haystack.pipeline.segmenters.maskdino import MaskDINOSegmenter
from haystack.vocabulary import psg_vocabulary

PSG = psg_vocabulary()


@pytest.fixture
def config(tmp_path: Path) -> SegmentConfig:
    path = tmp_path / "weights.pth"
    path.write_bytes(b"no checkpoint")
    return SegmentConfig(kind="maskdino", weights=str(path))


class Found:
    """A predictor that sees a person in the upper left and sky in the rest."""

    def predict(self, pictures: list[Image.Image]) -> list[PanopticResult]:
        ids = np.full((pictures[0].height, pictures[0].width), 2, dtype=np.int32)
        ids[:3, :4] = 1
        ids[-1] = 0
        sky = PSG.object_index("sky-other-merged")
        segments = (PanopticSegment(1, 0, True, 0.75), PanopticSegment(2, sky, False, 0.5))
        return [PanopticResult(ids, segments)]


def test_what_is_found_becomes_a_segmentation(config: SegmentConfig) -> None:
    turned = replace(PSG, stuff_classes=PSG.stuff_classes[::-1])
    segmenter = MaskDINOSegmenter(config, turned)
    vars(segmenter)["model"] = Found()
    result = segmenter.segment("tar/1.jpg", Image.new("RGB", (8, 6)))
    assert result.image_id == "tar/1.jpg"
    assert check_segmentation(result, (6, 8), turned) is result.id_map
    person, sky = result.segments
    assert (person.category, person.area, person.box) == (0, 12, (0, 0, 4, 3))
    assert turned.object_classes[sky.category] == "sky-other-merged"
    assert (sky.area, sky.box, sky.score) == (28, (0, 0, 8, 5), 0.5)


def test_a_vocabulary_without_one_of_cocos_classes(config: SegmentConfig) -> None:
    fewer = replace(PSG, thing_classes=PSG.thing_classes[1:])
    with pytest.raises(InputError, match="person"):
        MaskDINOSegmenter(config, fewer)


def test_the_fingerprint_follows_weights_and_thresholds(config: SegmentConfig) -> None:
    def of(**changes: object) -> dict[str, object]:
        return MaskDINOSegmenter(replace(config, **changes), PSG).fingerprint()  # type: ignore[arg-type]

    assert of() == of(device="cuda")
    assert of() != of(overlap_threshold=0.5)
    assert of() != of(precision="bfloat16")
    before = of()
    Path(config.weights).write_bytes(b"other")
    assert of() != before


def test_weights_that_are_none(config: SegmentConfig) -> None:
    with pytest.raises(InputError, match=r"segment\.weights names a file that does not exist"):
        MaskDINOSegmenter(replace(config, weights="nowhere.pth"), PSG)
    with pytest.raises(InputError, match="cannot read the checkpoint"):
        MaskDINOSegmenter(config, PSG).segment("a", Image.new("RGB", (8, 6)))


def test_settings() -> None:
    with pytest.raises(InputError, match=r"'segment\.precision' expects one of float32"):
        load_config(None, ["segment.precision=int8"])
    with pytest.raises(InputError, match=r"'segment\.kind' expects one of precomputed, maskdino"):
        load_config(None, ["segment.kind=sam"])
