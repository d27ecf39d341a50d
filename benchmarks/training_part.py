"""The part of models.py that trains: how many images a second, with encoded images kept or not."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from measure import Row, compared
from peers import Peers

from haystack.io import read_psg
from haystack.models.relation.config import FEATURES, RelationModelConfig
from haystack.training.config import TrainConfig
from haystack.training.trainer import train

_PASSES = 4
_IMAGES = 32
"""Of features that read no pictures: all training photographs."""


def training(sizes: Any, peers: Peers, scratch: Path) -> list[Row]:
    """VCTree on photographs of psg-mini: the second pass and later ones, reading included."""
    del peers
    mini = read_psg("psg-mini")
    rows = []
    for features in FEATURES:
        if features == "geometry":
            count, model = _IMAGES, RelationModelConfig()
        else:  # of OpenPSG's widths
            count = sizes.train_images
            model = RelationModelConfig(
                features=features,
                roi_dim=sizes.width,
                hidden_dim=sizes.width // 2,
                pooling_dim=4 * sizes.width,
                side_dim=sizes.width // 8,
                short_side=sizes.short_side,
            )
        dataset = replace(mini, graphs=mini.split("train")[:count])
        spent = {
            cache: _seconds(model, count, dataset, cache)
            for cache in ("none", "memory", str(scratch / "encoded"))
        }
        for cache, name in (("memory", "kept in memory"), (str(scratch / "encoded"), "on disk")):
            rows.append(
                compared(
                    "training",
                    f"a step, {features}, encoded images {name}",
                    1e3 * spent[cache],
                    "ms/image",
                    "encoded every time",
                    1e3 * spent["none"],
                    note=f"{1 / spent[cache]:.3g} and {1 / spent['none']:.3g} images/s",
                )
            )
    return rows


def _seconds(model: RelationModelConfig, count: int, dataset: Any, cache: str) -> float:
    """CPU seconds an image after the first pass; the fastest pass counts."""
    size = min(8, count)
    config = TrainConfig(
        epochs=_PASSES, batch_size=size, flip=False, cache=cache, learning_rate=1e-4, model=model
    )
    clock = [time.process_time()]
    train(config, dataset, progress=lambda *_: clock.append(time.process_time()))
    steps = count // size
    passes = [clock[start + steps] - clock[start] for start in range(steps, len(clock) - 1, steps)]
    return min(passes) / count
