"""Counting instead of training: the frequency baseline from annotations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import yaml

from haystack import files
from haystack.environment import note_environment
from haystack.errors import InputError
from haystack.models.relation.files import save_relation_model
from haystack.models.relation.frequency import FrequencyModel, count_predicates
from haystack.models.relation.inputs import scene_input
from haystack.models.relation.overlap import OVERLAPS, Overlap, OverlapFilter, overlapping
from haystack.models.relation.predict import read_scene
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Split

KIND = "frequency"
"""Value of ``kind`` in a configuration that asks for the baseline."""


@dataclass
class FrequencyConfig:
    """How to count.

    Args:
        kind: ``frequency``.
        annotations: annotation file, or the name of a bundled data set.
        split: ``train``, ``test`` or ``all`` of its images.
        overlap: ``boxes`` or ``masks`` count only pairs that overlap as background, and treat the
            others as not related in prediction (FREQ+OVERLAP); ``none`` (FREQ) does neither.
        epsilon: probability of what was never seen.
    """

    kind: str = KIND
    annotations: str = "psg-mini"
    split: str = "train"
    overlap: str = "none"
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        choices = {
            "kind": (KIND,),
            "split": ("train", "test", "all"),
            "overlap": ("none", *OVERLAPS),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InputError(
                    f"expected {name} to be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        if not self.epsilon > 0:
            raise InputError(f"expected a positive epsilon, got {self.epsilon}")


def count_model(
    config: FrequencyConfig, dataset: SceneGraphDataset, out: str | Path | None = None
) -> FrequencyModel | OverlapFilter:
    """Count the split of a data set; writes the run's folder, if ``out`` names one.

    Raises:
        InputError: the split has no image, or a panoptic PNG is broken.
    """
    graphs = dataset.split(cast(Split, config.split))
    if not graphs:
        raise InputError(f"the split '{config.split}' has no image to count")
    overlap = None if config.overlap == "none" else cast(Overlap, config.overlap)
    counts = count_predicates(
        graphs,
        dataset.vocabulary,
        faulty=dataset.faulty_segments,
        meets=None if overlap is None else partial(_meets, dataset, overlap),
    )
    model: FrequencyModel | OverlapFilter = FrequencyModel(
        counts, dataset.vocabulary, epsilon=config.epsilon
    )
    if overlap is not None:
        model = OverlapFilter(model, overlap)
    if out is not None:
        folder = Path(out)
        note_environment(folder)
        files.write_text(folder / "config.yaml", yaml.safe_dump(asdict(config), sort_keys=False))
        save_relation_model(model, folder / "model.safetensors")
    return model


def _meets(
    dataset: SceneGraphDataset, overlap: Overlap, graph: SceneGraph
) -> npt.NDArray[np.bool_]:
    # Boxes need no file beside the annotations.
    scene = scene_input(graph, None) if overlap == "boxes" else read_scene(dataset, graph)
    return overlapping(scene, overlap)
