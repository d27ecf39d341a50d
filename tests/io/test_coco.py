"""COCO's panoptic files and detection results."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from pycocotools import mask as coco

from haystack.errors import InputError
from haystack.io.coco import decode_masks, read_coco_detections, read_coco_panoptic
from haystack.io.panoptic_png import write_panoptic_png
from haystack.vocabulary import Vocabulary, psg_vocabulary

VOCABULARY = Vocabulary(("person", "dog"), ("grass-merged",), ("on",))
CATEGORIES = [
    {"id": 1, "name": "person"},
    {"id": 18, "name": "dog"},
    {"id": 193, "name": "grass-merged"},
    {"id": 77, "name": "cell phone"},
]
PANOPTIC = {
    "images": [{"id": 139, "file_name": "val/000139.jpg", "height": 6, "width": 8}],
    "annotations": [
        {
            "image_id": 139,
            "file_name": "000139.png",
            "segments_info": [
                {"id": 3, "category_id": 193, "bbox": [0, 0, 8, 3], "area": 24, "iscrowd": 0},
                {"id": 5, "category_id": 18, "score": 0.75},
            ],
        }
    ],
    "categories": CATEGORIES,
}


def panoptic_file(folder, masks="panoptic_val"):
    path = folder / "panoptic_val.json"
    path.write_text(json.dumps(PANOPTIC))
    write_panoptic_png(folder / masks / "000139.png", np.ones((6, 8), np.int32))
    return path


@pytest.mark.parametrize("masks", ["panoptic_val", "panoptic", "."])
def test_panoptic_files(tmp_path, masks):
    path = panoptic_file(tmp_path, masks)
    dataset = read_coco_panoptic(PANOPTIC, VOCABULARY, path)
    (graph,) = dataset.graphs
    assert (graph.image_id, graph.file_name, graph.height, graph.width) == (
        ("139", "val/000139.jpg", 6, 8)
    )
    assert dataset.path_of(graph.pan_seg_file_name).is_file()
    grass, dog = graph.segments
    assert (grass.id, grass.category, grass.area, grass.box) == (3, 2, 24, (0, 0, 8, 3))
    assert grass.score is None
    assert (dog.id, dog.category, dog.area, dog.score) == (5, 1, 0, 0.75)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("images"), "expected 'images'"),
        (lambda c: c["images"].clear(), r"annotations\[0\]: expected every image to be listed"),
        (lambda c: c["images"][0].pop("height"), "image 139: expected its height .* got None"),
        *(
            (
                lambda c, size=size: c["images"][0].update(width=size),
                "image 139: expected its width to be a whole number of pixels",
            )
            for size in (0, -8, 8.0, "8")
        ),
        (
            lambda c: c["images"][0].update(width=10**9, height=10**9),
            "image 139: expected an image of at most 178956970 pixels",
        ),
        *(
            (
                lambda c, name=name: c["images"][0].update(file_name=name),
                "image 139: expected a file's name below the folder",
            )
            for name in ("/val/000139.jpg", "../000139.jpg")
        ),
        (
            lambda c: c["annotations"][0].update(file_name="../panoptic_val/000139.png"),
            "image 139: expected a file's name below the folder",
        ),
        (lambda c: c["annotations"][0].pop("segments_info"), "a list under 'segments_info'"),
        (lambda c: c["annotations"][0].update(image_id=[1]), "expected an image id"),
        (
            lambda c: c["annotations"][0]["segments_info"][0].update(category_id=77),
            "segment 0: the category_id 77 has no name among the model's object classes",
        ),
        (
            lambda c: c["annotations"][0]["segments_info"][1].update(score="sure"),
            "segment 1: expected a number 'score', got 'sure'",
        ),
        (lambda c: c["annotations"][0]["segments_info"][0].pop("id"), "expected a number 'id'"),
        (lambda c: c.update(categories=[3]), "expected 'categories' with ids and names"),
        (lambda c: c.pop("categories"), "because the model's classes are not COCO's"),
        (lambda c: c["annotations"][0].update(file_name="x.png"), "'x.png' is in none of"),
        (lambda c: c["annotations"][0].pop("file_name"), "the name of a panoptic PNG"),
    ],
)
def test_broken_panoptic_files_are_refused(tmp_path, change, words):
    path = panoptic_file(tmp_path)
    content = copy.deepcopy(PANOPTIC)
    change(content)
    with pytest.raises(InputError, match=words) as caught:
        read_coco_panoptic(content, VOCABULARY, path)
    assert "panoptic_val.json" in str(caught.value)


def masks_of():
    masks = np.zeros((2, 6, 8), bool)
    masks[0, 1:4, 2:7] = True
    masks[1, 2:6, :3] = True
    return masks


def encoded(mask):
    code = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": list(code["size"]), "counts": code["counts"].decode()}


def test_a_list_of_results_uses_cocos_numbers(tmp_path):
    entries = [
        {"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5},
        {"image_id": 7, "category_id": 200, "segmentation": encoded(masks_of()[0]), "score": 1},
        {"image_id": "x", "category_id": 90, "bbox": [0, 0, 1, 1]},
    ]
    found = read_coco_detections(entries, psg_vocabulary(), tmp_path / "results.json")
    assert sorted(found.by_image) == ["7", "x"]
    person, rug = found.by_image["7"]
    assert (person.category, person.box, person.score) == (0, (1, 2, 4, 6), 0.5)
    assert psg_vocabulary().object_classes[rug.category] == "rug-merged"
    assert rug.box == (2, 1, 7, 4)
    assert found.by_image["x"][0].score is None
    assert found.image_ids == {}


def test_results_with_categories_and_images(tmp_path):
    content = {
        "annotations": [{"image_id": 7, "category_id": 18, "bbox": [1, 2, 3, 4]}],
        "categories": CATEGORIES,
        "images": [{"id": 7, "file_name": "a/b.jpg"}, {"id": 8, "file_name": "a/c.jpg"}],
    }
    found = read_coco_detections(content, VOCABULARY, tmp_path / "results.json")
    assert found.by_image["7"][0].category == 1
    assert found.image_ids == {"a/b.jpg": "7", "a/c.jpg": "8"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (3, "detection 0: expected an object"),
        ({"bbox": [1, 2, 3]}, "a bbox of four finite numbers"),
        ({"bbox": [1, 2, 3, float("nan")]}, "a bbox of four finite numbers"),
        ({"bbox": [1, 2, -3, 4]}, "a negative side"),
        ({"bbox": None, "segmentation": [[1, 2, 3]]}, "a compressed run-length code"),
        ({"bbox": [1, 2, 3, 4], "category_id": 12}, "category_id 12 has no name"),
        ({"bbox": [1, 2, 3, 4], "score": float("inf")}, "expected a number 'score'"),
    ],
)
def test_broken_results_are_refused(tmp_path, entry, words):
    if isinstance(entry, dict):
        entry = {"image_id": 1, "category_id": 1, **entry}
    with pytest.raises(InputError, match=words):
        read_coco_detections([entry], psg_vocabulary(), tmp_path / "results.json")


def test_masks_of_every_kind_are_decoded():
    masks = masks_of()
    plain = {"size": [6, 8], "counts": [13, 3, 3, 3, 3, 3, 3, 3, 3, 3, 8]}
    polygon = [[0, 2, 3, 2, 3, 6, 0, 6]]
    codes = [encoded(masks[0]), plain, polygon]
    decoded = decode_masks(codes, 6, 8).dense()
    np.testing.assert_array_equal(decoded[0], masks[0])
    np.testing.assert_array_equal(decoded[1], masks[0])
    np.testing.assert_array_equal(decoded[2], masks[1])


@pytest.mark.parametrize("code", [3, {"size": [6, 8]}, {"size": [6, 8], "counts": 4}, "x"])
def test_what_is_no_mask_is_refused(code):
    with pytest.raises(InputError, match="not a run-length code or polygons"):
        decode_masks([code], 6, 8)


def test_a_mask_of_another_size_is_refused():
    with pytest.raises(InputError, match="expected masks of 9 x 8 pixels, got 6 x 8"):
        decode_masks([encoded(masks_of()[0])], 9, 8)


@pytest.mark.parametrize(
    "code",
    [
        {"size": [10**9, 10**9], "counts": "abc"},
        {"size": [10**9, 10**9], "counts": [10**18]},
        [{"size": [10**9, 10**9], "counts": [10**18]}],
        {"size": 3, "counts": "abc"},
        [[0, 0, 1e9, 0, 1e9, 1e9]],
        [0, 0, 1e300, 0, 5, float("inf")],
        [[0, 0, 5, 0, float("nan"), 5]],
        [["a", 0, 5, 0, 3, 5]],
    ],
)
def test_masks_take_no_more_memory_than_their_picture(code):
    with pytest.raises(InputError, match=r"expected masks of|expected polygons|not a run-length"):
        decode_masks([code], 6, 8)
