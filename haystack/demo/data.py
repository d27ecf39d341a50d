"""The demo's material: what the model may learn from, and what it has to search."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from haystack.io import read_psg, write_psg
from haystack.scene_graph import SceneGraph, SceneGraphDataset
from haystack.statistics import DatasetSummary

RARE_BELOW = 10
"""A predicate counts as rare with fewer training examples than this ..."""
KNOWN_FROM = 2
"""... and can be proposed only if the statistics filter can let it through (two examples) ..."""
NEEDLES_FROM = 3
"""... and says something about the search only if there are a few needles to find."""


class DemoData(NamedTuple):
    """Folders with ``annotation.json``, ``images/`` and ``panoptic/``, and their content.

    train: the photographs to learn from. held_out: the photographs to search, never learned from
    before people answer. folds: the held-out photographs cut into two halves, as image ids.
    """

    train_folder: Path
    held_out_folder: Path
    train: SceneGraphDataset
    held_out: SceneGraphDataset
    folds: tuple[frozenset[str], frozenset[str]]


def prepare(root: Path) -> DemoData:
    """Cut psg-mini by its own split into two self-contained folders under ``root``."""
    mini = read_psg("psg-mini")
    train = _write(root / "train", mini, mini.split("train"))
    held_out = _write(root / "held-out", mini, mini.split("test"))
    ids = [graph.image_id for graph in held_out.graphs]
    folds = (frozenset(ids[0::2]), frozenset(ids[1::2]))
    return DemoData(root / "train", root / "held-out", train, held_out, folds)


def rare_predicates(train: SceneGraphDataset, held_out: SceneGraphDataset) -> list[int]:
    """Predicates that are rare in training and have needles to find, the rarest first."""
    count = train.vocabulary.num_predicates
    seen = DatasetSummary.from_graphs(train.graphs, count).positives
    needles = DatasetSummary.from_graphs(held_out.graphs, count).positives
    chosen = [
        predicate
        for predicate in range(count)
        if KNOWN_FROM <= seen[predicate] < RARE_BELOW and needles[predicate] >= NEEDLES_FROM
    ]
    return sorted(chosen, key=lambda predicate: (seen[predicate], predicate))


def _write(
    folder: Path, source: SceneGraphDataset, graphs: tuple[SceneGraph, ...]
) -> SceneGraphDataset:
    for graph in graphs:
        for name in (graph.file_name, graph.pan_seg_file_name):
            if name is not None:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source.path_of(name), folder / name)
    faulty = source.faulty_segments
    part = replace(
        source,
        graphs=graphs,
        test_image_ids=(),
        faulty_segments={g.image_id: faulty[g.image_id] for g in graphs if g.image_id in faulty},
    )
    write_psg(part, folder / "annotation.json")
    return read_psg(folder / "annotation.json")
