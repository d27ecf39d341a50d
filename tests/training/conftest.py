"""Small rendered scenes with known relations, and a small model that learns them in seconds."""

from __future__ import annotations

import numpy as np
import pytest

from haystack.io import write_psg
from haystack.io.panoptic_png import segment_geometry, write_panoptic_png
from haystack.models.relation.config import RelationModelConfig
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.training.config import TrainConfig
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("cat", "dog"), ("table-merged",), ("on", "in", "beside"))
ON, IN, BESIDE = range(3)


def render(folder, number, rng):
    """A large block; one block stands on it, one lies inside it, one stands beside that on it."""
    ids = np.zeros((60, 80), np.int32)
    left = int(rng.integers(5, 15))
    ids[30:58, left : left + 55] = 1
    x = left + int(rng.integers(2, 10))
    ids[18:30, x : x + 12] = 2
    y, inside = int(rng.integers(36, 44)), left + int(rng.integers(10, 40))
    ids[y : y + 9, inside : inside + 9] = 3
    ids[20:30, x + 12 : x + 22] = 4
    labels = {1: 2, 2: int(rng.integers(0, 2)), 3: int(rng.integers(0, 2)), 4: 0}
    order = rng.permutation([1, 2, 3, 4]).tolist()
    found = segment_geometry(ids)
    boxes = dict(zip(found.ids.tolist(), found.boxes.tolist(), strict=True))
    place = {number: index for index, number in enumerate(order)}
    relations = [(2, 1, ON), (4, 1, ON), (3, 1, IN), (2, 4, BESIDE), (4, 2, BESIDE)]
    write_panoptic_png(folder / f"{number}.png", ids)
    return SceneGraph(
        image_id=str(number),
        height=60,
        width=80,
        file_name=f"{number}.jpg",
        pan_seg_file_name=f"{number}.png",
        segments=tuple(Segment(i, labels[i], 1, tuple(boxes[i])) for i in order),
        relations=as_triplets([(place[s], place[o], p) for s, o, p in relations]),
        neg_relations=as_triplets([(place[3], place[1], ON), (place[1], place[2], -1)]),
    )


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """Twelve training and eight test scenes, stored as a PSG file."""
    folder = tmp_path_factory.mktemp("rendered")
    rng = np.random.default_rng(0)
    graphs = tuple(render(folder, number, rng) for number in range(20))
    dataset = SceneGraphDataset(VOCABULARY, graphs, tuple(str(n) for n in range(12, 20)), folder)
    write_psg(dataset, folder / "annotation.json")
    return dataset


@pytest.fixture(scope="session")
def quick():
    """A training run of six steps."""
    model = RelationModelConfig(roi_dim=24, hidden_dim=16, pooling_dim=32, side_dim=8, dropout=0.1)
    return TrainConfig(
        steps=6,
        batch_size=4,
        log_every=2,
        learning_rate=5e-3,
        warmup_steps=2,
        cache="memory",
        model=model,
    )
