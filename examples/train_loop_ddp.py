"""Grade a model that several processes train, each on its share of the images.

    torchrun --nproc_per_node=2 examples/train_loop_ddp.py

Uses NCCL where every process has a GPU of its own, else gloo. Prints one JSON object an epoch.
"""

from __future__ import annotations

import argparse
import json
import os

import torch
import torch.distributed as dist
from synthetic import PREDICATES, PairClassifier, Scenes, collate, predictions
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from haystack.metrics import SceneGraphMetrics


class Trained(nn.Module):
    """DistributedDataParallel synchronises gradients of what runs in ``forward``: the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = PairClassifier()

    def forward(self, batch: list) -> torch.Tensor:
        """The loss of a batch."""
        return self.model.loss(batch)


def main(epochs: int) -> None:
    """Train and grade, as one of the processes."""
    local = int(os.environ["LOCAL_RANK"])
    use_cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local) if use_cuda else torch.device("cpu")
    dist.init_process_group("nccl" if use_cuda else "gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    train_images, test_images = Scenes(400, seed=1), Scenes(61, seed=2)
    sampler = DistributedSampler(train_images, shuffle=True, seed=0)
    train = DataLoader(train_images, batch_size=8, sampler=sampler, collate_fn=collate)
    # Not DistributedSampler here: it repeats images until all processes have as many, and
    # repeated images would count twice.
    share = Subset(test_images, range(rank, len(test_images), processes))
    test = DataLoader(share, batch_size=8, collate_fn=collate)

    trained = Trained().to(device)
    parallel = DistributedDataParallel(trained, device_ids=[local] if use_cuda else None)
    optimiser = torch.optim.Adam(trained.parameters(), lr=0.003)
    metrics = SceneGraphMetrics(PREDICATES, ks=(5, 10), from_logits=True, per_predicate=True).to(
        device
    )

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        trained.train()
        for batch in train:
            optimiser.zero_grad()
            parallel(batch).backward()
            optimiser.step()

        trained.eval()
        metrics.reset()
        with torch.inference_mode():
            for batch in test:
                metrics.update(predictions(batch, trained.model(batch)), batch)
        values = metrics.compute()  # adds up the states of all processes: all must call it
        if rank == 0:
            names = ("P-AUC", "PDD", "PDO", "mR@5")
            shown = {name: round(values[name].item(), 4) for name in names}
            print(json.dumps({"epoch": epoch, "images": int(values["support/images"]), **shown}))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    main(parser.parse_args().epochs)
