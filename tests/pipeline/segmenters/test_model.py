"""Batches, halving, errors, and the record that every model's answer becomes."""

from __future__ import annotations

import io
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from haystack.errors import HaystackError, InputError
from haystack.pipeline.config import SegmentConfig
from haystack.pipeline.segment import segment_images
from haystack.pipeline.segmenters.base import BatchSegmenter, check_segmentation
from haystack.pipeline.segmenters.model import (
    FoundSegment,
    FoundSegments,
    ModelSegmenter,
    panoptic_record,
)
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("person", "dog"), ("grass", "sky"), ("on",))


class Halves(ModelSegmenter):
    """A thing above and stuff below; remembers its batches."""

    def __init__(self, fits=100, **settings):
        config = SegmentConfig(kind="maskdino", **settings)
        super().__init__(config, VOCABULARY, {7: 1, 9: 2})
        self.batches, self.fits = [], fits

    def fingerprint(self):
        return {}

    def load(self):
        if self.fits < 0:
            raise InputError("these are no weights")

    def shape(self, picture):
        return picture.size

    def find(self, pictures):
        assert len({picture.size for picture in pictures}) == 1
        if len(pictures) > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.batches.append(len(pictures))
        if pictures[0].height == 1:
            raise InputError("too thin")
        return [self.halves(picture) for picture in pictures]

    def halves(self, picture):
        ids = np.full((picture.height, picture.width), 40)
        ids[: picture.height // 2] = 30
        number = 7 if picture.getpixel((0, 0)) != (0, 0, 0) else 8
        return FoundSegments(ids, [FoundSegment(40, 9, 0.5), FoundSegment(30, number, None)])


def images(*sizes, color="red"):
    return [(f"{n}.png", Image.new("RGB", size, color)) for n, size in enumerate(sizes)]


def test_pictures_of_a_shape_go_together_and_results_come_in_order():
    segmenter = Halves(batch_size=2)
    assert isinstance(segmenter, BatchSegmenter)
    assert segmenter.window == 8
    assert Halves().window == 1
    sizes = [(4, 4), (4, 6), (4, 4), (4, 6), (4, 4), (8, 2)]
    found = segmenter.segment_many(images(*sizes))
    assert segmenter.batches == [2, 1, 2, 1]
    assert [(one.image_id, one.id_map.shape[::-1]) for one in found] == [
        (f"{n}.png", size) for n, size in enumerate(sizes)
    ]
    grass, dog = found[0].segments
    assert (grass.id, grass.category, grass.score, grass.area) == (1, 2, 0.5, 8)
    assert (dog.id, dog.category, dog.score, dog.box) == (2, 1, None, (0, 0, 4, 2))
    assert (found[0].id_map[0] == 2).all()


def test_out_of_memory_halves_the_batch_for_good_and_says_so(caplog):
    segmenter = Halves(batch_size=8, fits=3)
    with caplog.at_level(logging.WARNING):
        found = segmenter.segment_many(images(*[(4, 4)] * 10))
    assert [one.image_id for one in found] == [f"{n}.png" for n in range(10)]
    assert segmenter.batches == [2, 2, 2, 2, 2]
    assert "out of memory with 4 images at once; going on with 2 at once" in caplog.text
    with pytest.raises(HaystackError, match="a single image does not fit"):
        Halves(fits=0).segment(*images((4, 4))[0])


def test_a_picture_that_cannot_be_segmented_is_set_aside_alone():
    segmenter = Halves(batch_size=4)

    def encoded(image):
        stream = io.BytesIO()
        image.save(stream, "PNG")
        return stream.getvalue()

    given_images = [(key, encoded(image)) for key, image in images((4, 4), (4, 1), (4, 4), (4, 4))]
    given_images[2] = ("2.png", b"broken")
    given_images.append(("4.png", encoded(Image.new("RGB", (4, 4)))))
    reasons = {}
    found = list(segment_images(given_images, segmenter, VOCABULARY, set_aside=reasons.__setitem__))
    assert [image.image_key for image in found] == ["0.png", "3.png"]
    assert list(reasons) == ["1.png", "2.png", "4.png"], "in the images' order"
    assert reasons["1.png"] == "too thin"
    assert "broken" in reasons["2.png"]
    assert reasons["4.png"] == "the model found its class 8, which has no name"
    with pytest.raises(InputError, match="too thin"):
        segmenter.segment(*images((4, 1))[0])


def test_weights_or_a_device_that_cannot_be_used_are_no_images_fault():
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "PNG")
    images = [("0.png", stream.getvalue())]
    with pytest.raises(InputError, match="these are no weights"):
        list(segment_images(images, Halves(fits=-1), VOCABULARY, set_aside=pytest.fail))


def test_masks_have_the_resolution_of_the_picture():
    (found,) = Halves().segment_many(images((2250, 1500)))
    assert check_segmentation(found, (1500, 2250), VOCABULARY).shape == (1500, 2250)


ENTRIES = st.lists(
    st.tuples(
        st.integers(-1, 60_000), st.integers(0, 3), st.one_of(st.none(), st.floats(0, 1, width=16))
    ),
    max_size=6,
    unique_by=lambda entry: entry[0],
)


@given(ENTRIES, st.randoms(use_true_random=False))
def test_the_record_is_a_panoptic_map_whatever_the_models_ids(entries, random):
    ids = [entry[0] for entry in entries] + [70_000]
    id_map = np.array([[random.choice(ids) for _ in range(5)] for _ in range(4)])
    record = panoptic_record("x", id_map, entries, VOCABULARY)
    check_segmentation(record, (4, 5), VOCABULARY)
    classes = {segment.id: segment.category for segment in record.segments}
    assert min(classes, default=1) >= 1
    assert set(np.unique(record.id_map)) - {0} == set(classes)
    stuff = [c for c in classes.values() if c >= 2]
    assert len(set(stuff)) == len(stuff)
    of_id = {number: category for number, category, _ in entries}
    for place in np.ndindex(id_map.shape):  # each pixel keeps its class, things also their number
        expected = of_id.get(int(id_map[place]))
        assert classes.get(int(record.id_map[place])) == expected
    things = [n for n, category, _ in entries if category < 2 and (id_map == n).any()]
    assert sum(c < 2 for c in classes.values()) == len(things)
    assert sum(segment.area for segment in record.segments) == (record.id_map > 0).sum()
    for segment in record.segments:
        scores = [s for n, c, s in entries if c == segment.category and s is not None]
        if segment.category >= 2:
            assert segment.score == (max(scores) if scores else None)


def test_settings_that_cannot_be():
    for wrong, words in (
        ({"batch_size": 0}, r"'segment\.batch_size' expects an integer of at least 1"),
        ({"score_threshold": 1.5}, r"'segment\.score_threshold' expects a number in 0\.\.1"),
        ({"overlap_threshold": -0.1}, r"'segment\.overlap_threshold' expects a number"),
    ):
        with pytest.raises(InputError, match=words):
            replace(SegmentConfig(), **wrong)
