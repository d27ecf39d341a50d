"""Grade a model after every epoch, in one process.

    python examples/evaluate_in_training_loop.py

Prints one JSON object an epoch, and at the end the predicates one by one.
"""

from __future__ import annotations

import argparse
import json

import torch
from synthetic import PREDICATES, PairClassifier, Scenes, collate, predictions
from torch.utils.data import DataLoader

from haystack.metrics import SceneGraphMetrics


def main(epochs: int, device: str) -> None:
    """Train and grade."""
    torch.manual_seed(0)
    train = DataLoader(Scenes(400, seed=1), batch_size=16, shuffle=True, collate_fn=collate)
    test = DataLoader(Scenes(60, seed=2), batch_size=16, collate_fn=collate)
    model = PairClassifier().to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    # On an accelerator `update` never waits for it, and targets may stay on the CPU.
    metrics = SceneGraphMetrics(PREDICATES, ks=(5, 10), from_logits=True, per_predicate=True).to(
        device
    )

    for epoch in range(epochs):
        model.train()
        for batch in train:
            optimiser.zero_grad()
            model.loss(batch).backward()
            optimiser.step()

        model.eval()
        metrics.reset()
        with torch.inference_mode():
            for batch in test:
                metrics.update(predictions(batch, model(batch)), batch)
        values = metrics.compute()
        shown = {name: round(values[name].item(), 4) for name in ("P-AUC", "PDD", "PDO", "mR@5")}
        print(json.dumps({"epoch": epoch, **shown}))

    for predicate, auroc in enumerate(values["per_predicate/P-AUC"].tolist()):
        positives = int(values["support/positives"][predicate])
        print(f"predicate {predicate}: P-AUC {auroc:.3f} ({positives} positives)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.device)
