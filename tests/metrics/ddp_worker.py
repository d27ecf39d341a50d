"""One process of ``test_distributed``: RANK, the number of processes, a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from haystack.metrics import PredicateAUROC, PredicateDisplacement, SceneGraphMetrics


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    shards = torch.load(folder / "shards.pt", weights_only=True)
    results = {}
    for case, parts in shards.items():
        graphs = SceneGraphMetrics(4, ks=(1, 3), per_predicate=True)
        auroc, displacement = PredicateAUROC(4, average=None), PredicateDisplacement(4)
        for preds, targets, scores, labels in parts[rank]:
            graphs.update(preds, targets)
            auroc.update(scores, labels)
            displacement.update(scores, labels)
        results[case] = [graphs.compute(), {"auroc": auroc.compute()}, displacement.compute()]
    torch.save(results, folder / f"result-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
