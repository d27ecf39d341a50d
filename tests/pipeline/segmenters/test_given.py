"""Segments that users bring along, in every format."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from haystack.errors import InputError
from haystack.io import read_psg
from haystack.io.panoptic_png import write_panoptic_png
from haystack.pipeline.config import SegmentConfig
from haystack.pipeline.segment import segment_images
from haystack.pipeline.segmenters.factory import open_segmenter
from haystack.pipeline.segmenters.given import (
    DetectionSegmenter,
    FolderSegmenter,
    open_segments,
)
from haystack.pipeline.segmenters.precomputed import PrecomputedSegmenter
from haystack.vocabulary import psg_vocabulary

VOCABULARY = psg_vocabulary()
PICTURE = Image.new("RGB", (8, 6))
ID_MAP = np.zeros((6, 8), np.int32)
ID_MAP[:3] = 7
ID_MAP[3:, 2:5] = 300


def test_bundled_names_and_psg_files():
    for name in ("psg-mini", read_psg("psg-mini").root / "annotation.json"):
        assert isinstance(open_segments(name, VOCABULARY), PrecomputedSegmenter)


def coco_file(folder):
    write_panoptic_png(folder / "panoptic" / "1.png", ID_MAP)
    content = {
        "images": [{"id": 1, "file_name": "1.jpg", "height": 6, "width": 8}],
        "annotations": [
            {
                "image_id": 1,
                "file_name": "1.png",
                "segments_info": [
                    {"id": 300, "category_id": 1, "score": 0.5},
                    {"id": 7, "category_id": 187},
                ],
            }
        ],
    }
    (folder / "coco.json").write_text(json.dumps(content))
    return folder / "coco.json"


def test_coco_panoptic_files_get_boxes_and_areas_from_their_pngs(tmp_path):
    segmenter = open_segments(coco_file(tmp_path), VOCABULARY)
    assert isinstance(segmenter, PrecomputedSegmenter)
    result = segmenter.segment("folder/1.jpg", PICTURE)
    person, sky = result.segments
    assert (person.area, person.box, person.score) == (9, (2, 3, 5, 6), 0.5)
    assert (sky.area, sky.box, sky.score) == (24, (0, 0, 8, 3), None)
    assert VOCABULARY.object_classes[sky.category] == "sky-other-merged"
    np.testing.assert_array_equal(result.id_map, ID_MAP)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_folder_of_pngs_with_a_json_each(tmp_path, wrapped):
    entries = [{"id": 300, "category": "person", "score": 0.5}, {"id": 7, "category_id": 119}]
    for name in ("street/01", "02"):
        write_panoptic_png(tmp_path / f"{name}.png", ID_MAP)
        content = {"segments_info": entries} if wrapped else entries
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    segmenter = open_segments(tmp_path, VOCABULARY)
    assert isinstance(segmenter, FolderSegmenter)
    before = segmenter.fingerprint()
    for key in ("street/01.jpg", "elsewhere/02.jpg"):
        result = segmenter.segment(key, PICTURE)
        assert result.image_id == key
        person, other = result.segments
        assert (person.id, person.category, person.score) == (300, 0, 0.5)
        assert (person.area, person.box) == (9, (2, 3, 5, 6))
        assert (other.category, other.score) == (119, None)
    assert segmenter.fingerprint() == before
    (tmp_path / "02.json").write_text(json.dumps(entries[:1]))
    assert segmenter.fingerprint() != before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "expected a list of segments"),
        ([3], "segment 0: expected an object with 'id' and 'category'"),
        ([{"id": 7, "category": "persn"}], "unknown object class 'persn'; nearest: person"),
        ([{"id": 7}], "a 'category' by its name, got null"),
        ([{"id": 7, "category": "person", "score": "1"}], "a score as a number"),
    ],
)
def test_a_broken_json_beside_a_png_is_refused(tmp_path, content, words):
    write_panoptic_png(tmp_path / "a.png", ID_MAP)
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        FolderSegmenter(tmp_path, VOCABULARY).segment("a.jpg", PICTURE)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([(7, None), (300, None), (7, None)], "segments 0 and 2 have one id, 7"),
        ([(0, None)], "segment 0 has the id 0, which stands for pixels of no segment"),
        ([(7, 0.5), (300, float("nan"))], "segment 1 has the score nan, expected a finite number"),
    ],
)
def test_ids_and_scores_that_cannot_be_are_set_aside(tmp_path, entries, words):
    write_panoptic_png(tmp_path / "a.png", ID_MAP)
    content = [{"id": key, "category": "person", "score": score} for key, score in entries]
    (tmp_path / "a.json").write_text(json.dumps(content))
    stream, reasons = io.BytesIO(), []
    PICTURE.save(stream, "PNG")
    images = [("a.jpg", stream.getvalue())]
    segmenter = FolderSegmenter(tmp_path, VOCABULARY)
    found = segment_images(
        images, segmenter, VOCABULARY, set_aside=lambda _, reason: reasons.append(reason)
    )
    assert list(found) == []
    (reason,) = reasons
    assert words in reason


def test_what_a_folder_lacks_is_said(tmp_path):
    segmenter = FolderSegmenter(tmp_path, VOCABULARY)
    with pytest.raises(InputError, match=r"holds no panoptic PNG a\.png"):
        segmenter.segment("x/a.jpg", PICTURE)
    write_panoptic_png(tmp_path / "a.png", ID_MAP)
    with pytest.raises(InputError, match=r"a\.json: cannot read it"):
        segmenter.segment("x/a.jpg", PICTURE)


def detections(tmp_path, masks=True, **whole):
    first, second = np.zeros((2, 6, 8), np.uint8)
    first[:4], second[2:] = 1, 1
    entries = [
        {"image_id": 139, "category_id": 1, "bbox": [0, 0, 8, 4], "score": 0.9},
        {"image_id": 139, "category_id": 18, "bbox": [0, 2, 8, 4], "score": 0.4},
    ]
    if masks:
        for entry, mask in zip(entries, (first, second), strict=True):
            code = coco.encode(np.asfortranarray(mask))
            entry["segmentation"] = {"size": [6, 8], "counts": code["counts"].decode()}
    path = tmp_path / "results.json"
    path.write_text(json.dumps({**whole, "annotations": entries} if whole else entries))
    return path


def test_detections_keep_overlapping_masks_and_show_the_surer_one(tmp_path):
    segmenter = open_segments(detections(tmp_path), VOCABULARY)
    assert isinstance(segmenter, DetectionSegmenter)
    result = segmenter.segment("val/000000000139.jpg", PICTURE)
    assert result.image_id == "139"
    assert [segment.score for segment in result.segments] == [0.9, 0.4]
    assert result.masks.areas.tolist() == [32, 32]
    assert (result.id_map[:4] == 1).all()
    assert (result.id_map[4:] == 2).all()
    assert len(segmenter.fingerprint()["file"]) == 64
    with pytest.raises(InputError, match="has no detections of image '140'"):
        segmenter.segment("000140.jpg", PICTURE)
    with pytest.raises(InputError, match="image 139: expected masks of 3 x 4 pixels"):
        segmenter.segment("139.jpg", PICTURE.resize((4, 3)))


def test_detections_may_be_boxes_alone(tmp_path):
    result = open_segments(detections(tmp_path, masks=False), VOCABULARY).segment(
        "139.jpg", PICTURE
    )
    assert result.id_map is None
    assert result.masks is None
    assert [segment.area for segment in result.segments] == [32, 32]
    # The segment stage needs masks, and says so.
    reasons = []
    content = (tmp_path / "139.png").open("wb")
    with content:
        PICTURE.save(content, "PNG")
    images = [("139.png", (tmp_path / "139.png").read_bytes())]
    segmenter = open_segments(tmp_path / "results.json", VOCABULARY)
    aside = lambda key, reason: reasons.append(reason)  # noqa: E731
    assert list(segment_images(images, segmenter, VOCABULARY, set_aside=aside)) == []
    assert reasons == ["image 139: expected masks, got boxes alone"]


def test_the_segment_stage_keeps_overlapping_masks_as_they_are_seen(tmp_path):
    path = detections(tmp_path)
    entries = json.loads(path.read_text())
    entries.insert(0, {**entries[0], "score": 0.8})  # hidden by its twin, which is surer
    path.write_text(json.dumps(entries))
    stream = io.BytesIO()
    PICTURE.save(stream, "PNG")
    segmenter = open_segmenter(SegmentConfig(annotations=str(path)), VOCABULARY)
    images = [("139.png", stream.getvalue())]
    (image,) = segment_images(images, segmenter, VOCABULARY, set_aside=pytest.fail)
    assert [segment.score for segment in image.segments] == [0.9, 0.4]
    assert [segment.area for segment in image.segments] == [32, 16]
    assert image.segments[1].box == (0, 4, 8, 6)
    assert set(np.unique(image.id_map())) == {segment.id for segment in image.segments}


def test_precomputed_segments_must_be_named():
    with pytest.raises(InputError, match=r"needs segment\.annotations=FILE, which is empty"):
        open_segmenter(SegmentConfig(), VOCABULARY)


def test_detections_find_images_by_name_where_they_are_listed(tmp_path):
    images = [{"id": 139, "file_name": "x/one.jpg"}, {"id": 5, "file_name": "y/two.jpg"}]
    images += [{"id": 6, "file_name": "z/two.jpg"}, {"id": 8, "file_name": "none.jpg"}]
    segmenter = open_segments(detections(tmp_path, images=images), VOCABULARY)
    assert segmenter.segment("one.jpg", PICTURE).image_id == "139"
    assert segmenter.segment("none.jpg", PICTURE).segments == ()
    for name, count in (("two.jpg", 2), ("139.jpg", 0)):
        with pytest.raises(InputError, match=f"lists {count} images with the file name '{name}'"):
            segmenter.segment(name, PICTURE)


@pytest.mark.parametrize("content", ["[]", "{}", "3", '{"annotations": []}', "[1]"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match="expected a PSG file, a COCO panoptic file"):
        open_segments(tmp_path / "a.json", VOCABULARY)
    with pytest.raises(InputError, match="no such file or folder of segments"):
        open_segments(tmp_path / "none", VOCABULARY)


@pytest.mark.parametrize("told", [True, False])
def test_a_png_that_two_images_could_mean_is_neithers(tmp_path, told):
    keys = ["a/01.jpg", "b/01.jpg", "b/02.jpg"]
    (tmp_path / "a").mkdir()
    for place in ("a/01", "01", "02"):
        write_panoptic_png(tmp_path / f"{place}.png", ID_MAP)
        content = [{"id": key, "category": "person"} for key in (7, 300)]
        (tmp_path / f"{place}.json").write_text(json.dumps(content))
    segmenter = FolderSegmenter(tmp_path, VOCABULARY, keys if told else None)
    assert segmenter.segment("a/01.jpg", PICTURE).image_id == "a/01.jpg"
    with pytest.raises(InputError, match=r"of a/01\.jpg or of b/01\.jpg; move it to .*b/01\.png"):
        segmenter.segment("b/01.jpg", PICTURE)
    assert segmenter.segment("b/02.jpg", PICTURE).image_id == "b/02.jpg"
