"""A user's folder: every file that the documentation names, small and real."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from openpsg_pickles import Result, write_results

from haystack.cli.configs import find_config
from haystack.config import load_config
from haystack.io import read_psg, write_psg
from haystack.io.datasets import BUNDLED
from haystack.io.prediction_parquet import write_prediction_parquet
from haystack.scene_graph import RelationScores
from haystack.training.config import TrainConfig
from haystack.training.trainer import train

ROOT = Path(__file__).parents[1]


def fill_folder(folder: Path) -> None:
    """Put ``psg.json``, ``photos/``, ``result.pkl`` and the like into ``folder``."""
    mini = BUNDLED["psg-mini"]
    for name in ("images", "panoptic"):
        (folder / name).symlink_to(mini.parent / name)
    for name in ("examples", "tools"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "haystack").mkdir()  # as in a clone
    (folder / "haystack" / "data").symlink_to(ROOT / "haystack" / "data")
    shutil.copy(mini, folder / "psg.json")
    shutil.copy(mini, folder / "masks.json")
    dataset = read_psg(folder / "psg.json")
    (folder / "photos").mkdir()
    for graph in dataset.graphs:
        (folder / "photos" / Path(graph.file_name).name).symlink_to(mini.parent / graph.file_name)
    (folder / "photographs").symlink_to(folder / "photos")
    shutil.copy(mini, folder / "panoptic.json")
    _haystack_v1(folder)
    (folder / "model.safetensors").write_bytes(_trained_model())
    for seed, name in enumerate(("P.parquet", "A.parquet", "B.parquet")):
        scores = predictions(dataset, seed)
        write_prediction_parquet(scores, folder / name, dataset.vocabulary.predicate_classes)
    for seed, name in enumerate(("result.pkl", "other.pkl")):
        _openpsg_result(folder / name, dataset, seed)


@cache
def _trained_model() -> bytes:
    """A VCTree of four steps."""
    with tempfile.TemporaryDirectory() as run:
        train(
            load_config(TrainConfig(), find_config("train/vctree_psg_mini"), ["steps=4"]), out=run
        )
        return (Path(run) / "model.safetensors").read_bytes()


def predictions(dataset, seed):
    """Random scores of all pairs of the test images."""
    rng = np.random.default_rng(seed)
    for graph in dataset.split("test"):
        count = len(graph.segments)
        pairs = np.array([(s, o) for s in range(count) for o in range(count) if s != o])
        scores = rng.random((len(pairs), dataset.vocabulary.num_predicates), dtype=np.float32)
        yield RelationScores(graph.image_id, pairs, scores / 60)


def _haystack_v1(folder: Path) -> None:
    """``annotation_v1.json`` with whole numbers as ids, and ``P.npy`` of it."""
    dataset = read_psg(folder / "psg.json")
    graphs = tuple(replace(graph, image_id=str(int(graph.image_id))) for graph in dataset.graphs)
    for name in ("annotation.json", "annotation_v1.json"):
        write_psg(replace(dataset, graphs=graphs), folder / name, integer_ids=True)
    rows = [
        np.concatenate(
            [np.full((len(image.pairs), 1), int(image.image_id)), image.pairs, image.scores], axis=1
        )
        for image in predictions(dataset, 0)
    ]
    np.save(folder / "P.npy", np.concatenate(rows))


def _openpsg_result(path: Path, dataset, seed: int) -> None:
    """PredCls results of the test images that have relations, in OpenPSG's pickle."""
    scores = {image.image_id: image for image in predictions(dataset, seed)}
    results = []
    for graph in dataset.split("test"):
        if not len(graph.relations):
            continue
        image = scores[graph.image_id]
        best = np.argsort(-image.scores.max(axis=1), kind="stable")
        none = np.full((len(best), 1), 0.1, np.float32)
        boxes = np.concatenate([graph.boxes, np.ones((len(graph.boxes), 1))], axis=1)
        results.append(
            Result(
                refine_bboxes=boxes.astype(np.float32),
                labels=graph.labels + 1,
                masks=None,
                rel_pair_idxes=image.pairs[best],
                rel_dists=np.concatenate([none, image.scores[best]], axis=1),
            )
        )
    write_results(path, results)
