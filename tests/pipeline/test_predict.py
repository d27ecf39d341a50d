"""Pictures to scores: objects, order, memory, and images that cannot be used."""

from __future__ import annotations

import io
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from haystack.errors import InputError
from haystack.models.relation.inputs import RelationLogits, all_pairs
from haystack.pipeline.predict import predict_images
from haystack.pipeline.segmenters.base import Segmentation
from haystack.scene_graph import MaskRuns, PredictedObjects, RelationScores, Segment, best_triplets
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("person", "dog"), ("grass",), ("on", "beside"))


def picture(width=8, height=6):
    stream = io.BytesIO()
    Image.new("RGB", (width, height), "green").save(stream, "PNG")
    return stream.getvalue()


class Halves:
    """The upper half is a person, the lower half a dog."""

    def __init__(self, **changes):
        self.changes = changes

    def fingerprint(self):
        return {}

    def segment(self, image_key, image):
        if "unknown" in image_key:
            raise InputError("no segments of this image")
        id_map = np.full((image.height, image.width), 9, np.int32)
        id_map[: image.height // 2] = 4
        width, height = image.size
        segments = (
            Segment(9, 1, width * height // 2, (0, height / 2, width, height), score=0.5),
            Segment(4, 0, width * height // 2, (0, 0, width, height / 2)),
        )
        found = {"image_id": image_key, "id_map": id_map, "segments": segments, **self.changes}
        return Segmentation(**found)


class Model:
    num_predicates = 2

    def __init__(self, reads_images=False):
        self.reads_images = reads_images
        self.scenes = []

    def predict(self, scenes):
        self.scenes = list(scenes)
        return [
            RelationLogits(
                scene.image_id,
                all_pairs(len(scene)),
                np.tile(np.float32([1, 0]), (len(all_pairs(len(scene))), 1)),
                np.zeros(len(all_pairs(len(scene))), np.float32),
            )
            for scene in scenes
        ]


def run(images, segmenter=None, model=None, **settings):
    reasons = {}
    found = predict_images(
        images,
        segmenter or Halves(),
        model or Model(),
        VOCABULARY,
        set_aside=reasons.__setitem__,
        **settings,
    )
    return list(found), reasons


def test_the_objects_are_part_of_the_prediction():
    model = Model(reads_images=True)
    (found,), reasons = run([("a.png", picture())], model=model)
    assert not reasons
    objects = found.scores.objects
    assert objects.labels.tolist() == [1, 0]
    assert objects.scores.tolist() == [0.5, 1.0]  # what has no score is certain
    assert objects.boxes.tolist() == [[0, 3, 8, 6], [0, 0, 8, 3]]
    np.testing.assert_array_equal(objects.masks.dense()[1], found.numbers == 1)
    assert (found.numbers[0] == 1).all()
    assert (found.numbers[-1] == 0).all()
    np.testing.assert_allclose(found.scores.scores.sum(1) + found.scores.no_relation, 1, rtol=1e-6)
    assert model.scenes[0].image.shape == (6, 8, 3)
    (found,), _ = run([("a.png", picture())], as_objects=False)
    assert found.scores.objects is None


class Classifying(Model):
    """Says of every object that it is grass, nearly sure."""

    def predict(self, scenes):
        return [
            replace(
                answer,
                objects=PredictedObjects(
                    np.full(len(scene), 2), np.full(len(scene), 0.75, np.float32), scene.boxes
                ),
            )
            for scene, answer in zip(scenes, super().predict(scenes), strict=True)
        ]


@pytest.mark.parametrize("as_objects", [True, False])
def test_the_model_may_classify_the_segments_itself(as_objects):
    model = Classifying()
    images = [("a.png", picture())]
    (found,), _ = run(images, model=model, as_objects=as_objects, guess_classes=True)
    (scene,) = model.scenes
    if as_objects:  # a detector's classes are where it starts from
        assert scene.class_scores.tolist() == [[0, 1, 0], [1, 0, 0]]
        assert scene.labels.tolist() == [1, 0]
    else:  # what is annotated must not leak
        np.testing.assert_allclose(scene.class_scores, 1 / 3)
        assert scene.labels.tolist() == [0, 0]
    assert found.scores.objects.labels.tolist() == [2, 2]
    assert found.scores.objects.scores.tolist() == [0.75, 0.75]
    assert [len(mask.nonzero()[0]) for mask in found.scores.objects.masks.dense()] == [24, 24]
    assert [segment.category for segment in found.segmentation.segments] == [2, 2]
    with pytest.raises(InputError, match="asked to classify the objects and gave no classes"):
        run(images, guess_classes=True)


def test_boxes_alone_and_overlapping_masks():
    (found,), _ = run([("a", picture())], Halves(id_map=None))
    assert found.numbers is None
    assert found.scores.objects.masks is None
    full = MaskRuns.from_masks(np.ones((2, 6, 8), bool), 6, 8)
    hidden = np.full((6, 8), 4, np.int32)
    (found,), reasons = run([("a", picture())], Halves(id_map=hidden, masks=full))
    assert not reasons
    assert found.scores.objects.masks is full


def test_images_that_cannot_be_used_are_set_aside_and_the_others_go_on():
    images = [
        ("a.png", picture()),
        ("broken.png", picture()[:50]),
        ("gone.png", InputError("cannot be read", path="gone.png")),
        ("unknown.png", picture()),
        ("b.png", picture()),
    ]
    found, reasons = run(images, batch_size=1)
    assert [image.image_key for image in found] == ["a.png", "b.png"]
    assert list(reasons) == ["broken.png", "gone.png", "unknown.png"]
    assert reasons["gone.png"] == "cannot be read"
    assert "truncated" in reasons["broken.png"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id_map": np.full((6, 9), 4, np.int32)}, "expected masks of 8x6 pixels, got 9x6"),
        ({"id_map": np.full((6, 8), 4, np.int32)}, "segment 0 has the id 9, which the panoptic"),
        ({"segments": (Segment(4, 3, 1, (0, 0, 1, 1)),)}, "segment 0 has the unknown category 3"),
        (
            {"id_map": None, "segments": (Segment(4, 3, 1, (0, 0, 1, 1)),)},
            "segment 0 has the unknown category 3",
        ),
    ],
)
def test_segments_that_do_not_fit_are_a_reason(changes, words):
    found, reasons = run([("a", picture())], Halves(**changes))
    assert not found
    assert words in reasons["a"]


def test_an_image_id_belongs_to_one_image():
    found, reasons = run([("a", picture()), ("b", picture())], Halves(image_id="same"))
    assert len(found) == 1
    assert reasons == {"b": "its image id same is that of a too"}


def test_an_image_without_segments_has_no_pairs():
    (found,), _ = run([("a", picture())], Halves(segments=()))
    assert found.scores.pairs.shape == (0, 2)
    assert (found.numbers == -1).all()
    assert [len(part) for part in best_triplets(found.scores, 5)] == [0, 0]


def test_memory_does_not_grow_with_the_images():
    content = picture(200, 200)

    def peak(count):
        images = ((str(number), content) for number in range(count))
        found = predict_images(images, Halves(), Model(), VOCABULARY, set_aside=print, batch_size=2)
        tracemalloc.start()
        for _ in found:
            pass
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(4)
    assert peak(60) < 1.2 * peak(12)


def scores(values, objects=None):
    return RelationScores("a", all_pairs(2), np.array(values, np.float32), objects=objects)


def test_the_best_triplets():
    rows, values = best_triplets(scores([[0.2, 0.3], [0.6, 0.1]]), 5)
    assert rows.tolist() == [[1, 0, 0], [0, 1, 1]]
    np.testing.assert_allclose(values, [0.6, 0.3])
    assert best_triplets(scores([[0.2, 0.3], [0.6, 0.1]]), 1)[0].tolist() == [[1, 0, 0]]
    assert best_triplets(scores([[0.2, 0.3], [0.6, 0.1]]), 5, min_score=0.5)[0].tolist() == (
        [[1, 0, 0]]
    )
    # Ties go to the lower row and the lower predicate.
    assert best_triplets(scores([[0.5, 0.5], [0.5, 0.5]]), 5)[0].tolist() == [[0, 1, 0], [1, 0, 0]]
    objects = PredictedObjects(np.array([0, 1]), scores=np.array([0.5, 0.5], np.float32))
    np.testing.assert_allclose(best_triplets(scores([[1, 0], [0, 1]], objects), 5)[1], 0.25)
