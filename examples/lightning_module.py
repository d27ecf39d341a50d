"""Log Haystack's metrics from a LightningModule.

    python examples/lightning_module.py

Needs Lightning: ``pip install lightning``. Prints one JSON object an epoch.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys

import torch
from synthetic import PREDICATES, PairClassifier, Scenes, collate, predictions
from torch.utils.data import DataLoader

from haystack.metrics import PredicateAUROC, SceneGraphMetrics

try:
    import lightning
except ModuleNotFoundError:
    sys.exit("this example needs the package 'lightning'; run: pip install lightning")


class RelationModule(lightning.LightningModule):
    """Two ways to log: a metric that is one number, and a dict of numbers.

    Metrics are attributes of the module, so that Lightning moves them to its device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model = PairClassifier()
        self.auroc = PredicateAUROC(PREDICATES, mode="streaming")
        self.metrics = SceneGraphMetrics(PREDICATES, ks=(5, 10), from_logits=True)

    def training_step(self, batch: list, _: int) -> torch.Tensor:
        """The loss of a batch."""
        return self.model.loss(batch)

    def validation_step(self, batch: list, _: int) -> None:
        """Add a batch to the metrics."""
        logits = self.model(batch)
        self.metrics.update(predictions(batch, logits), batch)
        for image, values in zip(batch, logits, strict=True):
            self.auroc.update(values.softmax(1)[:, :-1], labels_of(image))
        # Given the metric itself, Lightning computes and resets it at the end of the epoch.
        self.log_dict({"val/P-AUC-streaming": self.auroc}, on_epoch=True, batch_size=len(batch))

    def on_validation_epoch_end(self) -> None:
        """Log what has no single number."""
        # `compute` has added up all processes; sync_dist would do so again.
        values = self.metrics.compute()
        self.log_dict({f"val/{name}": value.float() for name, value in values.items()})
        self.metrics.reset()
        if self.trainer.is_global_zero:
            names = ("P-AUC", "PDD", "PDO", "mR@5")
            shown = {name: round(values[name].item(), 4) for name in names}
            print(json.dumps({"epoch": self.current_epoch, **shown}))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.003)


def labels_of(image: dict) -> torch.Tensor:
    """Labels [R, P] of an image's pairs: 1, -1, or 0 where nothing is annotated."""
    objects = len(image["labels"])
    table = torch.zeros(objects, objects, PREDICATES, dtype=torch.int64)
    for sign, key in ((1, "relations"), (-1, "neg_relations")):
        table[tuple(image[key].T)] = sign
    return table[tuple(image["pairs"].T)]


def main(epochs: int) -> None:
    """Train and validate."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        RelationModule(),
        DataLoader(Scenes(400, seed=1), batch_size=16, shuffle=True, collate_fn=collate),
        DataLoader(Scenes(60, seed=2), batch_size=16, collate_fn=collate),
    )
    logged = {name: round(value.item(), 4) for name, value in trainer.callback_metrics.items()}
    print(json.dumps({"logged": logged}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    main(parser.parse_args().epochs)
