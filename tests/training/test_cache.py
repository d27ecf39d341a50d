"""Encoded images are kept, found again, and never mistaken for others."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

from haystack.errors import InputError
from haystack.io import read_psg, write_psg
from haystack.io.panoptic_png import read_panoptic_png, write_panoptic_png
from haystack.models.relation.features.geometry import GeometryFeatures
from haystack.models.relation.network import RelationNetwork
from haystack.training.cache import FolderEncoder, MemoryEncoder, SceneEncoder, build_encoder
from haystack.training.sources import TrainingImage
from haystack.training.trainee import Trainee
from haystack.training.trainer import train


@pytest.fixture
def trainee(dataset, quick):
    torch.manual_seed(0)
    return Trainee(RelationNetwork(quick.model, dataset.vocabulary))


@pytest.fixture
def encoded(monkeypatch):
    """Ids of the scenes that are encoded, in order."""
    seen = []
    encode = GeometryFeatures.encode

    def counting(self, scenes):
        seen.extend(scene.image_id for scene in scenes)
        return encode(self, scenes)

    monkeypatch.setattr(GeometryFeatures, "encode", counting)
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_any_cache_gives_the_same_model(dataset, quick, tmp_path, workers):
    models = []
    for number, cache in enumerate(["memory", "none", str(tmp_path / "cache")] * 2):
        config = replace(quick, cache=cache, workers=workers, validation_fraction=0.2)
        train(config, dataset, tmp_path / str(number))
        models.append((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert len(set(models)) == 1


def test_later_runs_find_what_earlier_ones_encoded(dataset, quick, tmp_path, encoded):
    config = replace(quick, cache=str(tmp_path))
    train(config, dataset)
    assert len(encoded) == len(set(encoded)) * 2  # each image and its mirror image
    encoded.clear()
    train(replace(config, seed=3), dataset)
    assert encoded == []
    assert not list(tmp_path.rglob(".tmp-*"))


def test_without_a_cache_nothing_is_kept(dataset, quick, encoded, trainee):
    encoder = build_encoder("none", trainee)
    assert type(encoder) is SceneEncoder
    image = TrainingImage(dataset.graphs[0], dataset)
    for _ in range(2):
        encoder.encode([encoder.read(image, flipped=False)])
    assert encoded == ["0", "0"]
    assert isinstance(build_encoder("memory", trainee), MemoryEncoder)


def test_a_stored_scene_comes_back_bit_for_bit(dataset, tmp_path, trainee):
    image = TrainingImage(dataset.graphs[0], dataset)
    for flipped in (False, True):
        first, second = (FolderEncoder(trainee, tmp_path) for _ in range(2))
        (made,) = first.encode([first.read(image, flipped=flipped)])
        view = second.read(image, flipped=flipped)
        assert view.scene is None
        (found,) = second.encode([view])
        assert found.tensors.keys() == made.tensors.keys()
        assert all(torch.equal(found.tensors[k], made.tensors[k]) for k in made.tensors)
        assert found.scene.boxes.tolist() == made.scene.boxes.tolist()
        assert (found.scene.image_id, len(found.scene)) == ("0", len(made.scene))
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2


def test_keys_change_with_everything_that_the_result_depends_on(dataset, tmp_path, trainee):
    image = TrainingImage(dataset.graphs[0], dataset)
    key = FolderEncoder(trainee, tmp_path).key
    keys = {key(image, False), key(image, True)}

    segments = dataset.graphs[0].segments
    moved = (replace(segments[0], box=(0, 0, 5, 5)), *segments[1:])
    graph = dataset.graphs[0]
    other = TrainingImage(replace(graph, segments=moved), dataset)
    keys.add(FolderEncoder(trainee, tmp_path).key(other, False))

    masks = read_panoptic_png(dataset.path_of(graph.pan_seg_file_name), size=(60, 80))
    masks[0, 0] = 1 - masks[0, 0]
    write_panoptic_png(tmp_path / graph.pan_seg_file_name, masks)
    elsewhere = replace(dataset, root=tmp_path)
    keys.add(FolderEncoder(trainee, tmp_path).key(TrainingImage(graph, elsewhere), False))

    trainee.model.features.trunk = nn.Linear(2, 2).requires_grad_(False)
    keys.add(FolderEncoder(trainee, tmp_path).key(image, False))
    with torch.no_grad():
        trainee.model.features.trunk.weight += 1
    keys.add(FolderEncoder(trainee, tmp_path).key(image, False))
    settings = lambda: {"sides": [800, 1333]}  # noqa: E731
    trainee.model.features.encoding_settings = settings
    keys.add(FolderEncoder(trainee, tmp_path).key(image, False))
    assert len(keys) == 7

    # ... and with nothing else: neither trained weights, nor what is said of the objects.
    with torch.no_grad():
        next(trainee.model.head.parameters()).add_(1)
    relabelled = replace(graph, relations=graph.relations[:1])
    same = FolderEncoder(trainee, tmp_path).key(TrainingImage(relabelled, dataset), False)
    assert same in keys


def test_a_broken_file_is_told_of_and_made_anew(dataset, tmp_path, trainee, caplog):
    image = TrainingImage(dataset.graphs[0], dataset)
    encoder = FolderEncoder(trainee, tmp_path)
    encoder.encode([encoder.read(image, flipped=False)])
    (path,) = tmp_path.rglob("*.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[:100])
    with caplog.at_level(logging.WARNING, "haystack"):
        encoder.encode([encoder.read(image, flipped=False)])
    assert path.name in caplog.text
    assert path.read_bytes() == content


def test_a_model_that_keeps_pictures_cannot_be_cached(dataset, quick):
    class Whole(RelationNetwork):
        def encode(self, scenes):
            return [
                replace(found, scene=scene)
                for found, scene in zip(super().encode(scenes), scenes, strict=True)
            ]

    model = Whole(quick.model, dataset.vocabulary)
    with pytest.raises(InputError, match=r"Whole keeps pictures or masks .* or set cache=none"):
        train(quick, dataset, model=model)
    assert train(replace(quick, cache="none"), dataset, model=model).step == 6


def test_memory_does_not_grow_with_the_data(dataset, quick, tmp_path, encoded, monkeypatch):
    """The statistics of the inputs come from a bounded sample."""
    monkeypatch.setattr(GeometryFeatures, "fit_sample", 3)
    seen = []
    fit = GeometryFeatures.fit
    monkeypatch.setattr(
        GeometryFeatures,
        "fit",
        lambda self, views: (seen.extend(v.scene.image_id for v in views), fit(self, views)),
    )
    train(replace(quick, steps=1, cache="none"), dataset)
    assert len(seen) == 6
    assert len(set(seen)) == 3


def test_annotations_that_change_in_between_need_no_new_cache(dataset, quick, tmp_path, encoded):
    config = replace(quick, cache=str(tmp_path / "cache"), steps=1)
    train(config, dataset)
    encoded.clear()
    write_psg(
        replace(
            dataset, graphs=tuple(replace(g, relations=g.relations[:2]) for g in dataset.graphs)
        ),
        dataset.root / "fewer.json",
    )
    train(replace(config, steps=2), read_psg(dataset.root / "fewer.json"))
    assert encoded == []
