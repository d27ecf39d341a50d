"""The model as a whole: inputs, batches, files, prediction over a data set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from haystack.errors import InputError
from haystack.io.panoptic_png import write_panoptic_png
from haystack.models.relation.answers import ask_on_device
from haystack.models.relation.config import HEADS, RelationModelConfig
from haystack.models.relation.features.word_vectors import WIDTH, name_vectors
from haystack.models.relation.files import load_relation_model, save_relation_model
from haystack.models.relation.inputs import RelationLogits, SceneInput, all_pairs, scene_input
from haystack.models.relation.network import RelationNetwork
from haystack.models.relation.predict import predict_dataset, relation_scores
from haystack.models.relation.protocol import DeviceRelationModel, RelationModel
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment
from haystack.vocabulary import Vocabulary, psg_vocabulary

VOCABULARY = Vocabulary(("person", "dog", "robot"), ("sky-other-merged",), ("on", "holding"))
SMALL = RelationModelConfig(roi_dim=8, hidden_dim=6, pooling_dim=10, side_dim=4)


def make_model(seed=0, **settings):
    torch.manual_seed(seed)
    return RelationNetwork(replace(SMALL, **settings), VOCABULARY).eval()


def make_scene(count, seed=0, image_id="a"):
    rng = np.random.default_rng(seed)
    id_map = np.zeros((40, 50), np.int32)
    boxes = np.zeros((count, 4), np.float32)
    for number in range(count):
        x, y = rng.integers(0, 30), rng.integers(0, 20)
        w, h = rng.integers(5, 20, 2)
        id_map[y : y + h, x : x + w] = number + 1
        boxes[number] = x, y, x + w, y + h
    labels = rng.integers(0, 4, count)
    return SceneInput(image_id, 40, 50, labels, boxes, id_map, np.arange(1, count + 1))


def test_pairs_are_row_major_without_the_diagonal():
    assert all_pairs(3).tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    assert all_pairs(1).shape == all_pairs(0).shape == (0, 2)


def test_model_is_a_relation_model():
    assert isinstance(make_model(), RelationModel)


@pytest.mark.parametrize("head", HEADS)
def test_predictions_do_not_depend_on_the_batch(head):
    model = make_model(head=head)
    scenes = [make_scene(n, seed=n, image_id=str(n)) for n in (5, 1, 9, 0, 2, 13)]
    together = model.predict(scenes)
    for scene, answer in zip(scenes, together, strict=True):
        (alone,) = model.predict([scene])
        assert answer.image_id == scene.image_id
        assert np.array_equal(answer.pairs, all_pairs(len(scene)))
        assert answer.logits.shape == (len(answer.pairs), 2)
        np.testing.assert_allclose(answer.logits, alone.logits, atol=1e-5)
        np.testing.assert_allclose(answer.no_relation, alone.no_relation, atol=1e-5)


def test_logits_left_on_the_device_are_those_of_predict():
    model = make_model()
    assert isinstance(model, DeviceRelationModel)
    scenes = [make_scene(4), make_scene(1), make_scene(0), make_scene(3)]
    answers = model.predict(scenes)
    kept = ask_on_device(model, scenes)
    assert torch.equal(kept.logits, torch.cat([torch.from_numpy(a.logits) for a in answers]))
    none = torch.cat([torch.from_numpy(a.no_relation) for a in answers])
    assert torch.equal(kept.no_relation, none)
    assert ask_on_device(model, scenes[1:3]).logits.shape == (0, model.num_predicates)


def test_prediction_leaves_the_training_mode_and_ignores_dropout():
    model = make_model().train()
    first, second = (model.predict([make_scene(4)])[0] for _ in range(2))
    assert np.array_equal(first.logits, second.logits)
    assert model.training


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"boxes": np.zeros((3, 4), np.float32)}, "boxes of shape [2, 4], got [3, 4]"),
        ({"segment_ids": np.array([4, 4])}, "every segment id once"),
        (
            {"class_scores": np.zeros((3, 4), np.float32)},
            "class_scores of shape [2, 4], got [3, 4]",
        ),
        ({"class_scores": np.zeros(2, np.float32)}, "class_scores of shape [2, 2], got [2]"),
        ({"id_map": np.zeros((50, 40), np.int32)}, "id_map of shape [40, 50], got [50, 40]"),
    ],
)
def test_inconsistent_scenes_are_refused_by_image(change, words):
    arguments = vars(make_scene(2)).copy()
    arguments.update(change)
    with pytest.raises(InputError, match=r"^a: ") as caught:
        SceneInput(**arguments)
    assert words in str(caught.value)


def guessed(scene, seed=0):
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.ones(4), len(scene)).astype(np.float32).reshape(-1, 4)
    return replace(scene, class_scores=scores, labels=scores.argmax(1))


@pytest.mark.parametrize("head", HEADS)
def test_objects_whose_classes_are_guessed_are_classified(head):
    model = make_model(head=head, classifies_objects=True)
    scenes = [guessed(make_scene(n, seed=n, image_id=str(n)), n) for n in (4, 0, 1, 7)]
    answers = model.predict(scenes)
    for scene, answer in zip(scenes, answers, strict=True):
        assert answer.logits.shape == (len(all_pairs(len(scene))), 2)
        assert answer.objects.labels.shape == answer.objects.scores.shape == (len(scene),)
        assert np.array_equal(answer.objects.boxes, scene.boxes)
        masks = scene.id_map[None] == scene.segment_ids[:, None, None]
        assert np.array_equal(answer.objects.masks.dense(), masks)
        assert relation_scores(answer).objects is answer.objects
        if len(scene):
            _, output = model(model.encode([scene]))
            probabilities = output.object_logits.detach().softmax(1)[:, 1:]
            expected = probabilities[np.arange(len(scene)), answer.objects.labels]
            np.testing.assert_allclose(answer.objects.scores, expected, atol=1e-5)
            np.testing.assert_allclose(probabilities.max(1).values, expected, atol=1e-5)
    assert all(answer.objects is None for answer in model.predict([make_scene(3), make_scene(0)]))
    (bare,) = model.predict([replace(scenes[0], id_map=None)])
    assert bare.objects.masks is None


def test_guesses_need_a_model_that_classifies_and_one_kind_of_scene_at_a_time():
    scene = make_scene(3)
    with pytest.raises(InputError, match="cannot classify objects"):
        make_model().predict([guessed(scene)])
    model = make_model(classifies_objects=True)
    with pytest.raises(InputError, match="all certain or all guessed, got both"):
        model.predict([scene, guessed(scene)])
    wrong = replace(scene, class_scores=np.full((3, 5), 0.2, np.float32))
    with pytest.raises(InputError, match="a: expected class_scores of 4 classes, got 5"):
        model.predict([wrong])


def test_a_certain_guess_is_described_like_the_class_itself():
    """Geometry features read class names; IMP reads classes nowhere else."""
    model = make_model(head="imp", classifies_objects=True)
    scene = make_scene(5)
    sure = replace(scene, class_scores=np.eye(4, dtype=np.float32)[scene.labels])
    given, classified = model.predict([scene])[0], model.predict([sure])[0]
    np.testing.assert_allclose(given.logits, classified.logits, atol=1e-6)


def test_unknown_object_class_is_refused():
    scene = make_scene(2)
    scene.labels[1] = 4
    with pytest.raises(InputError, match=r"a: expected object classes below 4, got 4"):
        make_model().predict([scene])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden_dim": 7}, "even hidden_dim"),
        ({"head": "psgtr"}, "head to be one of vctree, motifs, gpsnet, imp, got 'psgtr'"),
    ],
)
def test_bad_architecture_is_refused(settings, words):
    with pytest.raises(InputError, match=words):
        RelationModelConfig(**settings)


def test_word_vectors_cover_the_vocabulary_and_draw_the_rest():
    vocabulary = psg_vocabulary()
    names = vocabulary.object_classes + vocabulary.predicate_classes
    vectors = name_vectors(names)
    assert vectors.shape == (189, WIDTH)

    def cosine(first, second):
        a, b = name_vectors([first, second])
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    assert cosine("car", "truck") > cosine("car", "banana")
    drawn = name_vectors(["flux compensator", "robot"])
    assert not np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn, name_vectors(["flux compensator", "robot"]))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("classifies", [False, True])
def test_saving_twice_and_after_loading_gives_the_same_bytes(tmp_path, head, classifies):
    model = make_model(head=head, classifies_objects=classifies)
    save_relation_model(model, tmp_path / "a.safetensors")
    save_relation_model(model, tmp_path / "b.safetensors")
    loaded = load_relation_model(tmp_path / "a.safetensors")
    save_relation_model(loaded, tmp_path / "c.safetensors")
    contents = {(tmp_path / f"{name}.safetensors").read_bytes() for name in "abc"}
    assert len(contents) == 1
    assert loaded.vocabulary == VOCABULARY
    assert loaded.config == model.config
    scene = make_scene(6)
    ours, theirs = model.predict([scene])[0], loaded.predict([scene])[0]
    assert np.array_equal(ours.logits, theirs.logits)


def resave(path: Path, change, metadata_change=None):
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata()
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    change(tensors)
    if metadata_change:
        key, text = next(iter(metadata.items()))
        header = json.loads(text)
        metadata_change(header)
        metadata = {key: json.dumps(header)}
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("head.post_cat.bias"), "missing head.post_cat.bias"),
        (lambda t: t.update(extra=torch.zeros(1)), "unexpected extra"),
        (
            lambda t: t.update({"head.up_dim.bias": torch.zeros(11)}),
            "head.up_dim.bias of shape [11] instead of [10]",
        ),
    ],
)
def test_loading_names_every_tensor_that_does_not_fit(tmp_path, change, words):
    path = tmp_path / "model.safetensors"
    save_relation_model(make_model(), path)
    resave(path, change)
    with pytest.raises(InputError) as caught:
        load_relation_model(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("vocabulary"),
        lambda header: header["config"].update(colour="red"),
        lambda header: header["config"].update(hidden_dim=7),
    ],
)
def test_loading_refuses_broken_metadata(tmp_path, change):
    path = tmp_path / "model.safetensors"
    save_relation_model(make_model(), path)
    resave(path, lambda tensors: None, change)
    with pytest.raises(InputError, match="metadata cannot be read"):
        load_relation_model(path)


def test_loading_refuses_other_files(tmp_path):
    with pytest.raises(InputError, match="cannot read the relation model"):
        load_relation_model(tmp_path / "absent.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not a model")
    with pytest.raises(InputError, match="cannot read the relation model"):
        load_relation_model(broken)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(2)}, foreign)
    with pytest.raises(InputError, match="written by Haystack"):
        load_relation_model(foreign)


def make_dataset(folder, sizes=(3, 1, 4)):
    graphs = []
    for number, count in enumerate(sizes):
        scene = make_scene(count, seed=number)
        write_panoptic_png(folder / f"{number}.png", scene.id_map)
        segments = tuple(
            Segment(int(i), int(label), 1, tuple(box.tolist()))
            for i, label, box in zip(scene.segment_ids, scene.labels, scene.boxes, strict=True)
        )
        graphs.append(SceneGraph(str(number), 40, 50, "x.jpg", f"{number}.png", segments))
    return SceneGraphDataset(VOCABULARY, tuple(graphs), ("1", "2"), folder)


def test_predicting_a_split_gives_probabilities(tmp_path):
    model, dataset = make_model(), make_dataset(tmp_path)
    answers = list(predict_dataset(model, dataset, "test"))
    assert [answer.image_id for answer in answers] == ["1", "2"]
    assert [answer.scores.shape for answer in answers] == [(0, 2), (12, 2)]
    total = answers[1].scores.sum(1) + answers[1].no_relation
    np.testing.assert_allclose(total, 1, atol=1e-6)
    assert len(list(predict_dataset(model, dataset, "all"))) == 3


def test_a_model_of_ones_own_predicts_a_split(tmp_path):
    class Constant:
        num_predicates = 2

        reads_images = False

        def predict(self, scenes):
            return [
                RelationLogits(
                    scene.image_id,
                    all_pairs(len(scene)),
                    np.tile(np.float32([0, np.log(3)]), (len(all_pairs(len(scene))), 1)),
                    None,
                )
                for scene in scenes
            ]

    answers = list(predict_dataset(Constant(), make_dataset(tmp_path), "train"))
    np.testing.assert_allclose(answers[0].scores, np.tile([0.25, 0.75], (6, 1)), atol=1e-6)
    assert answers[0].no_relation is None


def test_another_number_of_predicates_is_refused(tmp_path):
    dataset = make_dataset(tmp_path)
    other = SceneGraphDataset(psg_vocabulary(), dataset.graphs, (), tmp_path)
    with pytest.raises(InputError, match="2 predicates, the annotations have 56"):
        predict_dataset(make_model(), other)


def test_softmax_survives_huge_logits():
    answer = RelationLogits(
        "a", all_pairs(2), np.float32([[1e4, 0], [-1e4, 0]]), np.float32([0, 0])
    )
    scores = relation_scores(answer)
    np.testing.assert_allclose(scores.scores, [[1, 0], [0, 0.5]])
    np.testing.assert_allclose(scores.no_relation, [0, 0.5])


def test_scene_input_takes_a_graphs_objects():
    scene = make_scene(2)
    segments = tuple(Segment(7 + i, i, 5, (0, 0, 9, 8)) for i in range(2))
    graph = SceneGraph("b", 40, 50, "b.jpg", None, segments)
    made = scene_input(graph, scene.id_map)
    assert made.image_id == "b"
    assert made.segment_ids.tolist() == [7, 8]
    assert made.labels.tolist() == [0, 1]
    assert made.boxes.tolist() == [[0, 0, 9, 8]] * 2
