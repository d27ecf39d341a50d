"""Training for SGCls and SGDet: classes that the model finds itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from haystack.errors import InputError
from haystack.io import write_psg
from haystack.io.panoptic_png import read_panoptic_png, write_panoptic_png
from haystack.models.relation.config import HEADS
from haystack.models.relation.inputs import guessed_scene
from haystack.models.relation.predict import read_scene
from haystack.scene_graph import SceneGraphDataset, Segment, empty_triplets
from haystack.training.cache import FolderEncoder, SceneEncoder
from haystack.training.config import TrainConfig
from haystack.training.detections import match_detections, with_detections
from haystack.training.losses import BACKGROUND
from haystack.training.sources import collect_images
from haystack.training.tasks import Task
from haystack.training.trainee import Trainee
from haystack.training.trainer import train

CLASSIFIERS = {
    "vctree": "head.context_layer.decoder_rnn.",
    "motifs": "head.context_layer.decoder_rnn.",
    "gpsnet": "head.context_layer.out_obj.",
    "imp": "head.context_layer.obj_fc.",
}
SHIFTED = 2  # class "table-merged", which a detector takes a block of another class for


@pytest.fixture
def config(quick):
    model = replace(quick.model, classifies_objects=True, dropout=0.0)
    return replace(quick, model=model, steps=40, log_every=1, batch_size=6, task="sgcls")


@pytest.fixture(scope="module")
def detections(dataset, tmp_path_factory):
    """In another order: the block that lies inside is missed, and there is one of nothing."""
    folder = tmp_path_factory.mktemp("detected")
    graphs = []
    for graph in dataset.graphs:
        ids = read_panoptic_png(dataset.path_of(graph.pan_seg_file_name))
        known = {segment.id: segment for segment in graph.segments}
        ids[ids == 3] = 1
        ids[:6, :6] = 9
        write_panoptic_png(folder / f"{graph.image_id}.png", ids)
        segments = (
            Segment(9, SHIFTED, 36, (0, 0, 6, 6), score=0.4),
            *(known[number] for number in (4, 2, 1)),
        )
        graphs.append(
            replace(
                graph,
                image_id=f"found-{graph.image_id}",
                pan_seg_file_name=f"{graph.image_id}.png",
                segments=segments,
                relations=empty_triplets(),
                neg_relations=empty_triplets(),
            )
        )
    found = SceneGraphDataset(dataset.vocabulary, tuple(graphs), (), folder)
    write_psg(found, folder / "scene_graphs.json")
    return found


def weights_of(result, head):
    prefix = CLASSIFIERS[head]
    state = result.model.state_dict()
    found = {name: value for name, value in state.items() if name.startswith(prefix)}
    assert found
    return found


@pytest.mark.parametrize("head", HEADS)
def test_sgcls_learns_the_classes_and_reaches_the_part_that_finds_them(head, config, dataset):
    config = replace(config, model=replace(config.model, head=head), learning_rate=1e-2)
    begun = train(replace(config, steps=1, learning_rate=0.0), dataset)
    trained = train(replace(config, validation_fraction=0.3, select="R@20"), dataset)
    losses = [row["object"] for row in trained.metrics]
    assert np.mean(losses[-5:]) < 0.6 * losses[0]
    assert losses[0] == pytest.approx(np.log(dataset.vocabulary.num_objects + 1), rel=0.5)
    row = trained.metrics[-1]
    assert row["loss"] == pytest.approx(
        sum(row.get(name, 0.0) for name in ("relation", "negative", "tree", "object"))
    )
    assert row["validation/object"] > 0
    assert 0 <= row["validation/R@20"] <= 1
    before, after = weights_of(begun, head), weights_of(trained, head)
    assert any(not torch.equal(before[name], after[name]) for name in before)

    scene = read_scene(dataset, dataset.graphs[0])
    (answer,) = trained.model.predict([guessed_scene(scene, 3, known=False)])
    assert len(answer.objects) == len(scene)


def test_the_model_does_not_see_the_annotated_classes(config, dataset):
    """Only MOTIFS' decoder does, in training, of the objects before."""
    trainee = Trainee(train(replace(config, steps=1), dataset).model)
    images = collect_images(config, [dataset])
    image = images.training[0]
    segments = tuple(replace(s, category=(s.category + 1) % 3) for s in image.graph.segments)
    other = replace(image, graph=replace(image.graph, segments=segments))
    encoder = SceneEncoder(trainee, Task("sgcls", 3))
    logits = []
    for one in (image, other):
        encoded = encoder.encode([encoder.read(one, flipped=False)])
        with torch.no_grad():
            _, output = trainee.forward(encoded)
        logits.append((output.logits, output.object_logits))
    for first, second in zip(*logits, strict=True):
        assert torch.equal(first, second)


def test_detections_are_matched_with_the_objects_that_they_overlap(dataset, detections):
    config = TrainConfig()
    images = with_detections(collect_images(config, [dataset]), detections)
    for image in images.training:
        ids = [segment.id for segment in image.graph.segments]
        expected = [BACKGROUND, ids.index(4), ids.index(2), ids.index(1)]
        assert match_detections(image, 0.5).tolist() == expected
        bare = replace(image, detected=replace(image.detected, pan_seg_file_name=None))
        assert match_detections(bare, 0.5).tolist() == expected  # by boxes
        assert match_detections(bare, 1.0).tolist() == expected  # equal boxes overlap wholly


@pytest.mark.parametrize("head", ["vctree", "motifs"])
def test_sgdet_learns_from_detections(head, config, dataset, detections):
    config = replace(
        config,
        task="sgdet",
        detections=str(detections.root),  # the folder with scene_graphs.json
        learning_rate=1e-2,
        validation_fraction=0.3,
        select="R@20",
        model=replace(config.model, head=head),
    )
    trained = train(config, dataset)
    losses = [row["object"] for row in trained.metrics]
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    assert {row["matched"] for row in trained.metrics} == {0.75}
    # One of the five relations of a scene needs the block that was missed.
    assert 0.3 < trained.metrics[-1]["validation/R@100"] <= 0.8 + 1e-6


def shifted(graph, dx):
    """What was found, moved to the right; without masks."""
    moved = (
        replace(s, box=(s.box[0] + dx, s.box[1], s.box[2] + dx, s.box[3])) for s in graph.segments
    )
    return replace(graph, segments=tuple(moved), pan_seg_file_name=None)


@pytest.fixture
def sgdet_of(config, detections, tmp_path):
    """A run of SGDet on changed detections."""

    def make(graphs):
        file = tmp_path / "moved.json"
        write_psg(replace(detections, graphs=tuple(graphs)), file)
        return replace(config, task="sgdet", detections=str(file), steps=2)

    return make


def test_detections_of_other_places_are_an_error(dataset, detections, sgdet_of, tmp_path):
    config = sgdet_of(shifted(graph, 1000) for graph in detections.graphs)
    with pytest.raises(InputError, match=r"moved\.json: no detection overlaps .* in 12 images"):
        train(config, dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_few_matches_are_counted_in_a_warning(dataset, detections, sgdet_of, caplog, monkeypatch):
    where_they_are = [shifted(graph, 0) for graph in detections.graphs]
    graphs = [where_they_are[0], *(shifted(graph, 1000) for graph in detections.graphs[1:])]
    trained = train(sgdet_of(graphs), dataset)
    assert "detections match 3 of 48 annotated objects (12 images looked at" in caplog.text
    assert all(0 <= row["matched"] <= 0.125 for row in trained.metrics)
    caplog.clear()
    train(sgdet_of(where_they_are), dataset)
    assert "annotated objects" not in caplog.text
    monkeypatch.setattr("haystack.training.detections._LOOKED_AT", 2)
    train(sgdet_of([shifted(detections.graphs[0], 1000), where_they_are[1], *graphs[2:]]), dataset)
    assert "detections match 0 of 8 annotated objects (2 images looked at" in caplog.text


def test_a_cache_on_disk_keeps_guesses(config, dataset, detections, tmp_path):
    trainee = Trainee(train(replace(config, steps=1), dataset).model)
    images = with_detections(collect_images(config, [dataset]), detections)
    image = images.training[0]
    read = {}
    for task in ("sgcls", "sgdet"):
        encoder = FolderEncoder(trainee, tmp_path, Task(task, 3))
        fresh = encoder.encode([encoder.read(image, flipped=False)])[0]
        view = encoder.read(image, flipped=False)
        assert view.scene is None
        read[task] = encoder.encode([view])[0].scene.class_scores
        np.testing.assert_array_equal(read[task], fresh.scene.class_scores)
    assert (read["sgcls"] == np.float32(1 / 3)).all()
    assert read["sgdet"].argmax(1).tolist() == image.detected.labels.tolist()


def test_what_cannot_be_trained_is_said(config, quick, dataset, detections):
    with pytest.raises(InputError, match=r"task=sgcls needs a model.*classifies_objects=true"):
        train(replace(quick, task="sgcls"), dataset)
    with pytest.raises(InputError, match="sgdet, and only sgdet"):
        replace(quick, task="sgdet")
    with pytest.raises(InputError, match="sgdet, and only sgdet"):
        replace(quick, detections="a.json")
    with pytest.raises(InputError, match="expected task to be one of predcls, sgcls, sgdet"):
        replace(quick, task="sggen")
    images = collect_images(quick, [dataset])
    few = replace(detections, graphs=detections.graphs[1:])
    with pytest.raises(InputError, match="there are no detections of image 0"):
        with_detections(images, few)
    small = tuple(replace(graph, height=9) for graph in detections.graphs)
    with pytest.raises(InputError, match="picture of 60 x 80 pixels, got 9 x 80"):
        with_detections(images, replace(detections, graphs=small))
    blank = tuple(replace(graph, segments=graph.segments[:1]) for graph in detections.graphs)
    with pytest.raises(InputError, match="expected images with two detections, found none"):
        with_detections(images, replace(detections, graphs=blank))
    some = (replace(detections.graphs[0], segments=()), *detections.graphs[1:])
    left = with_detections(images, replace(detections, graphs=some))
    assert (len(left.training), left.left_out) == (len(images.training) - 1, 1)
