"""One process of ``test_distributed``: RANK, the number of processes, a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from haystack.metrics import (
    IndependentRecall,
    InstanceRecall,
    PredicateAUROC,
    PredicateDisplacement,
    PredicateRank,
    SceneGraphMetrics,
    TripletRecall,
)

TRAINING = [[0, 0, 0], [0, 1, 1], [1, 1, 2]]


def compute(parts):
    """Every metric over some batches, by name."""
    graphs = SceneGraphMetrics(4, ks=(1, 3), per_predicate=True, training=TRAINING)
    labelled = {
        "P-AUC": PredicateAUROC(4, average=None),
        "PDD and PDO": PredicateDisplacement(4),
    }
    ranked = {
        "recall": TripletRecall(4, ks=(1, 3)),
        "independent": IndependentRecall(4, ks=(1, 3), training=TRAINING),
        "rank": PredicateRank(4),
    }
    instances = InstanceRecall()
    for batch in parts:
        graphs.update(batch["preds"], batch["targets"])
        for metric in labelled.values():
            metric.update(batch["scores"], batch["labels"])
        for metric in ranked.values():
            metric.update(batch["scores"], batch["images"], batch["triplets"], num_images=2)
        instances.update(batch["found"], batch["images"], num_images=2)
    metrics = {"graphs": graphs, "instances": instances} | labelled | ranked
    flat = {}
    for name, metric in metrics.items():
        value = metric.compute()
        for key, part in value.items() if isinstance(value, dict) else [("", value)]:
            flat[f"{name} {key}"] = part
    return flat


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    shards = torch.load(folder / "shards.pt", weights_only=True)
    results = {case: compute(parts[rank]) for case, parts in shards.items()}
    torch.save(results, folder / f"result-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
